package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/format/manpage"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

const rootHelp = `inferscope reports where the time of a running CUDA process goes, why its GPU is idle and
what to change:

    sudo inferscope report --pid 1234                   needs no daemon; --full, --open: everything
    sudo inferscope record --pid 1234 --for 30s -o t.isc
    inferscope analyze t.isc
    inferscope run python infer.py
    inferscope explain

Exit codes: 0 done; 1 other errors; 2 wrong flags or settings; 3 no such
process among the watched ones; 4 the daemon refuses this user; 5 not supported;
6 no daemon answers; 8 diff --fail-over: it became slower. run returns its program's exit code.`

// global holds the flags and state that all commands share.
type global struct {
	process
	socket    string
	margin    uint64   // ns: clock error above which a report warns; 0: the default
	short     bool     // a text report is the answer alone
	paging    *os.File // the terminal behind a pager; nil: there is none
	single    bool     // more than one GPU is an error
	warned    map[string]bool
	objective *requests.Objective // --slo; nil: none

	mu          sync.Mutex
	connections []*connection // that commands opened, to be left at the end

	memory    string                // --max-memory
	maxMemory int64                 // bytes that a command about a recording may take
	inputs    []string              // files that the command is about, with their sizes
	begun     func(context.Context) // called when such a command begins, with the context that bounds it
}

func newGlobal(p process) *global {
	return &global{
		process:   p,
		warned:    map[string]bool{},
		maxMemory: memlimit.Default(),
		begun:     func(context.Context) {},
	}
}

func rootCommand(g *global) *cobra.Command {
	p := g.process
	cmd := &cobra.Command{
		Use:                        "inferscope",
		Short:                      "Say where the time of a running CUDA process goes, and why its GPU is idle",
		Long:                       rootHelp,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args:                       noArguments,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	socket := api.DefaultSocket
	if v, ok := p.environ.Get(api.SocketEnv); ok && v != "" {
		socket = v
	}
	cmd.PersistentFlags().StringVar(&g.socket, "socket", socket, "unix socket of the daemon, also "+api.SocketEnv)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return clierror.OfFlag(cmd.CommandPath()+" --help", err)
	})
	cmd.AddCommand(runCommand(g), configCommand(g), reportCommand(g), serveCommand(g), recordCommand(g),
		analyzeCommand(g), packCommand(g), unpackCommand(g), lsCommand(g), infoCommand(g), exportCommand(g),
		importCommand(g), diffCommand(g), whatifCommand(g), memoryCommand(g), queryCommand(g),
		explainCommand(g), dumpCommand(g), flightCommand(g), doctorCommand(g), statusCommand(g),
		targetsCommand(g), psCommand(g), attachCommand(g), detachCommand(g), topCommand(g), versionCommand(g))
	manpage.Add(cmd)
	for _, c := range cmd.Commands() {
		c.Args = asUsage(c.Args)
		switch c.Name() {
		case "report", "analyze", "pack", "unpack", "ls", "info", "export", "import", "diff", "whatif", "query":
			g.bounded(c)
		}
	}
	return cmd
}

// asUsage gives cobra's errors about the number of arguments the exit code for usage.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		return nil
	}
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		var coded *clierror.Fault
		if err == nil || errors.As(err, &coded) {
			return err
		}
		return clierror.New(clierror.Usage, "see "+cmd.CommandPath()+" --help",
			fmt.Errorf("%s: %w", cmd.CommandPath(), err))
	}
}

// noArguments checks the arguments of commands that take none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see " + cmd.CommandPath() + " --help"
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		hint = fmt.Sprintf("do you mean %s %s? %s", cmd.CommandPath(), like[0], hint)
	}
	return clierror.New(clierror.Usage, hint,
		fmt.Errorf("%s does not understand %q", cmd.CommandPath(), args[0]))
}

// dial connects to the daemon.
func (g *global) dial() (*api.Client, error) { return api.Dial(g.socket) }

// jsonFlag adds --json to a command.
func jsonFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "json", false, "write JSON to standard output")
}

// writeJSON writes the result of a command as JSON.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}
