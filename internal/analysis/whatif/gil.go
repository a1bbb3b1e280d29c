package whatif

import (
	"math"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// wakeUps is how long a thread took to get a CPU after its waits, where nobody else had it.
type wakeUps struct {
	ns float64
	n  int
}

// each is the mean, ns.
func (w wakeUps) each() float64 { return w.ns / float64(max(w.n, 1)) }

// wakeUpsOf measures them by the intervals that follow each other in a thread.
func wakeUpsOf(scheduled []threads.Thread, names *namer) map[thread]wakeUps {
	out := map[thread]wakeUps{}
	for i := range scheduled {
		th := &scheduled[i]
		sum := wakeUps{}
		for k := 1; k < len(th.Intervals); k++ {
			before, iv := &th.Intervals[k-1], &th.Intervals[k]
			if before.State == threads.Blocked && iv.State == threads.Runnable && names.WakingUp(iv) {
				sum.ns += float64(iv.Dur())
				sum.n++
			}
		}
		if sum.n > 0 {
			out[thread{th.PID, th.TID}] = sum
		}
	}
	return out
}

// heldBy is what a thread does with the lock of its interpreter: for how long, ns, and how often it waits, of which
// leaves are for no other thread; and how often it launches.
type heldBy struct{ ran, locked, ousted, waits, leaves, launches float64 }

// locked is for how long the threads of the busiest Python interpreter need its lock under a plan, ns: while they run
// Python, and while it passes from one to the next. More threads of a process that launches share that time with those
// that are there, and other processes have a lock each. Who loses its CPU keeps the lock. A thread gives it back for
// each wait, and where others want it all of the time takes it again when one of them lets it go: until it has woken up
// nobody runs.
func (s *Study) locked(edits []Edit, h how) uint64 {
	held, most := map[uint32]float64{}, 0.0
	for th := range s.launches {
		held[th.pid] = 0
	}
	for th, ns := range s.holders(edits, h) {
		if _, launches := held[th.pid]; launches && ns.locked > 0 {
			held[th.pid] += ns.locked*(1+ns.ousted/ns.ran) + ns.waits*s.wakes[th].each()
			most = max(most, held[th.pid])
		}
	}
	return uint64(most)
}

// holders returns what threads do under a plan; work that is shared is no less.
func (s *Study) holders(edits []Edit, h how) map[thread]*heldBy {
	by := map[thread]*heldBy{}
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		s.change(unshared(edits), h, p.graph, plan)
		for i := range p.graph.Whats {
			w := &p.graph.Whats[i]
			th := thread{w.PID, w.TID}
			if by[th] == nil {
				by[th] = &heldBy{}
			}
			by[th].add(w, &p.graph.Times[i], &plan.Changes[i])
		}
	}
	return by
}

func (b *heldBy) add(w *replay.What, t *replay.Time, c *replay.Change) {
	ns := float64(t.Own) * c.Scale
	if w.Kind == replay.Call && strings.Contains(w.Name, "Launch") {
		b.launches += float64(t.Count)
	}
	switch {
	case w.Recorder:
	case w.Kind == replay.Ready && w.Ousted:
		b.ousted += ns
	case w.Kind == replay.Run && w.Locked:
		b.locked += ns
		b.ran += ns
	case w.Kind == replay.Run || w.Kind == replay.Call:
		b.ran += ns
	case w.Cause == cause.GIL || c.Detach:
	case w.Kind == replay.Wait:
		b.waits += float64(t.Count)
	case w.Kind == replay.External && c.Scale > 0, w.Kind == replay.Sync:
		b.waits += float64(t.Count)
		b.leaves += float64(t.Count)
	}
}

// longestHold is for how long a thread keeps the lock at most while others ask for it, ns: CPython's switch interval
// (sys.getswitchinterval).
const longestHold = 5_000_000

