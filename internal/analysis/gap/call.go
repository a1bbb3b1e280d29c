package gap

import (
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
)

// callKind is what a call means to a gap.
type callKind uint8

const (
	quickCall   callKind = iota // only enqueues or asks: events, streams
	launchCall                  // starts a kernel, a graph or a set
	copyCall                    // a copy: copyCause says more
	syncCall                    // waits for the GPU
	memoryCall                  // allocates, frees, pins or maps
	compileCall                 // loads or links code, makes contexts and graphs: warm-up
)

// class is what one function of the recording's table means.
type class struct {
	kind  callKind
	async bool // a copy whose name says that it only enqueues
	back  bool // a copy whose name says that it goes to the host

	begins, ends bool // a capture of a graph
}

func classify(f *recording.Function) class {
	switch f.Group {
	case "launch", "set":
		return class{kind: launchCall}
	case "copy":
		return class{
			kind:  copyCall,
			async: strings.Contains(f.Base, "Async"),
			back:  strings.Contains(f.Base, "DtoH") || strings.Contains(f.Base, "AtoH"),
		}
	case "sync":
		return class{kind: syncCall}
	case "alloc", "free", "memory":
		return class{kind: memoryCall}
	case "module", "init", "context":
		if strings.HasSuffix(f.Base, "GetFunction") || strings.HasSuffix(f.Base, "GetKernel") {
			return class{kind: launchCall} // a look-up, which frameworks make before each launch
		}
		return class{kind: compileCall}
	case "graph":
		begins, ends := marksCapture(f.Base)
		return class{kind: graphKind(f.Base), begins: begins, ends: ends}
	}
	return class{kind: quickCall}
}

// graphKind tells launching a graph from making one.
func graphKind(base string) callKind {
	for _, made := range []string{"Instantiate", "Capture", "Clone", "Destroy"} {
		if strings.Contains(base, made) {
			return compileCall
		}
	}
	return launchCall
}

// What is known of a copy from what the GPU did for it.
const (
	copied   uint8 = 1 << iota // it is known at all
	pageable                   // one side is pageable memory of the host
	back                       // it goes to the host
	small                      // see smallCopy
	inside                     // no side is memory of the host
)

// smallCopy is up to how many bytes a copy through pageable memory is staged and then left alone
// (CUDA driver API, "API synchronization behavior"); a copy back of so little is a way to wait for
// a result, like .item(), and no transfer that bandwidth matters for.
const smallCopy = 64 << 10

// copiesOf returns what is known of each copy, by op; nil where there is none.
func copiesOf(t *timeline.Timeline) []uint8 {
	var out []uint8
	for _, i := range t.Copies {
		a := &t.Activities[i]
		if a.Op == None {
			continue
		}
		if out == nil {
			out = make([]uint8, len(t.Ops))
		}
		e := &t.Rec.Events[a.Event]
		known := copied
		if cuda.MemoryKind(e.Ret>>8) == cuda.Pageable || cuda.MemoryKind(e.Ret>>16) == cuda.Pageable {
			known |= pageable
		}
		switch cuda.CopyKind(e.Ret) {
		case cuda.DeviceToHost, cuda.ArrayToHost:
			known |= back
		case cuda.HostToDevice, cuda.HostToArray:
		default:
			known |= inside
		}
		if e.Args[2] <= smallCopy {
			known |= small
		}
		out[t.Outermost(a.Op)] |= known
	}
	return out
}

// holds reports whether a copy holds its caller until it is done.
func (w *walker) holds(op int32) bool {
	c := w.classes[w.t.Ops[op].Func]
	if known := w.copied(op); known != 0 {
		return known&inside == 0 && (!c.async || known&pageable != 0)
	}
	return !c.async
}

func (w *walker) copied(op int32) uint8 {
	if w.copies == nil {
		return 0
	}
	return w.copies[op]
}

// waitsForGPU reports whether a call returns when the GPU has done what it was called for.
func (w *walker) waitsForGPU(op int32) bool {
	switch w.classes[w.t.Ops[op].Func].kind {
	case syncCall:
		return true
	case copyCall:
		return w.holds(op) && w.goesBack(op)
	}
	return false
}

func (w *walker) goesBack(op int32) bool {
	if known := w.copied(op); known != 0 {
		return known&back != 0
	}
	return w.classes[w.t.Ops[op].Func].back
}

// copyCause is why the GPU runs nothing while a thread is in a copy.
func (w *walker) copyCause(op int32) cause.ID {
	switch known := w.copied(op); {
	case w.unobservable && known == 0 && !w.holds(op) && w.t.Ops[op].Dur > slowLaunch:
		// The call blocked: its memory is pageable, or its queue is full.
		if w.goesBack(op) {
			return cause.HostSync // until all that was launched before is done
		}
		return cause.SyncCopy
	case w.isRead(op):
		return cause.HostSync
	case !w.holds(op):
		return cause.LaunchOverhead
	case w.goesBack(op) && known&small != 0:
		return cause.HostSync
	}
	return cause.SyncCopy
}

// isRead reports whether a copy brings so little to the host that it is a way to look at a result, and its thread waits
// for the GPU next: PyTorch's .item() copies into pinned memory, asynchronously, and synchronizes the stream
// (_local_scalar_dense_cuda in aten/src/ATen/native/cuda/CUDAScalar.cu, from 2.5 on).
func (w *walker) isRead(op int32) bool {
	if w.classes[w.t.Ops[op].Func].kind != copyCall || w.copied(op)&(back|small) != back|small {
		return false
	}
	w.owner(op)
	th := &w.t.Threads[w.near]
	for next := op + 1; next < th.Last; next++ {
		if o := &w.t.Ops[next]; o.Outer() {
			return w.classes[o.Func].kind == syncCall
		}
	}
	return false
}

// slowLaunch is from when on a launch must do more than launch, ns: it takes 3 to 10 µs with everything that
// watches it (H200), and the first one of a kernel loads its code, which takes milliseconds.
const slowLaunch = 100_000

// slowQuery is from when on a call that only asks or enqueues must do more, ns: making a context takes 100 ms and more.
const slowQuery = 1_000_000

// callCause is why the GPU runs nothing while a thread is in a call, and how that is known.
func (w *walker) callCause(op int32) (cause.ID, Confidence) {
	o := &w.t.Ops[op]
	switch w.classes[o.Func].kind {
	case syncCall:
		return cause.HostSync, Seen
	case copyCall:
		return w.copyCause(op), Seen
	case memoryCall:
		return cause.Allocation, Seen
	case compileCall:
		return cause.Compilation, Seen
	case launchCall:
		if o.Dur > slowLaunch && !w.launchedBefore(op) {
			return cause.Compilation, Inferred
		}
	case quickCall: // the first call of a program makes the context
		if o.Dur > slowQuery && !w.launchedBefore(op) {
			return cause.Compilation, Inferred
		}
	}
	return cause.LaunchOverhead, Seen
}

// maxBack is how many calls of a thread are looked back at for a launch of the same kernel: a step of a model has some
// hundreds.
const maxBack = 2048

// launchedBefore reports whether the thread had launched the same kernel before: then its code is loaded, and what
// makes the launch slow is something else.
func (w *walker) launchedBefore(op int32) bool {
	th := &w.t.Threads[w.t.ThreadOf(op)]
	o := &w.t.Ops[op]
	what := w.t.RawEvent(o).Args[0]
	for i := op - 1; i >= max(th.First, op-maxBack); i-- {
		if b := &w.t.Ops[i]; b.Func == o.Func && w.t.RawEvent(b).Args[0] == what {
			return true
		}
	}
	return false
}
