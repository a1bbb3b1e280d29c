package importer

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// span is a time that a thread spent in an operator, a function or a range, as a tool's row says.
type span struct {
	from, to uint64 // ns
	frame    uint32 // index into Meta.Frames
}

// spans gathers what threads were in. Of more than fit, the shortest are left out: what is inside of them belongs to
// what is around them.
type spans struct {
	byThread map[uint64][]span // by key
	frames   map[recording.Frame]uint32
	count    int
	least    uint64 // ns: shorter ones are left out
}

// shortest is the first length below which spans are left out when there are too many, ns.
const shortest = 1000

// addSpan adds a row.
func (b *builder) addSpan(pid, tid uint32, ts, dur uint64, f recording.Frame) error {
	if dur > math.MaxInt64 || ts > math.MaxInt64-dur {
		b.skip("rows with a time that no clock can show")
		return nil
	}
	s := &b.spans
	if dur < s.least {
		b.skip(tooShort)
		return nil
	}
	if ok, err := b.room(ts); !ok {
		return err
	}
	if dur < s.least { // since there is no room for so many
		b.skip(tooShort)
		return nil
	}
	i, err := b.frame(f)
	if err != nil {
		return err
	}
	k := key(pid, tid)
	s.byThread[k] = append(s.byThread[k], span{ts, ts + dur, i})
	s.count++
	b.process(pid)
	return nil
}

// tooShort counts spans that were left out.
const tooShort = "of the shortest rows of operators and functions, which are too many"

// shorten leaves out spans that are shorter than the least.
func (b *builder) shorten() {
	s := &b.spans
	s.count = 0
	for k, list := range s.byThread {
		kept := slices.DeleteFunc(list, func(x span) bool { return x.to-x.from < s.least })
		for range len(list) - len(kept) {
			b.skip(tooShort)
		}
		s.byThread[k] = kept
		s.count += len(kept)
	}
}

// frame enters a frame.
func (b *builder) frame(f recording.Frame) (uint32, error) {
	if i, ok := b.spans.frames[f]; ok {
		return i, nil
	}
	i := uint32(len(b.meta.Frames))
	b.meta.Frames = append(b.meta.Frames, f)
	b.spans.frames[f] = i
	return i, b.name(f.Name + f.File)
}

// trace makes events of where each thread was: one whenever that changes. Calls are in the spans too, so that what
// called them can be named.
func (b *builder) trace() error {
	if b.spans.count == 0 {
		return nil
	}
	if err := b.callSpans(); err != nil {
		return err
	}
	nodes := map[recording.Node]int32{}
	for i, n := range b.meta.Stacks {
		nodes[n] = int32(i)
	}
	for _, k := range slices.Sorted(maps.Keys(b.spans.byThread)) {
		list := b.spans.byThread[k]
		slices.SortFunc(list,
			func(x, y span) int { return cmp.Or(cmp.Compare(x.from, y.from), cmp.Compare(y.to, x.to)) })
		b.onCPU(list)
		t := tracer{b: b, pid: uint32(k >> 32), tid: uint32(k), nodes: nodes}
		for i := range list {
			t.until(list[i].from)
			t.open = append(t.open, list[i])
			t.note(list[i].from)
		}
		t.until(math.MaxUint64)
		if t.full {
			b.skip("threads of which not all rows of operators and functions fit")
		}
		delete(b.spans.byThread, k)
	}
	return nil
}

// longOperator is from when on an operator of PyTorch that makes no call of CUDA computes on the CPU, ns: dispatching
// one takes some 10 µs.
const longOperator = 200_000

// onCPU gives operators that compute on the CPU another file than those that launch, which the rules for frames take
// for launching. list is sorted.
func (b *builder) onCPU(list []span) {
	var calls []uint64 // when they begin, ns
	for i := range list {
		if b.meta.Frames[list[i].frame].File == cudaLibrary {
			calls = append(calls, list[i].from)
		}
	}
	for i := range list {
		s := &list[i]
		f := b.meta.Frames[s.frame]
		if f.File != torchLibrary || s.to-s.from < longOperator {
			continue
		}
		if at, _ := slices.BinarySearch(calls, s.from); at < len(calls) && calls[at] < s.to {
			continue
		}
		f.File = operatorsOnCPU
		if at, err := b.frame(f); err == nil {
			s.frame = at
		}
	}
}

