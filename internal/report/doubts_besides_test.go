package report

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// TestSourcesBesides: a verdict does not suffer where a source is missing on which none rests, and does where one does.
func TestSourcesBesides(t *testing.T) {
	for name, want := range map[string]loss.Severity{"gpu sensors": loss.Info, "requests": loss.Info, "scheduling": loss.Error} {
		rec := decode().Recording()
		rec.Meta.Sources = []recording.Source{{Name: name, State: "unavailable", Detail: "no reason"}}
		var found loss.Severity
		for _, d := range New(rec).Doubts {
			if d.Reason == sourceDown {
				found = d.Severity
			}
		}
		if found != want {
			t.Errorf("%s: %q, want %q", name, found, want)
		}
	}
}
