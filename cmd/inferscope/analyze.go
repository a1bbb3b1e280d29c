package main

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
)

const analyzeHelp = `analyze makes the report of a recording that was made earlier, by inferscope record, run or
pack: the same report as at that time. It needs no daemon, no root and no GPU. It reads
traces of torch.profiler and SQLite files of Nsight Systems as well, and lists what they lack. Several of
them, or a folder, are the ranks of one program: one report covers all, and shows who waits for whom.

    inferscope analyze t.isc
    inferscope analyze t.isc.zip --output report.html
    inferscope analyze rank0.json.gz rank1.json.gz
    inferscope analyze traces/
    inferscope analyze host-a.isc host-b.isc

Recordings of several hosts, made at the same time, are joined: the offsets between their clocks are estimated from
the collective operations of their ranks and shown with their error. Requests, sensors and pressure are left out then.

The format is chosen as report does.`

func analyzeCommand(g *global) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "analyze FILE...",
		Short: "Report on a recording or another profiler's trace",
		Long:  analyzeHelp,
		Args:  someFiles,
		RunE:  func(cmd *cobra.Command, args []string) error { return g.analyze(cmd.Context(), &f, args) },
	}
	cmd.Flags().SortFlags = false
	f.renderFlags(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return f.check(cmd) }
	return cmd
}

// someFiles checks the arguments of commands that take one or more files.
func someFiles(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return nil
	}
	return clierror.New(clierror.Usage, "see "+cmd.CommandPath()+" --help",
		fmt.Errorf("%s takes one file or more", cmd.CommandPath()))
}

// oneFile checks the arguments of commands that take one file.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return clierror.New(clierror.Usage, "see "+cmd.CommandPath()+" --help",
		fmt.Errorf("%s takes one file, not %d", cmd.CommandPath(), len(args)))
}

func (g *global) analyze(ctx context.Context, f *reportFlags, paths []string) error {
	format, err := g.reportFormat(f)
	if err != nil {
		return err
	}
	rec, err := g.load(ctx, paths)
	if err != nil {
		return err
	}
	out, err := openOutput(f.output, g.stdout)
	if err != nil {
		return err
	}
	defer out.discard()
	g.short = f.short(format)
	m := g.analyzed(ctx, rec)
	return g.present(ctx, f, format, out, m)
}

// load reads a recording in any supported format; several paths are joined into one recording.
func (g *global) load(ctx context.Context, paths []string) (*recording.Recording, error) {
	rec, err := g.openAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	// A recording without its end says so, where standard output stays data.
	if in, err := archive.Inspect(paths[0], false); err == nil && in.Manifest.State != archive.Complete {
		fmt.Fprintf(
			g.stderr,
			"inferscope: warning: this recording was not finished: it ends with its last complete part; "+
				"%d files of the next part are lost\n",
			len(in.Unfinished),
		)
	}
	return rec, nil
}

// recordingFault adds a hint to the error of a recording that cannot be read.
func recordingFault(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return clierror.New(clierror.Usage, "name a recording: a folder NAME.isc, or NAME.isc.zip", err)
	case errors.Is(err, archive.ErrEmpty):
		return clierror.New(clierror.General, "record again", err)
	case errors.Is(err, zip.ErrFormat):
		return clierror.New(clierror.General, "name a recording that is whole: a folder NAME.isc, or NAME.isc.zip", err)
	}
	return clierror.New(clierror.General, "inferscope info --verify lists the damaged files", err)
}
