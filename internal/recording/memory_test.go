//go:build !race

package recording

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// largePage is what the kernel may take at once where it is set up to (transparent_hugepage/enabled).
const largePage = 2 << 20

// TestMemoryIsGivenBack: what a burst took is the kernel's again when the burst has expired.
func TestMemoryIsGivenBack(t *testing.T) {
	const budget = 40_000_000
	r, err := NewRecorder(budget, time.Minute)
	must.NoError(t, err)
	if n := resident(t, r); n != 0 {
		t.Errorf("%d bytes are taken of an empty recorder", n)
	}
	random := rand.NewPCG(1, 2)
	for i := range uint64(budget / maxPacked) {
		var e event.Event
		fill(&e, random)
		e.TS, e.Dur = second+i, 0
		r.Append(e)
	}
	if used, n := r.Stats().Used, resident(t, r); used < budget/2 || n < used-int64(r.perSegment) ||
		n > used+largePage {
		t.Errorf("%d bytes are taken of a full recorder that says %d", n, used)
	}
	for range r.perSegment { // what they expire they find when they begin a segment
		r.Append(event.Event{TS: 100 * second})
	}
	most := int64(spare+3) * int64(r.perSegment)
	if used, n := r.Stats().Used, resident(t, r); used > most || n > used+largePage {
		t.Errorf("%d bytes are taken after the end of a burst, of a recorder that says %d: want %d at most",
			n, used, most)
	}
}

// resident returns how many bytes of a recorder's memory the kernel backs (mincore(2)).
func resident(t *testing.T, r *Recorder) int64 {
	t.Helper()
	page := unix.Getpagesize()
	pages := make([]byte, (len(r.memory.space)+page-1)/page)
	_, _, errno := unix.Syscall(
		unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(&r.memory.space[0])),
		uintptr(len(r.memory.space)),
		uintptr(unsafe.Pointer(&pages[0])),
	)
	if errno != 0 {
		t.Fatal(errno)
	}
	n := int64(0)
	for _, p := range pages {
		n += int64(p&1) * int64(page)
	}
	return n
}
