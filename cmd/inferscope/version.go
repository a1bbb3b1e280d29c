package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/version"
)

// versions is the JSON output of version.
type versions struct {
	Client version.Info `json:"client"`
	Daemon *api.Version `json:"daemon,omitempty"` // missing where none answers
}

func versionCommand(g *global) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the daemon, if one answers",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.version(cmd.Context(), asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// version succeeds without a daemon, because the client's version is always known.
func (g *global) version(ctx context.Context, asJSON bool) error {
	v := versions{Client: version.Get()}
	daemon, err := g.daemonVersion(ctx)
	if err == nil {
		v.Daemon = &daemon
	} else {
		fmt.Fprintf(g.stderr, "inferscope: %v\n", err)
	}
	if asJSON {
		return writeJSON(g.stdout, v)
	}
	_, err = fmt.Fprintln(g.stdout, "inferscope  "+versionLine(v.Client))
	if err == nil && v.Daemon != nil {
		_, err = fmt.Fprintln(g.stdout, "inferscoped "+versionLine(v.Daemon.Info))
	}
	if err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}

func (g *global) daemonVersion(ctx context.Context) (api.Version, error) {
	client, err := g.dial()
	if err != nil {
		return api.Version{}, err
	}
	defer client.Close()
	return client.Version(ctx)
}

func versionLine(v version.Info) string {
	line := v.Version
	if v.Revision != "" {
		line += " (" + v.Revision + ")"
	}
	return format.Clean(line + " " + v.Go + " " + v.Platform)
}
