package diagnosis

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// The GPU runs from 0 to 100 and from 300 to 400, each begun by thread 7, and from 450 to 500, begun by thread 8.
func twoThreads(phases ...phase) *truth {
	op := func(tid uint32, from, to uint64) cudasim.Op {
		return cudasim.Op{Kind: cudasim.Kernel, TID: tid, Start: from, End: to}
	}
	return newTruth([]*cudasim.Truth{
		{Ops: []cudasim.Op{op(7, 0, 100), op(7, 300, 400), {Kind: cudasim.HostFunction, Start: 100, End: 300}}},
		{Ops: []cudasim.Op{op(8, 450, 500), op(7, 460, 500)}},
	}, phases)
}

func TestCosts(t *testing.T) {
	whole := timeline.Spans{{From: 0, To: 500}}
	span := func(from, to uint64) timeline.Span { return timeline.Span{From: from, To: to} }
	for name, c := range map[string]struct {
		phases  []phase
		covered timeline.Spans
		quota   uint64
		want    map[string]float64
	}{
		"the thread that ends a pause counts": {
			[]phase{{span(50, 350), 7, 0, "sleep"}, {span(50, 480), 8, 0, "disk"}},
			whole, 0,
			map[string]float64{"sleep": 200, "disk": 50},
		},
		"what is not covered does not": {
			[]phase{{span(50, 350), 7, 0, "sleep"}},
			timeline.Spans{{From: 150, To: 250}},
			0,
			map[string]float64{"sleep": 100},
		},
		"without a CPU": {
			[]phase{{span(100, 300), 7, 80, "native-work"}},
			whole, 0,
			map[string]float64{"native-work": 120, "no-cpu": 80},
		},
		"half of it while the GPU ran": {
			[]phase{{span(200, 400), 7, 80, "native-work"}},
			whole, 0,
			map[string]float64{"native-work": 60, "no-cpu": 40},
		},
		"between two phases": {
			[]phase{{span(150, 250), 7, 30, ""}}, whole, 0, map[string]float64{"no-cpu": 30},
		},
		"with a quota": {
			[]phase{{span(100, 300), 7, 80, "native-work"}},
			whole, 50,
			map[string]float64{"native-work": 120, "no-cpu": 30, "throttled": 50},
		},
		"waking up belongs to the wait": {
			[]phase{{span(100, 300), 7, 80, "worker"}}, whole, 0, map[string]float64{"worker": 200},
		},
	} {
		got := twoThreads(c.phases...)
		got.Quota = c.quota
		costs := got.costs(c.covered, &scenario{})
		for key, ns := range costs {
			if ns != c.want[key] {
				t.Errorf("%s: %s costs %v, not %v", name, key, ns, c.want[key])
			}
		}
		for key := range c.want {
			if _, ok := costs[key]; !ok {
				t.Errorf("%s: %s costs nothing", name, key)
			}
		}
	}
}

func TestParsePlan(t *testing.T) {
	b := make([]byte, planHeader+3*planSize)
	binary.LittleEndian.PutUint32(b, 9) // more than there are
	for i, done := range []uint32{1, 0, 1} {
		p := b[planHeader+i*planSize:]
		binary.LittleEndian.PutUint32(p, uint32(i+1))
		binary.LittleEndian.PutUint32(p[4:], done)
		binary.LittleEndian.PutUint64(p[8:], 10)
		binary.LittleEndian.PutUint64(p[16:], 20)
		copy(p[causeAt:], "sleep")
	}
	want := []phase{{timeline.Span{From: 10, To: 20}, 1, 0, "sleep"}, {timeline.Span{From: 10, To: 20}, 3, 0, "sleep"}}
	if got := parsePlan(b); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Every cause that a scenario wants is one that the product knows.
func TestScenariosAreSound(t *testing.T) {
	names := map[string]bool{}
	for _, s := range scenarios() {
		if names[s.name] {
			t.Errorf("two scenarios are called %q", s.name)
		}
		names[s.name] = true
		if _, _, ok := cause.ByKey(s.want); !ok && s.want != "" {
			t.Errorf("%s: %q is no cause", s.name, s.want)
		}
	}
	if len(names) < 40 {
		t.Errorf("%d scenarios are fewer than promised", len(names))
	}
}
