package inject

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
)

// entries are addresses in the target: what its threads are made to run.
type entries struct {
	dlopen   uint64
	mode     uint64 // second argument of dlopen
	restorer uint64 // calls rt_sigreturn
	gadget   uint64 // makes a system call and returns
	proofs   []proof
}

// proof is what memory holds at an address that a thread will be sent to.
type proof struct {
	at   uint64
	code [16]byte
}

// unchanged checks at the last moment that the addresses are still what they were:
// the process may have run exec since.
func (e *entries) unchanged(mem memory) error {
	for _, p := range e.proofs {
		var now [16]byte
		if err := mem.read(now[:], p.at); err != nil || now != p.code {
			return refuse(ErrMoved, "its code has changed since it was looked at", "try again")
		}
	}
	return nil
}

// prove notes what memory holds at the addresses.
func (e *entries) prove(mem memory, addrs ...uint64) error {
	for _, at := range addrs {
		p := proof{at: at}
		if err := mem.read(p.code[:], at); err != nil {
			return fmt.Errorf("look at the code that is to run: %w", err)
		}
		e.proofs = append(e.proofs, p)
	}
	return nil
}

const (
	rtldNow = 2
	// rtldDlopen marks __libc_dlopen_mode's caller as a program, not libc (include/dlfcn.h of glibc).
	rtldDlopen = 0x80000000
)

// maxText bounds how much of libc's code is searched: glibc has 1.5 MB.
const maxText = 8 << 20

func isLibc(base string) bool {
	return base == "libc.so" || strings.HasPrefix(base, "libc.so.") || strings.HasPrefix(base, "libc-2.") ||
		strings.HasPrefix(base, "ld-musl-") || strings.HasPrefix(base, "libc.musl-")
}

func isLibdl(base string) bool {
	return strings.HasPrefix(base, "libdl.so.") || strings.HasPrefix(base, "libdl-2.")
}

// resolve finds everything that will be needed while a thread is stopped.
func resolve(p *proc.Process) (entries, error) {
	mappings, err := proc.Mappings(p)
	if err != nil {
		return entries{}, gone(p, fmt.Errorf("list its libraries: %w", err))
	}
	libc, err := one(mappings, isLibc)
	if err != nil {
		return entries{}, err
	}
	var e entries
	if err := e.findDlopen(p, mappings, libc); err != nil {
		return entries{}, err
	}
	mem := memory{int(p.PID)}
	text, err := code(mem, libc)
	if err != nil {
		return entries{}, err
	}
	if e.gadget = search(text, libc.Start, gadgets()); e.gadget == 0 {
		return entries{}, refuse(errLibc, libc.Path+" has no system call that can be used", hintStart)
	}
	if e.restorer = search(text, libc.Start, restorers()); e.restorer == 0 {
		e.restorer = inVDSO(mem)
	}
	if e.restorer == 0 {
		return entries{}, refuse(errLibc, libc.Path+" has no return from a signal handler that is known", hintStart)
	}
	return e, e.prove(mem, e.dlopen, e.gadget, e.restorer)
}

