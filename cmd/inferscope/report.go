package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
)

const reportHelp = `report shows what limits a process and its children: where the time went, why the GPU was idle,
what that costs and what to change. It covers all that the daemon keeps, the last part of it (--last), or an interval
from now on (--for). inferscope explain describes each cause.

    sudo inferscope report --pid 1234      without a daemon: one is started for the next 10 s
    inferscope report                      the only target of the daemon
    inferscope report infer.py             by the name of a program, script or pod
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
	name   string // as an argument: of a program, a script, a pod
	last   time.Duration
	window time.Duration // --for
	gpu    string
	cupti  string // for a daemon that is started for the command
	format string
	asJSON bool
	output string
	open   bool
	margin string // µs
	full   bool
	plain  bool // --no-pager
	slo    string
}

func reportCommand(g *global) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report [PID | NAME]",
		Short: "Report what limits a process, why its GPU is idle, and what to change",
		Long:  reportHelp,
		Args:  oneTarget,
		RunE:  f.about(func(cmd *cobra.Command) error { return g.report(cmd, &f) }),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	g.stretchFlags(cmd, &f, "report on")
	f.renderFlags(cmd)
	return cmd
}

// oneTarget accepts a pid or a name, and hints at analyze when the argument is a recording.
func oneTarget(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		info, err := os.Stat(args[0])
		_, number := strconv.Atoi(args[0])
		if err == nil && number != nil && (info.IsDir() || filepath.Ext(args[0]) != "") {
			return clierror.New(clierror.Usage,
				"inferscope analyze "+format.Clean(args[0])+" makes the report of a recording",
				fmt.Errorf("%s is about a process that runs", cmd.CommandPath()))
		}
	}
	return cobra.MaximumNArgs(1)(cmd, args)
}

func (g *global) report(cmd *cobra.Command, f *reportFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	format, err := g.reportFormat(f)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	c, err := g.reach(ctx, f)
	if err != nil {
		return err
	}
	defer c.leave()
	// Open the output before waiting, so that an unwritable path fails at once.
	out, err := openOutput(f.output, g.stdout)
	if err != nil {
		return err
	}
	defer out.discard()
	rec, err := c.fetch(ctx, f)
	if err != nil {
		return err
	}
	g.short = f.short(format)
	m := g.analyzed(ctx, rec)
	c.leave() // before a pager or a reader that goes away
	return g.present(ctx, f, format, out, m)
}

// reportFormat applies the flags and settings of a report, checks them, and returns the format of the report.
func (g *global) reportFormat(f *reportFlags) (string, error) {
	if err := g.setObjective(f.slo); err != nil {
		return "", err
	}
	configured, err := g.configured(f.typed())
	if err != nil {
		return "", err
	}
	format, err := f.choose(configured)
	if err != nil {
		return "", err
	}
	return format, f.checkHTML(format, g.stdout)
}

// present writes a report, through a pager where one is wanted, and opens it in a browser with --open.
func (g *global) present(ctx context.Context, f *reportFlags, format string, out *output, m *report.Model) error {
	err := g.withPager(f, format, out, func() error { return g.write(ctx, out, format, m) })
	if err != nil || !f.open {
		return err
	}
	return g.openInBrowser(out.path)
}

// analyzed analyzes a recording.
func (g *global) analyzed(ctx context.Context, rec *recording.Recording) *report.Model {
	defer g.progress(ctx, progressAfter, thinking)()
	return report.NewWith(rec, report.Options{ClockMargin: g.margin, Objective: g.objective})
}

// write renders the model to its destination.
func (g *global) write(ctx context.Context, out *output, form string, m *report.Model) error {
	done := func() {}
	if out.path != "" { // else the report itself shows that it goes on
		done = g.progress(ctx, progressAfter, doing("writing", out.path))
	}
	err := g.render(out, form, m)
	if err == nil {
		err = out.keep()
	}
	done()
	if err != nil {
		return clierror.New(
			clierror.General,
			"check that the place exists, can be written and has room; the daemon still has the recording: run the command again",
			err,
		)
	}
	if out.path != "" {
		as := ""
		if byExtension(out.path) != form {
			as = " as " + form
		}
		fmt.Fprintf(g.stderr, "inferscope: wrote %s%s\n", format.Clean(out.path), as)
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
	screen := w
	if g.paging != nil {
		screen = g.paging
	}
	return report.Text(
		w,
		m,
		report.TextOptions{Style: styleOf(screen, g.environ), ASCII: asciiOnly(screen, g.environ), Short: g.short},
	)
}

// check validates the flags.
func (f *reportFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	bad := func(hint, format string, args ...any) error {
		return clierror.New(clierror.Usage, hint, fmt.Errorf(format, args...))
	}
	switch {
	case changed("pid") && (f.pid < 1 || f.pid > maxPID):
		return bad("a pid is 1 to 4194304", "--pid: %d is not a process id", f.pid)
	case changed("last") && changed("for"):
		return bad("--last is about the past, --for about the time from now on",
			"--last and --for cannot be used together")
	case changed("last") && f.last <= 0:
		return bad("write it like 30s or 1m30s", "--last: %s is not a duration above 0", f.last)
	case changed("for") && f.window <= 0:
		return bad("write it like 10s or 1m30s", "--for: %s is not a duration above 0", f.window)
	case f.gpu != "" && f.gpu != api.GPUContinuous:
		return bad("write --gpu continuous, or leave it out: the daemon's own --gpu holds then",
			"--gpu: %q is not understood", f.gpu)
	case f.gpu != "" && !changed("for"):
		return bad("say for how long, e.g. --for 10s", "--gpu continuous is about the time from now on")
	case f.asJSON && f.format != "" && f.format != formatJSON:
		return bad("leave one of them out", "--json and --format %s cannot be used together", f.format)
	}
	return nil
}
