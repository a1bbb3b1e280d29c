package cuda

import "testing"

// TestHIPTableNamesRows finds rows that a change of CUDA's table would leave without a meaning.
func TestHIPTableNamesRows(t *testing.T) {
	for name, like := range hipNames {
		if row, ok := MatchHIP(name); !ok || row.Group == "" {
			t.Errorf("%s stands for %s, which the table does not have", name, like)
		}
	}
}
