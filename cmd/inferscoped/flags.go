package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferscope/inferscope/internal/capture/discover"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/daemon/metrics"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Limits of flag values.
const (
	maxTargets    = 64      // each is a series of its own in metrics
	maxPID        = 1 << 22 // PID_MAX_LIMIT of 64-bit kernels
	maxRingMB     = 4096
	defaultRingMB = ring.DefaultBytes >> 20
	minKeep       = time.Second
	maxKeep       = 24 * time.Hour
)

// flags are the command line as it was typed.
type flags struct {
	pids           []int
	socket         string
	traceSizeMB    string
	keep           time.Duration
	ringMB         int
	metricsAddr    string
	metricsHosts   []string
	logLevel       string
	logFormat      string
	probeMode      string
	allCalls       bool
	sampleHz       string
	cycles         bool
	wholeNames     bool
	scheduling     bool
	memory         bool
	sensors        bool
	requests       bool
	content        contentFlags
	exitWithTarget bool
	onRequest      bool
	discover       bool
	allow, deny    []string
	record         recordFlags
	otlp           otlpFlags
	allowUsers     string
	pinLevel       string
	gpu            gpuFlags
}

func (f *flags) register(set *pflag.FlagSet, environ []string) {
	socket := api.DefaultSocket
	if v, ok := config.Environment(environ).Get(api.SocketEnv); ok && v != "" {
		socket = v
	}
	set.SortFlags = false
	set.IntSliceVar(&f.pids, "pid", nil, "process to watch, with its children; can be repeated")
	set.StringVar(&f.socket, "socket", socket, "unix socket to serve, also "+api.SocketEnv)
	set.StringVar(&f.traceSizeMB, "trace-size-mb", "100",
		"memory for events in MB, ring buffers and stacks included; the oldest are overwritten")
	set.DurationVar(&f.keep, "keep", time.Minute, "how long events are kept, as far as the memory allows")
	set.IntVar(&f.ringMB, "ring-mb", defaultRingMB,
		"memory for all ring buffers together in MiB, part of --trace-size-mb unless it is more than half of that")
	set.StringVar(&f.metricsAddr, "metrics-addr", "",
		"serve Prometheus metrics, e.g. :9400 (this machine only) or 0.0.0.0:9400; off by default")
	set.StringSliceVar(&f.metricsHosts, "metrics-host", nil,
		"additional host name accepted in requests for metrics; can be repeated; * accepts any")
	set.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	set.StringVar(&f.logFormat, "log-format", "console", "console or json, to standard error")
	set.StringVar(&f.probeMode, "probe-mode", "auto", "how probes are attached: auto, session, multi or perf")
	set.BoolVar(&f.allCalls, "all-calls", false, "probe also cheap calls that frameworks make very often")
	set.StringVar(&f.sampleHz, "cpu-sampling-frequency-hz", "99",
		"stacks a second of each running thread, up to 2000; 0 takes none")
	set.BoolVar(&f.cycles, "cpu-cycles", false, "sample by hardware cycles instead of the CPU clock, where available")
	set.BoolVar(&f.wholeNames, "whole-names", false, "keep template arguments and parameters in C++ and Rust names")
	set.BoolVar(&f.scheduling, "scheduling", true, "watch why threads wait: switches, wake-ups, host pressure")
	set.BoolVar(&f.memory, "memory", true, "watch what PyTorch's allocators and calls of the CUDA driver allocate")
	f.requests = true
	set.Var((*onOff)(&f.requests), "requests",
		"watch the HTTP requests that targets serve: times and numbers of tokens (on or off)")
	f.content.register(set)
	set.BoolVar(&f.sensors, "sensors", true,
		"read power, clocks and temperature of GPUs ten times a second, by nvidia-smi or from sysfs (AMD)")
	f.gpu.register(set)
	f.record.register(set)
	f.otlp.register(set, environ)
	set.StringVar(
		&f.pinLevel,
		"pin-level",
		"",
		"fix sources at levels, as samples=49,scheduling=off: to measure what is lost at a level "+
			"(scripts/bench-levels.sh); ? lists them; without a budget, SIGUSR2 turns all sources off, and on again",
	)
	_ = set.MarkHidden("pin-level") // it is registered a line above
	set.BoolVar(&f.discover, "discover", false,
		"watch every process that uses a GPU; the default without --pid and --on-request")
	set.StringArrayVar(&f.allow, "allow", nil,
		"with discovery, watch only processes that match this rule: name=python*,user=alice; can be repeated")
	set.StringArrayVar(&f.deny, "deny", nil,
		"with discovery, ignore processes that match this rule, e.g. cmdline=*train.py*; can be repeated")
	set.BoolVar(&f.onRequest, "on-request", false, "no discovery: wait for requests of inferscope run and attach")
	set.StringVar(&f.allowUsers, "allow-users", api.DefaultAllow,
		"who may watch their own processes, besides root: none, all, or users and @groups with commas in between")
	set.BoolVar(&f.exitWithTarget, "exit-with-target", false, "stop when all watched processes are gone")
}

