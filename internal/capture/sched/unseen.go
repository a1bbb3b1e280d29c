package sched

import (
	"encoding/binary"
	"fmt"

	"github.com/inferscope/inferscope/bpf"
)

// unseen maps tids to what is known beyond the states of threads that were woken, or took
// a CPU, while the kernel ran no program (bpf/sched_unseen.h).
type unseen map[uint32]bpf.SchedUnseenThread

// unseen asks the kernel's own account of each thread.
func (k *kernel) unseen() (unseen, error) {
	said, err := iterate(k.objects.SchedCheck)
	if err != nil {
		return nil, fmt.Errorf("check the states of threads: %w", err)
	}
	var one bpf.SchedUnseenThread
	size := binary.Size(one)
	found := unseen{}
	for ; len(said) >= size; said = said[size:] {
		if _, err := binary.Decode(said, binary.NativeEndian, &one); err != nil {
			return nil, fmt.Errorf("decode the state of a thread: %w", err)
		}
		found[one.Tid] = one
	}
	return found, nil
}

// of returns what is known beyond the state t at the time to (ns), and whether that is anything:
// when the thread was woken, and when it took a CPU. What happened after to is 0.
func (u unseen) of(t *bpf.SchedThreadState, to uint64) (woken, in uint64, ok bool) {
	one, known := u[t.Tid]
	if !known || one.Out != t.Out {
		return 0, 0, false
	}
	if in = max(one.In, one.Out); one.In == 0 || in > to {
		in = 0
	}
	if woken = max(one.Woken, one.Out+1); one.Woken == 0 || woken > to {
		woken = 0
	}
	return woken, in, woken != 0 || in != 0
}
