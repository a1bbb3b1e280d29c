package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/helper"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// recordFlags are the flags about recordings on the disk as they were typed.
type recordFlags struct {
	dir     string
	length  time.Duration
	quotaMB int
	maxAge  time.Duration
	freeMB  int
}

// minQuotaMB is room for a stretch that is being written, and some that are kept.
const minQuotaMB = 100

func (f *recordFlags) register(set *pflag.FlagSet) {
	set.StringVar(&f.dir, "record-dir", "", "keep recordings of all targets in this directory")
	set.DurationVar(&f.length, "record-length", fleet.DefaultLength, "length of each of these recordings; 0 makes none but on command and on triggers")
	set.IntVar(&f.quotaMB, "record-quota-mb", fleet.DefaultQuota/1_000_000, "what they may take on the disk together, in MB; the oldest make room")
	set.IntVar(&f.freeMB, "record-free-mb", fleet.DefaultReserve/1_000_000, "what stays free on the disk, in MB, whatever the quota")
	set.DurationVar(&f.maxAge, "record-max-age", fleet.DefaultMaxAge, "how long they are kept; 0: until there is no room")
}

func (f *recordFlags) check() error {
	bad := func(hint, format string, args ...any) error {
		return clierror.New(clierror.Usage, hint, fmt.Errorf(format, args...))
	}
	if f.length != 0 && (f.length < time.Second || f.length > time.Hour) {
		return bad("choose 1s to 1h, or 0", "--record-length: %s is out of range", f.length)
	}
	if f.quotaMB < minQuotaMB {
		return bad(fmt.Sprintf("choose %d or more", minQuotaMB), "--record-quota-mb: %d is too little", f.quotaMB)
	}
	if f.freeMB < 0 || f.maxAge < 0 {
		return bad("choose 0 or more", "--record-free-mb and --record-max-age: less than nothing")
	}
	return nil
}

// connect has the daemon keep recordings, where that is asked for.
func (f *recordFlags) connect(cfg *daemon.Config, logger *zap.Logger) {
	if f.dir == "" {
		return
	}
	cfg.Record = func() (daemon.Keeper, error) {
		dir, err := filepath.Abs(f.dir)
		if err != nil {
			return nil, err
		}
		socket, err := filepath.Abs(cfg.Socket)
		if err != nil {
			return nil, err
		}
		c := fleet.Config{
			Socket: socket, Dir: dir, Length: f.length, MaxAge: f.maxAge,
			Quota: int64(f.quotaMB) * 1_000_000, Reserve: int64(f.freeMB) * 1_000_000,
		}
		return fleet.Start([]string{self}, helper.Record.Give, c, logger)
	}
}

// recorderHelper is the process that keeps recordings.
func recorderHelper([]string) error {
	helper.Record.Take()
	logger, err := newLogger(os.Stderr, "info", "console")
	if err != nil {
		return err
	}
	defer func() { _ = logger.Sync() }()
	return fleet.RunHelper(os.Stdin, os.Stdout, logger, nil)
}
