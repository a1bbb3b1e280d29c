package elffile_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// image is a small shared object, put together field by field so that a test can
// make any of them hostile. Addresses are file offsets plus base.
type image struct {
	ident     [16]byte
	kind      elf.Type
	machine   elf.Machine
	phoff     uint64
	phentsize uint16
	phnum     int // -1: as many as there are
	loads     []elf.Prog64
	dynamic   []elf.Dyn64
	symbols   []elf.Sym64
	strings   string
	hash      []uint32 // DT_HASH, or DT_GNU_HASH where gnu
	gnu       bool
	note      []byte
	code      []byte
}

const (
	base      = 0x10000
	phdrsAt   = 0x40
	dynamicAt = 0x400
	symbolsAt = 0x600
	stringsAt = 0x800
	hashAt    = 0x900
	noteAt    = 0xa00
	codeAt    = 0x1000
	imageSize = 0x1200
)

// good exports alpha (8 bytes), beta (weak, an indirect function) and gamma (no
// size); it also has what is no exported function.
func good() *image {
	strings := "\x00libgood.so.1\x00alpha\x00beta\x00gamma\x00data\x00undefined\x00local\x00outside\x00"
	name := func(s string) uint32 { return uint32(bytes.Index([]byte(strings), []byte("\x00"+s+"\x00")) + 1) }
	const text = base + codeAt
	fn := elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC)
	im := &image{
		ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1},
		kind:    elf.ET_DYN,
		machine: elf.EM_X86_64,
		phoff:   phdrsAt, phentsize: 56, phnum: -1,
		strings: strings,
		symbols: []elf.Sym64{
			{},
			{Name: name("gamma"), Info: fn, Shndx: 1, Value: text + 0x1f0},
			{Name: name("alpha"), Info: fn, Shndx: 1, Value: text, Size: 8},
			{
				Name:  name("beta"),
				Info:  elf.ST_INFO(elf.STB_WEAK, elf.STT_GNU_IFUNC),
				Shndx: 1,
				Value: text + 0x10,
				Size:  0x100000,
			},
			{Name: name("data"), Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT), Shndx: 1, Value: text},
			{Name: name("undefined"), Info: fn, Shndx: uint16(elf.SHN_UNDEF), Value: text},
			{Name: name("local"), Info: elf.ST_INFO(elf.STB_LOCAL, elf.STT_FUNC), Shndx: 1, Value: text},
			{Name: name("outside"), Info: fn, Shndx: 1, Value: base + dynamicAt},
		},
		note: []byte("\x04\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00GNU\x00\xde\xad\xbe\xef"),
	}
	im.hash = []uint32{1, uint32(len(im.symbols)), 1}
	im.loads = []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Off: 0, Vaddr: base, Filesz: codeAt},
		{
			Type:   uint32(elf.PT_LOAD),
			Flags:  uint32(elf.PF_R | elf.PF_X),
			Off:    codeAt,
			Vaddr:  base + codeAt,
			Filesz: imageSize - codeAt,
		},
		{
			Type:   uint32(elf.PT_NOTE),
			Flags:  uint32(elf.PF_R),
			Off:    noteAt,
			Vaddr:  base + noteAt,
			Filesz: uint64(len(im.note)),
		},
	}
	im.dynamic = []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_SYMTAB), Val: base + symbolsAt},
		{Tag: int64(elf.DT_SYMENT), Val: 24},
		{Tag: int64(elf.DT_STRTAB), Val: base + stringsAt},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(strings))},
		{Tag: int64(elf.DT_HASH), Val: base + hashAt},
	}
	for i := range imageSize - codeAt {
		im.code = append(im.code, byte(i))
	}
	return im
}

// set changes a dynamic entry.
func (im *image) set(tag elf.DynTag, value uint64) {
	for i := range im.dynamic {
		if im.dynamic[i].Tag == int64(tag) {
			im.dynamic[i].Val = value
		}
	}
}

// bytes lays the image out.
func (im *image) bytes() []byte {
	out := make([]byte, imageSize)
	put := func(at int, v any) int {
		b, _ := binary.Append(nil, binary.LittleEndian, v)
		return at + copy(out[at:], b)
	}
	dynamic := append(im.dynamic[:len(im.dynamic):len(im.dynamic)], elf.Dyn64{})
	for i := range dynamic {
		if im.gnu && dynamic[i].Tag == int64(elf.DT_HASH) {
			dynamic[i].Tag = int64(elf.DT_GNU_HASH)
		}
	}
	progs := append(im.loads[:len(im.loads):len(im.loads)], elf.Prog64{
		Type: uint32(elf.PT_DYNAMIC), Off: dynamicAt,
		Vaddr: base + dynamicAt, Filesz: uint64(16 * len(dynamic)),
	})
	if im.phnum < 0 {
		im.phnum = len(progs)
	}
	put(0, elf.Header64{
		Ident: im.ident, Type: uint16(im.kind), Machine: uint16(im.machine), Phoff: im.phoff,
		Phentsize: im.phentsize, Phnum: uint16(im.phnum),
	})
	put(phdrsAt, progs)
	put(dynamicAt, dynamic)
	put(symbolsAt, im.symbols)
	put(stringsAt, []byte(im.strings))
	put(hashAt, im.hash)
	put(noteAt, im.note)
	put(codeAt, im.code)
	return out
}
