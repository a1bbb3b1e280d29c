package main

import (
	"github.com/inferscope/inferscope/internal/calls"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/feature"
	"github.com/inferscope/inferscope/internal/ring"
)

// connect tells cfg how to reach the kernel.
func connect(cfg *daemon.Config, f *flags) {
	options := calls.Options{Mode: f.mode(), AllCalls: f.allCalls}
	cfg.Check = feature.Check
	cfg.Sources = func(rings *ring.Rings) ([]daemon.Source, error) {
		source, err := calls.New(rings, options)
		if err != nil {
			return nil, err
		}
		return []daemon.Source{source}, nil
	}
}
