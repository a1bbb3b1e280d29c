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

// complete completes the value of a flag of a command by one of these words.
func complete(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, // which was registered just now
		cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completePID completes --pid of a command.
func (g *global) completePID(cmd *cobra.Command) {
	pids := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return pidsOf(g.completions(cmd)), cobra.ShellCompDirectiveNoFileComp
	}
	_ = cmd.RegisterFlagCompletionFunc("pid", pids) // the flag was registered just now
}

// completeTargets completes --pid of a command, and its argument, with pids and names.
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
		all := g.completions(cmd)
		return append(pidsOf(all), distinct(all)...), directive
	}
}

// completion is a process that a command line can be completed with.
type completion struct {
	pid   uint32
	what  string   // its command line
	state string   // watching, exited, not watched
	names []string // that it can be called by, the most telling first
}

// completions lists the targets and GPU processes that a command can be about. Errors are ignored: the caller is a
// shell.
func (g *global) completions(cmd *cobra.Command) []completion {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	client, err := g.dial()
	if err != nil {
		found, _, _ := g.findCandidates(ctx)
		return unwatched(nil, found, nil)
	}
	defer client.Close()
	var out []completion
	known := map[uint32]bool{}
	targets, _ := client.Targets(ctx)
	for i := range targets {
		t := &targets[i]
		known[t.PID] = true
		switch {
		case cmd.Name() == "attach" && t.State != api.Released, cmd.Name() == "detach" && ended(t):
			continue
		}
		names := telling(t.Comm, t.Cmdline, &t.Place)
		out = append(out, completion{t.PID, command(t.Cmdline, t.Comm), string(t.State), names})
	}
	if cmd.Name() == "detach" || cmd.Name() == "flight" {
		return out
	}
	found, _ := client.Candidates(ctx)
	return unwatched(out, found, known)
}

// unwatched appends the processes that use a GPU, are not watched, and are not excluded by a rule.
func unwatched(out []completion, found []api.Candidate, known map[uint32]bool) []completion {
	for i := range found {
		if c := &found[i]; c.Target == 0 && c.Refused == "" && !known[c.Top] && c.PID == c.Top {
			names := telling(c.Comm, c.Cmdline, &c.Place)
			out = append(out, completion{c.PID, command(c.Cmdline, c.Comm), "not watched", names})
		}
	}
	return out
}

// telling returns the most specific names of a process: its pod, its script, its program.
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

func pidsOf(all []completion) (out []string) {
	for i := range all {
		out = append(out, all[i].described(strconv.FormatUint(uint64(all[i].pid), 10)))
	}
	return out
}

// distinct returns the names that belong to one process only, need no quotes and are no flags: processes choose their
// own names.
func distinct(all []completion) (out []string) {
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

// needsQuotes reports whether a character has a meaning for shells or breaks words.
func needsQuotes(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./+,@", r))
}

// described returns a completion with a description of the process.
func (m *completion) described(text string) string {
	return fmt.Sprintf("%s\t%s: %s", text, m.state, format.Shorten(m.what, 60))
}
