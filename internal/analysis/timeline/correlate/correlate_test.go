package correlate

import (
	"math/rand/v2"
	"testing"
)

const us = 1000

// stream makes n calls 10 µs apart, with works 8 µs later; shape says what each of them is.
func stream(n int, shape func(i int) uint32) *Problem {
	p := &Problem{Lanes: 1, Streams: 1}
	for i := range n {
		at := uint64(1_000_000 + i*10*us)
		p.Calls = append(p.Calls, Call{Time: at, Shape: shape(i)})
		p.Works = append(p.Works, Work{Start: at + 8*us, End: at + 9*us, Shape: shape(i)})
	}
	return p
}

// fenced puts a barrier before the first call, and one behind the last work.
func fenced(p *Problem) *Problem {
	first, last := p.Calls[0].Time, p.Works[len(p.Works)-1].End
	p.Barriers = []Barrier{
		{From: first - 20, To: first - 10, Lane: None, Stream: None},
		{From: last, To: last + 10, Lane: 0, Stream: None},
	}
	return p
}

// check compares links with a function that gives the call of a work, None where it must not be linked.
func check(t *testing.T, p *Problem, want func(w int) int32) {
	t.Helper()
	links, _ := Match(p)
	for w, l := range links {
		if l.Call != want(w) {
			t.Fatalf("work %d is linked to call %d, want %d", w, l.Call, want(w))
		}
		if (l.Call == None) != (l.Confidence == 0) || l.Confidence > 1 {
			t.Fatalf("work %d: link %+v", w, l)
		}
	}
}

func one(int) uint32 { return 7 }

func varied(i int) uint32 { return uint32(rand.New(rand.NewPCG(uint64(i), 1)).IntN(5)) }

func TestNothingIsLost(t *testing.T) {
	check(t, fenced(stream(500, one)), func(w int) int32 { return int32(w) })
}

// TestNoFenceNoShape: with both ends open and one shape, each shift is as good as the other.
func TestNoFenceNoShape(t *testing.T) {
	check(t, stream(500, one), func(int) int32 { return None })
}

func TestNoFenceButShapes(t *testing.T) {
	check(t, stream(500, varied), func(w int) int32 { return int32(w) })
}

// TestACallIsMissing: among equal ones nobody can say which, among others it shows.
func TestACallIsMissing(t *testing.T) {
	p := fenced(stream(100, one))
	p.Calls = append(p.Calls[:50:50], p.Calls[51:]...)
	check(t, p, func(int) int32 { return None })

	p = fenced(stream(100, varied))
	p.Calls = append(p.Calls[:50:50], p.Calls[51:]...)
	links, _ := Match(p)
	linked := 0
	for w, l := range links {
		want := int32(w)
		if w >= 50 {
			want--
		}
		if l.Call == None {
			continue
		}
		linked++
		if l.Call != want || w == 50 {
			t.Errorf("work %d is linked to call %d, want %d", w, l.Call, want)
		}
	}
	if linked < 80 {
		t.Errorf("%d of 99 are linked", linked)
	}
}

// TestWorkBeforeItsCall holds that time decides where order would not.
func TestWorkBeforeItsCall(t *testing.T) {
	p := fenced(stream(3, one))
	p.Works[1].Start = p.Calls[1].Time - 5*us
	links, _ := Match(p)
	if links[1].Call == 1 {
		t.Error("a work is linked to a call 5 µs after its beginning")
	}
}

// TestMuchIsLost holds that a third of the calls missing is too much for any link.
func TestMuchIsLost(t *testing.T) {
	p := fenced(stream(300, varied))
	p.CallLoss = 0.3
	check(t, p, func(int) int32 { return None })
}

// TestForcedPairs compares the table with all common subsequences of short sequences, found by trying.
func TestForcedPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		a, b := letters(rng), letters(rng)
		table, ok := newTable(len(a), len(b))
		if !ok {
			t.Fatal("too large")
		}
		table.fill(func(i, j int) bool { return a[i] == b[j] })
		want := everywhere(a, b)
		got := table.forced()
		if len(got) != len(want) {
			t.Fatalf("%v and %v: forced %v, want %v", a, b, got, want)
		}
		for _, c := range got {
			if !want[c] {
				t.Fatalf("%v and %v: %v is not in every longest common subsequence", a, b, c)
			}
		}
	}
}

func letters(rng *rand.Rand) []byte {
	out := make([]byte, 1+rng.IntN(7))
	for i := range out {
		out[i] = byte('a' + rng.IntN(3))
	}
	return out
}

// everywhere returns the pairs that are in every longest common subsequence.
func everywhere(a, b []byte) map[cell]bool {
	var best [][]cell
	var try func(i, j int, chosen []cell)
	try = func(i, j int, chosen []cell) {
		switch {
		case len(best) == 0 || len(chosen) > len(best[0]):
			best = [][]cell{append([]cell(nil), chosen...)}
		case len(chosen) == len(best[0]):
			best = append(best, append([]cell(nil), chosen...))
		}
		for x := i; x < len(a); x++ {
			for y := j; y < len(b); y++ {
				if a[x] == b[y] {
					try(x+1, y+1, append(chosen, cell{x, y}))
				}
			}
		}
	}
	try(0, 0, nil)
	count := map[cell]int{}
	for _, chosen := range best {
		for _, c := range chosen {
			count[c]++
		}
	}
	out := map[cell]bool{}
	for c, n := range count {
		if n == len(best) {
			out[c] = true
		}
	}
	return out
}

// TestHostile holds that any problem ends, with links inside their bounds.
func TestHostile(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 300 {
		p := &Problem{Lanes: 1 + rng.IntN(4), Streams: 1 + rng.IntN(4)}
		for range rng.IntN(60) {
			p.Calls = append(p.Calls,
				Call{Time: rng.Uint64N(100 * us), Shape: uint32(rng.IntN(2)), Lane: int32(rng.IntN(p.Lanes))})
		}
		for range rng.IntN(60) {
			p.Works = append(p.Works, Work{
				Start:  rng.Uint64N(100 * us),
				End:    rng.Uint64(),
				Shape:  uint32(rng.IntN(2)),
				Stream: int32(rng.IntN(p.Streams)),
			})
		}
		for range rng.IntN(9) {
			p.Barriers = append(p.Barriers, Barrier{
				From:   rng.Uint64(),
				To:     rng.Uint64N(100 * us),
				Lane:   int32(rng.IntN(p.Lanes+1)) - 1,
				Stream: int32(rng.IntN(p.Streams+1)) - 1,
			})
		}
		links, lanes := Match(p)
		if len(links) != len(p.Works) || len(lanes) != p.Lanes {
			t.Fatalf("%d links and %d lanes", len(links), len(lanes))
		}
		for _, l := range links {
			if l.Call < None || int(l.Call) >= len(p.Calls) {
				t.Fatalf("link %+v of %d calls", l, len(p.Calls))
			}
		}
	}
}
