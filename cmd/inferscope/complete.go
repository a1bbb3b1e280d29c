package main

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
)

// completionTime bounds how long a shell waits for completions.
const completionTime = time.Second

// completePID gives --pid of a command the pids that could be meant.
func (g *global) completePID(cmd *cobra.Command) {
	pids := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return pidsOf(g.meant(cmd)), cobra.ShellCompDirectiveNoFileComp
	}
	_ = cmd.RegisterFlagCompletionFunc("pid", pids) // the flag was registered just now
}

// completeTargets gives --pid of a command, and its argument, the pids and names of what could be meant.
func (g *global) completeTargets(cmd *cobra.Command) {
	g.completePID(cmd)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		if cmd.Name() == "whatif" || cmd.Name() == "memory" { // which also takes a file
			directive = cobra.ShellCompDirectiveDefault
		}
		all := g.meant(cmd)
		return append(pidsOf(all), distinct(all)...), directive
	}
}

// meant is a process that a command could be about.
type meant struct {
	pid   uint32
	what  string   // its command line
	state string   // watching, exited, not watched
	names []string // that it can be called by, the most telling first
}

// meant lists targets and processes that use a GPU, of which a command could be about any one. A shell that asks gets
// no errors.
func (g *global) meant(cmd *cobra.Command) []meant {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	client, err := g.dial()
	if err != nil {
		found, _, _ := g.look(ctx)
		return unwatched(nil, found, nil)
	}
	defer client.Close()
	var out []meant
	known := map[uint32]bool{}
	targets, _ := client.Targets(ctx)
	for i := range targets {
		t := &targets[i]
		known[t.PID] = true
		switch {
		case cmd.Name() == "attach" && t.State != api.Released, cmd.Name() == "detach" && ended(t):
			continue
		}
		out = append(out, meant{t.PID, command(t.Cmdline, t.Comm), string(t.State), telling(t.Comm, t.Cmdline, &t.Place)})
	}
	if cmd.Name() == "detach" || cmd.Name() == "flight" {
		return out
	}
	found, _ := client.Candidates(ctx)
	return unwatched(out, found, known)
}

// unwatched appends the processes that use a GPU, that nobody watches, and that rules do not leave alone.
func unwatched(out []meant, found []api.Candidate, known map[uint32]bool) []meant {
	for i := range found {
		if c := &found[i]; c.Target == 0 && c.Refused == "" && !known[c.Top] && c.PID == c.Top {
			out = append(out, meant{c.PID, command(c.Cmdline, c.Comm), "not watched", telling(c.Comm, c.Cmdline, &c.Place)})
		}
	}
	return out
}

// telling returns the names of a process that are worth typing: its pod, its script, its program.
func telling(comm, cmdline string, at *api.Place) (names []string) {
	if at.Pod != "" {
		names = append(names, at.Namespace+"/"+at.Pod)
	}
	for i, word := range strings.Fields(cmdline) {
		if i > 0 && i <= maxWords && !strings.HasPrefix(word, "-") && path.Ext(word) != "" {
			names = append(names, path.Base(word))
			break
		}
	}
	return append(names, comm)
}

func pidsOf(all []meant) (out []string) {
	for i := range all {
		out = append(out, all[i].described(strconv.FormatUint(uint64(all[i].pid), 10)))
	}
	return out
}

// distinct returns the names that only one process has, that need no quotes, and that are no flags: processes choose
// their names.
func distinct(all []meant) (out []string) {
	count := map[string]int{}
	for i := range all {
		for _, name := range all[i].names {
			count[name]++
		}
	}
	for i := range all {
		for _, name := range all[i].names {
			if count[name] == 1 && name != "" && name[0] != '-' && !strings.ContainsFunc(name, needsQuotes) {
				out = append(out, all[i].described(name))
			}
		}
	}
	return out
}

// needsQuotes reports whether a shell would take a character for something else, or break words there.
func needsQuotes(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./+,@", r))
}

// described is a completion with what the process is.
func (m *meant) described(text string) string {
	return fmt.Sprintf("%s\t%s: %s", text, m.state, format.Shorten(m.what, 60))
}