// The files of frames: rules for frames know code by its file.
const (
	cudaLibrary    = "libcudart.so"
	torchLibrary   = "libtorch_cpu.so"
	operatorsOnCPU = "ATen"
)

// callSpans adds the calls of threads that have other spans.
func (b *builder) callSpans() error {
	frames := make([]uint32, len(b.meta.Functions))
	for i, f := range b.meta.Functions {
		var err error
		if frames[i], err = b.frame(recording.Frame{
			Kind: recording.NativeFrame, Name: f.Base, File: cudaLibrary,
		}); err != nil {
			return err
		}
	}
	for i := range b.events {
		e := &b.events[i]
		if e.Kind != event.Call || e.Flags&event.Timed == 0 {
			continue
		}
		if k := key(e.PID, e.TID); b.spans.byThread[k] != nil {
			b.spans.byThread[k] = append(b.spans.byThread[k], span{e.TS, e.End(), frames[e.Func]})
		}
	}
	return nil
}

// tracer goes along the spans of one thread.
type tracer struct {
	b        *builder
	pid, tid uint32
	open     []span
	nodes    map[recording.Node]int32
	last     uint64 // stack of the last event
	at       uint64 // ns: of the last event
	any      bool
	full     bool // there was no room for more events
}

// until ends the spans that end before a time.
func (t *tracer) until(ts uint64) {
	for len(t.open) > 0 {
		end := uint64(math.MaxUint64)
		for i := range t.open {
			end = min(end, t.open[i].to)
		}
		if end > ts {
			return
		}
		t.open = slices.DeleteFunc(t.open, func(s span) bool { return s.to <= end })
		t.note(end)
	}
}

// note adds an event where the stack has changed; of several at one time the last counts.
func (t *tracer) note(ts uint64) {
	stack := t.stack()
	if t.any && stack == t.last {
		return
	}
	events := &t.b.events
	if n := len(*events); t.any && t.at == ts {
		(*events)[n-1].Args[0] = stack
		t.last = stack
		return
	}
	if t.full {
		return
	}
	if len(*events) >= 2*t.b.limits.Events { // a span has two ends
		t.full, stack = true, 0
	}
	*events = append(*events, event.Event{
		TS: ts, PID: t.pid, TID: t.tid, Func: uint16(event.Traced), Kind: event.Sample,
		Args: [4]uint64{stack, uint64(event.Whole)},
	})
	t.last, t.at, t.any = stack, ts, true
}

// maxTraced is how deep a stack may be.
const maxTraced = 256

// stack enters what is open into the tree, and returns its number, index + 1.
func (t *tracer) stack() uint64 {
	at := int32(-1)
	for _, s := range t.open[:min(len(t.open), maxTraced)] {
		node := recording.Node{Parent: at, Frame: s.frame}
		i, ok := t.nodes[node]
		if !ok {
			i = int32(len(t.b.meta.Stacks))
			t.nodes[node] = i
			t.b.meta.Stacks = append(t.b.meta.Stacks, node)
		}
		at = i
	}
	return uint64(at + 1)
}

// operatorFrame is the frame of an operator of PyTorch: native code. A name that no operator has is one that the
// program gave (record_function), as "Optimizer.step#SGD.step" is.
func operatorFrame(name string) recording.Frame {
	if strings.Contains(name, "::") || isIdentifier(name) {
		return recording.Frame{Kind: recording.NativeFrame, Name: name, File: torchLibrary}
	}
	return annotationFrame(name)
}

func isIdentifier(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}

// annotationFrame is the frame of a range that the program, or its framework, has named: what is in no operator inside
// of it is the program's own code, in Python as a rule.
func annotationFrame(name string) recording.Frame {
	return recording.Frame{Kind: recording.PythonFrame, Name: stepName(name)}
}

