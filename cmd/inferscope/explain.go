package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/report/document"
)

const explainHelp = `explain describes a cause that reports name: what it means, what proves it, what refutes it, and
what to change, with examples. Without a cause it lists all. It needs no daemon.

    inferscope explain
    inferscope explain host-sync`

func explainCommand(g *global) *cobra.Command {
	return &cobra.Command{
		Use:               "explain [CAUSE]",
		Short:             "Explain a cause that reports name, and its remedies",
		Long:              explainHelp,
		Args:              oneCause,
		ValidArgsFunction: cobra.FixedCompletions(causeKeys(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return g.show(report.Causes(cause.Explainable()))
			}
			return g.explain(args[0])
		},
	}
}

func oneCause(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return clierror.New(clierror.Usage, "name one cause: inferscope explain host-sync",
			fmt.Errorf("explain takes one cause, not %d", len(args)))
	}
	return nil
}

func causeKeys() []string {
	var keys []string
	for _, c := range cause.Explainable() {
		keys = append(keys, c.Key)
	}
	return keys
}

func (g *global) explain(key string) error {
	row, nearest, ok := cause.Explained(key)
	if !ok {
		hint := "inferscope explain lists all causes"
		if nearest != "" {
			hint = fmt.Sprintf("did you mean inferscope explain %s? inferscope explain lists all causes", nearest)
		}
		return clierror.New(clierror.Usage, hint, fmt.Errorf("no cause is called %q", format.Clean(key)))
	}
	return g.show(report.Explain(&row))
}

// show writes a document to standard output.
func (g *global) show(d *document.Document) error {
	if err := document.Text(g.stdout, d, styleOf(g.stdout, g.environ)); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}
