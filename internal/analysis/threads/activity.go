package threads

import (
	"iter"
	"math/bits"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// Activity is what a thread was doing, as proven by the frames of a stack.
type Activity uint8

// The activities. A stack has one: the first in this order that its frames prove.
const (
	Other         Activity = iota
	GIL                    // waiting for CPython's global interpreter lock
	GC                     // CPython's cyclic garbage collection
	allocation             // memory, of the host or the device
	Serialization          // pickle, what sends objects to other processes, and JSON, written or parsed
	Compilation            // nvrtc, ptxas, Triton, inductor, a compiler
	Import                 // Python modules, or shared libraries
	Activities
)

// String returns the activity in a few words.
func (a Activity) String() string {
	return [...]string{
		"other", "waiting for the GIL", "garbage collection", "memory allocation", "serialization", "compilation",
		"import", "?",
	}[min(a, Activities)]
}

// proof is what proves an activity: a frame of the kind, with the name or the file
// (any of names, prefixes and files), and with all that the other fields say, where they do.
type proof struct {
	activity Activity
	kind     recording.FrameKind
	names    []string // the function is one of these
	prefixes []string // or begins so
	files    []string // or its source file contains this
	in       []string // the mapped file contains this
	calls    []string // the frame that it called (the next towards the leaf) begins so
	near     int      // the frame is at most so far from the leaf, the kernel's not counted; 0: anywhere
}

// interpreters are the mapped files that hold CPython, in part or whole.
func interpreters() []string { return []string{"python", "_pickle"} }

// collecting is the frame that the sampler puts on top of the Python frames of a thread
// whose interpreter says that it collects garbage: the proof that needs no symbols.
const collecting = "[garbage collection]"

// condition are the first words of a timed wait on a condition variable, which CPython
// uses for the GIL and for nothing else (threading's locks are semaphores).
func condition() []string {
	return []string{
		"pthread_cond_timedwait", "__pthread_cond_timedwait", "___pthread_cond_timedwait",
		"pthread_cond_clockwait", "__pthread_cond_clockwait", "___pthread_cond_clockwait",
	}
}

// proofs is the one table of what frames mean, for CPython 3.6 to 3.14, glibc 2.17
// to 2.41 and CUDA 11 to 13. Static functions are named only where the interpreter
// has its symbol table; the exported ones around them always are.
func proofs() []proof {
	return slices.Concat(interpreterProofs(), memoryProofs(), workProofs())
}

func interpreterProofs() []proof {
	return []proof{
		{activity: GIL, kind: recording.NativeFrame, names: []string{"take_gil"}},
		{
			activity: GIL, kind: recording.NativeFrame, calls: condition(), near: 6,
			names: []string{
				"eval_frame_handle_pending",
				"_Py_HandlePending",
				"_PyThreadState_Attach",
				"PyThreadState_Swap",
			},
			prefixes: []string{"PyEval_", "_PyEval_", "PyGILState_Ensure"},
		},
		// The same where the interpreter is stripped of all names but the exported ones: its functions are called by
		// its file and offset.
		{
			activity: GIL,
			kind:     recording.NativeFrame,
			calls:    condition(),
			near:     6,
			in:       interpreters(),
			prefixes: []string{"python", "libpython"},
		}, // "python3.12+0x61d763"
		{activity: GC, kind: recording.PythonFrame, names: []string{collecting}},
		{
			activity: GC, kind: recording.NativeFrame, in: interpreters(),
			names: []string{
				"gc_collect_main", "gc_collect_generations", "gc_collect_with_callback", "gc_collect_young",
				"gc_collect_increment", "gc_collect_full", "gc_collect_region", "_Py_RunGC", "_PyGC_Collect",
				"_PyGC_CollectNoFail", "PyGC_Collect", "collect", "collect_generations",
				"collect_with_callback", "deduce_unreachable",
			},
		},
	}
}

// DeviceMemory are prefixes of native functions that allocate, map, pin or give back memory for a GPU: those of CUDA
// (CUDA Driver API, "Memory Management" and "Virtual Memory Management"), and those of PyTorch's caching allocator
// that give its segments back (c10/cuda/CUDACachingAllocator.cpp of 2.1 to 2.11). Its own malloc and free are not
// among them: mostly they only hand out what it has.
func DeviceMemory() []string {
	const allocator = "c10::cuda::CUDACachingAllocator::Native::"
	return []string{
		"cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister", "cuMemAlloc", "cuMemFree",
		"cuMemHost", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddress",
		allocator + "ExpandableSegment::", allocator + "DeviceCachingAllocator::release_",
		allocator + "DeviceCachingAllocator::unmap_block", allocator + "DeviceCachingAllocator::emptyCache",
		allocator + "NativeCachingAllocator::emptyCache", "THCPModule_emptyCache",
	}
}

func memoryProofs() []proof {
	return []proof{
		{
			activity: allocation, kind: recording.NativeFrame, near: 5,
			names: []string{
				"malloc", "calloc", "realloc", "free", "cfree", "posix_memalign", "aligned_alloc", "memalign",
				"malloc_consolidate", "sysmalloc", "systrim", "mmap", "__mmap", "mmap64", "__mmap64", "munmap",
				"__munmap", "mremap", "__mremap", "madvise", "__madvise", "brk", "__brk", "sbrk", "__sbrk",
				"operator new(unsigned long)", "operator delete(void*)",
			},
			prefixes: []string{
				"_int_malloc", "_int_free", "_int_realloc", "__libc_malloc", "__libc_calloc", "__libc_free",
				"je_", "tc_malloc", "mi_malloc", "mi_free",
			},
		},
		{
			activity: allocation, kind: recording.NativeFrame,
			prefixes: DeviceMemory(),
		},
	}
}

func workProofs() []proof {
	return []proof{
		{
			activity: Serialization, kind: recording.PythonFrame,
			files: []string{
				"/json/",
				"/pickle.py",
				"/multiprocessing/reduction.py",
				"/cloudpickle/",
				"/torch/serialization.py",
				"/torch/multiprocessing/reductions.py",
				"/simplejson/",
				"/ujson",
				"/orjson",
				"/msgspec/",
				"/msgpack/",
			},
		},
		{
			activity: Serialization, kind: recording.NativeFrame, in: interpreters(),
			names: []string{
				"save", "save_reduce", "load", "save_list", "save_dict", "save_tuple", "batch_list",
				"batch_dict",
			},
			prefixes: []string{"_pickle_", "_Pickle_", "_Unpickler_", "_Pickler_"},
		},
		{
			activity: Serialization, kind: recording.NativeFrame,
			prefixes: []string{"simdjson::", "rapidjson::", "nlohmann::", "parse_json", "json_parse"},
			files:    []string{"_json.cpython", "orjson.", "ujson.", "/msgspec/", "/msgpack/"},
		},
		{
			activity: Compilation, kind: recording.PythonFrame,
			files: []string{
				"/triton/compiler/", "/triton/backends/nvidia/compiler.py", "/triton/backends/amd/compiler.py",
				"/triton/runtime/build.py", "/torch/utils/cpp_extension.py", "/cupy/cuda/compiler.py",
				"/numba/core/",
				// Those that compile: compiled code runs through others, such as eval_frame.py, output_code.py,
				// runtime/ and cudagraph_trees.py.
				"/torch/_dynamo/convert_frame.py", "/torch/_dynamo/symbolic_convert.py",
				"/torch/_dynamo/output_graph.py", "/torch/_dynamo/variables/", "/torch/_dynamo/bytecode_",
				"/torch/_inductor/graph.py", "/torch/_inductor/scheduler.py", "/torch/_inductor/lowering.py",
				"/torch/_inductor/ir.py", "/torch/_inductor/codegen/", "/torch/_inductor/fx_passes/",
				"/torch/_inductor/compile_worker/",
			},
		},
		{
			activity: Compilation, kind: recording.PythonFrame, in: []string{"/torch/_inductor/compile_fx.py"},
			names: []string{
				"compile_fx", "_compile_fx", "compile_fx_inner", "_compile_fx_inner", "fx_codegen_and_compile",
				"codegen_and_compile", "fw_compiler_base",
			},
		},
		{
			activity: Compilation,
			kind:     recording.NativeFrame,
			prefixes: []string{
				"nvrtc", "nvPTXCompiler", "nvJitLink", "llvm::", "mlir::", "cuLinkAddData", "cuLinkComplete",
			},
		},
		{
			activity: Import, kind: recording.PythonFrame,
			names: []string{"_find_and_load", "_find_and_load_unlocked", "_load_unlocked", "_handle_fromlist"},
			files: []string{"importlib._bootstrap", "importlib/_bootstrap"},
		},
		{
			activity: Import,
			kind:     recording.NativeFrame,
			prefixes: []string{"_dl_open", "dl_open_worker", "_dl_map_object", "_dl_relocate_object", "__dlopen"},
			names:    []string{"dlopen", "dlopen_doit"},
		},
	}
}

// Classifier classifies stacks. It reads each frame and each stack once.
type Classifier struct {
	rec    *recording.Recording
	proofs []proof
	frames []hints // by index into Meta.Frames
	known  map[uint64]proven
}

// proven are the activities that a stack proves, a bit for each.
type proven uint16

// first returns the first of them.
func (p proven) first() Activity {
	if p == 0 {
		return Other
	}
	return Activity(bits.TrailingZeros16(uint16(p)))
}

// hints are what a frame alone says, a bit for each of the proofs.
type hints struct {
	known  bool
	fits   uint32 // it is the frame that the proof wants
	called uint32 // it is what that frame must have called
}

// NewClassifier returns a Classifier for the stacks of rec.
func NewClassifier(rec *recording.Recording) *Classifier {
	return &Classifier{
		rec:    rec,
		proofs: proofs(),
		frames: make([]hints, len(rec.Meta.Frames)),
		known:  map[uint64]proven{},
	}
}

// Of returns what the stack with this number (index + 1 into Meta.Stacks) proves; Other for 0.
func (c *Classifier) Of(stack uint64) Activity { return c.proven(stack).first() }

// For returns what the stack proves beside that it allocates: what memory is allocated for. What pickle or an import
// allocates is theirs.
func (c *Classifier) For(stack uint64) Activity {
	return (c.proven(stack) &^ (1 << allocation)).first()
}

func (c *Classifier) proven(stack uint64) proven {
	if p, ok := c.known[stack]; ok {
		return p
	}
	p := c.classify(stack)
	c.known[stack] = p
	return p
}

// classify returns the activities that some frame proves.
func (c *Classifier) classify(stack uint64) (out proven) {
	depth, below := 0, uint32(0)
	for f := range Walk(c.rec, stack) {
		h := c.hints(f)
		for left := h.fits; left != 0; left &= left - 1 {
			i := bits.TrailingZeros32(left)
			p := &c.proofs[i]
			if (p.near == 0 || depth <= p.near) && (len(p.calls) == 0 || below>>i&1 != 0) {
				out |= 1 << p.activity
			}
		}
		below = h.called
		// ten of them where the thread sleeps, none where it runs
		if c.rec.Meta.Frames[f].Kind != recording.KernelFrame {
			depth++
		}
	}
	return out
}

func (c *Classifier) hints(frame uint32) hints {
	h := &c.frames[frame]
	if h.known {
		return *h
	}
	h.known = true
	f := &c.rec.Meta.Frames[frame]
	for i := range c.proofs {
		p := &c.proofs[i]
		if p.fits(f) {
			h.fits |= 1 << i
		}
		if hasPrefix(f.Name, p.calls) {
			h.called |= 1 << i
		}
	}
	return *h
}

func (p *proof) fits(f *recording.Frame) bool {
	if f.Kind != p.kind {
		return false
	}
	within := func(part string) bool { return strings.Contains(ModulePath(f.File), part) }
	if len(p.in) > 0 && !slices.ContainsFunc(p.in, within) {
		return false
	}
	return slices.Contains(p.names, f.Name) || hasPrefix(f.Name, p.prefixes) || slices.ContainsFunc(p.files, within)
}

// ModulePath cuts off of a Python file where its environment is installed: what is left of
// /opt/torch/.venv/lib/python3.12/site-packages/numpy/linalg.py is /numpy/linalg.py. The folder of an environment may
// have the name of a package that has nothing to do with the file. Other paths are returned as they are.
func ModulePath(file string) string {
	for _, root := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex(file, root); i >= 0 {
			return file[i+len(root)-1:]
		}
	}
	for _, root := range []string{"/lib/python", "/lib64/python"} { // the standard library
		i := strings.LastIndex(file, root)
		if i < 0 {
			continue
		}
		version := file[i+len(root):]
		if end := strings.IndexByte(version, '/'); end > 0 && strings.Trim(version[:end], "0123456789.t") == "" {
			return version[end:]
		}
	}
	return file
}

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// maxDepth bounds a walk through the tree of stacks, which comes from a file.
const maxDepth = 4096

