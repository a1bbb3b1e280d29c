package timeline

import (
	"math"
	"sort"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Prefetcher prefetches the calls and events of activities into the CPU's cache, shortly before the analysis reads
// them. With many threads the calls of neighbouring activities lie far apart in memory, and fetching each by itself
// takes longer than the analysis of it. Read thread by thread and event by event they are sequential, which the CPU
// prefetches.
type Prefetcher struct {
	t      *Timeline
	events bool    // those that the activities were made of are read, too
	next   []int32 // by thread: its first call that was not read
	at     uint64  // ns: calls that began until then were read
	until  int32   // what belongs to the activities before this one was read
	sum    uint64  // see PrefetchEvents
}

// fewThreads is the number of threads up to which the CPU prefetches well by itself: with one thread, reading ahead
// takes 5% longer (BenchmarkWhole of package diagnose).
const fewThreads = 4

// prefetchMin is the minimum number of activities that are prefetched at once: with their calls and events they take
// half of a CPU's second-level cache. prefetchMinPerThread is the minimum for each thread, so that several of its calls
// are read in sequence.
const (
	prefetchMin          = 1 << 11
	prefetchMinPerThread = 1 << 4
)

// maxPrefetchSpread is how many calls, and events, are read for each activity at most: those of a damaged recording may
// lie anywhere.
const maxPrefetchSpread = 8

// Prefetcher returns a prefetcher of the calls of activities, and with events also of their events.
func (t *Timeline) Prefetcher(events bool) Prefetcher {
	if len(t.Threads) <= fewThreads {
		return Prefetcher{until: math.MaxInt32}
	}
	return Prefetcher{t: t, events: events, next: make([]int32, len(t.Threads)), at: math.MaxUint64}
}

// Look notes that the activity at index i is looked at now, and those before last after it.
func (a *Prefetcher) Look(i, last int32) {
	if i >= a.until {
		a.read(i, last)
	}
}

func (a *Prefetcher) read(i, last int32) {
	a.until = i + min(last-i, int32(max(prefetchMin, prefetchMinPerThread*len(a.next))))
	list := a.t.Activities[i:a.until]
	a.calls(list[0].Start, list[len(list)-1].Start, maxPrefetchSpread*len(list))
	if from, to := list[0].Event, list[len(list)-1].Event; a.events && from < to &&
		int(to-from) < maxPrefetchSpread*len(list) {
		a.sum += PrefetchEvents(a.t.Rec.Events[from:to])
	}
}

// calls reads, thread by thread, the calls that began in [from, to], in ns; most is how many.
func (a *Prefetcher) calls(from, to uint64, most int) {
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
func (a *Prefetcher) seek(from uint64) {
	for k := range a.next {
		th := &a.t.Threads[k]
		list := a.t.Ops[th.First:th.Last]
		a.next[k] = th.First + int32(sort.Search(len(list), func(i int) bool { return list[i].Start >= from }))
	}
}

// PrefetchEvents reads events in their order, so that they are in the CPU's cache. It returns a sum so that the
// compiler does not remove the reads.
func PrefetchEvents(events []event.Event) (sum uint64) {
	for i := range events {
		sum += events[i].TS
	}
	return sum
}
