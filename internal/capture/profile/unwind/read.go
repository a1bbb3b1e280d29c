package unwind

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/elfunwindinfo"
)

// fewBlocks is below what number of functions the library looks for more of them in
// separate debug files (numBlocksToOmitDebugLink).
const fewBlocks = 8

// Read fills an empty table with the rules of a file, whose name is what the process
// calls it; beside opens its separate debug file, where the library wants that. The table is of
// use only where there is no error.
func (t *Table) Read(in io.ReaderAt, name string, beside pfelf.ELFOpener) error {
	file, err := pfelf.NewFile(plain{in}, 0, false)
	if err != nil {
		return fmt.Errorf("read the unwind tables of %s: %w", name, err)
	}
	defer func() { _ = file.Close() }() // it has nothing open of its own
	if err = t.fast(in, file); errors.Is(err, errOther) || errors.Is(err, errMalformed) {
		t.Reset()
		err = t.slow(in, name, beside)
	}
	if err != nil {
		return fmt.Errorf("read the unwind tables of %s: %w", name, err)
	}
	return nil
}

// plain hides what else a file can do, so that the library reads it and does not map it:
// a mapped file that is cut short ends its reader.
type plain struct{ io.ReaderAt }

// Size returns the bytes of .eh_frame of a file, about what reading it costs; 0 where it
// is not known. It reads the headers only.
func Size(in io.ReaderAt) uint64 {
	file, err := pfelf.NewFile(plain{in}, 0, false)
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }() // it has nothing open of its own
	if s := file.Section(".eh_frame"); s != nil {
		return s.Size
	}
	return 0
}

// fast reads .eh_frame, if that is all that the library's reader would read.
func (t *Table) fast(in io.ReaderAt, file *pfelf.File) error {
	s := file.Section(".eh_frame")
	if file.Machine != elf.EM_X86_64 || s == nil || s.Type == elf.SHT_NOBITS || s.Flags&elf.SHF_COMPRESSED != 0 ||
		file.Section(".debug_frame") != nil || file.IsGolang() || genericRegisters(file) || muslEntry(file) {
		return errOther
	}
	if s.Offset > math.MaxInt64 || s.Size > math.MaxInt32 {
		return fmt.Errorf("%w: an .eh_frame of %d bytes", errMalformed, s.Size)
	}
	w := walker{
		in:      in,
		file:    file,
		table:   t,
		offset:  int64(s.Offset),
		size:    int64(s.Size),
		addr:    s.Addr,
		commons: map[int64]*common{},
	}
	if err := w.walk(); err != nil {
		return err
	}
	if len(t.blocks) < fewBlocks {
		return errOther
	}
	t.sort()
	return nil
}

// genericRegisters reports whether a library has code by hand whose frames lie at any
// register (isLibGenericRegsAllowed of the library's stackdeltaextraction.go).
func genericRegisters(file *pfelf.File) bool {
	names, err := file.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 {
		return false
	}
	n := names[0]
	return strings.HasPrefix(n, "libcrypto.so.") || strings.HasPrefix(n, "libc.so.") ||
		strings.HasPrefix(n, "ld-linux-")
}

// muslEntry reports whether a program begins as musl's do, whose first function the
// library gives a rule of its own.
func muslEntry(file *pfelf.File) bool {
	if file.Entry == 0 {
		return false
	}
	code, err := file.VirtualMemory(int64(file.Entry), 9, 9)
	return err == nil && bytes.Equal(code, []byte{0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x8d, 0x35})
}

// slow lets the library read the file.
func (t *Table) slow(in io.ReaderAt, name string, beside pfelf.ELFOpener) error {
	ref := pfelf.NewReferenceWithOpenFunc(name, beside,
		func() (*pfelf.File, error) { return pfelf.NewFile(plain{in}, 0, false) })
	defer ref.Close()
	intervals, err := elfunwindinfo.ExtractELF(ref)
	if err != nil {
		return err
	}
	for _, b := range intervals.Blocks {
		t.begin()
		t.deltas = append(t.deltas, b.Deltas...)
		if err := t.finish(b.Start, b.End); errors.Is(err, errOther) {
			continue
		} else if err != nil {
			return err
		}
	}
	t.sort()
	return nil
}
