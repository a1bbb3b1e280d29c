package memory

import (
	"testing"

	"github.com/inferscope/inferscope/bpf"
)

// TestCostOfOtherLevels: at each level, what the calls took stands at that level, and those beyond it would take less.
func TestCostOfOtherLevels(t *testing.T) {
	counted := &bpf.MemoryMemoryDevice{Allocations: 6000, Frees: 6000, Samples: 80}
	for level := range levels {
		r := runsOf(0, counted, level)
		if level < levelOff && r.At[level] != r.NS {
			t.Errorf("at level %d the calls took %d ns, %d by level", level, r.NS, r.At[level])
		}
		for l := level + 1; l < len(levels); l++ {
			if r.At[l] >= r.At[l-1] && r.At[l] != 0 {
				t.Errorf("at level %d, level %d would take %d ns, the one above it %d", level, l, r.At[l], r.At[l-1])
			}
		}
	}
	if r := runsOf(0, counted, levelSampled); r.At[levelWindows] > r.NS/5 {
		t.Errorf("a tenth of the time would take %d ns of %d", r.At[levelWindows], r.NS)
	}
}

// DriverKeys returns how many blocks and mappings of the driver are known of a process.
func (s *Source) DriverKeys(t *testing.T, pid uint32) (n int) {
	t.Helper()
	for _, name := range []string{bpf.MemoryMapDriverBlocks, bpf.MemoryMapDriverMappings} {
		keys, err := driverKeys(s.programs.coll.Maps[name], pid)
		if err != nil {
			t.Fatal(err)
		}
		n += len(keys)
	}
	return n
}
