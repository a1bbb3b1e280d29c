package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/report/document"
)

const psHelp = `ps lists the processes that use a GPU, watched or not: those that have a GPU's device file open, or
the driver's library mapped. It asks the daemon, or searches itself if none answers. Without root it shows your own.

    sudo inferscope ps
    inferscope ps --json`

func psCommand(g *global) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the processes that use a GPU, watched or not",
		Long:  psHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.ps(cmd.Context(), asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (g *global) ps(ctx context.Context, asJSON bool) error {
	done := g.progress(ctx, progressAfter, func(passed time.Duration) string {
		return fmt.Sprintf("looking at processes: %.0f s", passed.Seconds())
	})
	found, err := g.gpuUsers(ctx)
	done()
	if err != nil {
		return err
	}
	if asJSON {
		if found == nil {
			found = []api.Candidate{}
		}
		return writeJSON(g.stdout, found)
	}
	if len(found) == 0 {
		fmt.Fprintln(g.stderr,
			"inferscope: no process uses a GPU now; --pid names any other one, and inferscope run starts one")
		return nil
	}
	d := &document.Document{}
	d.Add(candidateTable(found))
	return document.Text(g.stdout, d, styleOf(g.stdout, g.environ))
}

// gpuUsers asks the daemon for the processes that use a GPU, or searches itself if no daemon answers.
func (g *global) gpuUsers(ctx context.Context) ([]api.Candidate, error) {
	client, err := g.dial()
	if clierror.CodeOf(err) == clierror.NoDaemon {
		return g.candidates(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Candidates(ctx)
}

func candidateTable(found []api.Candidate) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("pid", 0),
		document.Left("Process", 0),
		document.Left("Role", 3),
		document.Left("GPUs", 2),
		document.Left("Watched", 0),
		document.Left("Pod", 2),
		document.Right("uid", 1),
		document.Left("Command", 4),
	}}
	pods, roles := false, false
	for i := range found {
		c := &found[i]
		watched := "no"
		switch {
		case c.Target == c.PID:
			watched = "yes"
		case c.Target != 0:
			watched = fmt.Sprintf("with %d", c.Target)
		case c.Refused != "":
			watched = "no: " + format.Clean(c.Refused)
		}
		pods, roles = pods || c.Pod != "" || c.Container != "", roles || c.Role != ""
		t.Row(strconv.FormatUint(uint64(c.PID), 10), format.Clean(c.Comm), format.Clean(c.Role),
			gpuNames(c.GPUs), watched, placeName(&c.Place), strconv.FormatUint(uint64(c.UID), 10),
			format.Shorten(command(c.Cmdline, c.Comm), 48))
	}
	if !pods {
		t.Drop("Pod")
	}
	if !roles {
		t.Drop("Role")
	}
	return t
}

// gpuNames shortens GPU device names: nvidia0, nvidia1 become 0, 1.
func gpuNames(devices []string) string {
	var out []string
	for _, d := range devices {
		out = append(out, strings.TrimPrefix(format.Clean(d), "nvidia"))
	}
	return strings.Join(out, ",")
}

// placeName names the pod of a process, else its container.
func placeName(p *api.Place) string {
	if p.Pod != "" {
		return podName(p)
	}
	return containerName(p)
}

// podName returns the pod of a process, with its namespace; "" where it runs in none.
func podName(p *api.Place) string {
	if p.Namespace != "" && p.Pod != "" {
		return format.Clean(p.Namespace + "/" + p.Pod)
	}
	return format.Clean(p.Pod)
}

// containerName returns the name of the container that a process runs in, else the beginning of its id.
func containerName(p *api.Place) string {
	if p.ContainerName != "" {
		return format.Clean(p.ContainerName)
	}
	id := format.Clean(p.Container)
	return id[:min(len(id), 12)]
}

const attachHelp = `attach has a running daemon watch a process with its children, in addition to what it watches.
Its owner needs no root, where --allow-users of the daemon admits them. detach ends it.

    inferscope attach 1234
    inferscope attach infer.py`

func attachCommand(g *global) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "attach [PID | NAME]",
		Short: "Watch a process with the running daemon",
		Long:  attachHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE:  f.about(func(cmd *cobra.Command) error { return g.addTarget(cmd, &f) }),
	}
	g.pidFlag(cmd, &f.pid, "watch")
	return cmd
}

// addTarget makes a process a target and waits until it is attached.
func (g *global) addTarget(cmd *cobra.Command, f *reportFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	ctx := cmd.Context()
	client, err := g.dial()
	if err != nil {
		return err
	}
	c := &connection{Client: client, g: g, pid: uint32(f.pid), over: make(chan struct{})}
	defer c.leave()
	if f.pid == 0 {
		found, err := c.Candidates(ctx)
		if err != nil {
			return err
		}
		if c.pid, err = chooseCandidate(found, f); err != nil {
			return err
		}
	}
	if err := c.watch(ctx, c.pid); err != nil {
		return err
	}
	if err := c.awaitWatched(ctx, f); err != nil {
		return err
	}
	fmt.Fprintf(g.stderr, "inferscope: pid %d is watched; inferscope report %d says what limits it\n", c.pid, c.pid)
	return nil
}
