package timeline

import (
	"cmp"
	"math"
	"slices"
)

// maxEvents bounds the indices of a timeline; a recording of more (128 GiB) is cut there.
const maxEvents = math.MaxInt32 - 1

// threadKey names a thread among those of all processes.
type threadKey struct {
	process int32
	tid     uint32
}

// idKey is a thread as an event names it: by numbers that can be used again.
type idKey struct{ pid, tid uint32 }

// makeThreads makes the threads of the calls that the scans found, and gives each scan the places
// of its calls: those of a thread keep the order of their events.
func (b *builder) makeThreads() {
	t, place := b.t, map[threadKey]int32{}
	for _, s := range b.scans {
		for _, l := range s.slots {
			l.process = b.processes.process(l.pid, l.from)
			k := threadKey{l.process, l.tid}
			at, ok := place[k]
			if !ok {
				at = int32(len(t.Threads))
				t.Threads = append(t.Threads, Thread{Process: k.process, TID: k.tid})
				place[k] = at
			}
			l.thread = at
			t.Threads[at].Last += l.calls
			if !t.Processes[l.process].Listed {
				t.Doubts.Unlisted += int(l.calls)
			}
		}
	}
	moved := permute(
		t.Threads,
		func(x, y *Thread) int { return cmp.Or(cmp.Compare(x.Process, y.Process), cmp.Compare(x.TID, y.TID)) },
	)
	total := int32(0)
	next := make([]int32, len(t.Threads))
	for i := range t.Threads {
		th := &t.Threads[i]
		next[i] = total
		total += th.Last
		th.First, th.Last = next[i], total
	}
	for _, s := range b.scans {
		for _, l := range s.slots {
			l.thread = moved[l.thread]
			l.next = next[l.thread]
			next[l.thread] += l.calls
		}
	}
	t.Ops = make([]Op, total)
	t.nameThreads()
}

// nameThreads takes the names from the recording. A thread id that was used
// again has one name there, which stands for each of its uses.
func (t *Timeline) nameThreads() {
	names := make(map[idKey]string, len(t.Rec.Meta.Threads))
	for _, th := range t.Rec.Meta.Threads {
		names[idKey{th.PID, th.TID}] = th.Name
	}
	for i := range t.Threads {
		th := &t.Threads[i]
		th.Name = names[idKey{t.Processes[th.Process].PID, th.TID}]
	}
}

// orderThreads puts the calls of threads in order whose events were not: the recorder writes them so
// but for equal times. It comes after write.
func (b *builder) orderThreads() {
	unsorted := map[int32]bool{}
	for i := range b.t.Threads {
		b.orderEdge(int32(i), unsorted)
	}
	for _, s := range b.scans {
		for _, l := range s.slots {
			if l.unsorted {
				unsorted[l.thread] = true
			}
		}
	}
	for i := range unsorted {
		th := &b.t.Threads[i]
		slices.SortStableFunc(b.t.Ops[th.First:th.Last], func(x, y Op) int {
			return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(y.Dur, x.Dur))
		})
		b.tables.again(b.t, th)
	}
}

// orderEdge compares the last call of each scan with the next one of the thread.
func (b *builder) orderEdge(thread int32, unsorted map[int32]bool) {
	th := &b.t.Threads[thread]
	for _, s := range b.scans[:len(b.scans)-1] {
		l := s.byThread[thread]
		if l == nil || l.next >= th.Last || l.next <= th.First {
			continue
		}
		x, y := &b.t.Ops[l.next-1], &b.t.Ops[l.next]
		if y.Start < x.Start || y.Start == x.Start && y.Dur > x.Dur {
			unsorted[thread] = true
		}
	}
}
