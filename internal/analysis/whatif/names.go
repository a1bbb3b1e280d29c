package whatif

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
)

// place is what a stack says of who is at work.
type place struct {
	function string // "": not read yet
	callers  string // see replay.What
	locked   bool   // see replay.What
}

// all returns all functions of the stack, one a line.
func all(p place) string {
	if p.function == unknownFunction || p.callers == "" {
		return strings.TrimPrefix(p.function, unknownFunction)
	}
	return p.function + "\n" + p.callers
}

// namer gives package replay the names that package gap knows.
type namer struct {
	t     *timeline.Timeline
	names *gap.Names
	where []place // by stack (index + 1)
	keys  [cause.Count]string
	ours  map[thread]*threads.Thread // the recorder's
	// theirs is by stack (index + 1) whether it goes through the recorder's code: 0 not looked at yet, 1 no, 2 yes
	theirs []uint8
	// by caller the functions of the last stack that shows such a call, one a line
	calling map[caller]string
}

func newNamer(t *timeline.Timeline, scheduled []threads.Thread, walk *gap.Walk, in timeline.Span) *namer {
	n := &namer{
		t:      t,
		where:  make([]place, len(t.Rec.Meta.Stacks)+1),
		theirs: make([]uint8, len(t.Rec.Meta.Stacks)+1),
		ours:   recorders(scheduled), calling: map[caller]string{},
	}
	if walk != nil {
		n.names = walk.Names(in)
	} else {
		n.names = gap.NewNames(t, scheduled, in)
	}
	for i, row := range cause.All() {
		n.keys[i] = row.Key
	}
	return n
}

// recorders returns the threads that are in the program because it is watched. They live by timers, and what wakes by
// them now and then does not wait for what they did before.
func recorders(scheduled []threads.Thread) map[thread]*threads.Thread {
	out := map[thread]*threads.Thread{}
	for i := range scheduled {
		if th := &scheduled[i]; th.IsRecorder() {
			out[thread{th.PID, th.TID}] = th
		}
	}
	return out
}

// isOurs reports whether a What is the recorder's own, or of a thread of its own.
func (n *namer) isOurs(w *replay.What) bool {
	return w.Kind == replay.Run && w.Recorder || n.ours[thread{w.PID, w.TID}] != nil
}

// Running names a stretch in which a thread ran, from one time to another (ns), in parts that end at to.
func (n *namer) Running(pid, tid uint32, from, to uint64, yield func(to uint64, what replay.What, d replay.Doubt)) {
	recorder := n.ours[thread{pid, tid}] != nil
	n.names.Running(pid, tid, from, to, func(to uint64, c cause.ID, stack uint64, sure gap.Confidence) {
		at := n.at(stack)
		yield(
			to,
			replay.What{
				Cause: c, Name: at.function, Callers: at.callers, Locked: at.locked,
				Recorder: recorder || n.ofRecorder(stack),
			},
			replay.Doubt(sure),
		)
	})
}

// Blocked names a wait of a thread.
func (n *namer) Blocked(iv *threads.Interval) (replay.What, replay.Doubt) {
	c, _, sure := n.names.Blocked(iv)
	return replay.What{Cause: c, Name: n.keys[c], Callers: all(n.at(n.names.Stack(iv)))}, replay.Doubt(sure)
}

// Waker returns the thread that ended a wait, if one did.
func (n *namer) Waker(iv *threads.Interval) (pid, tid uint32, ok bool) {
	pid, tid, ok = n.names.Waker(iv)
	return pid, tid, ok && n.ours[thread{pid, tid}] == nil
}

// WakingUp reports whether the time that a thread was ready is what waking up takes.
func (n *namer) WakingUp(iv *threads.Interval) bool { return n.names.WakingUp(iv) }

// Ready names a stretch in which a thread could have run and had no CPU. until is when the recorder no longer ran that
// took it away, ns, or the end.
func (n *namer) Ready(iv *threads.Interval) (until uint64, what replay.What, d replay.Doubt) {
	c, sure := n.names.Runnable(iv)
	pid, tid, ousted := n.names.Ousted(iv)
	what = replay.What{Cause: c, Name: n.keys[c], Ousted: ousted}
	until = iv.To
	if by := (thread{pid, tid}); n.ours[by] != nil {
		if ran := ranUntil(n.ours[by], iv.From); ran > iv.From && ran < until {
			until = ran
		}
		what.Recorder = true
	}
	return until, what, replay.Doubt(sure)
}

// switching is how long a switch from one thread to another takes at most, ns.
const switching = 50_000

// ranUntil returns until when a thread ran that got a CPU at a time, ns; 0 where that is not known.
func ranUntil(th *threads.Thread, at uint64) uint64 {
	i, _ := slices.BinarySearchFunc(th.Intervals, at+1, func(iv threads.Interval, at uint64) int {
		return cmp.Compare(iv.To, at)
	})
	for ; i < len(th.Intervals) && th.Intervals[i].From <= at+switching; i++ {
		if th.Intervals[i].State == threads.Running {
			return th.Intervals[i].To
		}
	}
	return 0
}

