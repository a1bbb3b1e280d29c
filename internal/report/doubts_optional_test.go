package report

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// TestOptionalSources: a verdict does not suffer where a source is missing on which none rests, and does where one
// does.
func TestOptionalSources(t *testing.T) {
	for optional, want := range map[bool]loss.Severity{true: loss.Info, false: loss.Error} {
		rec := decode().Recording()
		rec.Meta.Sources = []recording.Source{
			{Name: "a source", State: "unavailable", Detail: "no reason", Optional: optional},
		}
		var found loss.Severity
		for _, d := range New(rec).Doubts {
			if d.Reason == sourceDown {
				found = d.Severity
			}
		}
		if found != want {
			t.Errorf("optional %v: %q, want %q", optional, found, want)
		}
	}
}
