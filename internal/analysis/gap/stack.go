package gap

import (
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
)

// stacks says of each stack what its thread worked at, and, where it is that of a wait, what it waited
// for. It reads each stack once.
type stacks struct {
	rec      *recording.Recording
	index    *threads.Index
	activity *threads.Classifier
	work     []cause.ID // by stack; cause.Count: not read yet
	onHost   []bool     // by stack, where work is read: see operatesOnHost
	futex    []cause.ID // likewise
	frames   []traits   // by index into Meta.Frames
	sleeps   []uint8    // by stack; see inFutex. 0: not read yet
	python   map[uint32]bool
	found    *threads.Holders
}

func newStacks(x *threads.Index) *stacks {
	rec := x.Rec
	s := &stacks{
		rec: rec, index: x, activity: threads.NewClassifier(rec), python: map[uint32]bool{},
		frames: make([]traits, len(rec.Meta.Frames)),
		work:   make([]cause.ID, len(rec.Meta.Stacks)+1),
		onHost: make([]bool, len(rec.Meta.Stacks)+1),
		futex:  make([]cause.ID, len(rec.Meta.Stacks)+1),
		sleeps: make([]uint8, len(rec.Meta.Stacks)+1),
	}
	for i := range s.work {
		s.work[i], s.futex[i] = cause.Count, cause.Count
	}
	for i := range rec.Meta.Frames {
		s.frames[i] = traitsOf(&rec.Meta.Frames[i])
	}
	for i := range rec.Meta.Processes {
		p := &rec.Meta.Processes[i]
		s.python[p.PID] = s.python[p.PID] || strings.HasPrefix(p.Comm, "python")
	}
	return s
}

func (s *stacks) holders() *threads.Holders {
	if s.found == nil {
		s.found = s.index.Holders(s.activity)
	}
	return s.found
}

// workCause is what a thread that ran works at, by a stack of it; 0: there is none. quiet says that it launched nothing
// for long: then a program's own code that calls operators of the framework works on tensors of the host.
func (w *walker) workCause(th *thread, stack uint64, quiet bool) cause.ID {
	if w.compiler[th.pid] {
		return cause.Compilation
	}
	c := w.stacks.workCause(th.pid, stack)
	if quiet && c == cause.LaunchOverhead && w.stacks.onHost[stack] {
		return cause.PythonWork
	}
	return c
}

// launchless is for how long a thread runs between two calls before its operators cannot be those that launch, ns.
const launchless = 20 * maxLaunchInterval

// isQuiet reports whether a thread ran for longer than launchless in [from, to), which lies between two calls and where
// launches were recorded all the time.
func (w *walker) isQuiet(th *thread, from, to uint64) bool {
	if to-from < launchless {
		return false
	}
	seen := w.callsSeen[th.pid]
	if i := seen.At(from); i == len(seen) || seen[i].From > from || seen[i].To < to {
		return false
	}
	ran := uint64(0)
	w.states(th, from, to, func(u, v uint64, iv *threads.Interval) {
		if iv == nil || iv.State == threads.Running {
			ran += v - u
		}
	})
	return ran >= launchless
}

func (s *stacks) workCause(pid uint32, stack uint64) cause.ID {
	if stack == 0 || stack >= uint64(len(s.work)) {
		if s.python[pid] {
			return cause.PythonWork
		}
		return cause.NativeWork
	}
	if s.work[stack] == cause.Count {
		s.work[stack] = s.readWork(stack)
	}
	return s.work[stack]
}

