package ring

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzParseCPUs: a list of CPUs stays within what rings can be made for.
func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8,10-11")
	f.Add("5-")
	fuzzing.Run(f, func(t *testing.T, list string) {
		cpus, err := parseCPUs(list)
		if err == nil &&
			(len(cpus) == 0 || len(cpus) > maxCPUs || slices.Min(cpus) < 0 || slices.Max(cpus) >= maxCPUs) {
			t.Errorf("%q: %d CPUs", list, len(cpus))
		}
	})
}
