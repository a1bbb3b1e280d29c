package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/fault"
)

const rootHelp = `inferscope reports what the CUDA calls of a running process did, as the daemon
inferscoped recorded them:

    sudo inferscoped --pid 1234
    inferscope report --pid 1234

Exit codes: 0 done; 1 other errors; 2 flags or settings are off; 3 no such
process among the watched ones; 4 the daemon refuses this user; 5 not supported;
6 no daemon answers.`

// global are the flags that every command has.
type global struct {
	process
	socket string
}

func rootCommand(p process) *cobra.Command {
	g := &global{process: p}
	cmd := &cobra.Command{
		Use:           "inferscope",
		Short:         "Report what the CUDA calls of a running process did",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	socket := api.DefaultSocket
	if v, ok := p.environ.Get(api.SocketEnv); ok && v != "" {
		socket = v
	}
	cmd.PersistentFlags().StringVar(&g.socket, "socket", socket, "unix socket of the daemon, also "+api.SocketEnv)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fault.New(fault.Usage, "see "+cmd.CommandPath()+" --help", err)
	})
	cmd.AddCommand(reportCommand(g), dumpCommand(g), statusCommand(g), targetsCommand(g), versionCommand(g))
	return cmd
}

// noArguments is for commands that take flags only.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fault.New(fault.Usage, "see "+cmd.CommandPath()+" --help", fmt.Errorf("%s does not understand %q", cmd.CommandPath(), args[0]))
}

// dial connects to the daemon.
func (g *global) dial() (*api.Client, error) { return api.Dial(g.socket) }

// jsonFlag gives a command --json.
func jsonFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "json", false, "write JSON to standard output")
}

// writeJSON writes what a command found for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}
