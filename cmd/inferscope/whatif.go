package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/report/document"
)

const whatifHelp = `whatif predicts how much faster a process would be after a change. It replays the recording with
that time shortened, taken off the critical path or not waited for. Without a change it lists what each cause's remedy
would bring, and each function, call, copy and kernel. FILE is a recording, or another profiler's trace; then no daemon
is needed.

    inferscope whatif --pid 1234
    inferscope whatif run.isc --without host-sync --faster 'tokenize*=2'
    inferscope whatif --pid 1234 --kernel 'gemm*=1.5'
    inferscope whatif --pid 1234 --without queueing

--without takes a cause (see inferscope explain) and applies its remedy, or a function, which is then not called.
A function includes everything that it calls. For a cause of requests (queueing, kv-cache, api-server) the answer is
when their first token would come without that time, everything else unchanged. --workers sets how many times as many
workers share the work of --without worker. Names may hold * and ?. Flags can be repeated; all changes apply together.`

// whatifRows is the number of rows of a table on the screen; JSON has all.
const whatifRows = 20

// whatifFlags are the flags of whatif as they were typed.
type whatifFlags struct {
	reportFlags
	without, faster, kernel, overlap, merge []string
	workers                                 int
}

func whatifCommand(g *global) *cobra.Command {
	var f whatifFlags
	cmd := &cobra.Command{
		Use:   "whatif [PID | NAME | FILE]",
		Short: "Predict the speed-up of a change",
		Long:  whatifHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.whatif(cmd, &f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	g.stretchFlags(cmd, &f.reportFlags, "ask about")
	flags.StringArrayVar(&f.without, "without", nil, "a cause, with its remedy, or a function")
	flags.StringArrayVar(&f.faster, "faster", nil, "a cause or function to make this many times as fast: 'tokenize*=2'")
	flags.StringArrayVar(&f.kernel, "kernel", nil, "a kernel to make this many times as fast: 'gemm*=1.5'")
	flags.StringArrayVar(&f.overlap, "overlap", nil, "a cause, function or copy to run in parallel with the rest")
	flags.StringArrayVar(&f.merge, "merge", nil,
		"small copies or elementwise kernels in a row to make one of: sync-copy, launch-overhead, h2d, d2h")
	flags.IntVar(&f.workers, "workers", 0,
		"with --without worker: how many times as many workers there are; 0: as many as it takes")
	jsonFlag(cmd, &f.asJSON)
	for _, flag := range []string{"without", "faster", "overlap"} {
		complete(cmd, flag, causeKeys()...)
	}
	complete(cmd, "merge", "sync-copy", "launch-overhead", "h2d", "d2h")
	return cmd
}

func (g *global) whatif(cmd *cobra.Command, f *whatifFlags, args []string) error {
	edits, err := f.edits()
	if err != nil {
		return clierror.New(clierror.Usage, "see inferscope whatif --help", err)
	}
	if err := f.check(cmd); err != nil {
		return err
	}
	rec, err := g.recordingFor(cmd.Context(), f, args)
	if err != nil {
		return err
	}
	done := g.progress(cmd.Context(), progressAfter, thinking)
	answer := analysis.Run(rec).WhatIf(edits)
	done()
	for _, e := range edits {
		without := func(x whatif.FirstToken) bool { return x.Cause == e.Pattern }
		if e.Verb == whatif.Without && cause.OfRequests(e.Pattern) && !slices.ContainsFunc(answer.FirstToken, without) {
			fmt.Fprintf(g.stderr, "inferscope: warning: no first token of this recording is delayed by %s\n", e.Pattern)
		}
	}
	if f.asJSON {
		err = writeJSON(g.stdout, answer)
	} else {
		err = document.Text(g.stdout, report.WhatIfDocument(answer, whatifRows), styleOf(g.stdout, g.environ))
	}
	if err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	if answer.Asked != nil && answer.Asked.Empty() {
		return g.nothingNamed(edits)
	}
	return nil
}

// nothingNamed is an error where edits that touch nothing name anything but causes: a cause may well take no time.
func (g *global) nothingNamed(edits []whatif.Edit) error {
	text := "nothing in this recording is called " + format.Clean(named(edits))
	const hint = "inferscope whatif without flags lists what is"
	for _, e := range edits {
		if _, _, ok := cause.ByKey(e.Pattern); !ok {
			return clierror.New(clierror.Usage, hint, errors.New(text))
		}
	}
	fmt.Fprintf(g.stderr, "inferscope: warning: %s: %s\n", text, hint)
	return nil
}

// isFile reports whether an argument names a recording: the file exists, or the name looks like one.
func isFile(name string) bool {
	if _, err := os.Stat(name); err == nil {
		return true
	}
	return strings.ContainsRune(name, os.PathSeparator) ||
		slices.Contains([]string{".isc", ".zip", ".json", ".gz", ".sqlite"}, filepath.Ext(name))
}

// named returns the quoted patterns of the edits.
func named(edits []whatif.Edit) string {
	var out []string
	for _, e := range edits {
		out = append(out, fmt.Sprintf("%q", e.Pattern))
	}
	return strings.Join(out, " or ")
}

// edits parses the edits in the order of their flags.
func (f *whatifFlags) edits() ([]whatif.Edit, error) {
	var out []whatif.Edit
	for _, group := range []struct {
		verb  whatif.Verb
		texts []string
	}{
		{whatif.Without, f.without},
		{whatif.Faster, f.faster},
		{whatif.Kernels, f.kernel},
		{whatif.Overlap, f.overlap},
		{whatif.Merge, f.merge},
	} {
		for _, text := range group.texts {
			e, err := whatif.Parse(group.verb, text)
			if err != nil {
				return nil, fmt.Errorf("--%s %w", group.verb, err)
			}
			if group.verb == whatif.Without {
				e.Workers = f.workers
			}
			out = append(out, e)
		}
	}
	if f.workers < 0 {
		return nil, fmt.Errorf("--workers: %d is less than none", f.workers)
	}
	return out, nil
}

// recordingFor reads the named file, or fetches a recording from the daemon.
func (g *global) recordingFor(ctx context.Context, f *whatifFlags, args []string) (*recording.Recording, error) {
	if len(args) == 1 && isFile(args[0]) {
		if f.pid != 0 {
			return nil, clierror.New(clierror.Usage, "leave one of them out",
				fmt.Errorf("--pid and a file cannot be used together"))
		}
		return g.open(ctx, args[0])
	}
	if err := f.takeName(args); err != nil {
		return nil, err
	}
	c, err := g.reach(ctx, &f.reportFlags)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	return c.fetch(ctx, &f.reportFlags)
}
