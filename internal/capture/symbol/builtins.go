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

// Limits on what is read for builtins. Ubuntu's python3.12 has 1.3 MB of data, 3 MB of constants, 130 KB of the table
// of functions.
const (
	maxData     = 16 << 20 // bytes of a section
	maxModules  = 4096     // and types
	maxMethods  = 4096     // of one of them
	maxBuiltin  = 64       // bytes of a name
	moduleBytes = 72       // PyModuleDef as far as m_methods: Include/moduleobject.h, since 3.5
	methodBytes = 32       // PyMethodDef: Include/methodobject.h
	typeBytes   = 32       // PyType_Spec: Include/object.h
	slotBytes   = 16       // PyType_Slot
)

// builtins makes the index of the functions of Python's own modules that are written in C and are part of the
// interpreter, from the tables in which CPython itself finds them: distributions strip it, and pickle, time and others
// are in it. A function is named as Argument Clinic would: _pickle_dumps. Of types those that are made of a
// specification are known, as most of such modules are since 3.11: re_Pattern_findall.
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
		for rest := w.bytes; len(rest) >= typeBytes; rest = rest[8:] {
			p.kind(rest[:typeBytes])
			if len(rest) >= moduleBytes {
				p.module(rest[:moduleBytes])
			}
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

// functionStarts returns where functions begin, by the table with which exceptions are thrown (Linux Standard Base,
// ".eh_frame_hdr"): in order, and nil where there is none of the usual form.
func (im *image) functionStarts() []uint64 {
	const head, entry = 12, 8
	usual := []byte{
		1,
		0x1b,
		0x03,
		0x3b,
	} // version 1; pointer relative to itself, count of 4 bytes, pairs relative to the table
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
	seen  int               // modules and types
}

// module reads what may be a PyModuleDef: its head is a reference count and four zeros as long as the module is not
// loaded, which it is not in the file.
func (p *interpreter) module(def []byte) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(def[8*i:]) }
	count, size := word(0), int64(word(7))
	if count == 0 || count > math.MaxUint32 || word(1)|word(2)|word(3)|word(4) != 0 || size < -1 || size > maxData ||
		p.seen >= maxModules {
		return
	}
	name := p.identifier(word(5))
	if name == "" {
		return
	}
	if methods := p.from(word(8)); methods != nil {
		p.seen++
		p.methods(underscored(name), methods)
	}
}

func underscored(name string) string { return strings.ReplaceAll(name, ".", "_") }

// from returns what follows an address in the data.
func (p *interpreter) from(addr uint64) []byte {
	for _, w := range p.data {
		if b := w.from(addr); b != nil {
			return b
		}
	}
	return nil
}

// Slots of a type (Include/typeslots.h).
const (
	slotCall     = 50
	slotIternext = 63
	slotMethods  = 64
	lastSlot     = 128 // 83 in 3.14
)

// kind reads what may be a PyType_Spec: a name with its module, sizes, flags, and an array of slots that a zero ends.
func (p *interpreter) kind(spec []byte) {
	size, each, pad := binary.LittleEndian.Uint32(spec[8:]),
		binary.LittleEndian.Uint32(spec[12:]), binary.LittleEndian.Uint32(spec[20:])
	if pad != 0 || size > maxData || each > maxData || p.seen >= maxModules {
		return
	}
	name := p.identifier(binary.LittleEndian.Uint64(spec))
	if !strings.Contains(name, ".") {
		return
	}
	name = underscored(name)
	for slots := p.from(binary.LittleEndian.Uint64(spec[24:])); len(slots) >= slotBytes; slots = slots[slotBytes:] {
		slot, to := binary.LittleEndian.Uint64(slots), binary.LittleEndian.Uint64(slots[8:])
		switch {
		case slot == 0 || slot > lastSlot:
			return
		case slot == slotMethods:
			p.seen++
			p.methods(name, p.from(to))
		case slot == slotCall:
			p.name(to, name+"_call")
		case slot == slotIternext:
			p.name(to, name+"_iternext")
		}
	}
}

// name names what begins at an address, where nothing else has.
func (p *interpreter) name(addr uint64, name string) {
	if p.named[addr] == "" {
		p.named[addr] = name
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
		p.name(binary.LittleEndian.Uint64(table[8:]), module+"_"+name)
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

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
