package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/human"
	"github.com/inferscope/inferscope/internal/page"
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
	d := &page.Document{}
	d.Add(targetTable(targets))
	return page.Text(g.stdout, d, styleOf(g.stdout, g.environ))
}

func targetTable(targets []api.Target) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Right("pid", 0), page.Left("Process", 0), page.Left("State", 0), page.Right("Watched", 4), page.Right("Processes", 3),
		page.Right("uid", 1), page.Left("Command", 2),
	}}
	for _, target := range targets {
		state := human.Clean(string(target.State))
		if target.Detail != "" {
			state += ": " + human.Clean(target.Detail)
		}
		t.Row(strconv.FormatUint(uint64(target.PID), 10), human.Clean(target.Comm), state, seconds(target.Watched),
			human.Count(len(target.Processes)), strconv.FormatUint(uint64(target.UID), 10), human.Shorten(human.Clean(target.Cmdline), 48))
	}
	return t
}

// seconds writes a number of seconds from the API.
func seconds(s float64) string { return human.Span(uint64(max(0, s) * 1e9)) }
