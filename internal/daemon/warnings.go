package daemon

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap/zapcore"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/logfield"
)

const (
	maxWarnings    = 100 // that are kept
	maxWarningText = 500 // bytes of a message, and of a field
)

// Warnings keeps the last warnings and errors of a log for Status. It is safe for concurrent use.
type Warnings struct {
	mu      sync.Mutex
	last    []api.Warning
	omitted uint64
}

// Core returns a core that keeps what is logged, to be combined with the one that writes the log.
func (w *Warnings) Core() zapcore.Core { return &warningCore{kept: w} }

// state returns the kept entries, oldest first, and the number of dropped ones. A nil w keeps nothing.
func (w *Warnings) state() (kept []api.Warning, omitted uint64) {
	if w == nil {
		return nil, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.last), w.omitted
}

func (w *Warnings) add(one api.Warning) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) == maxWarnings {
		w.last, w.omitted = slices.Delete(w.last, 0, 1), w.omitted+1
	}
	w.last = append(w.last, one)
}

// warningCore implements zapcore.Core.
type warningCore struct {
	kept   *Warnings
	fields []zapcore.Field // of every entry
}

// Enabled implements zapcore.Core.
func (c *warningCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

// With implements zapcore.Core.
func (c *warningCore) With(fields []zapcore.Field) zapcore.Core {
	return &warningCore{kept: c.kept, fields: slices.Concat(c.fields, fields)}
}

// Check implements zapcore.Core.
func (c *warningCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c *warningCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	one := api.Warning{Time: e.Time.UnixNano(), Level: e.Level.String(), Message: bounded(e.Message)}
	values := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		one.Reported = one.Reported || logfield.IsReported(f)
		f.AddTo(values)
	}
	// What zap adds for errors that format themselves says the same again, in more lines.
	delete(values.Fields, "errorVerbose")
	delete(values.Fields, "errorCauses")
	for _, key := range slices.Sorted(maps.Keys(values.Fields)) {
		one.Fields = append(one.Fields, api.WarningField{Name: key, Value: bounded(fmt.Sprint(values.Fields[key]))})
	}
	c.kept.add(one)
	return nil
}

// Sync implements zapcore.Core.
func (c *warningCore) Sync() error { return nil }

func bounded(text string) string { return text[:min(len(text), maxWarningText)] }
