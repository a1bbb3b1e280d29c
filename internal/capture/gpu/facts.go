package gpu

import (
	"slices"
	"sync"

	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of what is remembered of one process.
const (
	maxWindows = 1 << 14 // 9 hours of a window every 2 s
	maxDevices = 64
	maxSpans   = 64
)

// facts are what the agents of one process said beside their events. They outlive the
// process: what was recorded of it is still served.
type facts struct {
	pid uint32

	mu         sync.Mutex
	windows    []recording.GPUWindow   // ended ones, in the order of their ends
	opened     uint64                  // ns: when the window that is open began; 0: none is
	openLost   uint64                  // records lost in the window that is open, so far
	began      uint64                  // ns: when the last window began to be felt; 0: not known
	last       span                    // of the last window that ended; next is not known yet
	spans      []span                  // of windows before it, until they are judged
	loads      []load                  // what windows are predicted to have cost, until that is taken
	newest     uint64                  // ns: the latest end of what the GPU did that was seen
	subscribed bool                    // the last window was kept
	starved    bool                    // the last window was not finalized because a thread waits for CPUs
	sections   recording.Sections      // for which threads were held
	steps      []recording.WindowSteps // of the last windows
	devices    []recording.Device
	counts     counts
}

// counts only ever grow.
type counts struct {
	events, kernels uint64 // taken out of rings
	windows         uint64 // that ended
	observed        uint64 // ns: their length together
	disabled        uint64 // of these, in the second best way
	kept            uint64 // of these, without giving the subscription up
	starved         uint64 // of these and of disabled, because the thread that would finalize waits for CPUs
	dropped         uint64 // records that CUPTI had no room for
	full            uint64 // slots that the ring had no room for
	throttled       uint64 // slots that were not read, or had no room, because there were too many
	malformed       uint64 // slots that no agent writes, and unfinished ones
	unnamed         uint64 // names for which there was no room
}

// sight notes that the GPU was seen to end something at t (ns).
func (f *facts) sight(t uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = max(f.newest, t)
}

func newFacts(pid uint32) *facts {
	return &facts{pid: pid}
}

// open notes a window that began at at (ns), and took entered (ns) to.
func (f *facts) open(at, entered uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened, f.openLost = at, 0
	f.began = at - min(at, entered)
	if f.last.to != 0 && len(f.spans) < maxSpans {
		f.last.next = f.began
		f.spans = append(f.spans, f.last)
	}
	f.last = span{before: f.last.to}
}

// lastBegan returns when the last window began to be felt, ns; 0: there was none yet.
func (f *facts) lastBegan() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(f.began, f.last.from)
}

// over notes that the window [from, to] (ns), of so many records, was left ns after that, held of them in a
// thread of the process itself. The target's word: what is no span is not judged.
func (f *facts) over(from, to, left, held, records uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.began == 0 || left > longestOn || held > left {
		f.last = span{}
		return
	}
	f.last.from, f.last.to, f.last.held = f.began, to+left, held
	entered := from - min(from, f.began)
	f.began = 0
	length := to - from
	if length > uint64(maxPeriod) || entered > longestOn {
		return
	}
	recorded := min(length, min(records, length/recordTime+1)*recordTime)
	l := load{min(entered, longestEntry) + held, recorded, length}
	f.last.predicted = l.total()
	if len(f.loads) < maxSpans {
		f.loads = append(f.loads, l)
	}
}

// takeSpans returns the windows whose cost can be judged, each once, and what windows that have ended since the last
// call are predicted to have cost.
func (f *facts) takeSpans() ([]span, []load) {
	f.mu.Lock()
	defer f.mu.Unlock()
	spans, loads := f.spans, f.loads
	f.spans, f.loads = nil, nil
	return spans, loads
}

// losing notes how many records the window that is open has lost so far.
func (f *facts) losing(n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.openLost = n
}

