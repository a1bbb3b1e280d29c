package unwind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"

	"github.com/inferscope/inferscope/internal/capture/profile/cfi"
)

// Limits of one file. libtorch_cuda's largest entry has 3 kB.
const (
	maxEntry   = 64 << 10 // bytes of one CIE or FDE
	windowSize = 256 << 10
	maxCommon  = 4 << 10 // bytes of one CIE; 20 to 80 are usual
	maxCommons = 4096    // CIEs that are remembered
)

// walker goes through an .eh_frame from front to back.
type walker struct {
	in     io.ReaderAt
	file   *pfelf.File
	table  *Table
	offset int64 // of the section in the file
	size   int64
	addr   uint64 // of the section

	window  []byte // a part of the section
	at      int64  // where it begins
	commons map[int64]*common
	machine machine
}

// common is what functions share.
type common struct {
	cfi.Common
	initial row // after its program
}

// bytes returns n bytes of the section, good until the next call.
func (w *walker) bytes(pos int64, n int) ([]byte, error) {
	if pos < 0 || int64(n) > w.size-pos {
		return nil, fmt.Errorf("%w: an entry ends outside of its section", errMalformed)
	}
	if pos < w.at || pos+int64(n) > w.at+int64(len(w.window)) {
		if w.window == nil {
			w.window = make([]byte, min(windowSize, w.size))
		}
		w.window = w.window[:min(windowSize, w.size-pos)]
		w.at = pos
		if m, err := w.in.ReadAt(w.window, w.offset+pos); m < len(w.window) {
			w.window = w.window[:0]
			return nil, ended(err)
		}
	}
	return w.window[pos-w.at:][:n], nil
}

func ended(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the file ends too early", errMalformed)
	}
	return err
}

// entry reads a CIE or FDE: what stands behind its length.
func (w *walker) entry(pos int64) ([]byte, error) {
	head, err := w.bytes(pos, 4)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head)
	if n == 0 {
		return nil, nil
	}
	if n < 4 || n > maxEntry { // 0xffffffff announces a length of 64 bits
		return nil, fmt.Errorf("%w: an entry of %d bytes", errOther, n)
	}
	return w.bytes(pos+4, int(n))
}

func (w *walker) walk() error {
	for pos := int64(0); pos+4 <= w.size; {
		b, err := w.entry(pos)
		if err != nil {
			return err
		}
		if b == nil {
			return nil // an entry of no bytes is the end
		}
		next := pos + 4 + int64(len(b))
		if back := binary.LittleEndian.Uint32(b); back != 0 {
			if err := w.function(pos+4, int64(back), b); err != nil {
				return err
			}
		}
		pos = next
	}
	return nil
}

// function reads the FDE at pos, whose CIE lies back bytes before.
func (w *walker) function(pos, back int64, b []byte) error {
	c, ok := w.commons[pos-back]
	if !ok {
		var err error
		if c, err = w.common(pos - back); err != nil {
			return err
		}
	}
	r := cfi.Cursor{B: b[4:], Addr: w.addr + uint64(pos) + 4, Data: w.addr}
	start := r.Pointer(c.Encoding)
	length := r.Value(c.Encoding)
	if c.Augmented {
		r.Take(r.ULEB())
	}
	if r.Bad {
		return fmt.Errorf("%w: the entry of a function", errMalformed)
	}
	if start == 0 { // of code that the linker threw away
		return nil
	}
	return w.program(c, start, length, &r)
}

// program runs the program of a function.
func (w *walker) program(c *common, start, length uint64, r *cfi.Cursor) error {
	w.table.begin()
	if c.Signal || w.returnsFromSignal(start, length) {
		w.table.rule(0, stackdeltatypes.UnwindInfoSignal)
		return w.table.finish(start, start+length)
	}
	m := &w.machine
	m.begin(c)
	for r.More() {
		at := m.location
		if err := m.step(r); err != nil {
			return err
		}
		w.table.rule(uint32(at), m.row.info())
	}
	if r.Bad {
		return fmt.Errorf("%w: a program is cut off", errMalformed)
	}
	return w.table.finish(start, start+length)
}

// sigreturn is the code that glibc and musl return from a signal with: mov $15, %rax; syscall.
const sigreturn = "\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"

func (w *walker) returnsFromSignal(start, length uint64) bool {
	if length != uint64(len(sigreturn)) {
		return false
	}
	code, err := w.file.VirtualMemory(int64(start), len(sigreturn), len(sigreturn))
	return err == nil && string(code) == sigreturn
}

// common reads the CIE at pos.
func (w *walker) common(pos int64) (*common, error) {
	// Not through w's window: functions far from theirs would move it to and fro.
	apart := walker{in: w.in, offset: w.offset + pos, size: min(w.size-pos, maxCommon)}
	b, err := apart.entry(0)
	if err != nil {
		return nil, err
	}
	r := cfi.Cursor{B: b, Addr: w.addr + uint64(pos) + 4, Data: w.addr}
	c := &common{}
	if err := c.Read(&r); err != nil {
		return nil, fmt.Errorf("%w: %w", errOther, err)
	}
	c.Program = nil // it is in r, and its buffer is not kept
	m := machine{common: c, row: unknownRow()}
	c.initial = m.row
	// The library runs it up to the first place that it goes on to; there is none in practice.
	if err := m.step(&r); err != nil || r.Bad {
		return nil, fmt.Errorf("%w: a common entry", errOther)
	}
	c.initial = m.row
	if len(w.commons) >= maxCommons {
		clear(w.commons)
	}
	w.commons[pos] = c
	return c, nil
}