// Walk visits the frames of a stack (index + 1 into Meta.Stacks), as indexes into
// Meta.Frames, the leaf first; none for 0 and for a number that the recording does not have.
func Walk(rec *recording.Recording, stack uint64) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		nodes, frames := rec.Meta.Stacks, uint32(len(rec.Meta.Frames))
		if stack == 0 || stack > uint64(len(nodes)) {
			return
		}
		at := int64(stack) - 1
		for n := 0; at >= 0 && at < int64(len(nodes)) && n < maxDepth; n++ {
			if f := nodes[at].Frame; f < frames && !yield(f) {
				return
			}
			at = int64(nodes[at].Parent)
		}
	}
}

// Frames returns the frames of a stack (index + 1 into Meta.Stacks), the leaf first;
// nil for 0 and for a number that the recording does not have.
func Frames(rec *recording.Recording, stack uint64) []recording.Frame {
	var out []recording.Frame
	for f := range Walk(rec, stack) {
		out = append(out, rec.Meta.Frames[f])
	}
	return out
}

// Compilers are programs that a target runs to compile; a process with such a name
// compiles, whatever its frames.
func Compilers() []string {
	return []string{
		"cc1", "cc1plus", "collect2", "ld", "as", "gcc", "g++", "clang", "nvcc", "cicc", "ptxas", "fatbinary",
		"cudafe++", "nvlink",
	}
}
