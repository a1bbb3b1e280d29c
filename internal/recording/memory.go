//go:build !race

package recording

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// memory is where a Recorder keeps its events: address space outside of the Go heap, of
// which the kernel backs what is written to. In the heap it made the garbage collector run at
// each 10 MB that the recorder grew by, and go through all the rest of the heap each time; and
// what the heap has taken it hardly ever gives back. Large pages are not asked for: where the
// kernel has them at hand they make growing three times as cheap, else it moves memory about for
// them, at up to five times the cost (BenchmarkGrow).
type memory struct{ space []byte }

// newMemory reserves n bytes; they are given back when owner is garbage.
func newMemory(owner *Recorder, n int) (memory, error) {
	space, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return memory{}, fmt.Errorf("reserve %d bytes of address space for events (--trace-size-mb): %w", n, err)
	}
	runtime.AddCleanup(owner, func(space []byte) { _ = unix.Munmap(space) }, space)
	return memory{space}, nil
}

// release gives the pages behind a segment's room back; what is read there next is all zeros.
func (m memory) release(room []byte) {
	if len(room)%os.Getpagesize() != 0 {
		return // the kernel would take what lies behind as well
	}
	_ = unix.Madvise(room, unix.MADV_DONTNEED) // where it is locked it stays
}
