package unwind

import (
	"bytes"
	"os"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// walkBytes walks bytes as an .eh_frame.
func walkBytes(b []byte) (*Table, error) {
	t := New(numbers{})
	file, err := pfelf.NewFile(plain{bytes.NewReader(emptyELF())}, 0, false)
	if err != nil {
		return nil, err
	}
	w := walker{
		in:      bytes.NewReader(b),
		file:    file,
		table:   t,
		size:    int64(len(b)),
		addr:    0x1000,
		commons: map[int64]*common{},
	}
	err = w.walk()
	t.sort()
	return t, err
}

// emptyELF is a file with a header and one program header, of nothing.
func emptyELF() []byte {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	b[16], b[18], b[20] = 3, 62, 1
	b[32], b[52], b[54], b[56] = 64, 64, 56, 1
	return b
}

// FuzzWalk: whatever stands in an .eh_frame, reading it ends, within bounds, and what it
// says is in the order in which it is looked up.
func FuzzWalk(f *testing.F) {
	if self, err := os.Open("/proc/self/exe"); err == nil {
		defer self.Close()
		if file, err := pfelf.NewFile(plain{self}, 0, false); err == nil {
			if s := file.Section(".eh_frame"); s != nil {
				b := make([]byte, min(s.Size, 4096))
				if _, err := self.ReadAt(b, int64(s.Offset)); err == nil {
					f.Add(b)
				}
			}
		}
	}
	// A CIE "zR" with CFA = rsp+8, RA at CFA-8, and a function that pushes rbp.
	f.Add([]byte{
		20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 12, 7, 8, 0x90, 1, 0, 0,
		20, 0, 0, 0, 28, 0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 0x41, 0x0e, 16, 0x86, 2, 0, 0,
	})
	fuzzing.Run(f, func(t *testing.T, b []byte) {
		table, _ := walkBytes(b)
		if table == nil {
			return
		}
		if len(table.blocks) > len(b) || table.rules.length > len(b) {
			t.Fatalf("%d blocks and %d rules of %d bytes", len(table.blocks), table.rules.length, len(b))
		}
		first, count := table.Pages()
		table.Each(func(addr uint64, _ uint16) {
			if count == 0 || addr+1 < first {
				t.Fatalf("a rule at %#x before the first page %#x", addr, first)
			}
		})
	})
}

func TestWalk(t *testing.T) {
	table, err := walkBytes([]byte{
		20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 12, 7, 8, 0x90, 1, 0, 0,
		20, 0, 0, 0, 28, 0, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 0x44, 0x0e, 16, 0x86, 2, 0, 0,
	})
	must.NoError(t, err)
	var addrs []uint64
	table.Each(func(addr uint64, _ uint16) { addrs = append(addrs, addr) })
	start := uint64(0x1000 + 32 + 0x100) // where its pointer stands, and that many bytes on
	want := []uint64{start, start + 4, start + 16}
	if len(addrs) != 3 || addrs[0] != want[0] || addrs[1] != want[1] || addrs[2] != want[2] {
		t.Errorf("rules at %#x, want at %#x", addrs, want)
	}
}
