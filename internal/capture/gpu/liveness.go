package gpu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A liveness lets the kernel tell agents that this process has ended, however it ended: the wake word
// of each ring is a robust futex (set_robust_list(2), Documentation/locking/robust-futex-ABI in Linux)
// of one thread that lives as long as the liveness. When it ends the kernel takes its id out of those
// words, sets futexOwnerDied, and wakes who waits: the agents. A heartbeat tells them of a daemon that
// hangs, and of one that could make no liveness.
//
// The kernel walks a list that begins in the thread and goes through one node for each futex, all of them
// at the same distance from theirs. The list must not go through memory that a target can write, so
// each ring is mapped behind a page of this process's own, which holds the node.
type liveness struct {
	tid  uint32
	mu   sync.Mutex // of changes of the list; the kernel may read it at any time
	head *robustHead
	over chan struct{} // closed to end the thread
	gone chan struct{} // closed when it is about to end
}

// robustHead is struct robust_list_head of linux/futex.h. It and the nodes lie outside of Go's memory.
type robustHead struct {
	next    uintptr // the first node, or the head itself
	offset  int64   // from a node to its futex, bytes
	pending uintptr
}

// robustNode is struct robust_list.
type robustNode struct{ next uintptr }

// Of linux/futex.h.
const (
	futexWaiters   = 0x80000000
	futexOwnerDied = 0x40000000
	futexTID       = 0x3fffffff
)

// nodeBefore is how far before a ring its node lies, bytes.
const nodeBefore = 64

// newLiveness begins one. Its error says why the kernel has none.
func newLiveness() (*liveness, error) {
	page, err := unix.MmapPtr(
		-1,
		0,
		nil,
		unsafe.Sizeof(robustHead{}),
		unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS,
	)
	if err != nil {
		return nil, fmt.Errorf("a page for a list of robust futexes: %w", err)
	}
	l := &liveness{head: (*robustHead)(page), over: make(chan struct{}), gone: make(chan struct{})}
	l.head.next, l.head.offset = uintptr(page), nodeBefore+ringWake
	begun := make(chan error)
	go l.live(begun)
	if err := <-begun; err != nil {
		return nil, errors.Join(
			fmt.Errorf("set_robust_list: %w", err),
			unix.MunmapPtr(page, unsafe.Sizeof(robustHead{})),
		)
	}
	return l, nil
}

// live is the thread. It ends with the goroutine, which never unlocks it.
func (l *liveness) live(begun chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the first thread does not end with its goroutine, but with the process
		go l.live(begun)
		<-l.gone
		runtime.UnlockOSThread()
		return
	}
	defer close(l.gone)
	l.tid = uint32(unix.Gettid())
	_, _, errno := unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, uintptr(unsafe.Pointer(l.head)), unsafe.Sizeof(*l.head), 0)
	if errno != 0 {
		begun <- errno
		return
	}
	begun <- nil
	<-l.over
}

// hold makes a ring's wake word one of the liveness's.
func (l *liveness) hold(r *ring) {
	if l == nil || r.node == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.node.next = l.head.next
	r.life = l.tid | futexWaiters
	r.wake()
	atomic.StoreUintptr(&l.head.next, uintptr(unsafe.Pointer(r.node))) // whole from the first moment on
}

// release takes a ring off the list, before its memory goes.
func (l *liveness) release(r *ring) {
	if l == nil || r.node == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := &l.head.next
	for *at != uintptr(unsafe.Pointer(l.head)) {
		node := (*robustNode)(pointer(*at))
		if node == r.node {
			atomic.StoreUintptr(at, node.next)
			return
		}
		at = &node.next
	}
}

// pointer makes a pointer of an address outside of Go's memory, which the collector neither moves nor frees.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// end ends the thread: for agents that are there still, this process is gone. The list stays where it is: the kernel is
// about to read it.
func (l *liveness) end() {
	if l != nil {
		close(l.over)
		<-l.gone
	}
}
