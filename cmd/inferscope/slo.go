package main

import (
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// setObjective takes the service-level objective of --slo.
func (g *global) setObjective(slo string) error {
	if slo == "" {
		return nil
	}
	objective, err := requests.ParseObjective(slo)
	if err != nil {
		return clierror.New(clierror.Usage, "see --slo in --help", err)
	}
	g.objective = objective
	return nil
}
