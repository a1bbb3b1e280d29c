package recording

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// jumble returns n events as they arrive from several CPUs: each CPU's in the
// order in which calls ended, the CPUs one after the other for each 50 ms.
func jumble(n, cpus int, seed uint64) []event.Event {
	rnd := rand.New(rand.NewPCG(seed, 0))
	events := make([]event.Event, 0, n)
	for pass := uint64(0); len(events) < n; pass++ {
		for cpu := range cpus {
			end := pass * 50_000_000
			for end < (pass+1)*50_000_000 && len(events) < n {
				end += 2000 + rnd.Uint64N(3000)
				e := event.Event{TS: end, TID: uint32(cpu), PID: uint32(len(events))}
				if len(events)%10 == 0 { // one call of ten is timed
					e.Dur = min(end, rnd.Uint64N(1_000_000))
					e.TS -= e.Dur
				}
				events = append(events, e)
			}
		}
	}
	return events
}

// arrange makes events arrive and arranges them.
func arrange(events []event.Event, from, to uint64) []event.Event {
	var a arrival
	for len(events) > 0 {
		n := copy(a.room(len(events)), events)
		a.fill(n)
		events = events[n:]
	}
	return a.arrange(from, to)
}

func byTS(a, b event.Event) int { return cmp.Compare(a.TS, b.TS) }

func sorted(events []event.Event) []event.Event {
	want := slices.Clone(events)
	slices.SortStableFunc(want, byTS)
	return want
}

func TestArrangeSorts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	anyTime := make([]event.Event, 10_000)
	for i := range anyTime {
		anyTime[i] = event.Event{TS: rnd.Uint64() >> rnd.IntN(64), PID: uint32(i)}
	}
	equal := make([]event.Event, 5000)
	for i := range equal {
		equal[i] = event.Event{TS: uint64(i % 3), PID: uint32(i)}
	}
	for name, events := range map[string][]event.Event{
		"none": nil, "one": {{TS: 5}}, "few": jumble(100, 2, 1), "many": jumble(20_000, 4, 2),
		"of any time": anyTime, "of equal times": equal,
		"below the radix sort": jumble(1<<digitBits-1, 3, 5), "just above": jumble(1<<digitBits, 3, 6),
	} {
		want := sorted(events)
		if got := arrange(events, 0, math.MaxUint64); !slices.Equal(got, want) {
			t.Errorf("%s: %d events are not in order", name, len(got))
		}
	}
}

func TestArrangeFilters(t *testing.T) {
	events := jumble(20_000, 2, 7)
	from, to := events[5000].TS, events[15_000].TS
	want := within(sorted(events), from, to)
	if got := arrange(events, from, to); !slices.Equal(got, want) {
		t.Errorf("%d events in the window, want %d", len(got), len(want))
	}
}

// TestPortableCoding: the coding for big-endian machines writes the same bytes.
func TestPortableCoding(t *testing.T) {
	if !littleEndian() {
		t.Skip("compares with the memory of a little-endian machine")
	}
	events := []event.Event{{
		TS: 0x0102030405060708, Dur: 0x1112131415161718, PID: 0x21222324, TID: 0x31323334, Func: 0x4142,
		Kind: 0x51, Flags: 0x61, Ret: -0x71727374, Args: [4]uint64{1 << 63, 2, 3, 0x8182838485868788},
	}, {TS: 9}}
	wire := encodeEvents(nil, events)
	if !slices.Equal(wire, bytesOf(events)) {
		t.Errorf("encoded as % x", wire)
	}
	got := make([]event.Event, len(events))
	copy(bytesOf(got), wire)
	decodeEvents(got)
	if !slices.Equal(got, events) {
		t.Errorf("decoded as %+v", got)
	}
}
