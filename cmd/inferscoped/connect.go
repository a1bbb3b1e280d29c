package main

import (
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/amdgpu"
	"github.com/inferscope/inferscope/internal/capture/annotate"
	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/capture/gpu"
	"github.com/inferscope/inferscope/internal/capture/memory"
	"github.com/inferscope/inferscope/internal/capture/nvml"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/profile/threaddump"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/capture/sched/pressure"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/recording"
)

// self is this program, even if its file was replaced or deleted.
const self = "/proc/self/exe"

// connect adds the event sources to cfg.
func connect(cfg *daemon.Config, f *flags, settings config.Settings, logger *zap.Logger) {
	options := cudaapi.Options{
		Helper: []string{self}, Mode: f.mode(), AllCalls: f.allCalls, Keep: f.shown(), Launches: f.gpu.launchMode(),
		LaunchesFor: f.gpu.window, LaunchesEvery: f.gpu.period,
		Complain: func(err error) { logger.Warn("launches of a process are not seen as they should be", zap.Error(err)) },
	}
	cfg.Check = feature.Check
	table := symbol.New(symbol.Options{Full: f.wholeNames}) // one for both, so that a library is indexed once
	cfg.Dumper = threaddump.New(table, threads.Describe)
	cfg.Sources = func(rings *ring.Rings) ([]daemon.Source, error) {
		linkHolder, err := linkHolder(logger, self)
		if err != nil {
			return nil, err
		}
		options.LinkHolder = linkHolder
		source, err := cudaapi.New(rings, options)
		if err != nil {
			return nil, err
		}
		sources := []daemon.Source{source, annotate.New(logger)}
		if f.discovers() {
			f.gpu.minAge = gpu.DefaultMinAge
		}
		activity, err := f.gpu.source(source, linkHolder, logger)
		if err != nil {
			return nil, errors.Join(err, source.Close())
		}
		if activity != nil {
			sources = append(sources, activity)
		}
		// Verifying the programs for requests takes the kernel as long as all others together, so it is done in
		// parallel.
		served := make(chan []daemon.Source, 1)
		if f.requests {
			go func() { served <- requests(f, linkHolder, source.Mode(), logger) }()
		} else {
			served <- nil
		}
		var stacks daemon.Source
		if settings.CPUSamplingHz > 0 {
			stacks = samples(profile.Options{
				Hz: settings.CPUSamplingHz, Cycles: f.cycles, Helper: []string{self},
				Switches: profile.DefaultSwitch, Budget: f.gpu.budget / 100, Symbols: table, Log: logger,
			})
			sources = append(sources, stacks)
		}
		if f.memory {
			sources = append(sources, allocations(rings, linkHolder, source.Mode(), stacks, logger)...)
		}
		var others []daemon.Source
		if f.sensors {
			others = append(others, nvml.New(nvml.Options{}))
			if amdgpu.Present() {
				others = append(others, amdgpu.New(amdgpu.Options{}))
			}
		}
		if f.scheduling {
			others = append(others, waits(rings, f, logger)...)
		}
		return slices.Concat(sources, <-served, others), nil
	}
}

// waits creates the sources of scheduling and wait reasons, which keep their state as long as events are kept. Without
// them the daemon continues.
func waits(rings *ring.Rings, f *flags, logger *zap.Logger) []daemon.Source {
	host := pressure.New(pressure.Options{Keep: f.keep})
	source, err := sched.New(rings, sched.Options{Keep: f.shown()})
	if err != nil {
		logger.Warn("scheduling is not watched", zap.Error(err))
		return []daemon.Source{host, daemon.Unavailable(recording.SchedulingSource, err)}
	}
	return []daemon.Source{host, source}
}

// samples creates the source of CPU samples. Without it the daemon continues.
func samples(opts profile.Options) daemon.Source {
	source, err := profile.New(opts)
	if err != nil {
		opts.Log.Warn("no CPU samples are taken", zap.Error(err))
		return daemon.Unavailable(recording.SamplesSource, err)
	}
	return source
}

// allocations creates the source of framework allocations. Without it the daemon continues.
func allocations(
	rings *ring.Rings,
	linkHolder *uprobe.LinkHolder,
	mode uprobe.Mode,
	stacks daemon.Source,
	logger *zap.Logger,
) []daemon.Source {
	opts := memory.Options{LinkHolder: linkHolder, Mode: mode}
	opts.Stacks, _ = stacks.(*profile.Source) // another one has no stacks
	source, err := memory.New(rings, opts)
	if err != nil {
		logger.Warn("the memory of frameworks is not watched", zap.Error(err))
		return nil
	}
	return []daemon.Source{source}
}

// requests creates the source of requests. Without it the daemon continues.
func requests(f *flags, linkHolder *uprobe.LinkHolder, mode uprobe.Mode, logger *zap.Logger) []daemon.Source {
	content, err := f.content.content()
	var source *request.Source
	if err == nil {
		source, err = request.New(request.Options{LinkHolder: linkHolder, Mode: mode, Content: content})
	}
	if err != nil {
		logger.Warn("requests are not watched", zap.Error(err))
		return nil
	}
	return []daemon.Source{source}
}
