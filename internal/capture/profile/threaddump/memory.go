package threaddump

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// stackBytes is how much of a stack is copied at once; more is read when it is needed.
	stackBytes = 128 << 10
	pageBytes  = 4096
	// maxPages bounds what one thread's unwinding reads beside that.
	maxPages = 512
)

var errManyPages = errors.New("its stack leads all over its memory")

// memory reads a process. It never stops it; what it read it keeps, so that one
// stack is unwound from one state of memory.
type memory struct {
	pid   int
	base  uint64 // of stack
	stack []byte
	pages map[uint64][]byte
}

// newMemory copies the stack at sp.
func newMemory(pid uint32, sp uint64) *memory {
	m := &memory{pid: int(pid), base: sp, pages: map[uint64][]byte{}}
	if sp == 0 {
		return m
	}
	b := make([]byte, stackBytes)
	// Page by page, because the first that is not there ends the read: the top of a
	// stack is nearer than that.
	remote := []unix.RemoteIovec{{Base: uintptr(sp), Len: int(pageBytes - sp%pageBytes)}}
	for at, left := sp+uint64(remote[0].Len), stackBytes-remote[0].Len; left > 0; {
		n := min(left, pageBytes)
		remote = append(remote, unix.RemoteIovec{Base: uintptr(at), Len: n})
		at, left = at+uint64(n), left-n
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	if n, err := unix.ProcessVMReadv(m.pid, local, remote, 0); err == nil {
		m.stack = b[:n]
	}
	return m
}

// read reads memory directly, all of b or an error.
func (m *memory) read(addr uint64, b []byte) error {
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(m.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n < len(b) {
		err = unix.EFAULT
	}
	if err != nil {
		return fmt.Errorf("read memory at %#x: %w", addr, err)
	}
	return nil
}

// Word reads 8 bytes.
func (m *memory) Word(addr uint64) (uint64, error) {
	if addr >= m.base && addr-m.base+8 <= uint64(len(m.stack)) {
		return binary.LittleEndian.Uint64(m.stack[addr-m.base:]), nil
	}
	var b [8]byte
	for i := 0; i < len(b); { // a word may lie in two pages
		page, err := m.page((addr + uint64(i)) &^ (pageBytes - 1))
		if err != nil {
			return 0, err
		}
		i += copy(b[i:], page[(addr+uint64(i))%pageBytes:])
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

func (m *memory) page(at uint64) ([]byte, error) {
	if p, ok := m.pages[at]; ok {
		return p, nil
	}
	if len(m.pages) == maxPages {
		return nil, errManyPages
	}
	p := make([]byte, pageBytes)
	if err := m.read(at, p); err != nil {
		return nil, err
	}
	m.pages[at] = p
	return p, nil
}
