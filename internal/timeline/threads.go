package timeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
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

// lease says which thread an idKey means in a stretch of time.
type lease struct {
	thread   int32
	from, to uint64 // ns, both inclusive
}

// assigner finds the thread of each event.
type assigner struct {
	t       *Timeline
	byPID   map[uint32][]int32 // processes of a pid, oldest first
	threads map[threadKey]int32
	leases  map[idKey]lease
	gpu     []int32 // events about the GPU, in their order
}

func newAssigner(t *Timeline) *assigner {
	a := &assigner{
		t:       t,
		byPID:   map[uint32][]int32{},
		threads: map[threadKey]int32{},
		leases:  map[idKey]lease{},
	}
	for i, p := range t.Processes {
		a.byPID[p.PID] = append(a.byPID[p.PID], int32(i))
	}
	for _, list := range a.byPID {
		slices.SortStableFunc(list, func(x, y int32) int { return cmp.Compare(t.Processes[x].Born, t.Processes[y].Born) })
	}
	return a
}

// assignThreads returns for each event the index of its thread, or None for an
// event that is not on the timeline. It fills t.Threads, with the number of calls in Last.
func (a *assigner) assignThreads() []int32 {
	owners := a.owners()
	a.t.nameThreads()
	return a.t.orderThreads(owners)
}

// owners assigns every event. Neighbouring events are often of one thread, so the last answer is tried first.
func (a *assigner) owners() []int32 {
	events := a.t.Rec.Events[:min(len(a.t.Rec.Events), maxEvents)]
	owners := make([]int32, len(events))
	functions := len(a.t.Rec.Meta.Functions)
	var key idKey
	last := lease{thread: None, from: 1}
	for i := range events {
		e := &events[i]
		owners[i] = None
		if !a.t.usable(e) {
			if e.Kind >= event.Kernel && e.Kind <= event.Range {
				a.gpu = append(a.gpu, int32(i))
			}
			continue
		}
		if int(e.Func) >= functions {
			a.t.Doubts.Stray++
			continue
		}
		if k := (idKey{e.PID, e.TID}); k != key || e.TS < last.from || e.TS > last.to {
			key, last = k, a.lease(k, e.TS)
		}
		owners[i] = last.thread
		a.t.Threads[last.thread].Last++
		if !a.t.Processes[a.t.Threads[last.thread].Process].Listed {
			a.t.Doubts.Unlisted++
		}
	}
	return owners
}

// lease returns the thread that k means at time ts.
func (a *assigner) lease(k idKey, ts uint64) lease {
	if l, ok := a.leases[k]; ok && ts >= l.from && ts <= l.to {
		return l
	}
	process, from, to := a.process(k.pid, ts)
	tk := threadKey{process, k.tid}
	thread, ok := a.threads[tk]
	if !ok {
		thread = int32(len(a.t.Threads))
		a.t.Threads = append(a.t.Threads, Thread{Process: process, TID: k.tid})
		a.threads[tk] = thread
	}
	l := lease{thread: thread, from: from, to: to}
	a.leases[k] = l
	return l
}

// process returns the process that had the pid at time ts, and for which stretch
// of time it had it. The end of a process decides, not the beginning of the next:
// Died is exact, and Born is rounded down by up to 10 ms.
func (a *assigner) process(pid uint32, ts uint64) (process int32, from, to uint64) {
	for _, i := range a.byPID[pid] {
		p := &a.t.Processes[i]
		if p.Died == 0 {
			return i, from, math.MaxUint64
		}
		if ts <= p.Died {
			return i, from, p.Died
		}
		from = p.Died + 1
	}
	process = int32(len(a.t.Processes))
	a.t.Processes = append(a.t.Processes, Process{Process: record.Process{PID: pid, Born: from}})
	a.byPID[pid] = append(a.byPID[pid], process)
	return process, from, math.MaxUint64
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

// orderThreads sorts t.Threads and returns owners with the new indices.
func (t *Timeline) orderThreads(owners []int32) []int32 {
	order := make([]int32, len(t.Threads))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(x, y int32) int {
		a, b := t.Threads[x], t.Threads[y]
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.TID, b.TID))
	})
	sorted, place := make([]Thread, len(order)), make([]int32, len(order))
	for i, old := range order {
		sorted[i], place[old] = t.Threads[old], int32(i)
	}
	t.Threads = sorted
	for i, owner := range owners {
		if owner != None {
			owners[i] = place[owner]
		}
	}
	return owners
}