// one finds the one mapping that is wanted. Two copies, of two files or in two link
// namespaces, cannot be told apart from outside.
func one(mappings []proc.Mapping, want func(string) bool) (proc.Mapping, error) {
	var found []proc.Mapping
	for _, m := range mappings {
		if want(path.Base(m.Path)) {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return proc.Mapping{}, refuse(errLibc, "it is linked statically, or its libc has another name", hintStart)
	case 1:
		return found[0], nil
	}
	return proc.Mapping{}, refuse(errLibc, fmt.Sprintf("it has mapped %d", len(found)), hintStart)
}

// findDlopen looks where libcs have it: in libc (glibc 2.34 on, musl), in libdl, or
// under glibc's inner name.
func (e *entries) findDlopen(p *proc.Process, mappings []proc.Mapping, libc proc.Mapping) error {
	e.mode = rtldNow
	inner, err := e.lookup(p, libc, "dlopen", "__libc_dlopen_mode")
	if err != nil || inner == "dlopen" {
		return err
	}
	if libdl, err := one(mappings, isLibdl); err == nil {
		outer, err := e.lookup(p, libdl, "dlopen")
		if err != nil || outer != "" {
			return err
		}
	}
	if inner == "" {
		return refuse(errLibc, libc.Path+" exports no dlopen", hintStart)
	}
	e.mode = rtldNow | rtldDlopen
	return nil
}

// lookup finds the first of names that the library exports, and checks that memory
// holds what the file does there.
func (e *entries) lookup(p *proc.Process, m proc.Mapping, names ...string) (string, error) {
	functions, err := exports(p, m, names)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		for _, fn := range functions {
			if fn.Name != name || fn.Indirect || fn.Offset < m.Offset || fn.Offset-m.Offset >= m.End-m.Start {
				continue
			}
			e.dlopen = m.Start + (fn.Offset - m.Offset)
			return name, unchanged(memory{int(p.PID)}, e.dlopen, fn)
		}
	}
	return "", nil
}

// exports returns the functions with one of names that the library exports.
func exports(p *proc.Process, m proc.Mapping, names []string) ([]elffile.Function, error) {
	file, err := proc.Open(p, m)
	if err != nil {
		return nil, gone(p, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", m.Path, err)
	}
	lib, err := elffile.Open(file, info.Size())
	if errors.Is(err, elffile.ErrUnsupported) {
		return nil, refuse(errClass, m.Path+" is of another", hintClass)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", m.Path, err)
	}
	if lib.Machine != machine {
		return nil, refuse(errClass, fmt.Sprintf("%s is for %s", m.Path, lib.Machine), hintClass)
	}
	functions, err := lib.Named(func(name string) bool { return slices.Contains(names, name) })
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", m.Path, err)
	}
	return functions, nil
}

// unchanged compares the beginning of a function with its file. A breakpoint at its
// entry is another tool's probe, which is no obstacle.
func unchanged(mem memory, addr uint64, fn elffile.Function) error {
	want := fn.Code[:min(len(fn.Code), 16)]
	have := make([]byte, len(want))
	if len(want) == 0 {
		return refuse(errLibc, fn.Name+" is empty", hintStart)
	}
	if err := mem.read(have, addr); err != nil {
		return fmt.Errorf("look at %s: %w", fn.Name, err)
	}
	const breakpoint = 0xcc
	if have[0] == breakpoint && machine == elf.EM_X86_64 {
		have[0] = want[0]
	}
	if !bytes.Equal(have, want) {
		return refuse(errLibc, fn.Name+" was changed in memory", hintStart)
	}
	return nil
}

// code reads the code of a mapping from memory: what is found there is what will run.
func code(mem memory, m proc.Mapping) ([]byte, error) {
	text := make([]byte, min(m.End-m.Start, maxText))
	if err := mem.read(text, m.Start); err != nil {
		return nil, fmt.Errorf("read the code of %s: %w", m.Path, err)
	}
	return text, nil
}

// search returns the address of the first of patterns in text, or 0.
func search(text []byte, start uint64, patterns [][]byte) uint64 {
	for _, pattern := range patterns {
		if i := bytes.Index(text, pattern); i >= 0 {
			return start + uint64(i)
		}
	}
	return 0
}

// inVDSO finds the restorer that the kernel maps into every process (arm64).
func inVDSO(mem memory) uint64 {
	found, err := readVMAs(mem.pid, func(_, v vma) bool { return v.name == "[vdso]" })
	if err != nil || len(found) != 1 || found[0].end-found[0].start > maxText {
		return 0
	}
	text := make([]byte, found[0].end-found[0].start)
	if mem.read(text, found[0].start) != nil {
		return 0
	}
	return search(text, found[0].start, restorers())
}
