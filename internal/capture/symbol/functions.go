package symbol

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
)

const (
	// maxSymbols bounds the work on one table: 192 MiB to read.
	maxSymbols = 8 << 20
	// maxReach is how far a symbol without a size reaches, where no other follows:
	// hand-written kernels are that long, and what lies further is rather unknown.
	maxReach = 64 << 10
	// maxEnclosing is how many symbols before an address are tried: some functions
	// hold others.
	maxEnclosing = 64
	// functionBytes is what one function costs in memory.
	functionBytes = 12
	// scanBytes is read of a symbol table at a time.
	scanBytes = symbolSize * 4096
)

// function is one symbol. Its name stays in the file.
type function struct {
	addr uint32 // from functions.base
	size uint32 // bytes
	name uint32 // in functions.text
}

// functions is the index of one symbol table.
type functions struct {
	base uint64
	all  []function // by address, then name
	text text
}

// text is where the names of a symbol table are.
type text struct {
	debug     string // path of the separate debug file; "" for the file itself
	debugKey  Key
	off, size uint64 // in the file
	data      []byte // instead of a file, where not nil
}

func (f *functions) bytes() int64 {
	return int64(len(f.all))*functionBytes + int64(len(f.text.data))
}

// at returns the index of the function that an address lies in: of several the one
// that begins last.
func (f *functions) at(addr uint64) (int, bool) {
	if addr < f.base || addr-f.base > math.MaxUint32 {
		return 0, false
	}
	rel := uint32(addr - f.base)
	next := sort.Search(len(f.all), func(i int) bool { return f.all[i].addr > rel })
	for i := next - 1; i >= 0 && next-i <= maxEnclosing; i-- {
		if rel-f.all[i].addr < f.all[i].size {
			return i, true
		}
	}
	return 0, false
}

// aliases returns where the names of the i-th function are, at most 8: symbols that
// begin and end where it does. The last of them is what at finds.
func (f *functions) aliases(i int) []uint32 {
	const most = 8
	var out []uint32
	for j := i; j >= 0 && len(out) < most && f.all[j].addr == f.all[i].addr && f.all[j].size == f.all[i].size; j-- {
		out = append(out, f.all[j].name)
	}
	return out
}

// readFunctions makes the index of a symbol table that takes at most limit bytes.
func readFunctions(im *image, table section, limit int64) (*functions, error) {
	if table.size/symbolSize > maxSymbols {
		return nil, fmt.Errorf("%w: %d symbols", elffile.ErrTooLarge, table.size/symbolSize)
	}
	if !im.holds(table.offset, table.size) || int(table.link) >= len(im.sections) {
		return nil, fmt.Errorf("%w: symbol table of %d bytes at offset %d, names in section %d",
			elffile.ErrMalformed, table.size, table.offset, table.link)
	}
	names := im.sections[table.link]
	if !im.holds(names.offset, names.size) || names.kind != elf.SHT_STRTAB {
		return nil, fmt.Errorf("%w: names of %d bytes at offset %d", elffile.ErrMalformed, names.size, names.offset)
	}
	s := &scanner{im: im, table: table, base: math.MaxUint64}
	for _, c := range im.sections {
		if c.executable() {
			s.base = min(s.base, c.addr)
		}
	}
	all, err := s.read(limit)
	if err != nil {
		return nil, err
	}
	return &functions{base: s.base, all: all, text: text{off: names.offset, size: names.size}}, nil
}

// scanner reads a symbol table twice: to count, so that memory is taken once, and to
// keep.
type scanner struct {
	im    *image
	table section
	base  uint64
	buf   []byte
}

