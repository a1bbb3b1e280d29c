package whatif

import (
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// apply changes a plan by an edit.
func (s *Study) apply(e Edit, h how, g *replay.Graph, p *replay.Plan) {
	remedy, of := s.remedyOf(e, h, g), mostly(g, e.Cause, h.maxMisattributed)
	for i := range g.Whats {
		c := &p.Changes[i]
		before, w := *c, g.Whats[i]
		share := 1.0
		if by := of[function{w.PID, w.TID, w.Name}]; w.Kind == replay.Run && by > 0 && w.Cause != e.Cause {
			w.Cause, share = e.Cause, by
		} else if w.Kind == replay.Run && !h.collects && collectedIn(&w, e, of) {
			w.Cause = e.Cause
		}
		remedy(&w, c)
		if *c == before {
			continue
		}
		switch {
		case share == 1:
		case c.Apart == 0:
			c.Scale = before.Scale + share*(c.Scale-before.Scale)
		case share < 0.5: // it leaves its thread as a whole or not at all
			*c = before
			continue
		}
		c.Detach = c.Detach || h.overlaps && g.Whats[i].Asked && c.Scale == 0
		if by := h.strength(&g.Whats[i]); by < 1 && c.Apart == 0 {
			c.Scale = before.Scale + by*(c.Scale-before.Scale)
		}
	}
}

// function is one of a thread.
type function struct {
	pid, tid uint32
	name     string
}

// mostly returns the functions whose computing is of a cause but for strays, and what share of these is expected to be
// of it too: page faults and samples of its callees that are named otherwise. That is all up to a share of strays, and
// where any may be, less and less of them up to mostStrays. An unnamed function is none.
func mostly(g *replay.Graph, id cause.ID, limit float64) map[function]float64 {
	if id == cause.Count {
		return nil
	}
	mine, all, out := map[function]uint64{}, map[function]uint64{}, map[function]float64{}
	for i := range g.Whats {
		w := &g.Whats[i]
		if w.Kind != replay.Run || w.Name == "" || w.Name == unknownFunction {
			continue
		}
		f := function{w.PID, w.TID, w.Name}
		all[f] += g.Times[i].Own
		if w.Cause == id {
			mine[f] += g.Times[i].Own
		}
	}
	for f, ns := range mine {
		switch strays := 1 - float64(ns)/float64(max(1, all[f])); {
		case strays <= limit:
			out[f] = 1
		case limit > 0 && strays < mostStrays:
			out[f] = (mostStrays - strays) / (mostStrays - limit)
		}
	}
	return out
}

// collectedIn reports whether a garbage collection ran in one of the functions that an edit is about. Code that makes no
// objects causes none.
func collectedIn(w *replay.What, e Edit, of map[function]float64) bool {
	caller, _, _ := strings.Cut(w.Callers, "\n")
	return w.Cause == cause.GC && hasLess(e.Cause) && of[function{w.PID, w.TID, caller}] == 1
}

// remedy changes what is done with a What.
type remedy func(w *replay.What, c *replay.Change)

// remedyOf returns what an edit means for a graph.
func (s *Study) remedyOf(e Edit, h how, g *replay.Graph) remedy {
	switch e.Verb {
	case Merge:
		return s.merged(e, h, g)
	case Faster, Kernels:
		launching := s.launchingOf(e)
		return func(w *replay.What, c *replay.Change) {
			if e.about(w) || h.waits && w.Kind == replay.External && e.Cause == cause.Count && e.calls(w) {
				c.Scale /= e.Factor
			} else if by := launching[thread{w.PID, w.TID}].by; by > 0 && isLaunching(w) {
				c.Scale *= 1 - by*(1-1/e.Factor)
			}
		}
	case Overlap:
		if e.Cause == cause.Count {
			return s.beside(e.about)
		}
		return s.beside(func(w *replay.What) bool { return e.about(w) || copies(e.Cause, w) })
	}
	if e.Cause != cause.Count {
		return s.without(e, h, g)
	}
	launching := s.launchingOf(e)
	return func(w *replay.What, c *replay.Change) {
		if e.about(w) {
			c.Scale, c.Detach = 0, true
		} else if by := launching[thread{w.PID, w.TID}].by; by > 0 && isLaunching(w) {
			c.Scale *= 1 - by
		}
	}
}

// without is the remedy of a cause.
func (s *Study) without(e Edit, h how, g *replay.Graph) remedy {
	is := func(w *replay.What) bool { return w.Kind < replay.Kernel && w.Cause == e.Cause }
	switch e.Cause {
	case cause.PythonWork, cause.NativeWork, cause.Preprocessing, cause.Serialization, cause.Disk, cause.Network:
		return s.beside(is)
	case cause.LaunchOverhead:
		return s.asGraph(g)
	case cause.Lock, cause.GIL:
		return allOf(e.Cause, g)
	case cause.HostSync:
		return unread(h.looks)
	case cause.Sleep,
		cause.Allocation,
		cause.Compilation,
		cause.GC,
		cause.PageFaults,
		cause.NoCPU,
		cause.Throttled,
		cause.NoWork:
		return gone(e.Cause)
	case cause.SyncCopy:
		return s.pinned(g, h)
	case cause.CopyNotOverlapped, cause.CopyBound:
		return s.beside(func(w *replay.What) bool { return copies(e.Cause, w) })
	case cause.Worker:
		return s.prefetched(e.Workers, s.startedFor(g) > 0)
	}
	return func(*replay.What, *replay.Change) {}
}

// HasRemedy reports whether something is known to do about a cause that a replay can show.
func HasRemedy(id cause.ID) bool {
	switch id {
	case cause.Unknown,
		cause.StartEnd,
		cause.Dependency,
		cause.PipelineBubble,
		cause.RemoteMemory,
		cause.SmallBatch,
		cause.TinyKernels,
		cause.BandwidthBound,
		cause.ExposedCommunication,
		cause.Straggler,
		cause.Imbalance,
		cause.LowClocks,
		cause.Hang,
		cause.GPUError,
		cause.NoWork,
		cause.Count:
		return false
	}
	return true
}

// gone: what waited does not wait, what took time takes none, and a call is not made. Of a thread that runs after a
// synchronization what is the synchronization's price for an idle GPU is launching: that stays.
func gone(id cause.ID) remedy {
	return func(w *replay.What, c *replay.Change) {
		if w.Kind >= replay.Kernel || w.Cause != id || id == cause.HostSync && w.Kind == replay.Run {
			return
		}
		c.Scale = 0
		c.Detach = c.Detach || w.Kind == replay.Wait || w.Kind == replay.Sync
		if w.Kind == replay.Sync {
			c.Gap = 0 // what the call costs that has nothing to wait for
		}
	}
}

// awake removes the times in which threads got no CPU after waits that are gone: a thread that does not wait keeps its
// CPU. It may lose it all the same, as others compute there.
func awake(g *replay.Graph, plan *replay.Plan) {
	for i := range g.Whats {
		w := &g.Whats[i]
		if w.Woken == 0 || w.Cause != cause.NoCPU || plan.Changes[i] != replay.Keep() {
			continue
		}
		wait, c := &g.Whats[w.Woken-1], &plan.Changes[w.Woken-1]
		switch {
		case wait.Polls: // it waits for the GPU instead
		case wait.Kind == replay.External:
			plan.Changes[i].Apart = c.Apart
			if c.Scale <= 1/forNothing {
				plan.Changes[i].Scale = 0
			}
		case c.Detach:
			plan.Changes[i].Scale = 0
		}
	}
}

// unread is gone for waits for the GPU: a result that nobody looks at is not copied, and what takes a thread from one
// look to the next is not done. looks keeps both: the program looks all the same, but later, and waits for nothing.
func unread(looks bool) remedy {
	remove := gone(cause.HostSync)
	return func(w *replay.What, c *replay.Change) {
		switch {
		case w.Cause == cause.HostSync && w.Kind == replay.Call && strings.Contains(w.Name, "Memcpy") && looks:
		case w.Cause == cause.HostSync && w.Kind == replay.Run && w.Reads && !looks:
			c.Scale = 0
		default:
			remove(w, c)
		}
	}
}

// unseenWakers lets threads that launch wait for less where nobody is known to have ended the wait, by what the thread
// saves that saves most: they may wait for that one.
func (s *Study) unseenWakers(g *replay.Graph, plan *replay.Plan) {
	saved, waits := map[thread]float64{}, map[thread]float64{}
	unseen := func(w *replay.What) bool {
		return w.Kind == replay.External && s.launches[thread{w.PID, w.TID}] &&
			(w.Cause == cause.Worker || w.Cause == cause.Lock || w.Cause == cause.GIL || w.Cause == cause.Network)
	}
	maxSaved := 0.0
	for i := range g.Whats {
		w, ns := &g.Whats[i], float64(g.Times[i].Own)
		switch th := (thread{w.PID, w.TID}); {
		case unseen(w):
			waits[th] += plan.Changes[i].Scale * ns
		case w.Kind == replay.Run && !s.launches[th]:
			saved[th] += (1 - plan.Changes[i].Scale) * ns
			maxSaved = max(maxSaved, saved[th])
		}
	}
	for i := range g.Whats {
		if w := &g.Whats[i]; unseen(w) {
			plan.Changes[i].Scale *= 1 - min(1, maxSaved/max(1, waits[thread{w.PID, w.TID}]))
		}
	}
}

// maxMisattributed is the share of a thread's waits for others, and of a function's time, up to which it is taken for
// the same as the most of it: what a futex is for is known from samples of its stacks, and one wait that is left ties a
// thread to another one for good.
const maxMisattributed = 0.1

// mostStrays is up to which share of a function's time may still be: the timer that takes samples waits while the
// kernel enters and leaves the handler of a page fault, and shows the instruction that faulted.
const mostStrays = 0.25

// allOf is gone for waits that other threads end, with those that are named otherwise and few.
func allOf(id cause.ID, g *replay.Graph) remedy {
	others := func(c cause.ID) bool { return c == cause.Lock || c == cause.GIL || c == cause.Worker }
	waits := func(w *replay.What) bool {
		return (w.Kind == replay.Wait || w.Kind == replay.External) && others(w.Cause)
	}
	mine, all := map[thread]float64{}, map[thread]float64{}
	for i := range g.Whats {
		if w := &g.Whats[i]; waits(w) {
			th := thread{w.PID, w.TID}
			all[th] += float64(g.Times[i].Own)
			if w.Cause == id {
				mine[th] += float64(g.Times[i].Own)
			}
		}
	}
	remove := gone(id)
	return func(w *replay.What, c *replay.Change) {
		if th := (thread{w.PID, w.TID}); waits(w) && mine[th] >= (1-maxMisattributed)*all[th] && mine[th] > 0 {
			c.Scale, c.Detach = 0, true
			return
		}
		remove(w, c)
	}
}

// Numbers of the sequences of what has left its thread or stream.
const (
	uploads = 1 + iota
	downloads
	otherCopies
	firstThread
)

// beside lets work leave the thread that launches, or its stream: it is done beside, one after the other. Work of other
// threads is beside already.
func (s *Study) beside(is func(*replay.What) bool) remedy {
	numbers := map[thread]int{}
	return func(w *replay.What, c *replay.Change) {
		if !is(w) {
			return
		}
		if w.Kind == replay.Copy {
			c.Apart = engineOf(w.Name)
			return
		}
		th := thread{w.PID, w.TID}
		if w.Kind == replay.Sync || w.Kind == replay.Kernel || !s.launches[th] {
			return
		}
		if numbers[th] == 0 {
			numbers[th] = firstThread + len(numbers)
		}
		c.Apart = numbers[th]
	}
}

func engineOf(name string) int {
	switch {
	case strings.HasPrefix(name, "h2d"):
		return uploads
	case strings.HasPrefix(name, "d2h"):
		return downloads
	}
	return otherCopies
}

// copies reports whether a What is a copy between host and device that the cause is about.
func copies(id cause.ID, w *replay.What) bool {
	if w.Kind != replay.Copy || engineOf(w.Name) == otherCopies {
		return false
	}
	switch id {
	case cause.SyncCopy:
		return strings.HasSuffix(w.Name, "pageable")
	case cause.CopyNotOverlapped, cause.CopyBound:
		return true
	}
	return false
}

// pinned makes copies that hold their caller asynchronous copies of pinned memory, beside the kernels. Copies that
// are not known to be pageable are only taken off the path.
func (s *Study) pinned(g *replay.Graph, h how) remedy {
	pageable := false
	for i := range g.Whats {
		pageable = pageable || copies(cause.SyncCopy, &g.Whats[i])
	}
	return func(w *replay.What, c *replay.Change) {
		switch {
		case copies(cause.SyncCopy, w):
			c.Scale /= s.pinning(w).of(h.link)
			c.Apart = engineOf(w.Name)
		case !pageable && copies(cause.CopyNotOverlapped, w):
			c.Apart = engineOf(w.Name)
		default:
			gone(cause.SyncCopy)(w, c)
		}
	}
}

// gapInGraph is what is left of the delay between kernels in a graph: 600 kernels of 0.87 µs that began 1.2 µs after
// each other's end in a stream took
// 0.97 µs each in a graph (H200, the twin of `launches` in test/gpu).
const gapInGraph = 0.1

// asGraph makes one launch of all that a thread launches between two synchronizations. That one costs what a launch
// did, with what a thread does on its way to the next.
func (s *Study) asGraph(g *replay.Graph) remedy {
	launches, syncs := map[thread]float64{}, map[thread]float64{}
	for i := range g.Whats {
		w := &g.Whats[i]
		th := thread{w.PID, w.TID}
		switch {
		case w.Kind == replay.Call && w.Cause == cause.LaunchOverhead && isLaunch(w.Name):
			launches[th] += float64(g.Times[i].Count)
		case w.Kind == replay.Sync:
			syncs[th] += float64(g.Times[i].Count)
		}
	}
	return func(w *replay.What, c *replay.Change) {
		if w.Kind == replay.Kernel && len(launches) > 0 {
			c.Gap *= gapInGraph
		}
		if w.Kind >= replay.Sync || w.Kind == replay.Wait || w.Cause != cause.LaunchOverhead && !w.Burst {
			return
		}
		if th := (thread{w.PID, w.TID}); launches[th] > 0 {
			c.Scale *= min(1, (1+syncs[th])/launches[th])
		}
	}
}

// isLaunch reports whether a call launches something that a graph can hold; a graph is one already.
func isLaunch(name string) bool {
	return strings.Contains(name, "Launch") && !strings.Contains(name, "GraphLaunch")
}

// startedFor is for how long helpers are awaited in a part that come and go in it, as processes do that are started for
// one piece of work; 0 where most of the waiting is for others.
func (s *Study) startedFor(g *replay.Graph) float64 {
	come, stay := map[thread]bool{}, map[thread]bool{}
	for i := range g.Whats {
		w := &g.Whats[i]
		th, absent := thread{w.PID, w.TID}, w.Kind == replay.External && w.Name == replay.Absent
		if absent && s.launches[th] {
			return 0 // nobody's scheduling was recorded all the time
		}
		stay[th] = !s.launches[th]
		come[th] = come[th] || absent
	}
	own, others := 0.0, 0.0
	for th, helps := range stay {
		switch awaited := float64(g.Awaited(th.pid, th.tid)); {
		case !helps:
		case come[th]:
			own += awaited
		default:
			others += awaited
		}
	}
	if own < others {
		return 0
	}
	return own
}

// prefetched lets helpers work ahead: they wait no more to be asked, and n of them share the work; with n = 0 there are
// so many that nobody waits for them. Those that are started for each piece of work (started) need not be asked, and
// floor says how long they take.
func (s *Study) prefetched(n int, started bool) remedy {
	return func(w *replay.What, c *replay.Change) {
		first := s.launches[thread{w.PID, w.TID}]
		switch {
		case w.Kind == replay.Wait && w.Cause == cause.Worker && (n == 0 || !first || started):
			c.Detach, c.Scale = true, 0
		case w.Kind == replay.External && w.Cause == cause.Worker && first && n == 0:
			c.Scale = 0
		case w.Kind == replay.External && w.Cause == cause.Worker && first:
			// Which thread ended it is not known: it works ahead too.
			c.Scale /= float64(n)
			c.Apart = firstThread
		case w.Kind == replay.Run && !first && n > 1:
			c.Scale /= float64(n)
		}
	}
}
