package profile

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/libc"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/remotememory"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// Bounds of what is remembered of Python code.
const (
	maxNames      = 32768 // places in code of one process; 100 bytes each beside the names
	maxNameLength = 512   // bytes of a function's or file's name
)

// trampoline is what CPython calls the frames that it makes for calls out of C.
const trampoline = "<interpreter trampoline>"

// unnamed stands for a code object that could not be read any more.
const unnamed = "<gone>"

var errNoThreadKey = errors.New("its C library does not say where it keeps thread-specific values")

// cpython is the interpreter in one process. It belongs to the drain goroutine, but
// for layout, which never changes once it is complete.
type cpython struct {
	offsets
	process  *proc.Process
	mapping  proc.Mapping
	memory   remotememory.RemoteMemory
	runtime  uint64 // address of _PyRuntime; 0 before 3.7
	instance interpreter.Instance
	lines    locations // of 3.11 and later
	names    map[codeAt]frame
	stacks   map[uint64][]call // by sums of the records
	failed   uint64            // code objects that could not be read
}

// is reports whether p still runs the program that c was found in. Names of code are good for one program only. Its
// name, its arguments and, where addresses are not random, its mappings may be those of the program before.
func (c *cpython) is(p *proc.Process) bool {
	return c.process.ID() == p.ID() && c.process.Execs == p.Execs
}

// complete adds what the C library says; without it there is no way to a thread's state.
func (c *cpython) complete(info libc.LibcInfo) error {
	if err := c.instance.UpdateLibcInfo(&c.offsets, libpf.PID(c.process.PID), info); err != nil {
		return err
	}
	if c.layout.Present == 0 || (c.layout.TsdMultiplier == 0 && c.layout.TlsOffset == 0) {
		return errNoThreadKey
	}
	addCollector(&c.layout, c.version, c.runtime, c.memory)
	return nil
}

// maxCallStacks bounds the stacks of one process that are remembered: 90 bytes a frame.
const maxCallStacks = 2048

// stack names a stack, leaf first; hash is the sum of its record. It reports whether a
// record like it has the same names whenever it comes. Nobody may change what it returns.
func (c *cpython) stack(r *raw, hash uint64) (calls []call, lasting bool) {
	if known, ok := c.stacks[hash]; ok {
		return known, true
	}
	failed := c.failed
	calls = c.calls(r)
	if c.failed != failed || slices.ContainsFunc(r.python, func(at codeAt) bool { return at.check == 0 }) {
		return calls, false
	}
	if len(c.stacks) >= maxCallStacks {
		clear(c.stacks)
	}
	c.stacks[hash] = calls
	return calls, true
}

// calls names a stack, leaf first. A frame that the interpreter makes for itself where
// C code calls Python is left out: the one before it is what was called.
func (c *cpython) calls(r *raw) []call {
	out := make([]call, 0, len(r.python))
	for i, at := range r.python {
		f := c.frame(at)
		if f.name != trampoline {
			out = append(out, call{f, r.entry[i]})
			continue
		}
		if n := len(out); n > 0 && r.entry[i] {
			out[n-1].entry = true
		}
	}
	return out
}

func (c *cpython) frame(at codeAt) frame {
	if f, ok := c.names[at]; ok && at.check != 0 {
		return f
	}
	f, err := c.symbolize(at)
	if err != nil {
		c.failed++
		return frame{kind: pythonFrame, name: unnamed}
	}
	if len(c.names) >= maxNames {
		clear(c.names)
	}
	c.names[at] = f
	return f
}

// symbolize reads the code object. The library checks it against the sum that the
// program made, so that an object that took the place of another is not mistaken for it.
func (c *cpython) symbolize(at codeAt) (frame, error) {
	if !c.process.Alive() {
		return frame{}, errGone
	}
	var out libpf.Frames
	header := libpf.NewEbpfFrameHeader(libpf.PythonFrame, 0, 3, 0)
	ef := libpf.EbpfFrame{header, at.code, uint64(at.check) | uint64(at.lasti)<<32}
	if err := c.instance.Symbolize(ef, &out, libpf.FrameMapping{}); err != nil {
		return frame{}, err
	}
	if len(out) == 0 {
		return frame{}, errGone
	}
	f := out[0].Value()
	named := pythonFrameOf(&f)
	if c.version == python310 {
		named.line = line310(c.memory, at.code, at.lasti, uint32(f.SourceLine)-f.FunctionOffset)
	}
	if c.version >= python311 {
		var err error
		if named.line, err = c.lines.line(at.code, at.lasti, uint32(f.SourceLine)-f.FunctionOffset); err != nil {
			return frame{}, err
		}
	}
	return named, nil
}

var errGone = errors.New("it is gone")

// pythonFrameOf makes a frame of one of the library's; its text is a target's and is bounded.
func pythonFrameOf(f *libpf.Frame) frame {
	return frame{
		kind: pythonFrame, name: clip(f.FunctionName.String()), file: clip(f.SourceFile.String()),
		line: uint32(f.SourceLine),
	}
}

func clip(s string) string {
	if len(s) > maxNameLength {
		s = s[:maxNameLength]
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	return s
}
