package gpu

import (
	"maps"
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Bins of a pace: 82 s, 16 KiB.
const (
	binTime = 10_000_000 // ns
	bins    = 1 << 13
)

// pace counts the calls of one process that can wait - synchronization, copies, graph
// launches - by time. Probes see them all the time, so they tell how fast a program gets
// on whether or not a window is open. Kernel launches and queries are not among them: the
// first are seen in windows only, the second are made more often the slower the GPU is.
type pace struct {
	began  uint64 // when the first call that was seen was made, ns; 0: none was
	newest uint64 // bin of the latest call; 0: none was seen
	counts [bins]uint16

	image     string    // of the program, see proc.Image
	callers   launchers // threads that make such calls
	launchers launchers
	launches  uint64 // when the first of them was first seen to launch a graph, ns; 0: it was not
	waiter    uint32 // the thread that was both that and seen to wait for the GPU
	// of threads that an agent waits for: when they last were outside of the driver, ns; 0: not seen
	outside map[uint32]uint64
}

// note counts a call at ts (ns). Calls of several CPUs come in any order, but never late by bins.
func (p *pace) note(ts uint64) {
	bin := ts / binTime
	if p.began == 0 {
		p.began = ts
	}
	if bin > p.newest {
		for b := max(p.newest+1, bin-min(bin, bins-1)); b <= bin; b++ {
			p.counts[b%bins] = 0
		}
		p.newest = bin
	}
	if at := &p.counts[bin%bins]; p.newest-bin < bins && *at < 1<<16-1 {
		*at++
	}
}

// count returns how many calls were made in the bins of [from, to) (ns), and how long these
// bins are together, ns; 0 where they are not remembered.
func (p *pace) count(from, to uint64) (n, length uint64) {
	first, end := from/binTime, to/binTime
	if end <= first || end > p.newest+1 || p.newest-first >= bins {
		return 0, 0
	}
	for b := first; b < end; b++ {
		n += uint64(p.counts[b%bins])
	}
	return n, (end - first) * binTime
}

// paces are those of the processes that have, or had, a session. The lock is held for short times only.
type paces struct {
	graphs []uint16 // event.Func of what launches CUDA graphs
	waits  []uint16 // of what waits for the GPU so that an agent could leave CUPTI at its end
	most   int      // see launchers

	mu  sync.Mutex
	all map[uint32]*pace // by pid
}

// begin forgets those that have ended since they were released. It counts anew, and still knows which threads of the
// same program made which calls when it was watched before.
func (p *paces) begin(pid uint32, image string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.all, func(other uint32, _ *pace) bool { return other != pid && !threadLives(other, other) })
	fresh := &pace{image: image, launchers: launchers{most: p.most}}
	if before := p.all[pid]; before != nil && before.image == image {
		fresh.callers, fresh.launchers, fresh.launches, fresh.waiter = before.callers, before.launchers, before.launches, before.waiter
	}
	p.all[pid] = fresh
}

// end forgets a process that has ended.
func (p *paces) end(pid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, pid)
}

// of calls f with the pace of a process, if there is one.
func (p *paces) of(pid uint32, f func(*pace)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pace := p.all[pid]; pace != nil {
		f(pace)
	}
}

func (p *paces) note(batch []event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) == 0 {
		return
	}
	var last uint32
	var at *pace
	for i := range batch {
		e := &batch[i]
		if e.Kind != event.Call || e.Flags&event.Timed == 0 {
			continue
		}
		if e.PID != last {
			last, at = e.PID, p.all[e.PID]
		}
		if at == nil {
			continue
		}
		at.note(e.TS)
		if seen, wanted := at.outside[e.TID]; wanted {
			at.outside[e.TID] = max(seen, e.End())
		}
		at.callers.note(e.PID, e.TID)
		if slices.Contains(p.graphs, e.Func) {
			first := at.launchers.first
			if at.launchers.note(e.PID, e.TID); at.launchers.first != first {
				at.launches = e.TS
			}
		}
		if e.TID == at.launchers.first && slices.Contains(p.waits, e.Func) {
			at.waiter = e.TID
		}
	}
}

// Observe counts what probes saw, to know how fast processes get on.
func (s *Source) Observe(batch []event.Event) { s.paces.note(batch) }
