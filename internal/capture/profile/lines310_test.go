package profile

import (
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// A table as Objects/lnotab_notes.txt of CPython 3.10 describes it.
func TestLineIn310(t *testing.T) {
	table := []byte{4, 1, 6, 2, 2, 0x80, 4, 0xff, 2, 0}
	for _, c := range []struct{ lasti, want uint32 }{
		{0, 11}, {1, 11}, {2, 13}, {4, 13}, {5, 0}, {6, 12}, {7, 12}, {8, 12}, {9, 0}, {1 << 31, 0},
	} {
		if got := lineIn310(table, c.lasti, 10); got != c.want {
			t.Errorf("instruction %d is in line %d, not %d", c.lasti, got, c.want)
		}
	}
}

func FuzzLineIn310(f *testing.F) {
	f.Add([]byte{4, 1, 6, 2}, uint32(3), uint32(1))
	fuzzing.Run(f, func(_ *testing.T, table []byte, lasti, first uint32) { lineIn310(table, lasti, first) })
}
