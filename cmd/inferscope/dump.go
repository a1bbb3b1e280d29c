package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/recording/dump"
)

const dumpHelp = `dump prints one stack of every thread of a process as it is now: Python and native
frames in one, and what each thread waits for. No thread is stopped.

    inferscope dump --pid 1234

Between Python frames the interpreter's own functions are left out (--all shows
them). A thread that is running on a CPU at this moment shows its Python frames
only: its registers are not readable from outside.`

// dumpFlags are the flags of dump as they were typed.
type dumpFlags struct {
	reportFlags // --pid, and how a missing one is found
	children    bool
	all         bool
}

func dumpCommand(g *global) *cobra.Command {
	var f dumpFlags
	cmd := &cobra.Command{
		Use:   "dump [PID | NAME]",
		Short: "Print what every thread of a process is doing now",
		Long:  dumpHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE:  f.about(func(cmd *cobra.Command) error { return g.dump(cmd, &f) }),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	g.pidFlag(cmd, &f.pid, "look at")
	flags.BoolVar(&f.children, "children", false, "also its child processes")
	flags.BoolVar(&f.all, "all", false, "also the interpreter's own functions between Python frames")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func (g *global) dump(cmd *cobra.Command, f *dumpFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	c, err := g.reach(cmd.Context(), &f.reportFlags)
	if err != nil {
		return err
	}
	defer c.leave()
	done := g.progress(cmd.Context(), progressAfter, func(passed time.Duration) string {
		return fmt.Sprintf("looking at the threads of pid %d: %.0f s", c.pid, passed.Seconds())
	})
	d, err := c.Dump(cmd.Context(), c.pid, f.children)
	done()
	if err != nil {
		return err
	}
	if f.asJSON {
		return writeJSON(g.stdout, d)
	}
	return dump.Text(g.stdout, d, dump.TextOptions{All: f.all, Color: styleOf(g.stdout, g.environ).Color})
}
