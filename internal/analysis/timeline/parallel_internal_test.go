package timeline

import (
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// parted is as stretches, but for stretches of so few.
func parted(size int) func(n int) [][2]int {
	return func(n int) [][2]int {
		out := [][2]int{}
		for at := 0; at < n; at += size {
			out = append(out, [2]int{at, min(n, at+size)})
		}
		if len(out) == 0 {
			out = append(out, [2]int{})
		}
		return out
	}
}

// TestPartsDoNotMatter holds that a timeline is the same however its making is dealt out to goroutines.
func TestPartsDoNotMatter(t *testing.T) {
	for seed := range uint64(300) {
		rec := damaged(seed)
		want := buildIn(rec, parted(1<<30))
		if err := want.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, size := range []int{1, 7, 64} {
			if got := buildIn(rec, parted(size)); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: stretches of %d events make another timeline", seed, size)
			}
		}
	}
}

// damaged makes a recording of which most is nonsense, in order or not, of several processes with one pid.
func damaged(seed uint64) *recording.Recording {
	rng := rand.New(rand.NewPCG(seed, 5))
	rec := hostileRecording(rng.Uint64N(100), 200+rng.Uint64N(1<<16))
	raw := make([]byte, 8)
	for i := range rng.IntN(500) {
		binary.LittleEndian.PutUint64(raw, rng.Uint64())
		e := hostileEvent(raw)
		if seed%3 == 0 {
			e.TS = uint64(i) * 20 // in order
		}
		if e.Kind == event.Call && e.Flags&event.Correlated != 0 && seed%2 == 0 {
			e.Ret = int32(i) // ids that come once
		}
		rec.Events = append(rec.Events, e)
	}
	return rec
}
