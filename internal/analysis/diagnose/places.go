package diagnose

import (
	"path"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// places finds where in the code stacks are. It looks at each stack once.
type places struct {
	rec    *recording.Recording
	known  []int32 // by stack: index + 1 into list
	byCode map[code]int32
	list   []place
}

// code tells places apart.
type code struct {
	name, file string
	line       uint32
	inner      string
}

// place is where a stack is, in the user's words.
type place struct {
	code
	kind recording.FrameKind
}

func newPlaces(rec *recording.Recording) *places {
	return &places{rec: rec, known: make([]int32, len(rec.Meta.Stacks)), byCode: map[code]int32{}, list: []place{{}}}
}

// of returns the number of the place of a stack (index + 1 into Meta.Stacks), 0 for none.
func (p *places) of(stack uint64) int32 {
	if stack == 0 || stack > uint64(len(p.known)) {
		return 0
	}
	n := p.known[stack-1]
	if n == 0 {
		n = p.find(stack) + 1
		p.known[stack-1] = n
	}
	return n - 1
}

func (p *places) find(stack uint64) int32 {
	found := p.read(stack)
	if found.kind == "" {
		return 0
	}
	n, ok := p.byCode[found.code]
	if !ok {
		n = int32(len(p.list))
		p.list = append(p.list, found)
		p.byCode[found.code] = n
	}
	return n
}

// read finds the place of a stack: the innermost Python function of the program itself, else the innermost one outside
// of the framework's own code, else the innermost one, else the innermost native one that tells something. Inner is
// what was called from there.
func (p *places) read(stack uint64) place {
	var python, library, native, unnamed, leaf *recording.Frame
	for i := range threads.Walk(p.rec, stack) {
		f := &p.rec.Meta.Frames[i]
		switch {
		case f.Kind == recording.PythonFrame && isOwn(f.File):
			return place{code: codeOf(f, cmpFrame(python, native)), kind: f.Kind}
		case f.Kind == recording.PythonFrame && python == nil && f.Name != profilerStep:
			python = f
			if !isPlumbing(f.File) {
				library = f
			}
		case f.Kind == recording.PythonFrame && library == nil && !isPlumbing(f.File) && f.Name != profilerStep:
			library = f
		case f.Kind == recording.NativeFrame && native == nil && tells(f):
			native = f
		case f.Kind == recording.NativeFrame && native == nil && unnamed == nil && ofProgram(f):
			unnamed = f
		}
		if leaf == nil && f.Kind != recording.ErrorFrame {
			leaf = f
		}
	}
	switch {
	case library != nil:
		return place{code: codeOf(library, cmpFrame(python, native)), kind: recording.PythonFrame}
	case python != nil:
		return place{code: codeOf(python, native), kind: recording.PythonFrame}
	case native != nil:
		return place{code: codeOf(native, nil), kind: native.Kind}
	case unnamed != nil:
		return place{code: codeOf(unnamed, nil), kind: unnamed.Kind}
	case leaf != nil:
		return place{code: codeOf(leaf, nil), kind: leaf.Kind}
	}
	return place{}
}

// cmpFrame returns the first of two that there is.
func cmpFrame(x, y *recording.Frame) *recording.Frame {
	if x != nil {
		return x
	}
	return y
}

// profilerStep is what torch.profiler calls a step of the program: all of it, and no place in it.
const profilerStep = "ProfilerStep"

func codeOf(f, inner *recording.Frame) code {
	c := code{name: f.Name, file: f.File, line: f.Line}
	if inner != nil {
		c.inner = inner.Name
	}
	return c
}

// isOwn reports whether a Python file belongs to the program itself: it is no installed package, no part
// of the standard library, and not frozen into the interpreter.
func isOwn(file string) bool {
	if file == "" || file[0] == '<' || isFrozen(file) {
		return false
	}
	for _, root := range []string{"/site-packages/", "/dist-packages/", "/lib/python2", "/lib/python3", "/lib64/python3"} {
		if strings.Contains(file, root) {
			return false
		}
	}
	if isGenerated(file) {
		return false
	}
	// What pip installs as a command, such as vllm, only calls a package.
	dir, base := path.Split(file)
	return !strings.HasSuffix(dir, "/bin/") || strings.Contains(base, ".")
}

// isPlumbing reports whether a Python file is one through which others are called: PyTorch, Triton, and the standard
// library. What they are asked for is the business of who calls them.
func isPlumbing(file string) bool {
	if file == "" || file[0] == '<' || isFrozen(file) || isGenerated(file) {
		return true
	}
	for _, part := range []string{"/torch/", "/triton/", "/torchgen/", "/numpy/", "/cupy/"} {
		if strings.Contains(threads.ModulePath(file), part) {
			return true
		}
	}
	if strings.Contains(file, "/site-packages/") || strings.Contains(file, "/dist-packages/") {
		return false
	}
	return strings.Contains(file, "/lib/python") || strings.Contains(file, "/lib64/python")
}

// isGenerated reports whether torch.compile wrote a Python file, into the cache of PyTorch or vLLM.
func isGenerated(file string) bool {
	return strings.Contains(file, "/torchinductor_") || strings.Contains(file, "/inductor_cache/") ||
		strings.Contains(file, "/torch_compile_cache/")
}

// isFrozen reports whether a file is a module that CPython 3.11 and later have frozen into the interpreter
// (Python/frozen.c): their code knows the file's name only, without a path. A script of the same name has one, but for
// Python before 3.9.
func isFrozen(file string) bool {
	switch file {
	case "_bootstrap.py",
		"_bootstrap_external.py", "zipimport.py", "abc.py", "codecs.py", "io.py", "_collections_abc.py",
		"_sitebuiltins.py", "genericpath.py", "ntpath.py", "posixpath.py", "os.py", "site.py", "stat.py",
		"runpy.py":
		return true
	}
	return false
}

// tells reports whether a native function says more than that the C library, the interpreter, CUDA or a system call was
// at work: whoever called these is who something can be asked of.
func tells(f *recording.Frame) bool {
	return !inLibrary(f, systemLibraries) && !strings.Contains(f.Name, "+0x") && !isCUDA(f.Name) && !dispatches(f.Name)
}

// systemLibraries are those of the C library, the interpreter, CUDA and allocators.
var systemLibraries = []string{
	"libc.so", "libc-", "libpthread", "ld-linux", "linux-vdso", "[vdso]", "libm.so", "libstdc++", "libgcc_s",
	"libpython", "python3", "libcuda.so", "libcudart", "libcupti", "libnvidia", "libjemalloc", "libtcmalloc",
	"libmimalloc",
}

// frameworkLibraries are those of PyTorch and CUDA whose functions without a name tell nothing.
var frameworkLibraries = []string{"libtorch", "libc10", "libshm", "libcu", "libnv", "libnccl"}

func inLibrary(f *recording.Frame, list []string) bool {
	return slices.ContainsFunc(list, func(lib string) bool { return strings.HasPrefix(f.File, lib) })
}

// ofProgram reports whether a native function, though it has no name, is in code that somebody can do something about.
func ofProgram(f *recording.Frame) bool {
	return f.File != "" && f.File[0] != '[' && !inLibrary(f, systemLibraries) && !inLibrary(f, frameworkLibraries) &&
		strings.Contains(f.Name, "+0x")
}

// dispatches reports whether a native function only hands a call on, or allocates for whoever called it: PyTorch's
// dispatcher, its bindings, and allocators.
func dispatches(name string) bool {
	for _, p := range []string{
		"c10::Dispatcher::", "c10::impl::", "c10::OperatorHandle", "c10::KernelFunction", "c10::BoxedKernel",
		"at::_ops::", "at::redispatch::", "torch::autograd::", "torch::jit::invokeOperator",
		"torch::PythonArgParser", "THPVariable_", "pybind11::", "nanobind::", "nb_func_",
		"c10::cuda::CUDACachingAllocator::", "c10::alloc_cpu", "operator new", "operator delete",
		"std::function", "malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc", "je_", "tc_",
		"mi_",
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// text writes a place: "encode (infer.py:12)".
func (p *place) text() string {
	switch p.kind {
	case recording.PythonFrame:
		return format.Clean(cpu.PythonPlace(p.name, p.file, p.line))
	case "":
		return ""
	}
	if p.file == "" || strings.Contains(p.name, "+0x") { // whose name has the file
		return format.Clean(p.name)
	}
	return format.Clean(p.name + " (" + cpu.ShortFile(p.file) + ")")
}

// isCode reports whether a place is one where somebody could change something: in the kernel, and where nothing is
// known to be mapped, nobody can.
func (p *place) isCode() bool {
	return p.kind == recording.PythonFrame || p.kind == recording.NativeFrame && !strings.HasPrefix(p.name, "[")
}

// function is a place without its line.
func (p *place) function() code { return code{name: p.name, file: p.file} }

// frames writes a stack, the leaf first; of who called something without what the kernel did meanwhile, which may be no
// more than recording the call.
func (p *places) frames(stack uint64, callers bool) []string {
	var out []string
	for i := range threads.Walk(p.rec, stack) {
		f := &p.rec.Meta.Frames[i]
		if len(out) == maxFrames {
			break
		}
		if f.Kind == recording.ErrorFrame || callers && f.Kind == recording.KernelFrame {
			continue
		}
		one := place{code: codeOf(f, nil), kind: f.Kind}
		out = append(out, one.text())
	}
	return out
}

// maxFrames bounds a stack in a diagnosis, which is printed and sent around.
const maxFrames = 64
