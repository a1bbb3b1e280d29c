package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
)

const recordHelp = `record writes what the daemon sees of a process and its children from now on into a folder, ten
seconds at a time, so it may run for longer than the daemon keeps events. It ends after --for, when the process
ends, or with Ctrl-C; after a crash, what was written is a valid recording.

    inferscope record --pid 1234 --for 30s -o t.isc
    inferscope analyze t.isc
    inferscope pack t.isc`

// recordFlags are the flags of record as they were typed.
type recordFlags struct {
	reportFlags // --pid or a name, --for (0: until it is stopped), --gpu, -o
	force       bool
}

func recordCommand(g *global) *cobra.Command {
	var f recordFlags
	cmd := &cobra.Command{
		Use:   "record [PID | NAME] [--for 30s] [-o NAME.isc]",
		Short: "Record a process to disk from now on",
		Long:  recordHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE:  f.about(func(cmd *cobra.Command) error { return g.record(cmd, &f) }),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	g.pidFlag(cmd, &f.pid, "record")
	flags.DurationVar(&f.window, "for", 0, "how long, e.g. 30s; default: until Ctrl-C")
	flags.StringVarP(&f.output, "output", "o", "", "folder to write; inferscope-PID.isc if it is left out")
	flags.BoolVar(&f.force, "force", false, "replace a recording that is there")
	cuptiFlag(flags, &f.cupti)
	flags.StringVar(&f.gpu, "gpu", "",
		"continuous: record GPU activity all of that time; costs the program up to 40% meanwhile")
	complete(cmd, "gpu", api.GPUContinuous)
	return cmd
}

func (f *recordFlags) check(cmd *cobra.Command) error {
	r := f.reportFlags
	if f.gpu == api.GPUContinuous {
		r.gpu = "" // report needs --for with it; a recording is always about the time from now on
	}
	return r.check(cmd)
}

func (g *global) record(cmd *cobra.Command, f *recordFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	ctx := cmd.Context()
	c, err := g.reach(ctx, &f.reportFlags)
	if err != nil {
		return err
	}
	defer c.leave()
	client, pid := c.Client, c.pid
	began := time.Now() // before anybody can see that it has begun
	// Refuse a target that has ended or belongs to another user before anything is written.
	if _, err := client.Recording(ctx, pid, api.Window{Last: time.Millisecond}); err != nil {
		return err
	}
	if f.output == "" {
		f.output = fmt.Sprintf("inferscope-%d%s", pid, archive.Extension)
	}
	w, err := archive.Create(f.output, f.force)
	if err != nil {
		return createFault(err)
	}
	r := &recorder{
		client: client,
		writer: w,
		pid:    pid,
		window: f.window,
		gpu:    f.gpu,
		poll:   pollPeriod,
		began:  began,
		asked:  began,
	}
	done := g.progress(ctx, 0, r.progress())
	err = r.run(ctx)
	done()
	return g.reportRecorded(f.output, w, err)
}

func createFault(err error) error {
	hint := "choose a folder in a directory that exists and that you may write"
	if errors.Is(err, os.ErrExist) {
		hint = "choose another name with -o, or replace it with --force"
		return clierror.New(clierror.Usage, hint, err)
	}
	return clierror.New(clierror.General, hint, fmt.Errorf("writing the recording: %w", err))
}

// reportRecorded prints what was recorded, or returns err with what was kept.
func (g *global) reportRecorded(path string, w *archive.Writer, err error) error {
	m := w.Manifest()
	kept := fmt.Sprintf("%s: %s in %.1f s",
		format.Clean(path), format.Plural(m.Events(), "event", "events"), float64(m.To-m.From)/1e9)
	if err == nil {
		fmt.Fprintf(g.stderr, "inferscope: wrote %s\n", kept)
		return nil
	}
	if len(m.Stretches) == 0 {
		return clierror.New(clierror.CodeOf(err), hintOr(err, "nothing was recorded"), err)
	}
	hint := fmt.Sprintf("%skept, and valid without its end: %s", sentence(clierror.HintOf(err)), kept)
	return clierror.New(clierror.CodeOf(err), hint, err)
}

func hintOr(err error, other string) string {
	if hint := clierror.HintOf(err); hint != "" {
		return hint
	}
	return other
}

func sentence(hint string) string {
	if hint == "" {
		return ""
	}
	return hint + "; "
}

// margin is the overlap of consecutive parts, for events that arrive late. It bounds how late the daemon may answer
// without leaving a gap.
const margin = 2 * time.Second

// firstMargin is how much earlier than requested a recording may begin, so that the time the daemon takes to answer is
// not missing.
const firstMargin = 200 * time.Millisecond

// pollPeriod is how often the daemon is asked whether the target still runs.
const pollPeriod = time.Second

// recorder fetches a recording in parts.
type recorder struct {
	client *api.Client
	writer *archive.Writer
	pid    uint32
	window time.Duration
	gpu    string
	poll   time.Duration

	began time.Time
	asked time.Time // when the stretch before was asked for
	clock *archive.Clock
}

// run records until the time is over, the target has ended, or ctx ends, which is not an error.
func (r *recorder) run(ctx context.Context) error {
	stop, failed := r.continuous(ctx)
	defer stop()
	for reach := firstMargin; ; reach = margin {
		over, err := r.wait(ctx, failed)
		if err != nil {
			return err
		}
		// Ctrl-C ends the recording, but not the fetch of its last part.
		if err := r.stretch(context.WithoutCancel(ctx), reach); err != nil {
			return err
		}
		if over {
			break
		}
	}
	if err := r.writer.Finish(r.clock); err != nil {
		return diskFault(err)
	}
	return nil
}

// wait returns when the next part is due; over reports whether it is the last one.
func (r *recorder) wait(ctx context.Context, failed <-chan error) (over bool, err error) {
	next := r.asked.Add(archive.FileInterval)
	end := r.began.Add(r.window)
	if r.window > 0 && !end.After(next) {
		next, over = end, true
	}
	timer, look := time.NewTimer(time.Until(next)), time.NewTicker(r.poll)
	defer timer.Stop()
	defer look.Stop()
	for {
		select {
		case <-timer.C:
			return over, nil
		case <-ctx.Done():
			return true, nil
		case err := <-failed:
			return false, err
		case <-look.C:
			if r.gone(ctx) {
				return true, nil
			}
		}
	}
}

// gone reports whether the target has ended.
func (r *recorder) gone(ctx context.Context) bool {
	targets, err := r.client.Targets(ctx)
	if err != nil {
		return false // fetching the stretch will tell
	}
	for _, t := range targets {
		if t.PID == r.pid {
			return t.State == api.Exited
		}
	}
	return true
}

// fetchTime bounds how long fetching one part may take.
const fetchTime = time.Minute

// stretch fetches the part since the previous one, extended back by reach.
func (r *recorder) stretch(ctx context.Context, reach time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	now := time.Now()
	rec, err := r.client.Recording(ctx, r.pid, api.Window{Last: max(now.Sub(r.asked)+reach, time.Millisecond)})
	if err != nil {
		return err
	}
	r.asked = now
	r.clock = worse(r.clock, clockOf(rec))
	if err := r.writer.Append(rec); err != nil {
		return diskFault(err)
	}
	return nil
}

// worse merges the clock errors of two parts; nil is unknown.
func worse(a, b *archive.Clock) *archive.Clock {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	c := &archive.Clock{Error: max(a.Error, b.Error), Pairs: a.Pairs + b.Pairs}
	if a.Bound > 0 && b.Bound > 0 {
		c.Bound = max(a.Bound, b.Bound)
	}
	return c
}

// clockOf returns the clock error of a recording as its causal order shows it; nil if unknown or if no GPU activity was
// recorded.
func clockOf(rec *recording.Recording) *archive.Clock {
	if rec.Meta.GPU == nil || len(rec.Meta.GPU.Windows) == 0 {
		return nil
	}
	c := timeline.Build(rec).Clock
	if c.Pairs == 0 {
		return nil
	}
	return &archive.Clock{Error: c.Error, Bound: c.Bound, Pairs: c.Pairs}
}

func diskFault(err error) error {
	return clierror.New(clierror.General, "make room on the disk, or choose another place with -o",
		fmt.Errorf("writing the recording: %w", err))
}
