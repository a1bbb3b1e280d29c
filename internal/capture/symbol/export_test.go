package symbol

import (
	"bytes"
	"io"
	"time"
)

// SetNow gives a table another clock.
func (t *Table) SetNow(now func() time.Time) { t.now = now }

// FakeKernel names addresses by a text instead of /proc/kallsyms.
func FakeKernel(text []byte, opened *int) *Kernel {
	k := NewKernel()
	k.open = func() (io.ReadCloser, error) {
		*opened++
		return io.NopCloser(bytes.NewReader(text)), nil
	}
	return k
}

// Unpack is for fuzzing.
func Unpack(b []byte) ([]byte, error) { return unpack(b) }

// NewMemory is a File that lies in memory.
func NewMemory(b []byte, name string) File { return memory{bytes.NewReader(b), name} }
