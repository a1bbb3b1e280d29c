package profile

import (
	"context"
	"log/slog"

	otlog "go.opentelemetry.io/ebpf-profiler/log"
	"go.uber.org/zap"
)

// silence sends the library's log, of which there is one in a process, to ours.
func silence(log *zap.Logger) { otlog.SetLogger(*slog.New(quiet{log.Named("unwinder")})) }

// quiet is where the library logs to: its words come out at the debug level, whatever
// it thinks of them. It implements slog.Handler.
type quiet struct{ log *zap.Logger }

// Enabled reports whether anybody wants to know.
func (q quiet) Enabled(context.Context, slog.Level) bool { return q.log.Core().Enabled(zap.DebugLevel) }

// Handle logs the message; the library puts everything there.
func (q quiet) Handle(_ context.Context, r slog.Record) error {
	q.log.Debug(r.Message)
	return nil
}

// WithAttrs returns q: the library has none.
func (q quiet) WithAttrs([]slog.Attr) slog.Handler { return q }

// WithGroup returns q: the library has none.
func (q quiet) WithGroup(string) slog.Handler { return q }
