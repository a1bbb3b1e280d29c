package recording

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// digitBits is the width of a radix digit: 2,048 counters stay in the first-level
// cache, and a window of a minute (36 bits of ns) takes four passes.
const digitBits = 11

// blockBits is the size of a block of arrival: 4,096 events, 256 KiB.
const blockBits = 12

// arrival holds events in the order in which they came, in blocks, so that it
// grows without copying what is there: growing one slice took half of the time of
// reading a stream. All blocks but the last are full.
type arrival struct {
	blocks [][]event.Event
	count  int
}

// room returns memory for up to n more events, at least one; fill says how many of them came.
func (a *arrival) room(n int) []event.Event {
	used := a.count & (1<<blockBits - 1)
	if used == 0 {
		a.blocks = append(a.blocks, make([]event.Event, 1<<blockBits))
	}
	block := a.blocks[len(a.blocks)-1]
	return block[used:min(used+n, len(block))]
}

// fill notes that n events have been put into the room that was asked for last.
func (a *arrival) fill(n int) { a.count += n }

func (a *arrival) at(place uint32) *event.Event {
	return &a.blocks[place>>blockBits][place&(1<<blockBits-1)]
}

// key is where an event goes (its time) and where it is (its place of arrival).
type key struct {
	ts    uint64
	place uint32
}

// arrange returns the events that overlap [from, to], ordered by TS; events of
// equal TS keep their order.
//
// Events come per CPU and in the order in which they ended, so a long call
// lies thousands of places behind its beginning: merging finds no long runs, and a
// radix sort of the times costs the same for every order. Only the keys are
// sorted; each event moves once.
func (a *arrival) arrange(from, to uint64) []event.Event {
	keys := a.keys(from, to)
	events := make([]event.Event, len(keys))
	for i, k := range sortKeys(keys) {
		events[i] = *a.at(k.place)
	}
	return events
}

// keys returns the keys of the events that overlap [from, to], in the order of arrival.
func (a *arrival) keys(from, to uint64) []key {
	keys := make([]key, 0, a.count)
	for place := range uint32(a.count) {
		if e := a.at(place); overlaps(e, from, to) {
			keys = append(keys, key{ts: e.TS, place: place})
		}
	}
	return keys
}

func byTime(a, b key) int { return cmp.Compare(a.ts, b.ts) }

// sortKeys sorts keys by time; equal ones keep their order. It may return other
// memory than it was given.
func sortKeys(keys []key) []key {
	if slices.IsSortedFunc(keys, byTime) {
		return keys
	}
	if len(keys) < 1<<digitBits { // the counters alone would cost more
		slices.SortStableFunc(keys, byTime)
		return keys
	}
	return radixSort(keys)
}

// radixSort sorts keys by the digits of their times, the least significant first.
func radixSort(keys []key) []key {
	first, last := slices.MinFunc(keys, byTime).ts, slices.MaxFunc(keys, byTime).ts
	spare := make([]key, len(keys))
	for shift := 0; shift < bits.Len64(last-first); shift += digitBits {
		digit := func(k key) uint64 { return (k.ts - first) >> shift & (1<<digitBits - 1) }
		var next [1 << digitBits]uint32 // where the next key of each digit goes
		for _, k := range keys {
			next[digit(k)]++
		}
		sum := uint32(0)
		for d, n := range next {
			next[d] = sum
			sum += n
		}
		for _, k := range keys {
			d := digit(k)
			spare[next[d]] = k
			next[d]++
		}
		keys, spare = spare, keys
	}
	return keys
}