// section notes where the time of a critical section went, ns (recording.Sections); removed says that all other threads
// were outside, and CUPTI was flushed or removed.
func (f *facts) section(drain, wait, work uint64, removed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sections.Drain.Add(drain)
	f.sections.CPUWait.Add(wait)
	if removed {
		f.sections.Work.Add(work)
	}
}

// held returns where the time of critical sections went; nil where there was none.
func (f *facts) held() *recording.Sections {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sections == (recording.Sections{}) {
		return nil
	}
	s := f.sections
	return &s
}

// ended notes a window that has ended; dropped is how many of its losses are CUPTI's, and starved whether it was not
// finalized because the thread that would do it waits for CPUs.
func (f *facts) ended(w recording.GPUWindow, dropped uint64, starved bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = 0
	f.counts.windows++
	f.counts.observed = saturating(f.counts.observed, w.To-min(w.To, w.From))
	f.counts.dropped = saturating(f.counts.dropped, dropped)
	f.subscribed, f.starved = w.End == kept, starved
	if starved {
		f.counts.starved++
	}
	switch w.End {
	case disabled:
		f.counts.disabled++
	case kept:
		f.counts.kept++
	}
	if len(f.windows) >= maxWindows {
		f.windows = slices.Delete(f.windows, 0, maxWindows/4)
	}
	f.windows = append(f.windows, w)
}

// refusedOne notes a window that never began.
func (f *facts) refusedOne() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = 0
}

// most bounds counters that the target controls, so that sums cannot wrap.
const most = 1 << 48

func saturating(a, b uint64) uint64 { return min(most, a+min(b, most)) }

// add adds up what one pass over a ring found.
func (f *facts) add(c counts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.events += c.events
	f.counts.kernels += c.kernels
	f.counts.full = saturating(f.counts.full, c.full)
	f.counts.throttled = saturating(f.counts.throttled, c.throttled)
	f.counts.malformed += c.malformed
	f.counts.unnamed += c.unnamed
}

// starves reports whether the last window was not finalized because a thread waits for CPUs.
func (f *facts) starves() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.starved
}

// stays reports whether the agent stays subscribed to CUPTI between windows.
func (f *facts) stays() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.subscribed
}

func (f *facts) total() counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// device keeps the last description of a device.
func (f *facts) device(d recording.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.devices, func(o recording.Device) bool { return o.ID == d.ID })
	switch {
	case i >= 0:
		f.devices[i] = d
	case len(f.devices) < maxDevices:
		f.devices = append(f.devices, d)
	}
}

// forgetBefore lets go of windows that ended before t (ns): nothing is recorded of them any more.
func (f *facts) forgetBefore(t uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for n < len(f.windows) && f.windows[n].To < t {
		n++
	}
	if n > maxWindows/16 { // not one by one
		f.windows = slices.Delete(f.windows, 0, n)
	}
}

// put adds what is known to g: windows within [from, to], clipped. Of an open window what
// came until known (ns) is whole, but no later than the last activity that was seen: CUPTI
// keeps a buffer back in which anything is unfinished (CUPTI guide, cuptiActivityFlushAll).
func (f *facts) put(g *recording.GPU, from, to, known uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	windows := slices.Clone(f.windows)
	if f.opened != 0 {
		windows = append(windows, recording.GPUWindow{
			PID: f.pid, From: f.opened, To: max(min(known, f.newest), f.opened), Activity: true, Calls: true,
			End: "open", Dropped: f.openLost,
		})
	}
	for _, w := range windows {
		if w.From = max(w.From, from); w.From < min(w.To, to) {
			w.To = min(w.To, to)
			g.Windows = append(g.Windows, w)
		}
	}
	g.Devices = append(g.Devices, f.devices...)
}

// droppedWithin returns how many records were lost in windows that touch [from, to].
func (f *facts) droppedWithin(from, to uint64) (n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.windows {
		if w.To >= from && w.From <= to {
			n = saturating(n, w.Dropped)
		}
	}
	if f.opened != 0 && f.opened <= to {
		n = saturating(n, f.openLost)
	}
	return n
}
