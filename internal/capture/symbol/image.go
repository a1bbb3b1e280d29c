package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
)

// Limits on an ELF file. libtorch_cpu 2.15 has 34 sections, 11 segments, 546,000
// symbols and 78 MB of names.
const (
	maxSegments     = 256
	maxSections     = 8192
	maxSectionNames = 512 << 10 // bytes
	maxNotes        = 64 << 10  // bytes
	maxBuildID      = 64        // bytes
	maxLink         = 4096      // bytes of .gnu_debuglink
)

const (
	headerSize  = 64
	segmentSize = 56
	sectionSize = 64
	symbolSize  = 24
)

// image is an ELF file that has been read as far as its section headers.
type image struct {
	in       io.ReaderAt
	size     uint64
	sections []section
	headers  uint64 // hash of the file and section headers
}

type section struct {
	name               string
	kind               elf.SectionType
	flags              elf.SectionFlag
	addr, offset, size uint64
	link               uint32
}

// executable reports whether code lies in the section. A debug file has the
// section's header, without its bytes.
func (s section) executable() bool {
	return s.flags&elf.SHF_ALLOC != 0 && s.flags&elf.SHF_EXECINSTR != 0
}

// openImage reads the headers of the 64-bit little-endian ELF file of size bytes
// behind r. Its errors wrap those of elffile.
func openImage(r io.ReaderAt, size int64) (*image, error) {
	if size < 0 {
		return nil, fmt.Errorf("%w: size %d", elffile.ErrMalformed, size)
	}
	im := &image{in: r, size: uint64(size)}
	h, err := im.header()
	if err != nil {
		return nil, err
	}
	if _, err = im.readSegments(h); err != nil { // a file whose program headers are not sound is refused
		return nil, err
	}
	if err := im.readSections(h); err != nil {
		return nil, err
	}
	return im, nil
}

func (im *image) header() ([]byte, error) {
	h, err := im.bytes(0, headerSize, "file header")
	if err != nil || string(h[:4]) != elf.ELFMAG {
		return nil, errors.Join(elffile.ErrNotELF, err)
	}
	if elf.Class(h[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(h[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("%w: class %d, data %d", elffile.ErrUnsupported, h[elf.EI_CLASS], h[elf.EI_DATA])
	}
	if t := elf.Type(binary.LittleEndian.Uint16(h[16:])); t != elf.ET_DYN && t != elf.ET_EXEC {
		return nil, fmt.Errorf("%w: type %s", elffile.ErrUnsupported, t)
	}
	return h, nil
}

func (im *image) readSections(h []byte) error {
	offset, each := binary.LittleEndian.Uint64(h[40:]), binary.LittleEndian.Uint16(h[58:])
	count, names := binary.LittleEndian.Uint16(h[60:]), binary.LittleEndian.Uint16(h[62:])
	if count == 0 {
		return nil // stripped of its section headers
	}
	if each != sectionSize || count > maxSections {
		return fmt.Errorf("%w: %d section headers of %d bytes", elffile.ErrMalformed, count, each)
	}
	b, err := im.bytes(offset, uint64(count)*sectionSize, "section headers")
	if err != nil {
		return err
	}
	hash := fnv.New64a()
	hash.Write(h)
	hash.Write(b)
	im.headers = hash.Sum64()
	im.sections = make([]section, count)
	at := make([]uint32, count)
	for i := range im.sections {
		im.sections[i], at[i] = decodeSection(b[i*sectionSize:])
	}
	im.nameSections(at, int(names))
	return nil
}

func decodeSection(b []byte) (section, uint32) {
	return section{
		kind:   elf.SectionType(binary.LittleEndian.Uint32(b[4:])),
		flags:  elf.SectionFlag(binary.LittleEndian.Uint64(b[8:])),
		addr:   binary.LittleEndian.Uint64(b[16:]),
		offset: binary.LittleEndian.Uint64(b[24:]),
		size:   binary.LittleEndian.Uint64(b[32:]),
		link:   binary.LittleEndian.Uint32(b[40:]),
	}, binary.LittleEndian.Uint32(b)
}

// nameSections gives sections their names. A file without them has its symbol
// tables still, which are found by kind.
func (im *image) nameSections(at []uint32, table int) {
	if table >= len(im.sections) {
		return
	}
	b, err := im.content(im.sections[table], maxSectionNames)
	if err != nil {
		return
	}
	for i, off := range at {
		if uint64(off) >= uint64(len(b)) {
			continue
		}
		if name, _, ok := bytes.Cut(b[off:min(int(off)+64, len(b))], []byte{0}); ok {
			im.sections[i].name = string(name)
		}
	}
}

// find returns the first section that is wanted.
func (im *image) find(want func(section) bool) (section, bool) {
	for _, s := range im.sections {
		if want(s) {
			return s, true
		}
	}
	return section{}, false
}

func (im *image) ofKind(kind elf.SectionType) (section, bool) {
	return im.find(func(s section) bool { return s.kind == kind && s.size >= symbolSize })
}

func (im *image) named(name string) (section, bool) {
	return im.find(func(s section) bool { return s.name == name && s.kind != elf.SHT_NOBITS })
}

// content reads a section of at most limit bytes.
func (im *image) content(s section, limit uint64) ([]byte, error) {
	if s.kind == elf.SHT_NOBITS || s.flags&elf.SHF_COMPRESSED != 0 || s.size > limit {
		return nil, fmt.Errorf("%w: section %s of %d bytes", elffile.ErrTooLarge, s.name, s.size)
	}
	return im.bytes(s.offset, s.size, "section "+s.name)
}

// buildID returns the GNU build id in hex, "" where there is none.
func (im *image) buildID() string {
	for _, s := range im.sections {
		if s.kind != elf.SHT_NOTE {
			continue
		}
		if b, err := im.content(s, maxNotes); err == nil {
			if id := noteBuildID(b); id != "" {
				return id
			}
		}
	}
	return ""
}

// noteBuildID finds the GNU build id among the notes of a section. Sections whose
// notes are aligned to 8 bytes hold no build id.
func noteBuildID(b []byte) string {
	const head, kindBuildID = 12, 3
	for len(b) >= head {
		name, desc := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
		at := head + (name+3)&^3
		if at+desc > uint64(len(b)) {
			return ""
		}
		if binary.LittleEndian.Uint32(b[8:]) == kindBuildID && string(b[head:head+name]) == "GNU\x00" && desc > 1 &&
			desc <= maxBuildID {
			return hex.EncodeToString(b[at : at+desc])
		}
		b = b[min(at+(desc+3)&^3, uint64(len(b))):]
	}
	return ""
}

// holds reports whether n bytes at off lie in the file.
func (im *image) holds(off, n uint64) bool { return off <= im.size && n <= im.size-off }

// bytes reads n bytes at off; the caller has bounded n.
func (im *image) bytes(off, n uint64, what string) ([]byte, error) {
	if !im.holds(off, n) {
		return nil, fmt.Errorf("%w: %s needs %d bytes at offset %d, the file has %d",
			elffile.ErrTruncated, what, n, off, im.size)
	}
	b := make([]byte, n)
	if m, err := im.in.ReadAt(b, int64(off)); uint64(m) < n {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return b, nil
}
