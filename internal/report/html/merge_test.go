package html

import (
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// random makes items of one track that do not overlap.
func random(rng *rand.Rand, n int) []item {
	var out []item
	at := uint64(1_000_000)
	for range n {
		at += rng.Uint64N(20_000)
		long := rng.Uint64N(9_000)
		if rng.IntN(40) == 0 {
			long *= 100
		}
		out = append(out, item{start: at, end: at + long, label: uint32(rng.IntN(7)), ref: none, src: none})
		at += long
	}
	return out
}

// TestMerge: nothing is lost or counted twice, what is long or in the focus stays as it is, and blocks say how full
// they are.
func TestMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		items := random(rng, 1+rng.IntN(400))
		last := items[len(items)-1].end
		from := 1_000_000 + rng.Uint64N(last-1_000_000)
		d := detail{bin: 1000 << rng.IntN(12), focus: timeline.Spans{{From: from, To: from + 200_000}}}
		if rng.IntN(9) == 0 {
			d = detail{}
		}
		checkMerge(t, items, d, merge(items, d, 900_000))
	}
}

func checkMerge(t *testing.T, items []item, d detail, out []drawn) {
	t.Helper()
	var n, time, want, slack uint64
	for i := range items {
		want += items[i].end - items[i].start
	}
	for i := range out {
		o := &out[i]
		if i > 0 && o.start < out[i-1].end {
			t.Fatalf("block %d begins at %d, before the end of the one before at %d", i, o.start, out[i-1].end)
		}
		long := o.end - o.start
		if o.count == 0 {
			n, time = n+1, time+long
			continue
		}
		n, time, slack = n+uint64(o.count), time+long*uint64(o.fill)/255, slack+long/255+1
		if o.count < 2 || long > d.bin+d.bin/4 {
			t.Fatalf("a block of %d items is %d ns long, with bins of %d", o.count, long, d.bin)
		}
		for _, f := range d.focus {
			for j := range items {
				it := &items[j]
				if it.start >= o.start && it.end <= o.end && it.start < f.To && it.end > f.From && it.start > f.From {
					t.Fatalf("the item at %d is in the focus %v and in a block [%d,%d)", it.start, f, o.start, o.end)
				}
			}
		}
	}
	if n != uint64(len(items)) {
		t.Fatalf("%d items became %d", len(items), n)
	}
	if off := max(time, want) - min(time, want); off > slack {
		t.Fatalf("%d ns became %d, with %d of rounding", want, time, slack)
	}
}

// TestFinest: there are never more items than asked for.
func TestFinest(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	items := random(rng, 60_000)
	s := &scene{
		in:     Input{Timeline: &timeline.Timeline{From: 900_000, To: items[len(items)-1].end}},
		tracks: []track{{items: items}},
	}
	for _, most := range []int{60_000, 20_000, 3_000, 200} {
		how, out := s.finest(most)
		if len(out[0]) > most {
			t.Errorf("%d items where %d may be, with %+v", len(out[0]), most, how)
		}
		if most >= len(items) != (how.bin == 0) {
			t.Errorf("bins of %d ns for %d of %d items", how.bin, most, len(items))
		}
	}
}