// stepName takes from the name of a step what differs from one to the next: as one name they are the iterations.
// torch.profiler counts steps. vLLM and SGLang write what is in the batch, as in
// "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk90sqsq2sqsk90)" and "step[DECODE bs=32]".
func stepName(name string) string {
	switch {
	case strings.HasPrefix(name, "ProfilerStep#"):
		return "ProfilerStep"
	case strings.HasPrefix(name, "execute_") && strings.Contains(name, "context_") &&
		strings.Contains(name, "_generation_"):
		return "execute"
	case strings.HasPrefix(name, "step["):
		kind, _, _ := strings.Cut(name, " bs=")
		return strings.TrimSuffix(kind, "]") + "]"
	}
	return name
}

// functionFrame is the frame of a row of torch.profiler's Python tracer: "torch/nn/modules/module.py(1501):
// _call_impl", "<built-in method sleep>", "nn.Module: Linear_0".
func functionFrame(name string) recording.Frame {
	if strings.HasPrefix(name, "<") {
		name, _, _ = strings.Cut(name, " at 0x") // of an object: another one at each call
		return recording.Frame{Kind: recording.NativeFrame, Name: strings.TrimSuffix(name, ">") + ">", File: "python"}
	}
	if module, ok := strings.CutPrefix(name, "nn.Module: "); ok {
		return recording.Frame{
			Kind: recording.PythonFrame,
			Name: module,
			File: sitePackages + "torch/nn/modules/module.py",
		}
	}
	file, rest, ok := strings.Cut(name, ".py(")
	if !ok {
		return recording.Frame{Kind: recording.PythonFrame, Name: name}
	}
	number, function, _ := strings.Cut(rest, "): ")
	line, _ := strconv.ParseUint(number, 10, 32)
	return recording.Frame{
		Kind: recording.PythonFrame,
		Name: function,
		File: pythonFile(file + ".py"),
		Line: uint32(line),
	}
}

// Where Python keeps what is not the program's own.
const (
	sitePackages = "/site-packages/"
	libPython    = "/lib/python3/"
)

// pythonFile completes the path of a file, of which torch.profiler cuts off the part that is in sys.path: what belongs
// to a known package or to the standard library is no file of the program.
func pythonFile(path string) string {
	if strings.HasPrefix(path, "/") || strings.HasPrefix(path, "<") {
		return path
	}
	top, _, inPackage := strings.Cut(path, "/")
	top = strings.TrimSuffix(top, ".py")
	switch {
	case inPackage && slices.Contains(knownPackages, top):
		return sitePackages + path
	case slices.Contains(standardModules, top):
		return libPython + path
	}
	return path
}

// knownPackages are packages that inference and training programs use; the rules for frames know them by their paths.
var knownPackages = []string{
	"torch", "torchvision", "torchaudio", "torchrec", "torchtext", "transformers", "tokenizers", "accelerate",
	"diffusers", "peft", "timm", "numpy", "vllm", "sglang", "flash_attn", "flashinfer", "xformers", "triton",
	"deepspeed", "megatron", "apex", "bitsandbytes", "datasets", "safetensors", "PIL", "cv2", "scipy", "pandas",
	"sklearn", "sentencepiece", "tiktoken", "einops", "tqdm", "fsspec", "ray", "zmq", "uvloop", "fastapi",
	"uvicorn", "lightning", "pytorch_lightning", "fbgemm_gpu", "jax", "cupy",
}

// standardModules are modules of the standard library that programs spend time in.
var standardModules = []string{
	"threading", "queue", "multiprocessing", "concurrent", "asyncio", "selectors", "socket", "ssl",
	"subprocess", "json", "pickle", "copyreg", "copy", "re", "sre_compile", "sre_parse", "logging",
	"contextlib", "functools", "typing", "enum", "abc", "collections", "dataclasses", "inspect", "importlib",
	"weakref", "random", "time", "datetime", "os", "posixpath", "pathlib", "shutil", "tempfile", "io", "gzip",
	"zipfile", "tarfile", "csv", "string", "types", "warnings", "traceback", "linecache", "tokenize", "ast",
	"dis", "heapq", "bisect", "itertools", "operator", "runpy", "site", "codecs", "encodings", "http", "urllib",
	"email", "struct", "statistics", "fractions", "decimal", "uuid", "hashlib", "signal", "platform", "locale",
	"glob",
}
