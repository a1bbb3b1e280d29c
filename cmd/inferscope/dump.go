package main

import (
	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/recording/dump"
)

const dumpHelp = `dump prints one stack of every thread of a process as it is now: Python and native
frames in one, and what each thread waits for. No thread is stopped.

    inferscope dump --pid 1234

Between Python frames the interpreter's own functions are left out (--all shows
them). A thread that is running on a CPU at this moment shows its Python frames
only: nobody else knows its registers.`

// dumpFlags are the flags of dump as they were typed.
type dumpFlags struct {
	reportFlags // --pid, and how a missing one is found
	children    bool
	all         bool
}

func dumpCommand(g *global) *cobra.Command {
	var f dumpFlags
	cmd := &cobra.Command{
		Use:   "dump [--pid PID]",
		Short: "Print what every thread of a process is doing now",
		Long:  dumpHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.dump(cmd, &f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	pidFlag(flags, &f.pid, "look at")
	flags.BoolVar(&f.children, "children", false, "its child processes too")
	flags.BoolVar(&f.all, "all", false, "also the interpreter's own functions between Python frames")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func (g *global) dump(cmd *cobra.Command, f *dumpFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	client, pid, err := g.watched(cmd.Context(), &f.reportFlags)
	if err != nil {
		return err
	}
	defer client.Close()
	d, err := client.Dump(cmd.Context(), pid, f.children)
	if err != nil {
		return err
	}
	if f.asJSON {
		return writeJSON(g.stdout, d)
	}
	return dump.Text(g.stdout, d, dump.TextOptions{All: f.all, Color: styleOf(g.stdout, g.environ).Color})
}