// readWork decides by the first of these that the frames prove: what threads.Classifier knows, the handing over of
// objects, page faults and files (the kernel's frames), preprocessing (any frame: what a tokenizer calls is
// tokenization), then the frames from the leaf on.
func (s *stacks) readWork(stack uint64) cause.ID {
	switch s.activity.For(stack) {
	case threads.GIL:
		return cause.GIL
	case threads.GC:
		if s.imports(stack) {
			return cause.Compilation // what is collected while modules are imported belongs to the import
		}
		return cause.GC
	case threads.Serialization:
		return cause.Serialization
	case threads.Compilation, threads.Import:
		return cause.Compilation
	}
	if c := s.tracedWait(stack); c != cause.Count {
		return c
	}
	s.onHost[stack] = s.operatesOnHost(stack)
	all, first := traits(0), traits(0) // of all frames; of the first from the leaf that says whose code it is
	python := false
	native := traits(0) // of the frames nearer to the leaf than any of Python
	for f := range threads.Walk(s.rec, stack) {
		t := s.frames[f]
		all |= t
		if !python {
			native |= t &^ isPython
		}
		if t&isPython != 0 && !python {
			python, first = true, t
		}
	}
	switch {
	case all&device != 0:
		return cause.Allocation
	case all&handover != 0: // before faults: the memory is that of the object
		return cause.Serialization
	case all&faults != 0:
		return cause.PageFaults
	case all&files != 0:
		return cause.Disk
	case all&prepares != 0:
		return cause.Preprocessing
	case all&prints != 0:
		return cause.PythonWork
	case native&computes != 0:
		return cause.NativeWork
	case native&framework != 0, first&framework != 0:
		return cause.LaunchOverhead
	case native&library != 0 || !python:
		return cause.NativeWork
	}
	return cause.PythonWork
}

// operatesOnHost reports whether a program's own Python code calls operators that no library of the GPU is seen in.
func (s *stacks) operatesOnHost(stack uint64) bool {
	for f := range threads.Walk(s.rec, stack) {
		switch t := s.frames[f]; {
		case t&gpuLibrary != 0:
			return false
		case t&isPython != 0:
			return t&framework == 0
		}
	}
	return false
}

// imports reports whether a stack has frames of Python's import system.
func (s *stacks) imports(stack uint64) bool {
	for f := range threads.Walk(s.rec, stack) {
		if s.frames[f]&importing != 0 {
			return true
		}
	}
	return false
}

// futexCause is what a thread waits for in a futex, by the stack with which it went to sleep.
func (s *stacks) futexCause(stack uint64) cause.ID {
	if stack == 0 || stack >= uint64(len(s.futex)) {
		return cause.Worker
	}
	if s.futex[stack] == cause.Count {
		s.futex[stack] = s.readFutex(stack)
	}
	return s.futex[stack]
}

func (s *stacks) readFutex(stack uint64) cause.ID {
	if s.activity.Of(stack) == threads.GIL {
		return cause.GIL
	}
	all := traits(0)
	for f := range threads.Walk(s.rec, stack) {
		t := s.frames[f]
		all |= t
		if t&isPython != 0 {
			break // who called the Python code that waits does not matter
		}
	}
	if all&awaits == 0 && all&locks != 0 {
		return cause.Lock
	}
	return cause.Worker
}

// inFutex reports whether a stack shows a thread waiting in a futex, and who called that.
func (s *stacks) inFutex(stack uint64) bool {
	if stack == 0 || stack >= uint64(len(s.futex)) {
		return false
	}
	if s.sleeps[stack] == 0 {
		s.sleeps[stack] = 1
		if s.readSleep(stack) {
			s.sleeps[stack] = 2
		}
	}
	return s.sleeps[stack] == 2
}

func (s *stacks) readSleep(stack uint64) bool {
	waits := false
	for f := range threads.Walk(s.rec, stack) {
		t := s.frames[f]
		waits = waits || t&waitsIn != 0
		if waits && t&(isNative|isPython) != 0 {
			return s.hasCallers(stack)
		}
	}
	return false
}

// hasCallers reports whether a stack shows more than the system call: some code of user space beneath the first of its
// frames.
func (s *stacks) hasCallers(stack uint64) bool {
	n := 0
	for f := range threads.Walk(s.rec, stack) {
		if s.frames[f]&(isNative|isPython) != 0 {
			if n++; n == 2 {
				return true
			}
		}
	}
	return false
}

