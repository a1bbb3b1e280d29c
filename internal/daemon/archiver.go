package daemon

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Save writes the retained events of a target to disk.
func (d *Daemon) Save(ctx context.Context, pid uint32, reason string) ([]string, error) {
	k := d.archiver.Load()
	if k == nil {
		return nil, clierror.New(clierror.Unsupported,
			"start it with --record-dir DIR, or use `inferscope record`",
			errors.New("this daemon keeps no recordings on the disk"))
	}
	return k.Save(ctx, pid, reason)
}

// saveOnSignal saves the retained events of all targets on each SIGUSR1.
func (d *Daemon) saveOnSignal(ctx context.Context) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		paths, err := d.Save(ctx, 0, "signal")
		if err != nil {
			d.log.Warn("what is remembered was not saved", zap.Error(err))
			continue
		}
		d.log.Info("saved what is remembered", zap.Strings("paths", paths))
	}
}

// kept returns the state of recordings on disk; nil if none are stored.
func (d *Daemon) kept() *api.Kept {
	k := d.archiver.Load()
	if k == nil {
		return nil
	}
	s := k.State()
	return &s
}