// contended is how long the work takes if more threads of the process that launches share work in Python, ns: the
// thread that launches waits for the lock each time that it has let it go, as a customer of a queue with one server
// does who comes at a time of his own (Pollaczek and Khinchine; holds are of one length). What there is already is no
// slower than that. 0 where no plan adds threads, or they run no Python.
func (s *Study) contended(edits []Edit, h how) uint64 {
	i := slices.IndexFunc(edits, sharesWork)
	if i < 0 || !s.awaitsOwnThreads() {
		return 0
	}
	if s.torch {
		return s.convoy(edits, i, h)
	}
	if edits[i].Workers == 1 {
		return 0
	}
	asks, others, holds := 0.0, 0.0, 0.0
	for th, b := range s.holders(edits, h) {
		switch {
		case s.launches[th]:
			asks = max(asks, b.leaves)
		case b.locked > 0 && s.ofLauncher(th.pid):
			others, holds = others+b.locked, holds+b.waits
		}
	}
	if others == 0 || asks == 0 {
		return 0
	}
	hold := min(longestHold, others/max(1, holds))
	free := Edit{Verb: Without, Pattern: cause.GIL.String(), Cause: cause.GIL}
	alone := float64(s.with(append(slices.Clone(edits), free), h))
	// T = alone + asks·W, with W = u·hold/(2(1-u)) and u = others/T
	long := (alone + others + math.Sqrt((alone-others)*(alone-others)+2*asks*others*hold)) / 2
	present := slices.Clone(edits)
	present[i].Workers = 1
	return min(uint64(long), max(s.with(present, h), s.floor(present, h).ns))
}

// convoy is contended for a thread that launches with PyTorch. Each operator releases the lock, and a thread that computes
// in Python meanwhile keeps it for longestHold or until it is done. So its work delays the launching by as much, but by
// no more than waiting for it did. Work of 6 ms moved beside steps of 24 operators, with the GPU busy for 4 ms of 10,
// brought 1.07x (answer-thread in docs/examples/h200-blind.md); without the lock 1.7x were predicted.
func (s *Study) convoy(edits []Edit, i int, h how) uint64 {
	ready := slices.Clone(edits)
	ready[i].Workers = 0
	others, launches := 0.0, 0.0
	for th, b := range s.holders(edits, h) {
		if s.launches[th] {
			launches = max(launches, b.launches)
		} else if s.ofLauncher(th.pid) && s.isAwaited(th) {
			others += b.locked
		}
	}
	if others == 0 {
		return 0
	}
	return min(s.alone, s.with(ready, h)+uint64(min(others, longestHold*launches)))
}

// isAwaited reports whether a thread is waited for in some part.
func (s *Study) isAwaited(th thread) bool {
	return slices.ContainsFunc(s.parts, func(p part) bool { return isAwaited(p.graph, th) })
}

// ofLauncher reports whether a process launches.
func (s *Study) ofLauncher(pid uint32) bool {
	for th := range s.launches {
		if th.pid == pid {
			return true
		}
	}
	return false
}

// inThread says of Python code that leaves the thread that launches what it brings in another thread of the same
// interpreter, where that is clearly less than in a process of its own: which it becomes is not known.
func (s *Study) inThread(p *Prediction, edits []Edit, h how) {
	const less = 1.05
	if !s.movesPython(edits, h) {
		return
	}
	if by := s.speedup(max(s.locked(edits, h), p.After)); less*by < p.Speedup {
		p.InThread = by
	}
}

// movesPython reports whether edits take Python code off its thread, which does it no less for that.
func (s *Study) movesPython(edits []Edit, h how) bool {
	for _, p := range s.parts {
		plan := p.graph.Unchanged()
		s.change(edits, h, p.graph, plan)
		for i := range p.graph.Whats {
			if p.graph.Whats[i].Locked && plan.Changes[i].Apart != 0 && plan.Changes[i].Scale > 0 {
				return true
			}
		}
	}
	return false
}
