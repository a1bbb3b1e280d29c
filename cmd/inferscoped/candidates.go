package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/discover"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// candidates lists the processes that use a GPU, as /v1/candidates of the API does, without a daemon.
func candidates(p process) *cobra.Command {
	return &cobra.Command{
		Use:   "candidates",
		Short: "List, as JSON, the processes that use a GPU, and whether discovery would watch them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			environ := config.Environment(p.environ)
			file, err := config.ReadFile(config.FileName, users(environ)...)
			if err != nil {
				return err
			}
			s, err := config.Load(config.ForDaemon, environ, file)
			if err != nil {
				return err
			}
			rules, err := discover.ParseRules(s.Allow, s.Deny)
			if err != nil {
				return err
			}
			pods, err := discover.NewPods(os.Getenv, discover.ServiceAccount, zap.NewNop())
			if err != nil {
				return err
			}
			found, hidden, err := discover.New(discover.Options{Rules: rules, Log: zap.NewNop(), Pods: pods}).
				Candidates(cmd.Context())
			if err != nil {
				return err
			}
			if hidden > 0 {
				fmt.Fprintf(p.stderr, "inferscoped: %d processes could not be looked into; run it as root\n", hidden)
			}
			if err := json.NewEncoder(p.stdout).Encode(daemon.Candidates(found)); err != nil {
				return clierror.New(clierror.General, "", err)
			}
			return nil
		},
	}
}
