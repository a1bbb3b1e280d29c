package profile

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/host"
	"go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/interpreter/python"
	"go.opentelemetry.io/ebpf-profiler/libc"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/lpm"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	"go.opentelemetry.io/ebpf-profiler/support"
	"go.opentelemetry.io/ebpf-profiler/util"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
)

// errFreeThreaded: objects are laid out differently there, and the library knows only the usual ones.
var errFreeThreaded = errors.New("a free-threaded CPython (3.13t, 3.14t): its Python frames are not read")

// CPython versions as sys.hexversion >> 16.
const (
	python310 = 0x30a
	python311 = 0x30b
	python312 = 0x30c
	python313 = 0x30d
	python314 = 0x30e
)

// maxPythonFiles bounds how many interpreters' layouts are remembered.
const maxPythonFiles = 32

// pythonFile is what is known of one file that holds a CPython.
type pythonFile struct {
	data      interpreter.Data // nil: the file holds none
	err       error            // why it cannot be read
	runtime   uint64           // address of _PyRuntime; 0 before 3.7
	eval      []util.Range     // addresses of the interpreter's loop
	lineTable uint64           // offset in code objects; 0: not known
	mapper    pfelf.AddressMapper
	fixed     bool // not relocated
}

// pythons reads interpreters, each file once.
type pythons struct {
	known map[fileVersion]*pythonFile
	libcs map[fileVersion]libc.LibcInfo
}

// fileVersion tells the contents of files apart.
type fileVersion struct {
	dev, inode uint64
	size       int64
	mtime      int64 // ns
}

func newPythons() *pythons {
	return &pythons{known: map[fileVersion]*pythonFile{}, libcs: map[fileVersion]libc.LibcInfo{}}
}

// interesting reports whether a file of this name may be needed to understand CPython.
func interesting(base string) bool {
	return isPython(base) || libc.IsPotentialLibcDSO("/"+base)
}

func isPython(base string) bool {
	return strings.HasPrefix(base, "python") || strings.HasPrefix(base, "libpython")
}

// find returns the CPython in p, nil where there is none yet, and known where it still
// is that one. An error says why one that is there cannot be read.
func (c *pythons) find(p *proc.Process, known *cpython) (*cpython, error) {
	mappings, err := proc.Libraries(p, interesting)
	if err != nil {
		return nil, fmt.Errorf("list the libraries of pid %d: %w", p.PID, err)
	}
	if known != nil && known.is(p) && slices.Contains(mappings, known.mapping) {
		return known, nil
	}
	var errs []error
	var found *cpython
	for _, m := range mappings {
		if !isPython(path.Base(m.Path)) {
			continue
		}
		py, err := c.attach(p, m)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.Path, err))
		}
		if py != nil {
			found = py
		}
	}
	if found == nil {
		return nil, errors.Join(errs...)
	}
	if err := found.complete(c.libcOf(p, mappings)); err != nil {
		return nil, err
	}
	return found, nil
}

// libcOf merges what the parts of the C library say.
func (c *pythons) libcOf(p *proc.Process, mappings []proc.Mapping) libc.LibcInfo {
	var info libc.LibcInfo
	for _, m := range mappings {
		if !isPython(path.Base(m.Path)) {
			info.Merge(c.libc(p, m))
		}
	}
	return info
}

