package symbol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// maxVDSO bounds the vdso: it has 2 pages of code on x86-64, kernel 6.18.
const maxVDSO = 1 << 20 // bytes

var errNoVDSO = errors.New("this process has no vdso")

// resolveVDSO names an offset in the vdso. The kernel maps the same one into every
// 64-bit process, so ours is read and no target's memory.
func (t *Table) resolveVDSO(offset uint64) Symbol {
	return t.Resolve(Module{Path: vdsoName, Open: t.vdso}, offset)
}

func openVDSO() (File, error) {
	start, end, err := ownVDSO()
	if err != nil {
		return nil, err
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, fmt.Errorf("reading the vdso: %w", err)
	}
	defer mem.Close()
	b := make([]byte, end-start)
	if _, err := mem.ReadAt(b, int64(start)); err != nil {
		return nil, fmt.Errorf("reading the vdso at %#x: %w", start, err)
	}
	return memory{bytes.NewReader(b), vdsoName}, nil
}

func ownVDSO() (start, end uint64, err error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0, 0, fmt.Errorf("looking for the vdso: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if !bytes.HasSuffix(lines.Bytes(), []byte(vdsoName)) {
			continue
		}
		if r, ok := parseRegion(lines.Bytes()); ok && r.end-r.start <= maxVDSO {
			return r.start, r.end, nil
		}
	}
	return 0, 0, errNoVDSO
}

// memory is a File that lies in memory.
type memory struct {
	*bytes.Reader
	name string
}

func (memory) Close() error                 { return nil }
func (m memory) Stat() (fs.FileInfo, error) { return memoryInfo{m}, nil }

type memoryInfo struct{ of memory }

func (i memoryInfo) Name() string     { return i.of.name }
func (i memoryInfo) Size() int64      { return i.of.Size() }
func (memoryInfo) Mode() fs.FileMode  { return 0o400 }
func (memoryInfo) ModTime() time.Time { return time.Unix(0, 0) }
func (memoryInfo) IsDir() bool        { return false }
func (memoryInfo) Sys() any           { return nil }
