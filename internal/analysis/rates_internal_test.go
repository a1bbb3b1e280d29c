package analysis

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/analysis/sensors"
)

// TestRates: tokens that are only counted by the parts of streams, or not at all, tell of no rate.
func TestRates(t *testing.T) {
	for name, x := range map[string]struct {
		requests *requests.Summary
		want     sensors.Rates
	}{
		"no requests": {nil, sensors.Rates{}},
		"all known":   {&requests.Summary{PerSec: 4, TokensPerSec: 90}, sensors.Rates{Requests: 4, Tokens: 90}},
		"some unknown": {
			&requests.Summary{PerSec: 4, TokensPerSec: 90, TokensUnknown: 1}, sensors.Rates{Requests: 4},
		},
		"some by parts": {
			&requests.Summary{PerSec: 4, TokensPerSec: 90, TokensCounted: 1}, sensors.Rates{Requests: 4},
		},
	} {
		r := Result{Diagnosis: &diagnose.Diagnosis{}, Requests: x.requests}
		if got := r.rates(); got != x.want {
			t.Errorf("%s: %+v, want %+v", name, got, x.want)
		}
	}
}
