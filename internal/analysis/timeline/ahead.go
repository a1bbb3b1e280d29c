package timeline

import (
	"math"
	"sort"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Ahead reads what somebody who goes over the activities looks at beside them, shortly before he does, so that it is in
// the CPU's cache by then. Of many threads the calls of neighbouring activities lie far apart, and to fetch each by
// itself takes longer than all that is done with it; what is read thread by thread, and event by event, lies one after
// the other, which the CPU sees coming.
type Ahead struct {
	t      *Timeline
	events bool    // those that the activities were made of are read, too
	next   []int32 // by thread: its first call that was not read
	at     uint64  // ns: calls that began until then were read
	until  int32   // what belongs to the activities before this one was read
	sum    uint64  // see Touch
}

// fewThreads is how many threads a CPU can follow by itself: for one, reading ahead takes a twentieth longer
// (BenchmarkWhole of package diagnose).
const fewThreads = 4

// aheadOf is for how many activities at least is read at once: with their calls and events they take half of what the
// second level of a CPU's cache holds. aheadOfEach is the same for each thread: some of its calls must be read in a
// row.
const (
	aheadOf     = 1 << 11
	aheadOfEach = 1 << 4
)

// maxPrefetchSpread is how many calls, and events, are read for each activity at most: those of a damaged recording may
// lie anywhere.
const maxPrefetchSpread = 8

// Ahead returns what reads the calls of activities, and their events where it is asked to.
func (t *Timeline) Ahead(events bool) Ahead {
	if len(t.Threads) <= fewThreads {
		return Ahead{until: math.MaxInt32}
	}
	return Ahead{t: t, events: events, next: make([]int32, len(t.Threads)), at: math.MaxUint64}
}

// Look notes that the activity at index i is looked at now, and those before last after it.
func (a *Ahead) Look(i, last int32) {
	if i >= a.until {
		a.read(i, last)
	}
}

func (a *Ahead) read(i, last int32) {
	a.until = i + min(last-i, int32(max(aheadOf, aheadOfEach*len(a.next))))
	list := a.t.Activities[i:a.until]
	a.calls(list[0].Start, list[len(list)-1].Start, maxPrefetchSpread*len(list))
	if from, to := list[0].Event, list[len(list)-1].Event; a.events && from < to &&
		int(to-from) < maxPrefetchSpread*len(list) {
		a.sum += Touch(a.t.Rec.Events[from:to])
	}
}

// calls reads, thread by thread, the calls that began in [from, to], in ns; most is how many.
func (a *Ahead) calls(from, to uint64, most int) {
	if from < a.at {
		a.seek(from)
	}
	a.at = to
	for k := range a.next {
		op, end := a.next[k], a.t.Threads[k].Last
		for ; op < end && most > 0 && a.t.Ops[op].Start <= to; most-- {
			op++
		}
		a.next[k] = op
	}
}

// seek goes to the calls from a time on, ns.
func (a *Ahead) seek(from uint64) {
	for k := range a.next {
		th := &a.t.Threads[k]
		list := a.t.Ops[th.First:th.Last]
		a.next[k] = th.First + int32(sort.Search(len(list), func(i int) bool { return list[i].Start >= from }))
	}
}

// Touch reads events in their order, so that they are in the CPU's cache. Who keeps the sum keeps the compiler from
// leaving it out.
func Touch(events []event.Event) (sum uint64) {
	for i := range events {
		sum += events[i].TS
	}
	return sum
}
