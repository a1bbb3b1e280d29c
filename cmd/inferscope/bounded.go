package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

// bounded adds --max-memory to a command that reads recordings and enforces it: the file may be hostile.
func (g *global) bounded(cmd *cobra.Command) {
	cmd.Flags().
		StringVar(&g.memory, "max-memory", "", "memory limit, e.g. 8GB; default: a quarter of the machine's or cgroup's memory")
	work := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if g.memory != "" {
			limit, err := memlimit.Parse(g.memory)
			if err != nil {
				return clierror.New(clierror.Usage, "write it like --max-memory 8GB",
					fmt.Errorf("--max-memory: %w", err))
			}
			g.maxMemory = limit
		}
		for _, path := range args {
			if info, err := os.Stat(path); err == nil {
				g.inputs = append(g.inputs, input(path, info))
			}
		}
		ctx, stop := memlimit.Watch(cmd.Context(), g.maxMemory)
		defer stop()
		cmd.SetContext(ctx)
		g.begun(ctx)
		return work(cmd, args)
	}
}

// input returns the name and size of a file, for messages about the memory limit.
func input(path string, info os.FileInfo) string {
	name := format.Clean(filepath.Base(path))
	if !info.Mode().IsRegular() {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, format.Size(uint64(info.Size())))
}

// explained adds a hint to an error that the memory limit caused.
func (g *global) explained(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, memlimit.ErrExceeded) {
		err = cause
	}
	if !errors.Is(err, memlimit.ErrExceeded) {
		return err
	}
	for i := len(g.inputs) - 1; i >= 0; i-- {
		err = fmt.Errorf("%s: %w", g.inputs[i], err)
	}
	return clierror.New(
		clierror.General,
		fmt.Sprintf(
			"if you trust the file, allow more than %s with --max-memory, e.g. --max-memory %dMB; else leave it",
			format.Size(uint64(g.maxMemory)),
			g.maxMemory*2/1e6,
		),
		err,
	)
}
