package inject

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// memory reads and writes a process's memory through process_vm_readv and _writev,
// which need CAP_SYS_PTRACE and nothing else.
type memory struct{ pid int }

// read fills b from address addr, or fails.
func (m memory) read(b []byte, addr uint64) error {
	for len(b) > 0 {
		n, err := m.readSome(b, addr)
		if err != nil {
			return fmt.Errorf("read %d bytes of memory at %#x: %w", len(b), addr, err)
		}
		b, addr = b[n:], addr+uint64(n)
	}
	return nil
}

// readSome reads what it can of b, at least a byte, or fails.
func (m memory) readSome(b []byte, addr uint64) (int, error) {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := unix.ProcessVMReadv(m.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// write puts b at address addr, all of it or an error: then some of it may be there.
func (m memory) write(b []byte, addr uint64) error {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := unix.ProcessVMWritev(m.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write %d bytes of memory at %#x: %w", len(b), addr, err)
	}
	return nil
}
