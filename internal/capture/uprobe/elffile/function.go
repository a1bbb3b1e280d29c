package elffile

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
)

// CodeBytes is how much of a function's code Functions reads at most.
const CodeBytes = 256

// maxFunctions bounds the memory for code: 4 MiB. libcuda exports 700 functions.
const maxFunctions = 1 << 14

// Function is one exported function.
type Function struct {
	Name     string
	Addr     uint64 // virtual address in the ELF file
	Offset   uint64 // of Addr in the file, bytes: what uprobes are placed by
	Size     uint64 // bytes, as the symbol says; 0 where it does not
	Indirect bool   // STT_GNU_IFUNC: Addr is a resolver, called once when the library is loaded
	Code     []byte // at Addr: Size bytes, at most CodeBytes and at most to the end of the segment
}

// Functions returns the functions that the file exports (defined, global or weak,
// in an executable segment), ordered by address, then name. It fails like Open.
func (f *File) Functions() ([]Function, error) { return f.Named(func(string) bool { return true }) }

// Named is Functions of those whose names pass: the code of others is not read.
func (f *File) Named(pass func(name string) bool) ([]Function, error) {
	n, err := f.symbolCount()
	if err != nil {
		return nil, err
	}
	if each := f.dynamic[elf.DT_SYMENT]; each != symbolSize {
		return nil, fmt.Errorf("%w: symbols of %d bytes", ErrMalformed, each)
	}
	table, err := f.at(f.dynamic[elf.DT_SYMTAB], n*symbolSize, "dynamic symbol table")
	if err != nil {
		return nil, err
	}
	var fs []Function
	for ; len(table) >= symbolSize; table = table[symbolSize:] {
		fn, ok := f.function(table)
		if !ok || !pass(fn.Name) {
			continue
		}
		if len(fs) == maxFunctions {
			return nil, fmt.Errorf("%w: more than %d exported functions", ErrTooLarge, maxFunctions)
		}
		if fn.Code, err = f.code(fn); err != nil {
			return nil, err
		}
		fs = append(fs, fn)
	}
	slices.SortFunc(fs, func(a, b Function) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Name, b.Name))
	})
	return fs, nil
}

// function decodes the symbol at the start of b; ok is false unless it is an exported function.
func (f *File) function(b []byte) (Function, bool) {
	info := b[4]
	kind, bind := elf.ST_TYPE(info), elf.ST_BIND(info)
	if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC || bind != elf.STB_GLOBAL && bind != elf.STB_WEAK {
		return Function{}, false
	}
	if elf.SectionIndex(binary.LittleEndian.Uint16(b[6:])) == elf.SHN_UNDEF {
		return Function{}, false
	}
	fn := Function{
		Addr:     binary.LittleEndian.Uint64(b[8:]),
		Size:     binary.LittleEndian.Uint64(b[16:]),
		Indirect: kind == elf.STT_GNU_IFUNC,
	}
	var named, mapped bool
	fn.Name, named = f.name(uint64(binary.LittleEndian.Uint32(b)))
	fn.Offset, mapped = f.offset(fn.Addr, 1, elf.PF_X)
	return fn, named && mapped
}

func (f *File) code(fn Function) ([]byte, error) {
	n := uint64(CodeBytes)
	if fn.Size > 0 {
		n = min(n, fn.Size)
	}
	// The segment that holds the first byte may end before the n-th.
	for _, s := range f.segments {
		if s.kind == elf.PT_LOAD && s.flags&elf.PF_X != 0 && fn.Addr >= s.addr && fn.Addr-s.addr < s.size {
			n = min(n, s.size-(fn.Addr-s.addr))
			break
		}
	}
	return f.in.bytes(fn.Offset, n, "code of "+fn.Name)
}

// symbolCount finds how long the symbol table is, which only the hash tables say.
func (f *File) symbolCount() (uint64, error) {
	var n uint64
	var err error
	if addr, ok := f.dynamic[elf.DT_HASH]; ok {
		n, err = f.hashCount(addr)
	} else if addr, ok := f.dynamic[elf.DT_GNU_HASH]; ok {
		n, err = f.gnuHashCount(addr)
	} else {
		return 0, fmt.Errorf("%w: neither DT_HASH nor DT_GNU_HASH says how many symbols there are", ErrMalformed)
	}
	if err == nil && n > maxSymbols {
		err = fmt.Errorf("%w: %d symbols, at most %d", ErrTooLarge, n, maxSymbols)
	}
	return n, err
}

// hashCount: a System V hash table has one chain entry per symbol.
func (f *File) hashCount(addr uint64) (uint64, error) {
	b, err := f.at(addr, 8, "hash table")
	if err != nil {
		return 0, err
	}
	return uint64(binary.LittleEndian.Uint32(b[4:])), nil
}

// gnuHashCount: the last symbol ends the chain that the highest bucket begins.
func (f *File) gnuHashCount(addr uint64) (uint64, error) {
	const head = 16
	b, err := f.at(addr, head, "GNU hash table")
	if err != nil {
		return 0, err
	}
	buckets := uint64(binary.LittleEndian.Uint32(b))
	first := uint64(binary.LittleEndian.Uint32(b[4:]))
	bloom := uint64(binary.LittleEndian.Uint32(b[8:]))
	if buckets > maxSymbols || bloom > maxSymbols || first > maxSymbols {
		return 0, fmt.Errorf("%w: GNU hash table of %d buckets, %d bloom words, first symbol %d",
			ErrTooLarge, buckets, bloom, first)
	}
	bucketsAt := addr + head + bloom*8
	b, err = f.at(bucketsAt, buckets*4, "GNU hash buckets")
	if err != nil {
		return 0, err
	}
	last := uint64(0)
	for ; len(b) >= 4; b = b[4:] {
		last = max(last, uint64(binary.LittleEndian.Uint32(b)))
	}
	if last < first {
		return first, nil
	}
	return f.chainEnd(bucketsAt+buckets*4, last, first)
}

func (f *File) chainEnd(chains, last, first uint64) (uint64, error) {
	for ; last < maxSymbols; last++ {
		b, err := f.at(chains+(last-first)*4, 4, "GNU hash chain")
		if err != nil {
			return 0, err
		}
		if binary.LittleEndian.Uint32(b)&1 != 0 {
			return last + 1, nil
		}
	}
	return 0, fmt.Errorf("%w: GNU hash chain beyond symbol %d", ErrTooLarge, maxSymbols)
}
