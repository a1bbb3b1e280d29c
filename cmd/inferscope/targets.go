package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

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
		fmt.Fprintln(
			g.stderr,
			"inferscope: the daemon watches no process; inferscope ps lists those that use a GPU, "+
				"inferscope attach PID adds one",
		)
		return nil
	}
	d := &document.Document{}
	d.Add(targetTable(targets))
	return document.Text(g.stdout, d, styleOf(g.stdout, g.environ))
}

func targetTable(targets []api.Target) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("pid", 0),
		document.Left("Process", 0),
		document.Left("State", 0),
		document.Left("Roles", 9),
		document.Left("GPUs", 8),
		document.Left("Pod", 7),
		document.Left("Container", 6),
		document.Left("Image", 5),
		document.Right("Watched", 4),
		document.Right("Processes", 2),
		document.Right("uid", 1),
		document.Left("Command", 3),
	}}
	used := map[string]bool{}
	for i := range targets {
		target := &targets[i]
		state := format.Clean(string(target.State))
		if target.Detail != "" && target.State != api.Released { // which says it all
			state += ": " + format.Clean(target.Detail)
		}
		row := map[string]string{
			"Roles": roleNames(target.Roles), "GPUs": gpuNames(target.GPUs), "Pod": podName(&target.Place),
			"Container": containerName(&target.Place), "Image": format.Shorten(format.Clean(target.Image), 32),
		}
		for title, text := range row {
			used[title] = used[title] || text != ""
		}
		t.Row(strconv.FormatUint(uint64(target.PID), 10), format.Clean(target.Comm), state, row["Roles"],
			row["GPUs"], row["Pod"], row["Container"], row["Image"], seconds(target.Watched),
			format.Count(len(target.Processes)), strconv.FormatUint(uint64(target.UID), 10),
			format.Shorten(command(target.Cmdline, target.Comm), 48))
	}
	for _, title := range []string{"Roles", "GPUs", "Pod", "Container", "Image"} {
		if !used[title] {
			t.Drop(title)
		}
	}
	return t
}

// command shortens a command line for a table to the base name of the program and its arguments.
func command(cmdline, comm string) string {
	program, rest, _ := strings.Cut(format.Clean(cmdline), " ")
	if program == "" {
		return format.Clean(comm)
	}
	return strings.TrimSpace(path.Base(program) + " " + rest)
}

// roleNames lists the roles of a target's processes with counts: API server, engine, 2 workers.
func roleNames(roles map[uint32]string) string {
	count := map[string]uint64{}
	for _, r := range roles {
		count[r]++
	}
	out := make([]string, 0, len(count))
	for _, name := range slices.Sorted(maps.Keys(count)) {
		text := format.Clean(name)
		if n := count[name]; n > 1 {
			text = fmt.Sprintf("%d %ss", n, text)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// seconds formats a number of seconds from the API.
func seconds(s float64) string { return format.Span(uint64(max(0, s) * 1e9)) }
