package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/gpu"
	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/daemon"
)

// gpuFlags are the flags about GPU activity as they were typed.
type gpuFlags struct {
	mode     string
	window   time.Duration
	period   time.Duration
	noInject bool
	cupti    string
	budget   float64       // percent
	minAge   time.Duration // of a process that an agent is injected into
}

func (f *gpuFlags) register(set *pflag.FlagSet) {
	set.StringVar(
		&f.mode,
		"gpu",
		string(gpu.Windows),
		"when GPU activity and launches are recorded: windows, continuous or off; continuous costs the program up to 40%",
	)
	set.DurationVar(&f.window, "gpu-window", gpu.DefaultOn,
		"longest window of GPU records; shorter where the overhead budget asks for it")
	set.DurationVar(&f.period, "gpu-period", gpu.DefaultPeriod, "time from one window's beginning to the next one's")
	set.Float64Var(
		&f.budget,
		"overhead-budget",
		100*gpu.DefaultBudget,
		"maximum overhead of a program in percent of its time: it is measured, and the most expensive source is "+
			"reduced first; 0: no measurement, every source at full detail",
	)
	set.BoolVar(&f.noInject, "no-inject", false, "never load the agent: no GPU activity, launches by probes")
	set.StringVar(&f.cupti, "cupti", "",
		"path of libcupti as the program sees it, for one that neither maps one nor has one beside its CUDA")
}

// options returns the settings of f.
func (f *gpuFlags) options() gpu.Options {
	return gpu.Options{
		Mode:   gpu.Mode(f.mode),
		On:     f.window,
		Period: f.period,
		Budget: f.budget / 100,
		Watch:  gpu.DefaultWatch,
		MinAge: f.minAge,
		CUPTI:  f.cupti,
	}
}

// prefer applies cuda_version: the CUPTI of that toolkit is tried first if the program maps none and no path is set.
// The path is in the program's mount namespace; a missing one is skipped.
func (f *gpuFlags) prefer(version string) {
	if version != "" && f.cupti == "" {
		f.cupti = "/usr/local/cuda-" + version + "/extras/CUPTI/lib64/libcupti.so"
	}
}

// check validates the flags before anything starts.
func (f *gpuFlags) check() error { return f.options().Check() }

// source creates the source of GPU activity; nil if it is off. If agents cannot be injected, the daemon logs the reason
// and continues.
func (f *gpuFlags) source(
	source *cudaapi.Source,
	linkHolder *uprobe.LinkHolder,
	logger *zap.Logger,
) (daemon.Source, error) {
	if gpu.Mode(f.mode) == gpu.Off {
		return nil, nil
	}
	options := f.options()
	options.Log, options.Index, options.Launches = logger, source.Index, source
	options.Unobservable = func(p *proc.Process) error { return unobservable(p, source, linkHolder) }
	options.Gone = linkHolder.Dying()
	options.Gate = quiesce.Options{LinkHolder: linkHolder, Mode: source.Mode()}.Open
	if !f.noInject {
		in, err := injector(linkHolder)
		if err != nil {
			logger.Warn(
				"no agent can be injected: launches are recorded by probes, GPU activity is not recorded",
				zap.Error(err),
			)
		} else {
			options.Inject, options.Build = in, in.Build()
		}
	}
	return gpu.New(options)
}

// unobservable returns why the calls of p are not observable, or nil.
func unobservable(p *proc.Process, source *cudaapi.Source, linkHolder *uprobe.LinkHolder) error {
	if err := linkHolder.Err(); err != nil {
		return fmt.Errorf("no CUDA call is seen any more: %w; restart the daemon", err)
	}
	return source.Unseen(p)
}

// injector creates the part that injects agents.
func injector(linkHolder *uprobe.LinkHolder) (*gpu.AgentInjector, error) {
	loader, err := inject.NewHelperInjector([]string{self}, inject.Options{LinkHolder: linkHolder})
	if err != nil {
		return nil, err
	}
	return gpu.NewAgentInjector(loader)
}

// launchMode returns when launches are probed before the source of GPU activity sets it.
func (f *gpuFlags) launchMode() cudaapi.LaunchMode {
	switch gpu.Mode(f.mode) {
	case gpu.Off:
		return cudaapi.LaunchesOff
	case gpu.Continuous:
		return cudaapi.LaunchesOn
	}
	return cudaapi.LaunchesWindows
}
