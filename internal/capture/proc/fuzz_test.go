package proc

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzParseCPUs: a list of CPUs names none twice as often as its text is long, and none that Linux cannot have.
func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8,10-11")
	f.Add("0-8191,0-8191,0-8191")
	fuzzing.Run(f, func(t *testing.T, list string) {
		cpus, err := parseCPUs(list)
		if err != nil {
			return
		}
		if len(cpus) == 0 || len(cpus) > maxCPU+1 || slices.Min(cpus) < 0 || slices.Max(cpus) > maxCPU {
			t.Errorf("%q: %d CPUs", list, len(cpus))
		}
	})
}
