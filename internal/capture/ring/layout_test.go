package ring

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func TestLayout(t *testing.T) {
	for _, tc := range []struct {
		name     string
		budget   int64
		possible int
		online   []int
		rings    int
		size     int64
	}{
		{"two CPUs", 0, 2, seq(2), 2, 4 << 20},
		{"eight CPUs", 0, 8, seq(8), 8, 2 << 20},
		{"sixteen CPUs", 0, 16, seq(16), 16, 1 << 20},
		{"a big machine shares", 0, 256, seq(256), 16, 1 << 20},
		{"no power of two", 10 << 20, 4, seq(4), 4, 2 << 20},
		{"one small ring for all", minBytes, 8, seq(8), 1, minBytes},
		{"less than a good ring", 700 << 10, 8, seq(8), 1, 512 << 10},
		{"offline CPUs take no room", 0, 8, []int{0, 4}, 2, 4 << 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := layout(tc.budget, tc.possible, tc.online)
			must.NoError(t, err)
			if p.rings != tc.rings || p.size != tc.size {
				t.Errorf("%d rings of %d bytes, want %d of %d", p.rings, p.size, tc.rings, tc.size)
			}
			if budget := max(tc.budget, 0); budget > 0 && int64(p.rings)*p.size > budget {
				t.Errorf("%d bytes in all, the budget is %d", int64(p.rings)*p.size, budget)
			}
			checkShares(t, p, tc.possible, tc.online)
		})
	}
}

// checkShares demands a ring for every possible CPU, and the online ones spread evenly.
func checkShares(t *testing.T, p plan, possible int, online []int) {
	t.Helper()
	if len(p.ringOf) != possible {
		t.Fatalf("%d CPUs have a ring, %d are possible", len(p.ringOf), possible)
	}
	users := make([]int, p.rings)
	for _, ring := range p.ringOf {
		if ring < 0 || ring >= p.rings {
			t.Fatalf("ring %d of %d", ring, p.rings)
		}
	}
	for _, cpu := range online {
		users[p.ringOf[cpu]]++
	}
	if slices.Max(users)-slices.Min(users) > 1 {
		t.Errorf("online CPUs per ring: %v", users)
	}
}

func TestLayoutRefuses(t *testing.T) {
	for name, try := range map[string]func() (plan, error){
		"a tiny budget":   func() (plan, error) { return layout(minBytes-1, 2, seq(2)) },
		"a negative one":  func() (plan, error) { return layout(-1, 2, seq(2)) },
		"no CPU online":   func() (plan, error) { return layout(0, 2, nil) },
		"too many CPUs":   func() (plan, error) { return layout(0, maxCPUs+1, seq(2)) },
		"no possible CPU": func() (plan, error) { return layout(0, 0, seq(2)) },
	} {
		if _, err := try(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestReasonsEqualBTF: the index of a counter means the same in C and here.
func TestReasonsEqualBTF(t *testing.T) {
	spec, err := btf.LoadSpec("../../../bpf/calls_x86_bpfel.o")
	must.NoError(t, err)
	var enum *btf.Enum
	must.NoError(t, spec.TypeByName("loss_reason", &enum))
	names := []string{
		"LOSS_RING_FULL", "LOSS_DEPTH", "LOSS_NO_STORAGE", "LOSS_NO_ENTRY", "LOSS_SKIPPED", "LOSS_REASONS",
	}
	if len(names)-1 != len(reasons()) {
		t.Fatalf("%d reasons in Go", len(reasons()))
	}
	for i, v := range enum.Values {
		if i >= len(names) || v.Name != names[i] || v.Value != uint64(i) {
			t.Errorf("value %d of enum loss_reason is %s = %d", i, v.Name, v.Value)
		}
	}
}
