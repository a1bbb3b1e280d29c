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
	minAge   time.Duration // of a process that an agent is brought into
}

func (f *gpuFlags) register(set *pflag.FlagSet) {
	set.StringVar(
		&f.mode,
		"gpu",
		string(gpu.Windows),

		"when GPU activity and launches are recorded: windows, continuous or off; continuous costs the program up to 40%",
	)
	set.DurationVar(&f.window, "gpu-window", gpu.DefaultOn, "length of a window of GPU records")
	set.DurationVar(&f.period, "gpu-period", gpu.DefaultPeriod, "time from one window's beginning to the next one's")
	set.Float64Var(
		&f.budget,
		"overhead-budget",
		100*gpu.DefaultBudget,

		"most that watching may cost a program, in percent of its time: it is measured, and the costliest source is reduced first; 0 measures nothing and keeps every source at full detail",
	)
	set.BoolVar(&f.noInject, "no-inject", false, "never load the agent: no GPU activity, launches by probes")
	set.StringVar(
		&f.cupti,
		"cupti",
		"",
		"path of libcupti as the program sees it, for one that neither maps one nor has one beside its CUDA",
	)
}

// options are f's settings.
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

// prefer heeds cuda_version: the CUPTI of that toolkit is tried first where the program maps none
// and nobody has named one. The path is the program's, and one that is not there is passed over.
func (f *gpuFlags) prefer(version string) {
	if version != "" && f.cupti == "" {
		f.cupti = "/usr/local/cuda-" + version + "/extras/CUPTI/lib64/libcupti.so"
	}
}

// check finds what is wrong with the flags, before anything is started.
func (f *gpuFlags) check() error { return f.options().Check() }

// source makes the source of GPU activity; nil where none is wanted. What keeps agents from
// being brought in at all is said, and the daemon goes on without them.
func (f *gpuFlags) source(
	source *cudaapi.Source,
	linkHolder *uprobe.LinkHolder,
	logger *zap.Logger,
) (daemon.Source, error) {
	if gpu.Mode(f.mode) == gpu.Off {
		return nil, nil
	}
	options := f.options()
	options.Log, options.Index, options.Launches = logger, source.Index, launches{source}
	options.Unobservable = func(p *proc.Process) error { return blind(p, source, linkHolder) }
	options.Gate = quiesce.Options{LinkHolder: linkHolder, Mode: source.Mode()}.Open
	if !f.noInject {
		in, err := injector(linkHolder)
		if err != nil {
			logger.Warn(
				"no agent can be brought into processes: launches are seen by probes, nothing of the GPU",
				zap.Error(err),
			)
		} else {
			options.Inject, options.Build = in, in.Build()
		}
	}
	return gpu.New(options)
}

// blind says why the calls of p are not seen; nil where they are.
func blind(p *proc.Process, source *cudaapi.Source, linkHolder *uprobe.LinkHolder) error {
	if err := linkHolder.Err(); err != nil {
		return fmt.Errorf("no CUDA call is seen any more: %w; restart the daemon", err)
	}
	return source.Unseen(p)
}

// injector makes what brings agents into processes.
func injector(linkHolder *uprobe.LinkHolder) (*gpu.AgentInjector, error) {
	loader, err := inject.NewApart([]string{self}, inject.Options{LinkHolder: linkHolder})
	if err != nil {
		return nil, err
	}
	return gpu.NewAgentInjector(loader)
}

// launchMode says when launches are probed until the source of GPU activity knows better.
func (f *gpuFlags) launchMode() cudaapi.LaunchMode {
	switch gpu.Mode(f.mode) {
	case gpu.Off:
		return cudaapi.LaunchesOff
	case gpu.Continuous:
		return cudaapi.LaunchesOn
	}
	return cudaapi.LaunchesWindows
}

// launches turns probes on launches on and off for the source of GPU activity.
type launches struct{ *cudaapi.Source }

// SetLaunches changes when launches of a process are probed.
func (l launches) SetLaunches(p proc.ID, mode gpu.LaunchMode) {
	modes := map[gpu.LaunchMode]cudaapi.LaunchMode{
		gpu.LaunchesOff:     cudaapi.LaunchesOff,
		gpu.LaunchesWindows: cudaapi.LaunchesWindows, gpu.LaunchesOn: cudaapi.LaunchesOn,
	}
	l.Source.SetLaunches(p, modes[mode])
}
