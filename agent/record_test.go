package agent_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestRecordsAreTheTruth compares every kernel, copy and memset with what the simulator did.
func TestRecordsAreTheTruth(t *testing.T) {
	p := play(t, settings{}, "launch 5 kernel=before_us1", "sync", "wait",
		"launch 300 kernel=k_us3 grid=7,1,1 block=96,1,1", "h2d 4096 x20 pinned async", "memset 100", "sync", "wait")
	p.state(stateOpen)
	p.proceed()
	p.victim.WaitLine("waiting")
	p.flush()
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	p.victim.Send("go")
	p.victim.Finish()
	compare(t, p, p.victim.Truth(), map[uint8]int{kindKernel: 300, kindCopy: 20, kindSet: 1})
}

// compare checks slots of operations against the truth, and how many of each kind there are.
func compare(t *testing.T, p *player, truth *cudasim.Truth, want map[uint8]int) {
	t.Helper()
	type key struct {
		call  uint32
		start uint64
	}
	ops := map[key]cudasim.Op{}
	for _, o := range truth.Ops {
		ops[key{uint32(o.Call), o.Start}] = o
	}
	seen := map[uint8]int{}
	for _, s := range p.all {
		if s.kind != kindKernel && s.kind != kindCopy && s.kind != kindSet {
			continue
		}
		seen[s.kind]++
		k := key{uint32(s.args[0]), s.ts}
		o, ok := ops[k]
		delete(ops, k)
		if !ok || o.End != s.ts+s.dur || uint32(o.StreamID) != s.tid {
			t.Fatalf("slot %+v is not in the truth (%+v)", s, o)
		}
		if s.kind == kindKernel &&
			(p.names[uint32(s.ret)] != o.Name ||
				s.args[2] != uint64(o.Grid[0])|uint64(o.Grid[1])<<32|uint64(o.Grid[2])<<48) {
			t.Fatalf("kernel %+v %q, truth %+v", s, p.names[uint32(s.ret)], o)
		}
		if s.kind == kindCopy && (s.args[2] != o.Bytes || uint32(s.ret&0xff) != uint32(o.Copy)) {
			t.Fatalf("copy %+v, truth %+v", s, o)
		}
	}
	for kind, n := range want {
		if seen[kind] != n {
			t.Errorf("%d slots of kind %d, want %d; %d dropped", seen[kind], kind, n, p.get64OrZero(ringDropped))
		}
	}
}

func (p *player) get64OrZero(at int) uint64 {
	if p.ring == nil {
		return 0
	}
	return p.get64(at)
}

// TestRanges pairs NVTX markers: nested ones, a point, one that began before, and two that want the same place.
func TestRanges(t *testing.T) {
	const want = `name 1 of 5 bytes, 1
name 2 of 5 bytes, 1
2 [110, 150] thread 77 id 2
name 3 of 5 bytes, 1
3 [160, 160] thread 77 id 3
1 [100, 200] thread 77 id 1
name 4 of 4 bytes, 1
2 [310, 330] thread 77 id 4101
`
	if got := unit(t, "ranges", "-O1"); got != want {
		t.Errorf("ranges:\n%swant:\n%s", got, want)
	}
}
