package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"path"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
)

// debugRoot is where distributions put separate debug files.
const debugRoot = "/usr/lib/debug"

// maxChecked bounds a debug file whose checksum is all that says whose it is.
const maxChecked = 1 << 30 // bytes

// separate makes the index of the separate debug file, nil where there is none: by
// build id, else by .gnu_debuglink, as gdb looks for it.
func (b *builder) separate() (*functions, error) {
	if b.module.Beside == nil {
		return nil, nil
	}
	var last error
	for _, c := range b.candidates() {
		f, err := b.module.Beside(c.path)
		if err != nil {
			continue // as good as always because there is none
		}
		table, err := b.debug(c, f)
		f.Close()
		if err == nil {
			return table, nil
		}
		last = fmt.Errorf("debug file %s: %w", c.path, err)
	}
	return nil, last
}

// candidate is where a debug file may be.
type candidate struct {
	path    string
	checked bool // sum is the CRC-32 that it must have, where there is no build id to compare
	sum     uint32
}

func (b *builder) candidates() []candidate {
	var out []candidate
	if len(b.id) > 2 {
		out = append(out, candidate{path: fmt.Sprintf("%s/.build-id/%s/%s.debug", debugRoot, b.id[:2], b.id[2:])})
	}
	name, sum, ok := b.link()
	if !ok || !path.IsAbs(b.module.Path) {
		return out
	}
	dir := path.Dir(clean(b.module.Path))
	for _, at := range []string{dir, path.Join(dir, ".debug"), path.Join(debugRoot, dir)} {
		out = append(out, candidate{path: path.Join(at, name), checked: true, sum: sum})
	}
	return out
}

// clean is path.Clean without the mark that the kernel puts on deleted files.
func clean(p string) string { return path.Clean(strings.TrimSuffix(p, " (deleted)")) }

// link reads .gnu_debuglink: a file name, padding to 4 bytes, a CRC-32.
func (b *builder) link() (name string, sum uint32, ok bool) {
	s, ok := b.im.named(".gnu_debuglink")
	if !ok {
		return "", 0, false
	}
	raw, err := b.im.content(s, maxLink)
	if err != nil || len(raw) < 4 {
		return "", 0, false
	}
	head, _, ok := bytes.Cut(raw[:len(raw)-4], []byte{0})
	name = string(head)
	if !ok || name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return "", 0, false
	}
	at := (len(name) + 4) &^ 3
	if at+4 > len(raw) {
		return "", 0, false
	}
	return name, binary.LittleEndian.Uint32(raw[at:]), true
}

// debug makes the index of an opened candidate.
func (b *builder) debug(c candidate, f File) (*functions, error) {
	key, err := Identify(f)
	if err != nil {
		return nil, err
	}
	im, err := openImage(f, key.size)
	if err != nil {
		return nil, err
	}
	if err := b.belongs(c, im); err != nil {
		return nil, err
	}
	table, ok := im.ofKind(elf.SHT_SYMTAB)
	if !ok {
		return nil, fmt.Errorf("%w: no symbol table", elffile.ErrMalformed)
	}
	out, err := readFunctions(im, table, b.budget)
	if err != nil {
		return nil, err
	}
	out.text.debug, out.text.debugKey = c.path, key
	return out, nil
}

// belongs checks that a debug file is of our file, not of one that was there before.
func (b *builder) belongs(c candidate, im *image) error {
	if id := im.buildID(); id != "" && b.id != "" {
		if id != b.id {
			return fmt.Errorf("%w: its build id is %s, not %s", elffile.ErrMalformed, id, b.id)
		}
		return nil
	}
	if !c.checked {
		return fmt.Errorf("%w: it has no build id", elffile.ErrMalformed)
	}
	if im.size > maxChecked {
		return fmt.Errorf("%w: %d bytes to check", elffile.ErrTooLarge, im.size)
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, io.NewSectionReader(im.in, 0, int64(im.size))); err != nil {
		return fmt.Errorf("checking it: %w", err)
	}
	if sum.Sum32() != c.sum {
		return fmt.Errorf("%w: its CRC is %#x, not %#x", elffile.ErrMalformed, sum.Sum32(), c.sum)
	}
	return nil
}
