package threads

import (
	"math"
	"sort"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Index describes where the events of a recording are that the analysis of its threads needs: they are few among
// many, and reading all events again for each of their kinds takes longer than what is done with them.
type Index struct {
	Rec      *recording.Recording
	OffCPU   []int32  // events of kind OffCPU, indexes into Rec.Events, in order
	Samples  []Sample // samples of running threads, in the order of their events
	Switches []int32  // samples of threads that left their CPUs, as OffCPU
	Traced   []Sample // where threads were from then on, as other tools' traces say
}

// Sample is what a sample's event says of where a thread was. Many ask for it, and samples lie far apart: each would be
// fetched from memory again every time.
type Sample struct {
	TS       uint64 // ns, CLOCK_MONOTONIC
	PID, TID uint32
	Stack    uint32 // index + 1 into Meta.Stacks; 0: none
	Origin   event.StackOrigin
}

// sampleOf reads the event of a sample. No recording has a stack of the largest number.
func sampleOf(e *event.Event) Sample {
	return Sample{
		TS:     e.TS,
		PID:    e.PID,
		TID:    e.TID,
		Stack:  uint32(min(e.Args[0], math.MaxUint32)),
		Origin: event.StackOrigin(e.Args[1]),
	}
}

// Stacks calls yield with the samples of threads that left their CPUs, then with those of running threads, then with
// what other tools traced.
func (x *Index) Stacks(yield func(s *Sample)) {
	for _, i := range x.Switches {
		s := sampleOf(&x.Rec.Events[i])
		yield(&s)
	}
	for i := range x.Samples {
		yield(&x.Samples[i])
	}
	for i := range x.Traced {
		yield(&x.Traced[i])
	}
}

// Counts are how many events of each list of an Index there are in a stretch of a recording.
type Counts struct{ OffCPU, Samples, Switches, Traced int }

// Add counts an event.
func (c *Counts) Add(e *event.Event) {
	switch {
	case e.Kind == event.OffCPU:
		c.OffCPU++
	case e.Kind != event.Sample:
	case e.Func == uint16(event.Clock):
		c.Samples++
	case e.Func == uint16(event.Switch):
		c.Switches++
	case e.Func == uint16(event.Traced):
		c.Traced++
	}
}

// Take adds the event at index i. Events come in order.
func (x *Index) Take(i int32, e *event.Event) {
	switch {
	case e.Kind == event.OffCPU:
		x.OffCPU = append(x.OffCPU, i)
	case e.Kind != event.Sample:
	case e.Func == uint16(event.Clock):
		x.Samples = append(x.Samples, sampleOf(e))
	case e.Func == uint16(event.Switch):
		x.Switches = append(x.Switches, i)
	case e.Func == uint16(event.Traced):
		x.Traced = append(x.Traced, sampleOf(e))
	}
}

// Room returns an index of rec, and what takes the events of each of the stretches that were counted: both share
// their memory, so that the index is whole when each stretch has taken all of its own.
func Room(rec *recording.Recording, stretches []Counts) (whole *Index, parts []Index) {
	var all, at Counts
	for _, c := range stretches {
		all = all.plus(c)
	}
	whole = &Index{
		Rec: rec, OffCPU: make([]int32, all.OffCPU), Samples: make([]Sample, all.Samples),
		Switches: make([]int32, all.Switches),
		Traced:   make([]Sample, all.Traced),
	}
	for _, c := range stretches {
		parts = append(parts, Index{
			Rec: rec, OffCPU: whole.OffCPU[at.OffCPU:][:0], Samples: whole.Samples[at.Samples:][:0],
			Switches: whole.Switches[at.Switches:][:0],
			Traced:   whole.Traced[at.Traced:][:0],
		})
		at = at.plus(c)
	}
	return whole, parts
}

func (c Counts) plus(o Counts) Counts {
	return Counts{c.OffCPU + o.OffCPU, c.Samples + o.Samples, c.Switches + o.Switches, c.Traced + o.Traced}
}

// newIndex reads all events of rec. Package timeline makes one on the way.
func newIndex(rec *recording.Recording) *Index {
	var c Counts
	for i := range rec.Events {
		c.Add(&rec.Events[i])
	}
	x, parts := Room(rec, []Counts{c})
	for i := range rec.Events {
		parts[0].Take(int32(i), &rec.Events[i])
	}
	return x
}

// Gallop returns the first i in [0, n) for which before is false, n where there is
// none; before must be true up to some index and false from there on. It takes
// O(log d) steps, d being how far the result is from the hint.
func Gallop(n, hint int, before func(int) bool) int {
	var low, high int
	step := 1
	hint = min(max(hint, 0), n)
	if hint < n && before(hint) {
		for low = hint + 1; low+step < n && before(low+step); step *= 2 {
			low += step + 1
		}
		high = min(n, low+step+1)
	} else {
		for high = hint; high-step > 0 && !before(high-step); step *= 2 {
			high -= step
		}
		low = max(0, high-step)
	}
	return low + sort.Search(high-low, func(i int) bool { return !before(low + i) })
}
