package profile

import (
	"testing"

	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/inferscope/inferscope/internal/capture/symbol"
)

// A mapping begins at a page, which the segment need not: OpenBLAS's code does not.
func TestCodeAddress(t *testing.T) {
	segments := symbol.Segments{
		{Offset: 0, Addr: 0, Size: 0x2887dc},
		{Offset: 0x288800, Addr: 0x289800, Size: 0x133fe70, Executable: true},
		{Offset: 0x15c8670, Addr: 0x15ca670, Size: 0x7450},
	}
	for _, tt := range []struct {
		name         string
		offset, want uint64
		ok           bool
	}{
		{"begins before its segment", 0x288000, 0x289000, true},
		{"is a later part of it", 0x300000, 0x301000, true},
		{"is of data", 0x15c8000 - 0x10000 + 0x1340000, 0, false},
		{"is of the headers", 0, 0, false},
	} {
		if got, ok := codeAddress(segments, tt.offset); got != tt.want || ok != tt.ok {
			t.Errorf("a mapping that %s: %#x, %v, want %#x, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

// What most stacks wait for is read first, then small files; big ones that no stack
// ends in are not read.
func TestOrderOfReading(t *testing.T) {
	l := &loader{images: map[uint64]*image{}, wake: make(chan struct{}, 1)}
	for number, size := range map[uint64]uint64{1: 100, 2: smallTable + 1, 3: 5000, 4: 10 * smallTable, 5: 7} {
		l.images[number] = &image{number: number, size: size, users: 1}
	}
	l.images[5].users = 0 // of a process that ended
	for range 3 {
		if !l.want(4) {
			t.Fatal("a file that is not read yet may be")
		}
	}
	l.want(3)
	for i, want := range []uint64{4, 3, 1} {
		x := l.next()
		if x == nil || x.number != want {
			t.Fatalf("read as number %d: %+v, want file %d", i, x, want)
		}
		l.done(x, &filled{})
		if l.want(want) {
			t.Errorf("file %d is read: stacks in it get no longer", want)
		}
	}
	if x := l.next(); x != nil {
		t.Errorf("file %d of %d bytes is read for nobody", x.number, x.size)
	}
	l.want(2)
	if x := l.next(); x == nil || x.number != 2 {
		t.Errorf("%+v is read, want file 2", x)
	}
}

func TestChangesOfMappings(t *testing.T) {
	s := &processSpace{mappings: map[uint64]*mappedImage{
		0x1000: {length: 0x1000, inode: 1}, 0x5000: {length: 0x1000, inode: 2}, 0x9000: {length: 0x2000, inode: 3},
	}}
	got := s.changes([]process.RawMapping{
		{Vaddr: 0x1000, Length: 0x1000, Inode: 1}, // as it was
		{Vaddr: 0x5000, Length: 0x1000, Inode: 7}, // another file
		{Vaddr: 0x20000, Length: 0x1000, Inode: 8},
	})
	if len(got.come) != 2 || got.come[0].Inode != 7 || got.come[1].Inode != 8 {
		t.Errorf("come: %+v, want those of inodes 7 and 8", got.come)
	}
	if len(got.removed) != 2 {
		t.Errorf("gone: %#x, want 0x5000 and 0x9000", got.removed)
	}
}
