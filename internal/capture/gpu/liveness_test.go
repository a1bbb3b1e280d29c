package gpu

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// mappedRing maps a ring twice: as the daemon does, and as a process does that waits.
func mappedRing(t *testing.T) (ours *ring, theirs *uint32) {
	t.Helper()
	const slots = 64
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, ringData+slots*slotBytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var rings [2]*ring
	for i := range rings {
		if rings[i], err = mapRing(fd, slots); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = rings[i].close() })
	}
	return rings[0], rings[1].u32(ringWake)
}

// TestLiveness: of three rings, one of which was let go, two hear that the thread has ended, from
// the kernel, and until then every wake changes their words.
func TestLiveness(t *testing.T) {
	l, err := newLiveness()
	if err != nil {
		t.Fatal(err)
	}
	var rings [3]*ring
	var words [3]*uint32
	for i := range rings {
		rings[i], words[i] = mappedRing(t)
		l.hold(rings[i])
	}
	l.release(rings[1])
	for range 3 {
		before := atomic.LoadUint32(words[0])
		rings[0].wake()
		if now := atomic.LoadUint32(words[0]); now == before || now&futexTID != l.tid {
			t.Fatalf("a wake makes %#x of %#x, for thread %#x", now, before, l.tid)
		}
	}
	woken := make(chan uint32)
	word := words[2]
	go func() {
		for seen := atomic.LoadUint32(word); seen&futexTID != 0; seen = atomic.LoadUint32(word) {
			waitFutex(word, seen)
		}
		woken <- atomic.LoadUint32(word)
	}()
	time.Sleep(10 * time.Millisecond) // it waits, as a rule; the test holds where it does not
	l.end()
	select {
	case got := <-woken:
		if got != futexWaiters|futexOwnerDied {
			t.Errorf("the word is %#x at the end", got)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("nobody was woken; the word is %#x", atomic.LoadUint32(word))
	}
	// The kernel goes from the last ring to the first, and may be on its way.
	eventually(t, "the first ring's word to say so", func() bool { return atomic.LoadUint32(words[0])&futexTID == 0 })
	if got := atomic.LoadUint32(words[1]); got&futexTID != l.tid {
		t.Errorf("the word of a ring that was let go is %#x at the end", got)
	}
}

// waitFutex waits, without an end, while the word has a value.
func waitFutex(word *uint32, value uint32) {
	const futexWait = 0
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), 0, 0, 0)
}

// TestAgentHearsOfTheEnd: the agent leaves although the heart still beats, because the kernel has told it
// that the daemon's thread is gone. (The daemon, which is there, then brings it in again.)
func TestAgentHearsOfTheEnd(t *testing.T) {
	v := cudasim.Start(t, cudasim.Options{}, "until { launch 3; sync; sleep 1ms }")
	s := newTestSource(t, simOptions(t, Continuous))
	watch(t, s, v)
	var got collector
	drain(t, s, &got, "kernels", func() bool { return len(got.of(event.Kernel)) > 0 })
	s.mu.Lock()
	life := s.life
	s.life = nil // it is not ended twice
	s.mu.Unlock()
	life.end()
	eventually(t, "the agent's thread is gone", func() bool { return !hasThread(t, v.PID, "inferscope") })
}
