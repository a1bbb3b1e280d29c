package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

func targetsCommand(g *global) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "targets",
		Short: "List the processes that the daemon watches",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.targets(cmd, asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (g *global) targets(cmd *cobra.Command, asJSON bool) error {
	client, err := g.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	targets, err := client.Targets(cmd.Context())
	if err != nil {
		return err
	}
	if asJSON {
		if targets == nil {
			targets = []api.Target{}
		}
		return writeJSON(g.stdout, targets)
	}
	if len(targets) == 0 {
		fmt.Fprintln(g.stderr, "inferscope: the daemon watches no process; watch one with: sudo inferscoped --pid N")
		return nil
	}
	d := &document.Document{}
	d.Add(targetTable(targets))
	return document.Text(g.stdout, d, styleOf(g.stdout, g.environ))
}

func targetTable(targets []api.Target) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("pid", 0), document.Left("Process", 0), document.Left("State", 0), document.Right("Watched", 4), document.Right("Processes", 3),
		document.Right("uid", 1), document.Left("Command", 2),
	}}
	for _, target := range targets {
		state := format.Clean(string(target.State))
		if target.Detail != "" {
			state += ": " + format.Clean(target.Detail)
		}
		t.Row(strconv.FormatUint(uint64(target.PID), 10), format.Clean(target.Comm), state, seconds(target.Watched),
			format.Count(len(target.Processes)), strconv.FormatUint(uint64(target.UID), 10), format.Shorten(format.Clean(target.Cmdline), 48))
	}
	return t
}

// seconds writes a number of seconds from the API.
func seconds(s float64) string { return format.Span(uint64(max(0, s) * 1e9)) }