func (s *scanner) read(limit int64) ([]function, error) {
	var sized, loose int
	err := s.each(func(_ function, hasSize bool) {
		if hasSize {
			sized++
		} else {
			loose++
		}
	})
	if err != nil {
		return nil, err
	}
	if int64(sized+loose)*functionBytes > limit {
		return nil, fmt.Errorf("%w: %d", errOverFull, sized+loose)
	}
	all, rest := make([]function, 0, sized+loose), make([]function, 0, loose)
	err = s.each(func(f function, hasSize bool) {
		// The file may be another one by now: never more than was counted.
		if hasSize && len(all) < sized {
			all = append(all, f)
		} else if !hasSize && len(rest) < loose {
			rest = append(rest, f)
		}
	})
	if err != nil {
		return nil, err
	}
	return arrange(all, rest), nil
}

// each calls found for each symbol of code.
func (s *scanner) each(found func(f function, hasSize bool)) error {
	if s.buf == nil {
		s.buf = make([]byte, min(scanBytes, s.table.size))
	}
	for off, left := s.table.offset, s.table.size; left >= symbolSize; {
		b := s.buf[:min(uint64(len(s.buf)), left/symbolSize*symbolSize)]
		if n, err := s.im.in.ReadAt(b, int64(off)); n < len(b) {
			return fmt.Errorf("reading symbols at offset %d: %w", off, orEOF(err))
		}
		off, left = off+uint64(len(b)), left-uint64(len(b))
		for ; len(b) >= symbolSize; b = b[symbolSize:] {
			if f, hasSize, ok := s.decode(b); ok {
				found(f, hasSize)
			}
		}
	}
	return nil
}

func orEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode reads one symbol. Of one that has no size, size is how far it may reach.
func (s *scanner) decode(b []byte) (f function, hasSize, ok bool) {
	kind := elf.ST_TYPE(b[4])
	if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC && kind != elf.STT_NOTYPE {
		return f, false, false
	}
	at := int(binary.LittleEndian.Uint16(b[6:]))
	if at == 0 || at >= len(s.im.sections) || !s.im.sections[at].executable() {
		return f, false, false
	}
	home := s.im.sections[at]
	addr, size := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	name := binary.LittleEndian.Uint32(b)
	if name == 0 || addr < home.addr || addr-home.addr >= home.size || addr-s.base > math.MaxUint32 {
		return f, false, false
	}
	reach := min(home.size-(addr-home.addr), math.MaxUint32)
	switch {
	case size > 0:
		reach = min(reach, size)
	case s.table.kind == elf.SHT_DYNSYM:
		// What follows an export may be any local function, of which nothing is known.
		return f, false, false
	default:
		reach = min(reach, maxReach)
	}
	return function{addr: uint32(addr - s.base), size: uint32(reach), name: name}, size > 0, true
}

// arrange sorts functions, and adds of the symbols without a size (labels, assembly)
// those that lie in no function; each ends where the next symbol begins.
func arrange(all, loose []function) []function {
	slices.SortFunc(all, order)
	slices.SortFunc(loose, order)
	sized := functions{all: all}
	kept := all
	following, here := uint32(math.MaxUint32), uint32(math.MaxUint32) // the next symbols without a size
	for _, f := range slices.Backward(loose) {
		if f.addr != here {
			following, here = here, f.addr
		}
		if _, inside := sized.at(uint64(f.addr)); inside {
			continue
		}
		f.size = min(f.size, following-f.addr)
		if next := sort.Search(len(sized.all), func(i int) bool { return sized.all[i].addr > f.addr }); next < len(
			sized.all,
		) {
			f.size = min(f.size, sized.all[next].addr-f.addr)
		}
		kept = append(kept, f)
	}
	slices.SortFunc(kept, order)
	kept = slices.Compact(kept)
	if cap(kept)-len(kept) > len(kept)/8 {
		kept = append(make([]function, 0, len(kept)), kept...)
	}
	return kept
}

func order(a, b function) int {
	// cmp.Or alone would compare all three each time: libtorch_cpu's index took 205 ms
	// to build that way, 112 ms this way (medians of 4 runs each, by turns).
	if a.addr != b.addr {
		return cmp.Compare(a.addr, b.addr)
	}
	return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.name, b.name))
}
