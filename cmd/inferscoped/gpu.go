package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/calls"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/gate"
	"github.com/inferscope/inferscope/internal/gpu"
	"github.com/inferscope/inferscope/internal/inject"
	"github.com/inferscope/inferscope/internal/probe"
	"github.com/inferscope/inferscope/internal/target"
)

// gpuFlags are the flags about GPU activity as they were typed.
type gpuFlags struct {
	mode     string
	window   time.Duration
	period   time.Duration
	noInject bool
	cupti    string
	budget   float64 // percent
}

func (f *gpuFlags) register(set *pflag.FlagSet) {
	set.StringVar(&f.mode, "gpu", string(gpu.Windows), "when GPU activity and launches are recorded: windows, continuous or off; continuous costs the program up to 30%")
	set.DurationVar(&f.window, "gpu-window", gpu.DefaultOn, "length of a window of GPU records")
	set.DurationVar(&f.period, "gpu-period", gpu.DefaultPeriod, "time from one window's beginning to the next one's")
	set.Float64Var(&f.budget, "overhead-budget", 100*gpu.DefaultBudget, "percent of a program's time that watching it may take: windows become rarer where they are measured to take more than three quarters of it; 0 leaves them as they are")
	set.BoolVar(&f.noInject, "no-inject", false, "bring no agent into any process: no GPU activity, launches by probes")
	set.StringVar(&f.cupti, "cupti", "", "path of libcupti as the program sees it, for one that neither maps one nor has one beside its CUDA")
}

// options are f's settings.
func (f *gpuFlags) options() gpu.Options {
	return gpu.Options{Mode: gpu.Mode(f.mode), On: f.window, Period: f.period, Budget: f.budget / 100, Watch: gpu.DefaultWatch, CUPTI: f.cupti}
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
func (f *gpuFlags) source(source *calls.Source, keeper *probe.Keeper, logger *zap.Logger) (daemon.Source, error) {
	if gpu.Mode(f.mode) == gpu.Off {
		return nil, nil
	}
	options := f.options()
	options.Log, options.Index, options.Launches = logger, source.Index, launches{source}
	options.Blind = func(p *target.Process) error { return blind(p, source, keeper) }
	options.Gate = gate.Options{Keeper: keeper, Mode: source.Mode(), Walks: gate.Detect()}.Open
	if !f.noInject {
		in, err := injector(keeper)
		if err != nil {
			logger.Warn("no agent can be brought into processes: launches are seen by probes, nothing of the GPU", zap.Error(err))
		} else {
			options.Inject, options.Build = in, in.Build()
		}
	}
	return gpu.New(options)
}

// blind says why the calls of p are not seen; nil where they are.
func blind(p *target.Process, source *calls.Source, keeper *probe.Keeper) error {
	if err := keeper.Err(); err != nil {
		return fmt.Errorf("no CUDA call is seen any more: %w; restart the daemon", err)
	}
	return source.Unseen(p)
}

// injector makes what brings agents into processes.
func injector(keeper *probe.Keeper) (*gpu.AgentInjector, error) {
	loader, err := inject.NewApart([]string{self}, inject.Options{Keeper: keeper})
	if err != nil {
		return nil, err
	}
	return gpu.NewAgentInjector(loader)
}

// launchMode says when launches are probed until the source of GPU activity knows better.
func (f *gpuFlags) launchMode() calls.LaunchMode {
	switch gpu.Mode(f.mode) {
	case gpu.Off:
		return calls.LaunchesOff
	case gpu.Continuous:
		return calls.LaunchesOn
	}
	return calls.LaunchesWindows
}

// launches turns probes on launches on and off for the source of GPU activity.
type launches struct{ *calls.Source }

// SetLaunches changes when launches of a process are probed.
func (l launches) SetLaunches(p target.ID, mode gpu.LaunchMode) {
	modes := map[gpu.LaunchMode]calls.LaunchMode{
		gpu.LaunchesOff: calls.LaunchesOff, gpu.LaunchesWindows: calls.LaunchesWindows, gpu.LaunchesOn: calls.LaunchesOn,
	}
	l.Source.SetLaunches(p, modes[mode])
}
