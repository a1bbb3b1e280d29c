package report

import (
	"encoding/json"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestWhereStepsAreCut: how many steps have copies that may be another's is said.
func TestWhereStepsAreCut(t *testing.T) {
	const cut = "6 of 10 end where the GPU has copied the sampled tokens out, 1.00 ms (p50; p90 1.00 ms, p99 1.00 " +
		"ms) before the engine's message; GPU times of other steps are cut at the messages"
	const lag = `"copy_to_message": {"count": 6, "p50_ns": 1000000, "p90_ns": 1000000, "p99_ns": 1000000}`
	for in, want := range map[string]string{
		`{"steps": 10}`: "",
		`{"steps": 10, "steps_cut_at_copies": 6, ` + lag + `}`: cut,
		`{"steps": 10, "steps_cut_at_copies": 6, "steps_uncertain": 3, ` + lag + `}`: cut +
			": of 3 it is not certain which copy of sampled tokens is theirs",
		`{"steps": 10, "steps_uncertain": 9}`: "of 9 it is not certain which copy of sampled tokens is theirs: " +
			"GPU times are cut at the engine's messages",
	} {
		var s requests.Summary
		must.NoError(t, json.Unmarshal([]byte(`{"engine": `+in+`}`), &s))
		if got := cutText(&s); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
