package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format"
)

const flightHelp = `flight makes the daemon write the events that it holds to its disk, as recordings for analyze. The
daemon must have been started with --record-dir, and only root may ask. kill -USR1 of the daemon does the same.

    sudo inferscope flight --pid 1234
    sudo inferscope flight               of all targets`

func flightCommand(g *global) *cobra.Command {
	var pid int
	cmd := &cobra.Command{
		Use:   "flight [--pid PID]",
		Short: "Save the last minute to the daemon's disk",
		Long:  flightHelp,
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := g.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			done := g.progress(cmd.Context(), progressAfter, func(passed time.Duration) string {
				return fmt.Sprintf("waiting for the daemon to write what it remembers: %.0f s", passed.Seconds())
			})
			saved, err := client.Save(cmd.Context(), uint32(max(0, pid)))
			done()
			if err != nil {
				return err
			}
			for _, path := range saved.Paths {
				fmt.Fprintln(g.stdout, format.Clean(path))
			}
			if len(saved.Paths) == 0 {
				fmt.Fprintln(g.stderr, "inferscope: the daemon holds no events of any target")
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&pid, "pid", 0, "target to save; all if it is left out")
	g.completePID(cmd)
	return cmd
}