// attach makes the CPython of one mapping ready, but for what the C library says.
func (c *pythons) attach(p *proc.Process, m proc.Mapping) (*cpython, error) {
	f, err := c.file(p, m)
	if err != nil || f.data == nil {
		return nil, err
	}
	var bias uint64
	if !f.fixed {
		vaddr, ok := f.mapper.FileOffsetToVirtualAddress(m.Offset)
		if !ok {
			return nil, errors.New("its mapping is not one of its segments")
		}
		bias = m.Start - vaddr
	}
	memory := remotememory.NewProcessVirtualMemory(libpf.PID(p.PID))
	if f.runtime != 0 && freeThreaded(memory, f.runtime+bias) {
		return nil, errFreeThreaded
	}
	py := &cpython{process: p, mapping: m, memory: memory, names: map[codeAt]frame{}, stacks: map[uint64][]call{}}
	py.eval = f.eval
	if f.runtime != 0 {
		py.runtime = f.runtime + bias
	}
	py.lines = locations{memory, f.lineTable}
	py.instance, err = f.data.Attach(&py.offsets, libpf.PID(p.PID), libpf.Address(bias), memory)
	return py, err
}

// debugCookie is _Py_Debug_Cookie.
const debugCookie = "xdebugpy"

// freeThreaded reads struct _Py_DebugOffsets, with which _PyRuntime begins since 3.13.
func freeThreaded(memory remotememory.RemoteMemory, runtime uint64) bool {
	var b [24]byte
	if err := memory.Read(libpf.Address(runtime), b[:]); err != nil {
		return false
	}
	return string(b[:8]) == debugCookie && b[16] != 0
}

// file reads the interpreter's layout out of a file, which may be hostile.
func (c *pythons) file(p *proc.Process, m proc.Mapping) (*pythonFile, error) {
	opened, v, err := openVersion(p, m)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	if f, ok := c.known[v]; ok {
		return f, f.err
	}
	f := &pythonFile{}
	f.err = guard(func() error { return f.parse(m.Path, opened) })
	if len(c.known) >= maxPythonFiles {
		clear(c.known)
	}
	c.known[v] = f
	return f, f.err
}

func (f *pythonFile) parse(name string, file *os.File) error {
	ef, err := pfelf.NewFile(unmapped{file}, 0, false)
	if err != nil {
		return err
	}
	defer func() { _ = ef.Close() }()
	opener := func() (*pfelf.File, error) { return ef, nil }
	reference := pfelf.NewReferenceWithOpenFunc(name, noAuxiliary{}, opener)
	var offsets offsets
	if f.data, err = python.GetLoader(python.Config{})(
		&offsets, interpreter.NewLoaderInfo(0, reference, nil),
	); err != nil {
		return err
	}
	f.eval, f.mapper, f.fixed = offsets.eval, ef.GetAddressMapper(), ef.Type != etDyn
	f.lineTable = lineTableOffset(ef)
	if runtime, err := ef.LookupSymbolAddress("_PyRuntime"); err == nil {
		f.runtime = uint64(runtime)
	}
	return nil
}

// etDyn is elf.ET_DYN.
const etDyn = 3

// libc returns how the C library of a mapping finds the value of a pthread key; empty where it does not say.
func (c *pythons) libc(p *proc.Process, m proc.Mapping) libc.LibcInfo {
	opened, v, err := openVersion(p, m)
	if err != nil {
		return libc.LibcInfo{}
	}
	defer opened.Close()
	if info, ok := c.libcs[v]; ok {
		return info
	}
	var info libc.LibcInfo
	_ = guard(func() error { // what cannot be read says nothing
		ef, err := pfelf.NewFile(unmapped{opened}, 0, false)
		if err != nil {
			return err
		}
		defer func() { _ = ef.Close() }()
		got, err := libc.ExtractLibcInfo(ef)
		if err == nil {
			info = *got
		}
		return err
	})
	if len(c.libcs) >= maxPythonFiles {
		clear(c.libcs)
	}
	c.libcs[v] = info
	return info
}

func openVersion(p *proc.Process, m proc.Mapping) (*os.File, fileVersion, error) {
	f, err := proc.Open(p, m)
	if err != nil {
		return nil, fileVersion{}, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fileVersion{}, fmt.Errorf("stat: %w", err)
	}
	return f, fileVersion{m.Dev, m.Inode, info.Size(), info.ModTime().UnixNano()}, nil
}

