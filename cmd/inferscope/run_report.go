package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// job is one run of a program.
type job struct {
	path    string
	args    []string
	out     place
	goal    *goal // of out, held since before the program began; nil: it could not be opened
	flags   *runFlags
	as      *account // nil: as we do
	starved bool     // it was killed while the kernel killed for want of memory
}

// place is the destination of the report.
type place struct{ path, format string }

// daemonFlags returns the flags of a temporary daemon; it reads the environment and the settings file itself.
func (j *job) daemonFlags() []string {
	var out []string
	for flag, value := range map[string]string{
		"--gpu": j.flags.gpu, "--cupti": j.flags.cupti, "--trace-size-mb": j.flags.traceMB,
		"--cpu-sampling-frequency-hz": j.flags.sampleHz,
	} {
		if value != "" {
			out = append(out, flag, value)
		}
	}
	if j.flags.noInject {
		out = append(out, "--no-inject")
	}
	return out
}

// place returns the destination and the format of the report. Precedence: flag, file extension, settings. A default
// path gets the extension of the format.
func (g *global) place(f *runFlags, s config.Settings) (place, error) {
	p := place{path: s.ReportPath, format: s.ReportFormat}
	_, origins, err := g.origins(f.typed())
	if err != nil {
		return p, err
	}
	chosen := map[string]bool{}
	for _, o := range origins {
		chosen[o.Key] = o.Where != ""
	}
	switch named := byExtension(p.path); {
	case f.format != "":
		p.format = strings.ToLower(f.format)
	case f.report != "" && named != "", named != "" && !chosen["report_format"]:
		p.format = named
	}
	if p.format, err = known("--format", p.format); err != nil {
		return p, err
	}
	if endings := map[string]string{"html": ".html", formatJSON: ".json", formatText: ".txt"}; !chosen["report_path"] &&
		endings[p.format] != "" {
		p.path = strings.TrimSuffix(p.path, filepath.Ext(p.path)) + endings[p.format]
	}
	return p, nil
}

// supervise runs the program and writes the report. Once the program has started, the error is its exitCode.
func (g *global) supervise(ctx context.Context, j *job) (err error) {
	w, err := g.attach(j)
	if err != nil {
		return err
	}
	defer func() {
		if closing := w.close(); closing != nil {
			fmt.Fprintf(g.stderr, "inferscope: warning: %v\n", closing)
		}
	}()
	g.probePlace(j)
	defer func() { j.goal.close() }()
	agents, err := w.agents(ctx, j)
	if err != nil {
		return err
	}
	environ, done, err := j.environment(w.reachable(g.environ, g.socket), agents)
	if err != nil {
		return err
	}
	defer done()
	p, err := startGated(j.path, j.args, j.as.environ(environ), j.as)
	if err != nil {
		return err
	}
	if err := w.Watch(ctx, p.pid); err != nil {
		p.abandon()
		return err
	}
	oom := oomKills()
	if err := p.pass(); err != nil {
		p.abandon()
		return fmt.Errorf("letting %s begin: %w", j.args[0], err)
	}
	status := p.wait()
	j.starved = status.Signaled() && status.Signal() == unix.SIGKILL && oomKills() > oom
	g.ended(j, status)
	if err := g.conclude(ctx, w, p.pid, j); err != nil {
		complain(g.stderr, err)
		return exitCode(max(codeOf(status), 1))
	}
	return exitCode(codeOf(status))
}

// probePlace opens the directory of the report, so that the program cannot redirect it, and warns before a long run if
// it is not writable.
func (g *global) probePlace(j *job) {
	to, err := openGoal(j.out.path, j.as.rights())
	if err == nil {
		j.goal = to
		var out *output
		if out, err = to.begin(g.stdout); err == nil {
			out.discard()
		}
	}
	if err != nil {
		fmt.Fprintf(g.stderr, "inferscope: warning: %v: the recording will be kept instead, unless that changes\n", err)
	}
}

