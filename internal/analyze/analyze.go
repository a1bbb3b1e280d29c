package analyze

import (
	"cmp"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/timeline"
)

// Summarize reads the whole timeline once.
func Summarize(t *timeline.Timeline) *Summary {
	a := newAnalysis(t)
	for i := range t.Threads {
		a.thread(&t.Threads[i])
	}
	return a.summary()
}

// analysis gathers what a summary is made of, one collector for each of its parts.
type analysis struct {
	t         *timeline.Timeline
	decoder   *cuda.Decoder
	window    Window
	ops       uint64
	inner     uint64
	faults    uint64
	functions *functions
	waits     waits
	threads   []Thread
	streams   *streams
	copies    *copies
	memory    *memory
	launches  *launches
	errors    *errorCodes
	perProc   []uint64
	windows   *windowed // nil: all calls are recorded all the time
}

func newAnalysis(t *timeline.Timeline) *analysis {
	return &analysis{
		t:         t,
		decoder:   cuda.NewDecoder(t.Rec.Meta.Functions),
		window:    observe(t),
		functions: newFunctions(t.Rec.Meta.Functions),
		streams:   newStreams(t),
		copies:    newCopies(),
		memory:    &memory{},
		launches:  newLaunches(),
		errors:    newErrorCodes(),
		perProc:   make([]uint64, len(t.Processes)),
		windows:   windowsOf(t),
	}
}

// op is one outermost call with everything that the collectors ask of it.
type op struct {
	*timeline.Op
	call    cuda.Call
	row     *Function
	process int32
	from    uint64 // ns, clipped to the window
	to      uint64
	early   bool // it began before the window

	windowed bool // such calls are recorded in windows only
}

// failed says whether the call returned an error. cudaErrorNotReady (600) is an
// answer, not an error.
func (o *op) failed() bool { return o.call.Failed() && o.call.Result != notReady }

const notReady = 600

func (a *analysis) thread(th *timeline.Thread) {
	row := Thread{PID: a.t.Processes[th.Process].PID, TID: th.TID, Name: th.Name}
	var busy, sync span
	for i := th.First; i < th.Last; i++ {
		top := &a.t.Ops[i]
		if !top.Outer() {
			a.inside(top)
			continue
		}
		o := a.op(i, th.Process)
		if o.Timed && !o.windowed {
			row.Time += busy.add(o.from, o.to)
			if o.call.Group == cuda.Sync {
				row.Sync += sync.add(o.from, o.to)
			}
			a.waits.time(&o)
		}
		a.functions.time(&o)
		if o.early {
			continue
		}
		row.Count++
		if kernel, graph := launchOf(&o); kernel || graph {
			row.Launches++
		}
		a.count(&o)
	}
	if row.Count > 0 || row.Time > 0 {
		a.threads = append(a.threads, row)
	}
}

// op decodes the outermost call at index i.
func (a *analysis) op(i, process int32) op {
	top := &a.t.Ops[i]
	o := op{Op: top, row: a.functions.row(top.Func), process: process}
	o.call = a.decoder.Decode(a.t.RawEvent(top))
	o.from, o.to = a.t.Clip(top)
	o.early = a.t.Early(top)
	o.windowed = a.windows != nil && o.call.Group == cuda.Launch
	a.complete(&o, i)
	return o
}

// complete takes from the calls inside what the outer call leaves open: the
// direction of a cudaMemcpyDefault, or a size or pointer that could not be read.
// They follow it in the timeline.
func (a *analysis) complete(o *op, i int32) {
	c := &o.call
	open := c.Group == cuda.Copy && (c.Direction == cuda.Unknown || !c.HasBytes) || c.Group == cuda.Alloc && c.Pointer == 0
	if !open {
		return
	}
	for j := int(i) + 1; j < len(a.t.Ops) && a.t.Ops[j].Parent >= i; j++ {
		in := a.decoder.Decode(a.t.RawEvent(&a.t.Ops[j]))
		if in.Group != c.Group {
			continue
		}
		if c.Direction == cuda.Unknown && in.Direction != cuda.NoDirection {
			c.Direction = in.Direction
		}
		if !c.HasBytes {
			c.Bytes, c.HasBytes = in.Bytes, in.HasBytes
		}
		c.Pointer = cmp.Or(c.Pointer, in.Pointer)
	}
}

// count counts an operation that began in the window.
func (a *analysis) count(o *op) {
	a.ops++
	a.perProc[o.process]++
	if a.t.RawEvent(o.Op).Flags&event.Fault != 0 {
		a.faults++
	}
	if o.windowed {
		a.windows.count(o)
	}
	a.functions.count(o)
	a.streams.count(o)
	a.waits.count(o)
	if o.failed() {
		a.errors.count(o)
	}
	switch o.call.Group {
	case cuda.Copy:
		a.copies.count(o)
	case cuda.Alloc, cuda.Free:
		a.memory.note(o)
	case cuda.Launch, cuda.Graph:
		a.launches.count(o)
	}
}

// inside counts a call that another call made.
func (a *analysis) inside(c *timeline.Op) {
	if a.t.Early(c) || c.Via == timeline.Twin {
		return
	}
	a.inner++
	outer := c
	for !outer.Outer() {
		outer = &a.t.Ops[outer.Parent]
	}
	a.functions.inside(c.Func, outer.Func)
}

func (a *analysis) summary() *Summary {
	w, windows := a.window, a.windows.result(a.window)
	s := &Summary{
		Window: w, Operations: a.ops, Inner: a.inner, PerSecond: windows.rate(a.ops, w),
		Windows:   windows,
		Waiting:   a.waits.result(w),
		Launches:  a.launches.result(w, windows),
		Copies:    a.copies.result(),
		Memory:    a.memory.result(),
		Functions: a.functions.result(w, windows),
		Inside:    a.functions.insideResult(),
		Streams:   a.streams.result(),
		Errors:    a.errors.result(),
		Processes: a.processes(),
		Libraries: Libraries(a.t.Rec.Meta.Libraries),

		Unreadable: a.faults, Unlisted: a.t.Doubts.Unlisted, Overlapping: a.t.Doubts.Crossed, Stray: a.t.Doubts.Stray,
	}
	for i := range a.threads {
		th := &a.threads[i]
		th.Share, th.SyncPart = share(th.Time, w.Observed), share(th.Sync, w.Observed)
		s.CallTime += th.Time
	}
	s.CallShare = share(s.CallTime, w.Observed)
	s.Threads = sortThreads(a.threads)
	return s
}
