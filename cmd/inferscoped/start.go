package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/inferscope/inferscope/internal/config"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/fault"
)

// start runs the daemon that the flags ask for.
func start(cmd *cobra.Command, p process, f *flags) error {
	settings, warnings, err := f.settings(cmd, p.environ)
	if err != nil {
		return err
	}
	notify, _ := config.Environment(p.environ).Get("NOTIFY_SOCKET")
	if !settings.Enabled {
		fmt.Fprintln(p.stderr, "inferscoped: switched off by INFERSCOPE_ENABLED=0: nothing is watched. Unset it to watch.")
		return daemon.Notify(notify, "READY=1\nSTATUS=switched off by INFERSCOPE_ENABLED=0")
	}
	cfg, err := f.config(settings)
	if err != nil {
		return err
	}
	logger, err := newLogger(p.stderr, settings.LogLevel, f.logFormat)
	if err != nil {
		return err
	}
	defer func() { _ = logger.Sync() }() // fails on terminals, where nothing is buffered anyway
	for _, w := range warnings {
		logger.Warn(w)
	}
	if err := oneGPU(settings, f.pids); err != nil {
		return err
	}
	f.gpu.prefer(settings.CUDAVersion)
	cfg.NotifySocket = notify
	connect(&cfg, f, settings, logger)
	return daemon.Run(cmd.Context(), cfg, logger)
}

// oneGPU heeds single_gpu: a process that could see several GPUs is not watched.
func oneGPU(s config.Settings, pids []int) error {
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || !s.SingleGPU {
			continue // following it says what is wrong
		}
		if n := config.Environment(strings.Split(string(raw), "\x00")).VisibleGPUs(config.DevicesDir); n > 1 {
			return fault.New(fault.Usage, "start it with CUDA_VISIBLE_DEVICES=0, or leave single_gpu (INFERSCOPE_SINGLE_GPU) out: each GPU is analysed then",
				fmt.Errorf("single_gpu: pid %d sees %d GPUs", pid, n))
		}
	}
	return nil
}

// newLogger writes to w, a line an entry.
func newLogger(w io.Writer, level, format string) (*zap.Logger, error) {
	lv, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fault.New(fault.Usage, "choose debug, info, warn or error", err)
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
