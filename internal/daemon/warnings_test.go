package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/inferscope/inferscope/internal/format/logfield"
)

func TestWarnings(t *testing.T) {
	var w Warnings
	written, log := observer.New(zapcore.DebugLevel)
	logger := zap.New(zapcore.NewTee(written, w.Core())).With(zap.String("source", "gpu"))
	logger.Info("no warning")
	logger.Warn("an agent ended", zap.Uint32("pid", 7), logfield.Reported())
	logger.Error("it broke", zap.Error(fmt.Errorf("no room: %w", errors.ErrUnsupported)))
	kept, omitted := w.state()
	if len(kept) != 2 || omitted != 0 {
		t.Fatalf("%d warnings are kept and %d are not: want 2 and 0", len(kept), omitted)
	}
	if got, want := kept[0].String(), "an agent ended (pid: 7, source: gpu)"; got != want || !kept[0].Reported {
		t.Errorf("%q, reported %v: want %q, which is reported", got, kept[0].Reported, want)
	}
	if got, want := kept[1].String(), "it broke (error: no room: unsupported operation, source: gpu)"; got != want ||
		kept[1].Reported || kept[1].Level != "error" || kept[1].Time == 0 {
		t.Errorf("%+v: want %q, an error with its time", kept[1], want)
	}
	for _, e := range log.All() {
		for key := range e.ContextMap() {
			if key == "reported" {
				t.Errorf("%s: the mark is in the log's text", e.Message)
			}
		}
	}
}

func TestWarningsAreBounded(t *testing.T) {
	var w Warnings
	logger := zap.New(w.Core())
	for i := range 3 * maxWarnings {
		logger.Warn(strings.Repeat("m", 10*maxWarningText), zap.Int("i", i),
			zap.String("s", strings.Repeat("s", 10*maxWarningText)))
	}
	kept, omitted := w.state()
	if len(kept) != maxWarnings || omitted != 2*maxWarnings {
		t.Fatalf("%d warnings are kept and %d are not: want %d and %d", len(kept), omitted, maxWarnings, 2*maxWarnings)
	}
	last := kept[maxWarnings-1]
	if last.Fields[0].Value != fmt.Sprint(3*maxWarnings-1) || len(last.Message) != maxWarningText ||
		len(last.Fields[1].Value) != maxWarningText {
		t.Errorf("the last one is %+v: want the last that was logged, cut to %d bytes a text", last, maxWarningText)
	}
}