// unmapped hides that a file is one, because the library maps files into memory: a
// target that cuts its own file short would then kill this process with a SIGBUS.
type unmapped struct{ file *os.File }

// ReadAt reads as os.File does, through the file and no mapping.
func (u unmapped) ReadAt(p []byte, off int64) (int, error) { return u.file.ReadAt(p, off) }

// noAuxiliary opens no other files: nothing that a target's file names is followed.
type noAuxiliary struct{}

// OpenELF finds nothing.
func (noAuxiliary) OpenELF(string) (*pfelf.File, error) { return nil, os.ErrNotExist }

// guard turns a panic of a parser that is not ours, on a file that is not trusted, into an error.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a parser failed on it: %v", r)
		}
	}()
	return f()
}

// offsets takes what the library would put into its own maps. It implements
// interpreter.EbpfHandler.
type offsets struct {
	eval    []util.Range
	version uint16
	layout  bpf.SamplePythonLayout
}

// UpdateInterpreterOffsets takes the addresses of the interpreter's loop.
func (o *offsets) UpdateInterpreterOffsets(_ uint16, _ host.FileID, ranges []util.Range) error {
	o.eval = ranges
	return nil
}

// UpdateProcData takes the layout.
func (o *offsets) UpdateProcData(_ libpf.InterpreterType, _ libpf.PID, data unsafe.Pointer) error {
	info := (*support.PyProcInfo)(data)
	o.version, o.layout = info.Version, layoutOf(info)
	return nil
}

// DeleteProcData does nothing.
func (*offsets) DeleteProcData(libpf.InterpreterType, libpf.PID) error { return nil }

// UpdatePidInterpreterMapping does nothing.
func (*offsets) UpdatePidInterpreterMapping(libpf.PID, lpm.Prefix, uint8, host.FileID, uint64) error {
	return nil
}

// DeletePidInterpreterMapping does nothing.
func (*offsets) DeletePidInterpreterMapping(libpf.PID, lpm.Prefix) error { return nil }

// entryAll is PYTHON_ENTRY_ALL of bpf/sample_python.h: C code calls every frame.
const entryAll = 255

// layoutOf says to the own program what the library found out.
func layoutOf(p *support.PyProcInfo) bpf.SamplePythonLayout {
	l := bpf.SamplePythonLayout{
		KeyAddr: p.AutoTLSKeyAddr, NoneAddr: p.NoneStructAddr, CodeMask: ^uint64(0),
		TlsOffset:     int32(p.Tls_offset),
		TsdOffset:     p.TsdInfo.Offset,
		TsdMultiplier: p.TsdInfo.Multiplier,
		TsdIndirect:   p.TsdInfo.Indirect,
		StateFrame:    p.PyThreadState_frame, CframeCurrent: p.PyCFrame_current_frame, FrameIsCframe: p.Frame_is_cframe,
		FrameBack: p.PyFrameObject_f_back, FrameCode: p.PyFrameObject_f_code, FrameLasti: p.PyFrameObject_f_lasti,
		FrameOwner: p.PyFrameObject_entry_member, LastiIsPointer: p.Lasti_is_codeunit,
		CodeArgcount: p.PyCodeObject_co_argcount, CodeKwonly: p.PyCodeObject_co_kwonlyargcount,
		CodeFlags: p.PyCodeObject_co_flags, CodeFirstlineno: p.PyCodeObject_co_firstlineno,
		CodeSize: p.PyCodeObject_sizeof,
		Present:  1,
	}
	if p.Version == python310 {
		l.FrameLasti = lasti310
	}
	switch {
	case p.Version >= python312:
		l.OwnerSkipped = p.PyFrameObject_entry_val
	case p.Version >= python311:
		l.Entry = p.PyFrameObject_entry_val
	default:
		l.Entry = entryAll
	}
	if p.Version >= python314 {
		l.CodeMask = ^uint64(7)
	}
	return l
}
