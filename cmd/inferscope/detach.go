package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

const detachHelp = `detach stops watching a process: it removes the probes and waits until the agent that
records GPU activity has left. The process runs on, the daemon watches its other targets, and the
recording stays available until --keep is over.

    inferscope detach --pid 1234`

func detachCommand(g *global) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "detach [PID | NAME]",
		Short: "Stop watching a process",
		Long:  detachHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE:  f.about(func(cmd *cobra.Command) error { return g.detach(cmd, &f) }),
	}
	g.pidFlag(cmd, &f.pid, "release")
	return cmd
}

func (g *global) detach(cmd *cobra.Command, f *reportFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	client, pid, err := g.watched(cmd.Context(), f)
	if err != nil {
		return err
	}
	defer client.Close()
	done := g.progress(cmd.Context(), progressAfter, func(passed time.Duration) string {
		return fmt.Sprintf("waiting for probes and agent to leave pid %d: %.0f s", pid, passed.Seconds())
	})
	err = client.Release(cmd.Context(), pid)
	done()
	if err != nil {
		return err
	}
	fmt.Fprintf(g.stderr, "inferscope: pid %d is not watched any more\n", pid)
	return nil
}
