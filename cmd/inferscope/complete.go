package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format"
)

// completionTime bounds how long a shell waits for completions.
const completionTime = time.Second

// completeTargets gives --pid of a command, and its argument, the pids of what could be meant.
func (g *global) completeTargets(cmd *cobra.Command) {
	pids := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return g.pids(cmd.Context()), cobra.ShellCompDirectiveNoFileComp
	}
	_ = cmd.RegisterFlagCompletionFunc("pid", pids) // the flag was registered just now
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		if cmd.Name() == "whatif" || cmd.Name() == "memory" { // which also takes a file
			directive = cobra.ShellCompDirectiveDefault
		}
		return g.pids(cmd.Context()), directive
	}
}

// pids lists targets and processes that use a GPU, with what they are. A shell that asks gets no errors.
func (g *global) pids(ctx context.Context) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	client, err := g.dial()
	if err != nil {
		return nil
	}
	defer client.Close()
	var out []string
	known := map[uint32]bool{}
	if targets, err := client.Targets(ctx); err == nil {
		for i := range targets {
			t := &targets[i]
			known[t.PID] = true
			out = append(out, described(t.PID, t.Comm, t.Cmdline, string(t.State)))
		}
	}
	if found, err := client.Candidates(ctx); err == nil {
		for i := range found {
			if c := &found[i]; c.Target == 0 && !known[c.Top] && c.PID == c.Top {
				out = append(out, described(c.PID, c.Comm, c.Cmdline, "not watched"))
			}
		}
	}
	return out
}

func described(pid uint32, comm, cmdline, state string) string {
	what := cmdline
	if what == "" {
		what = comm
	}
	return strconv.FormatUint(
		uint64(pid),
		10,
	) + "\t" + fmt.Sprintf(
		"%s (%s)",
		format.Shorten(format.Clean(what), 50),
		state,
	)
}
