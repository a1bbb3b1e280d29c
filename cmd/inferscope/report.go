package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
)

const reportHelp = `report asks the daemon for what it recorded of a process and its children, and
says what limits it: where the time went, why the GPU was idle, what that costs and what to change,
then what threads, CUDA calls and the GPU did. It is about everything that is kept, the last stretch
of it (--last), or a stretch from now on (--for). The first lines hold the answer; what follows is what
it was made of. inferscope explain says more of each cause.

    inferscope report --pid 1234
    inferscope report --pid 1234 --last 30s
    inferscope report --pid 1234 --for 10s -o report.md
    inferscope report --pid 1234 --for 10s --gpu continuous
    inferscope report --pid 1234 --open

The format is that of --format, else of the file's extension (.txt, .md, .json, .html),
else INFERSCOPE_REPORT_FORMAT, else text on standard output and Markdown in a file.`

// maxPID is PID_MAX_LIMIT of 64-bit kernels.
const maxPID = 1 << 22

// reportFlags are the flags of report as they were typed.
type reportFlags struct {
	pid    int
	last   time.Duration
	window time.Duration // --for
	gpu    string
	format string
	asJSON bool
	output string
	open   bool
	margin string // µs
}

func reportCommand(g *global) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report [--pid PID]",
		Short: "Say what limits a process, why its GPU is idle, and what to change",
		Long:  reportHelp,
		Args:  noRecording,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.report(cmd, &f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.stretchFlags(flags, "report on")
	f.renderFlags(cmd)
	return cmd
}

// noRecording is noArguments that knows what somebody wants who names a recording.
func noRecording(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		if _, err := os.Stat(args[0]); err == nil {
			return clierror.New(clierror.Usage, "inferscope analyze "+format.Clean(args[0])+" makes the report of a recording", fmt.Errorf("%s is about a process that runs", cmd.CommandPath()))
		}
	}
	return noArguments(cmd, args)
}

func (g *global) report(cmd *cobra.Command, f *reportFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	configured, err := g.configured(f.typed())
	if err != nil {
		return err
	}
	format, err := f.choose(configured)
	if err != nil {
		return err
	}
	if err := f.page(format, g.stdout); err != nil {
		return err
	}
	ctx := cmd.Context()
	client, pid, err := g.watched(ctx, f)
	if err != nil {
		return err
	}
	defer client.Close()
	// Before the wait, so that nobody waits for a report that has nowhere to go.
	out, err := openOutput(f.output, g.stdout)
	if err != nil {
		return err
	}
	defer out.discard()
	done := g.progress(ctx, untilShown(f.window), recordingOf(pid, f.window))
	rec, err := client.Recording(ctx, pid, api.Window{Last: f.last, For: f.window, GPU: f.gpu})
	done()
	if err != nil {
		return err
	}
	if err := g.write(ctx, out, format, g.think(ctx, rec)); err != nil || !f.open {
		return err
	}
	return g.browse(out.path)
}

// think makes the report of a recording.
func (g *global) think(ctx context.Context, rec *recording.Recording) *report.Model {
	defer g.progress(ctx, patience, thinking)()
	return report.NewWith(rec, report.Options{ClockMargin: g.margin})
}

// write renders the model where it is wanted.
func (g *global) write(ctx context.Context, out *output, form string, m *report.Model) error {
	done := func() {}
	if out.path != "" { // else the report itself shows that it goes on
		done = g.progress(ctx, patience, doing("writing", out.path))
	}
	err := g.render(out, form, m)
	if err == nil {
		err = out.keep()
	}
	done()
	if err != nil {
		return clierror.New(clierror.General,
			"check that the place exists, can be written and has room; the daemon still has the recording: run the command again", err)
	}
	if out.path != "" {
		fmt.Fprintf(g.stderr, "inferscope: wrote %s\n", format.Clean(out.path))
	}
	return nil
}

func (g *global) render(w io.Writer, format string, m *report.Model) error {
	switch format {
	case formatJSON:
		return report.JSON(w, m)
	case formatMarkdown:
		return report.Markdown(w, m)
	case formatHTML:
		return report.HTML(w, m)
	}
	return report.Text(w, m, report.TextOptions{Style: styleOf(w, g.environ), ASCII: asciiOnly(w, g.environ)})
}

// check finds what is wrong with the flags by themselves.
func (f *reportFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	bad := func(hint, format string, args ...any) error {
		return clierror.New(clierror.Usage, hint, fmt.Errorf(format, args...))
	}
	switch {
	case changed("pid") && (f.pid < 1 || f.pid > maxPID):
		return bad("a pid is 1 to 4194304", "--pid: %d is not a process id", f.pid)
	case changed("last") && changed("for"):
		return bad("--last is about the past, --for about the time from now on", "--last and --for cannot be used together")
	case changed("last") && f.last <= 0:
		return bad("write it like 30s or 1m30s", "--last: %s is not a duration above 0", f.last)
	case changed("for") && f.window <= 0:
		return bad("write it like 10s or 1m30s", "--for: %s is not a duration above 0", f.window)
	case f.gpu != "" && f.gpu != api.GPUContinuous:
		return bad("write --gpu continuous, or leave it out: the daemon's own --gpu holds then", "--gpu: %q is not understood", f.gpu)
	case f.gpu != "" && !changed("for"):
		return bad("say for how long, e.g. --for 10s", "--gpu continuous is about the time from now on")
	case f.asJSON && f.format != "" && f.format != formatJSON:
		return bad("leave one of them out", "--json and --format %s cannot be used together", f.format)
	}
	return nil
}

// watched reaches the daemon, and says which process a command is about. The caller closes the client.
func (g *global) watched(ctx context.Context, f *reportFlags) (*api.Client, uint32, error) {
	client, err := g.dial()
	if err != nil {
		return nil, 0, err
	}
	pid, err := f.target(ctx, client)
	if err != nil {
		client.Close()
		return nil, 0, err
	}
	return client, pid, nil
}

// target returns the process to report on: the one named, or the only one there is.
func (f *reportFlags) target(ctx context.Context, c *api.Client) (uint32, error) {
	if f.pid != 0 {
		return uint32(f.pid), nil
	}
	targets, err := c.Targets(ctx)
	if err != nil {
		return 0, err
	}
	switch len(targets) {
	case 0:
		return 0, clierror.New(clierror.NoProcess, "watch one with: sudo inferscoped --pid N", fmt.Errorf("the daemon watches no process"))
	case 1:
		return targets[0].PID, nil
	}
	var names []string
	for _, t := range targets {
		names = append(names, fmt.Sprintf("%d (%s)", t.PID, format.Clean(t.Comm)))
	}
	return 0, clierror.New(clierror.Usage, "say which one with --pid", fmt.Errorf("the daemon watches %d processes: %s", len(targets), strings.Join(names, ", ")))
}
