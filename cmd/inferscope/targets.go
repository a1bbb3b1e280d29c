package main

import (
	"fmt"
	"maps"
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
			"inferscope: the daemon watches no process; inferscope ps lists those that use a GPU, inferscope attach PID has it watch one",
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
		document.Left("GPUs", 2),
		document.Left("Pod", 2),
		document.Left("Image", 5),
		document.Right("Watched", 4),
		document.Right("Processes", 3),
		document.Left("Roles", 3),
		document.Right("uid", 6),
		document.Left("Command", 1),
	}}
	gpus, pods, images, roles := false, false, false, false
	for i := range targets {
		target := &targets[i]
		state := format.Clean(string(target.State))
		if target.Detail != "" {
			state += ": " + format.Clean(target.Detail)
		}
		gpus, pods = gpus || len(target.GPUs) > 0, pods || target.Pod != "" || target.Container != ""
		images, roles = images || target.Image != "", roles || len(target.Roles) > 0
		t.Row(
			strconv.FormatUint(uint64(target.PID), 10),
			format.Clean(target.Comm),
			state,
			gpuNames(target.GPUs),
			placeName(&target.Place),
			format.Shorten(format.Clean(target.Image), 32),
			seconds(
				target.Watched,
			),
			format.Count(len(target.Processes)),
			roleNames(target.Roles),
			strconv.FormatUint(uint64(target.UID), 10),
			format.Shorten(format.Clean(target.Cmdline), 48),
		)
	}
	for title, used := range map[string]bool{"GPUs": gpus, "Pod": pods, "Image": images, "Roles": roles} {
		if !used {
			t.Drop(title)
		}
	}
	return t
}

// roleNames counts the roles of a target's processes: API server, engine, 2 workers.
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

// seconds writes a number of seconds from the API.
func seconds(s float64) string { return format.Span(uint64(max(0, s) * 1e9)) }