// faultCause is where a page that a thread waits for comes from.
func (s *stacks) faultCause(stack uint64) cause.ID {
	for f := range threads.Walk(s.rec, stack) {
		if s.frames[f]&files != 0 {
			return cause.Disk
		}
	}
	return cause.PageFaults
}

// traits are what a frame says by itself.
type traits uint32

const (
	isPython   traits = 1 << iota
	framework         // PyTorch's and the models' own code, and CUDA's libraries: what it takes to launch
	computes          // a kernel of PyTorch or a library that runs on the CPU
	library           // native code that is not the interpreter's nor libc's
	prepares          // tokenization, images, parsing
	faults            // the kernel brings in a page
	files             // the kernel reads or writes a file
	device            // memory of a GPU, or pinned
	locks             // takes a lock
	awaits            // waits for a condition, a queue, an end
	waitsIn           // the kernel lets a thread sleep in a futex
	isNative          // native code
	importing         // Python's import system
	gpuLibrary        // native code that is there for GPUs
	prints            // makes text of tensors
	handover          // bytes of a pickled object are sent to another process, or received
	tracedWait        // a range or function of another tool's trace that can be a wait; see tracedWait
)

// rules are the words that give a frame a trait.
type rules struct {
	trait    traits
	kind     recording.FrameKind
	prefixes []string // of the name
	within   []string // somewhere in the name, in lower case
	files    []string // somewhere in the file
}

func traitsOf(f *recording.Frame) traits {
	var out traits
	switch f.Kind {
	case recording.PythonFrame:
		out = isPython
	case recording.NativeFrame:
		out = isNative
		if !ofInterpreter(f.File) {
			out |= library
		}
	}
	if isOperatorOfCPU(f) || isGenerated(f) {
		out |= computes
	}
	name, file := "", f.File
	if f.Kind == recording.PythonFrame {
		file = threads.ModulePath(file)
	}
	for _, r := range allRules() {
		if f.Kind != r.kind {
			continue
		}
		if name == "" && len(r.within) > 0 {
			name = strings.ToLower(f.Name)
		}
		has := func(where string) func(string) bool {
			return func(what string) bool { return strings.Contains(where, what) }
		}
		if slices.ContainsFunc(r.prefixes, func(p string) bool { return strings.HasPrefix(f.Name, p) }) ||
			slices.ContainsFunc(r.within, has(name)) || slices.ContainsFunc(r.files, has(file)) {
			out |= r.trait
		}
	}
	return out
}

// isOperatorOfCPU reports whether native code is the part of a PyTorch operator that computes on the CPU:
// at::native::sort_stable_kernel, upsample_bilinear2d_aa_kernel_impl. What the dispatcher and operators of a GPU run in
// the same library is no kernel, and kernels of GPUs are in another one.
func isOperatorOfCPU(f *recording.Frame) bool {
	return f.Kind == recording.NativeFrame && strings.HasPrefix(f.File, "libtorch_cpu") &&
		strings.HasPrefix(f.Name, "at::native::") && strings.Contains(strings.ToLower(f.Name), "kernel")
}

// isGenerated reports whether native code was generated by its process. Libraries generate kernels for the CPU (FBGEMM
// for embedding bags, oneDNN for products); stacks end there without unwind tables, so that no frame names the library.
func isGenerated(f *recording.Frame) bool {
	return f.Kind == recording.NativeFrame && f.Name == "[generated code]"
}

// ofInterpreter reports whether native code is CPython's own, libc's or the loader's: what it does it does for who
// called it. Distributions build small modules into the interpreter or beside it: that makes no difference.
func ofInterpreter(file string) bool {
	for _, p := range []string{
		"python", "libpython", "libc.so", "libc-", "libm.so", "libpthread", "ld-linux", "linux-vdso", "[vdso]",
		"array.cpython-", "_bisect.cpython-", "_datetime.cpython-", "_heapq.cpython-", "_random.cpython-",
		"_struct.cpython-", "math.cpython-",
	} {
		if strings.HasPrefix(file, p) {
			return true
		}
	}
	return false
}
