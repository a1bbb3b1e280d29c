package symbol

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// Limits on what is read for builtins. Ubuntu's python3.12 has 1.3 MB of data, 3 MB of constants, 130 KB of the table of functions.
const (
	maxData     = 16 << 20 // bytes of a section
	maxModules  = 1024
	maxMethods  = 4096 // of one module
	maxBuiltin  = 64   // bytes of a name
	moduleBytes = 72   // PyModuleDef as far as m_methods: Include/moduleobject.h, since 3.5
	methodBytes = 32   // PyMethodDef: Include/methodobject.h
)

// builtins makes the index of the functions of Python's own modules that are written in C and are part of the interpreter, from the tables in which CPython itself
// finds them: distributions strip it, and pickle, time and others are in it. A function is named as Argument Clinic would: _pickle_dumps.
func (b *builder) builtins() *functions {
	name := b.module.base()
	if !strings.HasPrefix(name, "python3") && !strings.HasPrefix(name, "libpython3") {
		return nil
	}
	starts := b.im.functionStarts()
	text, err := b.im.words(".rodata")
	if err != nil || len(starts) == 0 {
		return nil
	}
	p := interpreter{names: text, named: map[uint64]string{}}
	for _, section := range []string{".data", ".data.rel.ro"} {
		if w, err := b.im.words(section); err == nil {
			b.im.relocate(w)
			p.data = append(p.data, w)
		}
	}
	for _, w := range p.data {
		for at := 40; at+moduleBytes-40 <= len(w.bytes); at += 8 {
			p.module(w.bytes[at-40 : at-40+moduleBytes])
		}
	}
	return p.index(starts)
}

// words is a section that holds pointers, by the addresses that they have in the file.
type words struct {
	addr  uint64
	bytes []byte
}

func (im *image) words(name string) (words, error) {
	s, ok := im.named(name)
	if !ok {
		return words{}, nil
	}
	content, err := im.content(s, maxData)
	return words{s.addr, content}, err
}

// from returns what follows an address; nil where it is none of the section's.
func (w words) from(addr uint64) []byte {
	if addr < w.addr || addr-w.addr >= uint64(len(w.bytes)) {
		return nil
	}
	return w.bytes[addr-w.addr:]
}

// relocate writes the pointers that the dynamic loader would, of a file that may lie anywhere.
func (im *image) relocate(w words) {
	const entry = 24
	for _, s := range im.sections {
		if s.kind != elf.SHT_RELA || s.size > maxData { //nolint:misspell // as ELF spells it
			continue
		}
		table, err := im.content(s, maxData)
		if err != nil {
			continue
		}
		for ; len(table) >= entry; table = table[entry:] {
			kind := binary.LittleEndian.Uint32(table[8:])
			if kind != uint32(elf.R_X86_64_RELATIVE) && kind != uint32(elf.R_AARCH64_RELATIVE) {
				continue
			}
			if to := w.from(binary.LittleEndian.Uint64(table)); len(to) >= 8 {
				copy(to, table[16:entry])
			}
		}
	}
}

// functionStarts returns where functions begin, by the table with which exceptions are thrown (Linux Standard Base, ".eh_frame_hdr"): in order,
// and nil where there is none of the usual form.
func (im *image) functionStarts() []uint64 {
	const head, entry = 12, 8
	usual := []byte{1, 0x1b, 0x03, 0x3b} // version 1; pointer relative to itself, count of 4 bytes, pairs relative to the table
	w, err := im.words(".eh_frame_hdr")
	if err != nil || len(w.bytes) < head || !bytes.Equal(w.bytes[:4], usual) {
		return nil
	}
	var out []uint64
	for pairs := w.bytes[head:]; len(pairs) >= entry; pairs = pairs[entry:] {
		out = append(out, w.addr+uint64(int64(int32(binary.LittleEndian.Uint32(pairs)))))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// interpreter is what is found in one.
type interpreter struct {
	names words
	data  []words
	named map[uint64]string // by where functions begin
	seen  int               // modules
}

// module reads what may be a PyModuleDef: its head is a reference count and four zeros as long as the module is not loaded, which it is not in the file.
func (p *interpreter) module(def []byte) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(def[8*i:]) }
	count, size := word(0), int64(word(7))
	if count == 0 || count > math.MaxUint32 || word(1)|word(2)|word(3)|word(4) != 0 || size < -1 || size > maxData || p.seen >= maxModules {
		return
	}
	name := p.identifier(word(5))
	if name == "" {
		return
	}
	for _, w := range p.data {
		if methods := w.from(word(8)); methods != nil {
			p.seen++
			p.methods(strings.ReplaceAll(name, ".", "_"), methods)
			return
		}
	}
}

// methods reads an array of PyMethodDef that an empty one ends.
func (p *interpreter) methods(module string, table []byte) {
	for range maxMethods {
		if len(table) < methodBytes {
			return
		}
		name := p.identifier(binary.LittleEndian.Uint64(table))
		if name == "" {
			return
		}
		if code := binary.LittleEndian.Uint64(table[8:]); p.named[code] == "" {
			p.named[code] = module + "_" + name
		}
		table = table[methodBytes:]
	}
}

// identifier reads a name of Python; "" where there is none.
func (p *interpreter) identifier(addr uint64) string {
	b := p.names.from(addr)
	end := bytes.IndexByte(b[:min(len(b), maxBuiltin)], 0)
	if end <= 0 {
		return ""
	}
	for _, c := range b[:end] {
		if !isWord(c) && c != '.' {
			return ""
		}
	}
	return string(b[:end])
}

// index keeps what begins where a function does, which ends where the next one begins.
func (p *interpreter) index(starts []uint64) *functions {
	out := &functions{base: starts[0]}
	var names bytes.Buffer
	for i, at := range starts {
		name := p.named[at]
		if name == "" || i+1 == len(starts) || starts[i+1]-out.base > math.MaxUint32 {
			continue
		}
		out.all = append(out.all, function{uint32(at - out.base), uint32(starts[i+1] - at), uint32(names.Len())})
		names.WriteString(name)
		names.WriteByte(0)
	}
	slices.SortFunc(out.all, func(x, y function) int { return cmp.Compare(x.addr, y.addr) })
	out.text = text{size: uint64(names.Len()), data: names.Bytes()}
	return out
}
