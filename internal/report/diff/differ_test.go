package diff

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
)

// TestDiffer: the same wait of the same program is the same, whether the runtime's call was recorded or the driver's.
func TestDiffer(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"period of cudaStreamSynchronize in python (12)", "period of cuStreamSynchronize in python (34)", true},
		{"period of 3 calls of cudaDeviceSynchronize in a", "period of 3 calls of cuCtxSynchronize_v2 in a", true},
		{"period of cudaThreadSynchronize in a (1)", "period of cuCtxSynchronize in a (1)", true},
		{"period of 3 calls of cuCtxSynchronize in a (1)", "period of cuCtxSynchronize in a (1)", false},
		{"period of cudaStreamSynchronize in a (1)", "period of cuEventSynchronize in a (1)", false},
		{"range cudaStreamSynchronize", "range cuStreamSynchronize", false},
	} {
		got := differ(&diagnose.Iteration{Source: c.a}, &diagnose.Iteration{Source: c.b})
		if (got == "") != c.same {
			t.Errorf("%s and %s: %q", c.a, c.b, got)
		}
	}
}
