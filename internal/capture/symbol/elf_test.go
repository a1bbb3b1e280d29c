package symbol_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// part is one section of an ELF file that a test puts together.
type part struct {
	name   string
	header elf.Section64 // all but Name, Off and, where data is not nil, Size
	data   []byte
}

// assemble lays an ELF file out; the first section header is the empty one, and the
// last the section names.
func assemble(parts ...part) []byte {
	names := bytes.NewBuffer([]byte{0})
	headers := []elf.Section64{{}}
	parts = append(parts, part{name: ".shstrtab", header: elf.Section64{Type: uint32(elf.SHT_STRTAB)}})
	at := uint64(64 + 64*(len(parts)+1))
	var body []byte
	for i, p := range parts {
		h := p.header
		h.Name = uint32(names.Len())
		names.WriteString(p.name + "\x00")
		if i == len(parts)-1 {
			p.data = names.Bytes()
		}
		h.Off = at + uint64(len(body))
		if p.data != nil {
			h.Size = uint64(len(p.data))
		}
		headers = append(headers, h)
		body = append(body, p.data...)
	}
	h := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Ehsize: 64, Shoff: 64, Shentsize: 64,
		Shnum: uint16(len(headers)), Shstrndx: uint16(len(headers) - 1),
	}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	out, _ := binary.Append(nil, binary.LittleEndian, h)
	out, _ = binary.Append(out, binary.LittleEndian, headers)
	return append(out, body...)
}

// functionParts are the code, symbols and names of n functions of 16 bytes, from
// address 0x1000 on; they must come first in a file.
func functionParts(n int, seed byte) []part {
	names := bytes.NewBuffer([]byte{0})
	syms := make([]byte, 24, 24*(n+1))
	for i := range n {
		var s [24]byte
		binary.LittleEndian.PutUint32(s[:], uint32(names.Len()))
		s[4], s[6] = byte(elf.STT_FUNC)|byte(elf.STB_GLOBAL)<<4, 1
		binary.LittleEndian.PutUint64(s[8:], 0x1000+uint64(i)*16)
		binary.LittleEndian.PutUint64(s[16:], 16)
		syms = append(syms, s[:]...)
		fmt.Fprintf(names, "function_%d_%d\x00", seed, i)
	}
	return []part{
		codePart(n),
		{".symtab", elf.Section64{Type: uint32(elf.SHT_SYMTAB), Link: 3}, syms},
		{".strtab", elf.Section64{Type: uint32(elf.SHT_STRTAB)}, names.Bytes()},
	}
}

func codePart(n int) part {
	return part{
		".text",
		elf.Section64{
			Type:  uint32(elf.SHT_NOBITS),
			Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR),
			Addr:  0x1000,
			Size:  uint64(n) * 16,
		},
		nil,
	}
}

// library makes a file of these functions.
func library(n int, seed byte) []byte { return assemble(functionParts(n, seed)...) }

func idPart(id string) part {
	note := []byte("\x04\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00GNU\x00" + id)
	note[4] = byte(len(id))
	return part{".note.gnu.build-id", elf.Section64{Type: uint32(elf.SHT_NOTE)}, note}
}

func linkPart(debug []byte) part {
	return part{
		".gnu_debuglink",
		elf.Section64{Type: uint32(elf.SHT_PROGBITS)},
		binary.LittleEndian.AppendUint32([]byte("d.debug\x00"), crc32.ChecksumIEEE(debug)),
	}
}

// miniPart packs a file into .gnu_debugdata; ok is false where there is no xz.
func miniPart(t testing.TB, b []byte) (p part, ok bool) {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		return p, false
	}
	path := filepath.Join(t.TempDir(), "mini")
	must.NoError(t, os.WriteFile(path, b, 0o600))
	run(t, "xz", path)
	packed, err := os.ReadFile(path + ".xz")
	must.NoError(t, err)
	return part{".gnu_debugdata", elf.Section64{Type: uint32(elf.SHT_PROGBITS)}, packed}, true
}
