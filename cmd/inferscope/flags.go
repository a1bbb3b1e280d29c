package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// pidFlag adds --pid to a command; to completes its help text.
func (g *global) pidFlag(cmd *cobra.Command, pid *int, to string) {
	cmd.Flags().IntVar(pid, "pid", 0, "process to "+to+"; needed unless there is exactly one")
	g.completeTargets(cmd)
}

// stretchFlags adds the flags that select a process and an interval.
func (g *global) stretchFlags(cmd *cobra.Command, f *reportFlags, to string) {
	g.pidFlag(cmd, &f.pid, to)
	flags := cmd.Flags()
	flags.DurationVar(&f.last, "last", 0, "only this much of the past, e.g. 30s")
	flags.DurationVar(&f.window, "for", 0, "record from now on for this long, e.g. 10s")
	cuptiFlag(flags, &f.cupti)
	flags.StringVar(&f.gpu, "gpu", "",
		"continuous: with --for, record GPU activity all of that time; costs the program up to 40% meanwhile")
	complete(cmd, "gpu", api.GPUContinuous)
}

// cuptiFlag adds --cupti, for a daemon that is started for this command.
func cuptiFlag(flags *pflag.FlagSet, to *string) {
	flags.StringVar(to, "cupti", "",
		"path of libcupti as the process sees it, if it maps none and this command starts a daemon")
}

// renderFlags adds the flags for the form of a report and where it is written.
func (f *reportFlags) renderFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.output, "output", "o", "", "file to write; - is standard output")
	flags.StringVarP(&f.format, "format", "f", "", "text, markdown, json or html")
	flags.BoolVar(
		&f.full,
		"full",
		false,
		"as text, everything: evidence, stacks, losses, threads, calls, kernels; through a pager on a terminal",
	)
	flags.BoolVar(&f.plain, "no-pager", false, "with --full, write to the terminal itself")
	flags.BoolVar(&f.open, "open", false, "show the HTML report in the browser; without -o it is ./"+openedReport)
	flags.StringVar(
		&f.margin,
		"sync-error-margin-us",
		"",
		"clock error in microseconds above which the report warns, also INFERSCOPE_SYNC_ERROR_MARGIN_US (default 1000)",
	)
	flags.StringVar(&f.slo, "slo", "",
		"latency goals of requests, e.g. ttft=200ms,tpot=30ms,latency=5s; the report says how many did")
	jsonFlag(cmd, &f.asJSON)
	complete(cmd, "format", formats()...)
}

// typed returns the settings that flags give, by key.
func (f *reportFlags) typed() map[string]string {
	if f.margin == "" {
		return nil
	}
	return map[string]string{"sync_error_margin_us": f.margin}
}

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
