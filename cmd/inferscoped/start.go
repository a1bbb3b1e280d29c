package main

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/inferscope/inferscope/internal/capture/discover"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// start runs the daemon with these flags.
func start(cmd *cobra.Command, p process, f *flags) error {
	settings, warnings, err := f.settings(cmd, p.environ)
	if err != nil {
		return err
	}
	notify, _ := config.Environment(p.environ).Get("NOTIFY_SOCKET")
	if !settings.Enabled {
		fmt.Fprintln(p.stderr,
			"inferscoped: switched off by INFERSCOPE_ENABLED=0: nothing is watched. Unset it to watch.")
		return daemon.Notify(notify, "READY=1\nSTATUS=switched off by INFERSCOPE_ENABLED=0")
	}
	cfg, err := f.config(settings)
	if err != nil {
		return err
	}
	if cfg.Push, err = f.otlp.options(p.environ); err != nil {
		return err
	}
	logger, err := newLogger(p.stderr, settings.LogLevel, f.logFormat)
	if err != nil {
		return err
	}
	cfg.Warnings = new(daemon.Warnings)
	logger = logger.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewTee(c, cfg.Warnings.Core())
	}))
	defer func() { _ = logger.Sync() }() // fails on terminals, where nothing is buffered anyway
	for _, w := range warnings {
		logger.Warn(w)
	}
	if err := oneGPU(settings, f.pids); err != nil {
		return err
	}
	if p.confine != nil {
		if err := p.confine(f); err != nil {
			logger.Warn("the daemon has more rights than it needs; the rest goes on", zap.Error(err))
		}
	}
	f.gpu.prefer(settings.CUDAVersion)
	if cfg.Pods, err = discover.NewPods(os.Getenv, discover.ServiceAccount, logger); err != nil {
		logger.Warn("pods are known only from what the node shows", zap.Error(err))
	}
	cfg.NotifySocket = notify
	for _, w := range slices.Concat(f.otlp.warnings(p.environ, f.requests), f.content.warnings(f.requests)) {
		logger.Warn(w)
	}
	connect(&cfg, f, settings, logger)
	f.record.connect(&cfg, settings, p.environ, logger)
	return daemon.Run(cmd.Context(), cfg, logger)
}

// oneGPU refuses a process that could see several GPUs if single_gpu is set. It reads a bounded part of the process's
// environment, because the process controls that memory.
func oneGPU(s config.Settings, pids []int) error {
	if !s.SingleGPU {
		return nil
	}
	for _, pid := range pids {
		value, set, err := proc.Variable(uint32(pid), visibleDevices)
		if err != nil {
			continue // following it says what is wrong
		}
		var environ config.Environment
		if set {
			environ = config.Environment{visibleDevices + "=" + value}
		}
		if n := environ.VisibleGPUs(config.DevicesDir); n > 1 {
			return clierror.New(
				clierror.Usage,
				"start it with CUDA_VISIBLE_DEVICES=0, or leave single_gpu (INFERSCOPE_SINGLE_GPU) out: each GPU is analysed then",
				fmt.Errorf("single_gpu: pid %d sees %d GPUs", pid, n),
			)
		}
	}
	return nil
}

const visibleDevices = "CUDA_VISIBLE_DEVICES"

// newLogger returns a logger that writes one line an entry to w.
func newLogger(w io.Writer, level, format string) (*zap.Logger, error) {
	lv, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, clierror.New(clierror.Usage, "choose debug, info, warn or error", err)
	}
	ec := zap.NewProductionEncoderConfig()
	ec.EncodeTime = zapcore.ISO8601TimeEncoder
	ec.EncodeDuration = zapcore.StringDurationEncoder
	ec.EncodeLevel = zapcore.LowercaseLevelEncoder
	encoder := zapcore.NewConsoleEncoder(ec)
	if format == "json" {
		encoder = zapcore.NewJSONEncoder(ec)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), lv)), nil
}
