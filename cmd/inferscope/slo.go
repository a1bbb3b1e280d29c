package main

import (
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// aim takes what requests should keep to.
func (g *global) aim(slo string) error {
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
