// Package symbol names addresses in code: functions of ELF files (.symtab, .dynsym,
// .gnu_debugdata, separate debug files), the vdso, generated code that a perf map
// describes, and the kernel.
//
// A daemon that watches PyTorch meets libraries of half a gigabyte with 400,000
// functions. So nothing is read before an address in a file is asked for; of a
// symbol table only a sorted index of 12 bytes per function is kept; a name is read
// from the file when the function is first met; and all of it lives in one cache
// with a byte budget, where the file that was least recently asked for goes first.
//
// Files belong to a target and are hostile input to a root process: every count,
// offset and length is bounded, and a file that lies is misnamed, nothing more.
package symbol

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

// defaultBudget is how much a Table keeps where Options say nothing: 16 MB. The indexes of
// all libraries that PyTorch and CUDA come with take 7.5 MB, libtorch_cpu's 4.8 of these (BenchmarkBuild).
const defaultBudget = 16 << 20

// Options say how a Table names things.
type Options struct {
	// Budget is how many bytes the table may keep; 0: defaultBudget. While one index is
	// built it lies beside what is kept, at most another Budget; and while a
	// .gnu_debugdata is unpacked, up to 64 MiB of buffers, and what their growing
	// leaves to the garbage collector.
	Budget int64
	// Full leaves C++ and Rust names whole: template arguments, parameters, the
	// compiler's clone suffixes.
	Full bool
}

// File is an open file of a target, as proc.Open returns it.
type File interface {
	io.ReaderAt
	io.Closer
	Stat() (fs.FileInfo, error)
}

// Module is one file with code.
type Module struct {
	// Key saves opening the file only to learn which one it is. The zero Key is
	// always right; a Key from Identify is right as long as the same file is meant.
	Key  Key
	Path string // as the process sees it
	// Open opens the file; it is called when the index is built and when a name is
	// read, and the file is closed again at once, so that nothing pins the target's
	// files.
	Open func() (File, error)
	// Beside opens another file, by its path as the process sees it; it must not
	// leave the process's root, and refuse what is not a regular file. nil: separate
	// debug files are not looked for.
	Beside func(path string) (File, error)
}

func (m Module) base() string {
	if m.Path == "" {
		return "[unknown file]"
	}
	return path.Base(clean(m.Path))
}

// Key tells files apart: by device, inode, size and time of change, as fstat(2)
// gives them. It is comparable. Table shares the indexes of files that have the
// same build id, size and headers.
type Key struct {
	dev, inode   uint64
	size, change int64
	name         string // of what is in no file system
}

// Identify returns the Key of an open file. It fails where the file cannot be
// looked at.
func Identify(f File) (Key, error) {
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("looking at a file with code: %w", err)
	}
	k := Key{size: info.Size(), change: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		// Ctim, because the owner of a file can set Mtim to what it was.
		k.dev, k.inode, k.change = uint64(st.Dev), st.Ino, st.Ctim.Nano() //nolint:unconvert // uint32 on some machines
	} else {
		k.name = info.Name()
	}
	return k, nil
}

// Symbol is the name of an address.
type Symbol struct {
	Name   string // function; "" where there is no symbol for the address
	Offset uint64 // bytes from the start of the function; where Name is "", the address itself
	Module string // base name of the file, or what the memory is in brackets: [vdso], [generated code]
}

// String returns the function's name; where there is none, module+0xaddress, and for
// memory that is no file's, whose addresses mean nothing to people, what it is.
func (s Symbol) String() string {
	switch {
	case s.Name != "":
		return s.Name
	case strings.HasPrefix(s.Module, "["):
		return s.Module
	}
	return fmt.Sprintf("%s+%#x", s.Module, s.Offset)
}

// Stats counts what a Table did.
type Stats struct {
	Hits      uint64 // answers that needed no file: the name was there, or the index says that there is none
	Misses    uint64 // answers for which a file was read
	Failures  uint64 // answers that failed: the file could not be opened or made no sense
	Builds    uint64 // indexes built
	Evictions uint64 // indexes dropped to keep the budget
	Indexes   int    // kept now
	Bytes     int64  // kept now
}

// Errors of this package, beside those of elffile.
var (
	errChanged  = errors.New("another file is at that path now")
	errOverFull = errors.New("more symbols than the budget has room for")
)