// caller is who makes calls of a function of CUDA.
type caller struct {
	thread   int32  // index into Timeline.Threads
	function uint16 // index into Meta.Functions
}

// callers returns the functions of a stack that shows a call. Of a call that takes its time by itself it may be the
// last one of that function by its thread that a sample shows; who makes a call that waits for a GPU, and long enough
// to be sampled, says nothing of others.
func (n *namer) callers(op int32, c cause.ID) string {
	k := caller{n.t.ThreadOf(op), n.t.Ops[op].Func}
	if stack := n.names.InCall(op); stack != 0 {
		n.calling[k] = all(n.at(stack))
		return n.calling[k]
	}
	if c != cause.Allocation && c != cause.Compilation {
		return ""
	}
	return n.calling[k]
}

// Call names a call by its function, and says how sure its cause is.
func (n *namer) Call(op int32) (replay.What, replay.Doubt) {
	c, sure := n.names.Call(op)
	what := replay.What{Cause: c, Name: n.t.Rec.Meta.Functions[n.t.Ops[op].Func].Base}
	if c != cause.LaunchOverhead { // see launchingOf
		what.Callers = n.callers(op, c)
	}
	return what, replay.Doubt(sure)
}

// at returns what a stack says; nothing for none.
func (n *namer) at(stack uint64) place {
	if stack == 0 || stack >= uint64(len(n.where)) {
		return place{}
	}
	if n.where[stack].function == "" {
		n.where[stack] = n.read(stack)
	}
	return n.where[stack]
}

// mostCallers bounds the functions of a stack that are kept: recursion makes it deep.
const mostCallers = 64

// read names the function that a stack is at work in: the innermost of Python, else the innermost of native code that
// is not the interpreter's or libc's, with its file. The native functions of a Python stack that have names come after
// its Python functions, so that an edit finds them too.
func (n *namer) read(stack uint64) place {
	var python, native, modules []string
	for i := range threads.Walk(n.t.Rec, stack) {
		f := &n.t.Rec.Meta.Frames[i]
		name := f.Name + " (" + path.Base(f.File) + ")"
		switch {
		case f.Kind == recording.PythonFrame && !strings.HasPrefix(f.File, "<") && len(python) < mostCallers:
			python = append(python, name)
		case f.Kind == recording.NativeFrame && ofModule(f) && len(modules) < mostCallers:
			modules = append(modules, name)
		case f.Kind == recording.NativeFrame && f.Name != "" && !ofRuntime(f.File) && len(native) < mostCallers:
			native = append(native, name)
		}
	}
	names := native
	if len(python) > 0 {
		names = slices.Concat(python, slices.DeleteFunc(slices.Concat(native, modules), isUnnamed))
	}
	if len(names) == 0 {
		return place{function: unknownFunction}
	}
	return place{names[0], strings.Join(names[1:], "\n"), len(python) > 0 && n.inInterpreter(stack)}
}

// isUnnamed reports whether a native function has no symbol, but only an address, of which there are too many.
func isUnnamed(name string) bool { return strings.Contains(name, "+0x") }

// inInterpreter reports whether the innermost frame of a stack is Python code or CPython's own: such code runs with the
// GIL. What a library does for Python may have let go of it.
func (n *namer) inInterpreter(stack uint64) bool {
	for i := range threads.Walk(n.t.Rec, stack) {
		f := &n.t.Rec.Meta.Frames[i]
		return f.Kind == recording.PythonFrame || f.Kind == recording.NativeFrame && ofPython(f.File)
	}
	return false
}

const unknownFunction = "?"

// ofRuntime reports whether native code is CPython's, libc's or the loader's: what it does it does for its caller.
func ofRuntime(file string) bool {
	if ofPython(file) {
		return true
	}
	base := path.Base(file)
	for _, p := range []string{"libc.so", "libc-", "libm.so", "libpthread", "ld-linux", "linux-vdso", "[vdso]"} {
		if strings.HasPrefix(base, p) {
			return true
		}
	}
	return false
}

// ofModule reports whether native code is of a module within CPython's program, as _pickle_dumps, and not of the
// interpreter or its API, which all of Python runs through.
func ofModule(f *recording.Frame) bool {
	return ofPython(f.File) && !strings.HasPrefix(strings.TrimLeft(f.Name, "_"), "Py") && f.Name != "_start"
}

// ofPython reports whether native code is CPython's: its program's or its library's.
func ofPython(file string) bool {
	base := path.Base(file)
	return strings.HasPrefix(base, "python3") || strings.HasPrefix(base, "libpython")
}
