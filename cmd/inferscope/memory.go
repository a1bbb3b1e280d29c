package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/report/document"
)

const memoryHelp = `memory shows what PyTorch's allocators hold on each GPU and what calls of the CUDA driver allocated
(cudaMalloc and the like, arrays, pinned memory), who allocated it, what grows without end, and what was held when
memory ran out. Totals are exact, of PyTorch also if the process ran for long before it was watched; figures by line
of code are estimated from sampled allocations. FILE is a recording; then no daemon is needed.

    inferscope memory --pid 1234
    inferscope memory --pid 1234 --for 30s
    inferscope memory run.isc --json
    inferscope export run.isc --to memory_viz -o snapshot.pickle`

func memoryCommand(g *global) *cobra.Command {
	var f whatifFlags
	cmd := &cobra.Command{
		Use:   "memory [PID | NAME | FILE]",
		Short: "Show what holds GPU memory and what leaks",
		Long:  memoryHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.memoryReport(cmd, &f, args) },
	}
	cmd.Flags().SortFlags = false
	g.stretchFlags(cmd, &f.reportFlags, "look at")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func (g *global) memoryReport(cmd *cobra.Command, f *whatifFlags, args []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	rec, err := g.recordingFor(cmd.Context(), f, args)
	if err != nil {
		return err
	}
	m := g.analyzed(cmd.Context(), rec)
	if f.asJSON {
		return report.MemoryJSON(g.stdout, m)
	}
	if err := document.Text(g.stdout, report.MemoryDocument(m), styleOf(g.stdout, g.environ)); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}
