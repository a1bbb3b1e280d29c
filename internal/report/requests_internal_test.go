package report

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/requests"
)

// TestStallText: gaps are long by exception; where they are not, tokens come in bursts.
func TestStallText(t *testing.T) {
	s := requests.Stalls{Gaps: 3000, Stalls: 30, Share: 0.4, Threshold: 50_000}
	if text := stallText(&s); !strings.Contains(text, "longer than usual (from 50.0 µs on)") {
		t.Error(text)
	}
	s.Stalls = 726
	if text := stallText(&s); text != "tokens come in bursts: 40.0% of the time between them is in 726 gaps of 3,000" {
		t.Error(text)
	}
}
