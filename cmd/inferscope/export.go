package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/export"
)

const exportHelp = `export writes a recording for another tool. SOURCE is a recording (.isc, .isc.zip), a trace
of torch.profiler or the SQLite export of Nsight Systems; with --pid it comes from the daemon.

    inferscope export t.isc --to perfetto -o t.perfetto-trace
    inferscope export t.isc -o t.pt.trace.json
    inferscope export --pid 1234 --last 10s --to pprof -o t.pb.gz

Without --to the format is that of the file's name. -o - is standard output.`

// exportFlags are the flags of export as they were typed.
type exportFlags struct {
	reportFlags // --pid, --last, --for, and how a missing pid is found
	to          string
}

func exportCommand(g *global) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export [SOURCE] --to FORMAT -o FILE",
		Short: "Write a recording for Perfetto, chrome://tracing, pprof, jq and others",
		Long:  exportHelp + "\n\nFormats:\n" + formatList(),
		Args:  cobra.MaximumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.export(cmd, &f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.to, "to", "", "format: "+strings.Join(exportFormats(), ", "))
	flags.StringVarP(&f.output, "output", "o", "", "file to write; - is standard output")
	flags.IntVar(&f.pid, "pid", 0, "process whose recording the daemon has, instead of SOURCE")
	g.completePID(cmd)
	flags.DurationVar(&f.last, "last", 0, "with --pid: only this much of the past, e.g. 30s")
	flags.DurationVar(&f.window, "for", 0, "with --pid: record from now on for this long, e.g. 10s")
	complete(cmd, "to", exportFormats()...)
	return cmd
}

func exportFormats() []string {
	var out []string
	for _, f := range export.Formats() {
		out = append(out, f.Name)
	}
	return out
}

func formatList() string {
	var b strings.Builder
	for _, f := range export.Formats() {
		fmt.Fprintf(&b, "  %-10s %-17s %s\n", f.Name, f.Extension, f.About)
	}
	return b.String()
}

func (g *global) export(cmd *cobra.Command, f *exportFlags, args []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	chosen, err := f.choose()
	if err != nil {
		return err
	}
	rec, err := g.exported(cmd, f, args)
	if err != nil {
		return err
	}
	if what, hint := chosen.Lacks(rec); what != "" {
		return clierror.New(clierror.General, hint,
			fmt.Errorf("export to %s: there are no %s in the recording", chosen.Name, what))
	}
	out, err := openOutput(f.output, g.stdout)
	if err != nil {
		return err
	}
	defer out.discard()
	done := g.progress(cmd.Context(), progressAfter, doing("writing", f.output))
	if err = chosen.Write(out, rec); err == nil {
		err = out.keep()
	}
	done()
	if err != nil {
		return clierror.New(clierror.General, "check that the place exists, can be written and has room", err)
	}
	if out.path != "" {
		fmt.Fprintf(g.stderr, "inferscope: wrote %s (%s)\n", format.Clean(out.path), chosen.Name)
	}
	return nil
}

// choose returns the format: --to takes precedence over the extension of the file.
func (f *exportFlags) choose() (export.Format, error) {
	if f.output == "" {
		return export.Format{}, clierror.New(clierror.Usage,
			"name a file with -o FILE; -o - is standard output",
			fmt.Errorf("export needs a place to write to"))
	}
	if f.to != "" {
		format, ok := export.Find(strings.ToLower(f.to))
		if !ok {
			return format, clierror.New(clierror.Usage, "choose "+strings.Join(exportFormats(), ", "),
				fmt.Errorf("--to: this version does not write %q", f.to))
		}
		return format, nil
	}
	format, ok := export.ForPath(f.output)
	if !ok {
		return format, clierror.New(clierror.Usage,
			"choose it with --to: "+strings.Join(exportFormats(), ", "),
			fmt.Errorf("the name %q implies no format", f.output))
	}
	return format, nil
}

// exported returns the recording to export.
func (g *global) exported(cmd *cobra.Command, f *exportFlags, args []string) (*recording.Recording, error) {
	daemon := f.pid != 0 || f.last != 0 || f.window != 0
	switch {
	case len(args) == 1 && daemon:
		return nil, clierror.New(clierror.Usage, "leave out SOURCE, or --pid, --last and --for",
			fmt.Errorf("a recording comes from a file or from the daemon, not from both"))
	case len(args) == 1:
		return g.open(cmd.Context(), args[0])
	case !daemon:
		return nil, clierror.New(clierror.Usage, "name a recording, or a process with --pid",
			fmt.Errorf("there is nothing to export"))
	}
	client, pid, err := g.watched(cmd.Context(), &f.reportFlags)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	defer g.progress(cmd.Context(), untilShown(f.window), recordingOf(pid, f.window))()
	return client.Recording(cmd.Context(), pid, api.Window{Last: f.last, For: f.window})
}