// settings merges the settings. Precedence: flags, environment, file, defaults. It also returns the settings that have
// no effect.
func (f *flags) settings(cmd *cobra.Command, environ config.Environment) (config.Settings, []string, error) {
	typed := map[string]string{}
	if cmd.Flags().Changed("trace-size-mb") {
		typed["trace_size_mb"] = f.traceSizeMB
	}
	if cmd.Flags().Changed("log-level") {
		typed["log_level"] = f.logLevel
	}
	if cmd.Flags().Changed("cpu-sampling-frequency-hz") {
		typed["cpu_sampling_frequency_hz"] = f.sampleHz
	}
	if cmd.Flags().Changed("allow") {
		typed["allow"] = strings.Join(f.allow, ";")
	}
	if cmd.Flags().Changed("deny") {
		typed["deny"] = strings.Join(f.deny, ";")
	}
	file, err := config.ReadFile(config.FileName, users(environ)...)
	if err != nil {
		return config.Settings{}, nil, err
	}
	s, err := config.Load(config.ForDaemon, config.Values{Where: config.Flag, ByKey: typed}, environ, file)
	return s, slices.Concat(environ.Warnings(), file.Warnings), err
}

// users returns the owners whose settings files are read: root, the daemon's user, and the user who called sudo.
func users(environ config.Environment) []uint32 {
	out := []uint32{0, uint32(os.Geteuid())}
	text, _ := environ.Get("SUDO_UID")
	if uid, err := strconv.ParseUint(text, 10, 32); err == nil && os.Geteuid() == 0 {
		out = append(out, uint32(uid))
	}
	return out
}

// config checks the flags and returns the configuration of the daemon.
func (f *flags) config(s config.Settings) (daemon.Config, error) {
	var cfg daemon.Config
	if err := f.check(); err != nil {
		return cfg, err
	}
	if f.metricsAddr != "" {
		addr, err := metrics.Address(f.metricsAddr)
		if err != nil {
			return cfg, err
		}
		cfg.MetricsAddr, cfg.MetricsHosts = addr, f.metricsHosts
	}
	var err error
	if cfg.Allow, err = api.ParseAllow(f.allowUsers); err != nil {
		return cfg, err
	}
	slices.Sort(f.pids)
	cfg.Options = daemon.Options{
		PIDs:           slices.Compact(f.pids),
		Keep:           f.keep,
		ExitWithTarget: f.exitWithTarget,
		Overhead:       daemon.Overhead{Budget: f.gpu.budget / 100, Pin: f.pinLevel},
	}
	if f.discovers() {
		rules, err := discover.ParseRules(s.Allow, s.Deny)
		if err != nil {
			return cfg, err
		}
		cfg.Discover = &daemon.Discover{
			Rules: rules,
			Admit: func(pid uint32) error { return oneGPU(s, []int{int(pid)}) },
		}
	}
	cfg.Socket = f.socket
	cfg.TraceBytes = int64(s.TraceSizeMB) * 1_000_000
	cfg.RingBytes = int64(f.ringMB) << 20
	cfg.Limits = api.DefaultLimits()
	return cfg, nil
}

func (f *flags) check() error {
	bad := func(hint, format string, args ...any) error {
		return clierror.New(clierror.Usage, hint, fmt.Errorf(format, args...))
	}
	if f.discover && f.exitWithTarget {
		return bad("leave one of them out: with discovery there may always be another process",
			"--exit-with-target does not go with --discover")
	}
	if len(f.pids) == 0 && f.exitWithTarget && !f.onRequest {
		return clierror.New(clierror.Usage, "name one with --pid", errNoTarget)
	}
	if len(f.pids) > maxTargets {
		return bad("start another daemon with another --socket", "--pid: at most %d, not %d", maxTargets, len(f.pids))
	}
	for _, pid := range f.pids {
		if pid < 1 || pid > maxPID {
			return bad("a pid is 1 to 4194304", "--pid: %d is not a process id", pid)
		}
	}
	if f.keep < minKeep || f.keep > maxKeep {
		return bad("choose 1s to 24h", "--keep: %s is out of range", f.keep)
	}
	if f.ringMB < 1 || f.ringMB > maxRingMB {
		return bad("choose 1 to 4096", "--ring-mb: %d is out of range", f.ringMB)
	}
	if !slices.Contains([]string{"console", "json"}, f.logFormat) {
		return bad("choose console or json", "--log-format: %q is not known", f.logFormat)
	}
	if f.probeMode != "auto" &&
		!slices.Contains([]uprobe.Mode{uprobe.Session, uprobe.Multi, uprobe.Perf}, uprobe.Mode(f.probeMode)) {
		return bad("choose auto, session, multi or perf", "--probe-mode: %q is not known", f.probeMode)
	}
	if _, err := f.content.content(); err != nil {
		return err
	}
	if err := f.record.check(); err != nil {
		return err
	}
	return f.gpu.check()
}

// shown is how long an ended target stays visible: a recording begins up to f.keep before its end, and is served for as
// long after it.
func (f *flags) shown() time.Duration { return 2 * f.keep }

// discovers reports whether the daemon finds its targets itself.
func (f *flags) discovers() bool { return f.discover || len(f.pids) == 0 && !f.onRequest }

// mode returns how probes are attached; "" selects the best mode that works.
func (f *flags) mode() uprobe.Mode {
	if f.probeMode == "auto" {
		return ""
	}
	return uprobe.Mode(f.probeMode)
}

// onOff is a flag with the values on and off.
type onOff bool

// String returns on or off.
func (v *onOff) String() string {
	if *v {
		return "on"
	}
	return "off"
}

// Set accepts on, off and the values of a bool.
func (v *onOff) Set(text string) error {
	switch text {
	case "on", "true", "1":
		*v = true
	case "off", "false", "0":
		*v = false
	default:
		return fmt.Errorf("%q is neither on nor off", text)
	}
	return nil
}

// Type returns the name of the value in help.
func (v *onOff) Type() string { return "on|off" }