// codeOf returns the exit code for a wait status, as shells do.
func codeOf(s unix.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// ended reports a program that did not end well.
func (g *global) ended(j *job, s unix.WaitStatus) {
	name := format.Clean(filepath.Base(j.args[0]))
	switch {
	case j.starved:
		fmt.Fprintf(
			g.stderr,
			"inferscope: %s was killed by SIGKILL, and the kernel reported an OOM kill meanwhile: "+
				"it ran out of memory\n",
			name,
		)
	case s.Signaled():
		fmt.Fprintf(g.stderr, "inferscope: %s was killed by %s\n", name, unix.SignalName(s.Signal()))
	case s.ExitStatus() != 0:
		fmt.Fprintf(g.stderr, "inferscope: %s exited with code %d\n", name, s.ExitStatus())
	}
}

// conclude writes the report of a program that has ended. Ctrl-C ends the wait for it.
func (g *global) conclude(ctx context.Context, w *watcher, pid uint32, j *job) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	awaitEnd(ctx, w.Client, pid)
	done := g.progress(ctx, progressAfter, recordingOf(pid, 0))
	rec, err := w.Recording(ctx, pid, api.Window{})
	done()
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return fmt.Errorf("fetching the recording: %w", err)
	}
	for i := range rec.Meta.Processes {
		p := &rec.Meta.Processes[i]
		p.OutOfMemory = p.PID == pid && j.starved
	}
	g.warn(ctx, w, rec)
	if err := g.file(ctx, j, rec); err != nil {
		return g.save(j, rec, err)
	}
	return nil
}

// endTime bounds how long the daemon may take to notice that the program has ended.
const endTime = 3 * time.Second

// awaitEnd waits until the daemon has noticed the end of the program, so that the report contains it.
func awaitEnd(ctx context.Context, c *api.Client, pid uint32) {
	for end := time.Now().Add(endTime); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		targets, err := c.Targets(ctx)
		if err != nil {
			return
		}
		for _, t := range targets {
			for _, p := range t.Processes {
				if p.PID == pid && t.PID == pid && p.Parent == 0 && p.Died != 0 {
					return
				}
			}
		}
	}
}

// warn prints warnings about the recording.
func (g *global) warn(ctx context.Context, w *watcher, rec *recording.Recording) {
	lines, err := w.warnings(ctx)
	if err != nil {
		lines = []string{err.Error()}
	}
	for _, line := range lines {
		fmt.Fprintf(g.stderr, "inferscope: warning: %s\n", format.Clean(line))
	}
	if len(rec.Meta.Libraries) == 0 {
		fmt.Fprintln(
			g.stderr,
			"inferscope: warning: the program loaded no CUDA library: the report is about the CPU only. Where it should have used a GPU, check that CUDA and its driver are installed.",
		)
	}
}

// file writes the report.
func (g *global) file(ctx context.Context, j *job, rec *recording.Recording) error {
	if err := g.oneDevice(rec); err != nil {
		return err
	}
	if j.goal == nil {
		to, err := openGoal(j.out.path, j.as.rights())
		if err != nil {
			return err
		}
		j.goal = to
	}
	out, err := j.goal.begin(g.stdout)
	if err != nil {
		return err
	}
	defer out.discard()
	return g.write(ctx, out, j.out.format, g.analyzed(ctx, rec))
}

// save keeps a recording whose report could not be written, and prints its path.
func (g *global) save(j *job, rec *recording.Recording, why error) error {
	var tried []error
	for _, dir := range []string{filepath.Dir(j.out.path), ".", os.TempDir()} {
		path, err := keepRecording(dir, rec, j.as.rights())
		if err == nil {
			do := "check that there is room on the disk and that the path can be written"
			if hint := clierror.HintOf(why); hint != "" {
				do += "; " + hint
			}
			return clierror.New(clierror.General, fmt.Sprintf("%s; then: inferscope analyze %s -o FILE", do, path),
				fmt.Errorf("the report was not written: %w; the recording is kept in %s", why, path))
		}
		tried = append(tried, err)
	}
	return clierror.New(
		clierror.General,
		"make room, and run it again",
		fmt.Errorf("the report was not written: %w; nor could the recording be kept: %w", why, errors.Join(tried...)),
	)
}
