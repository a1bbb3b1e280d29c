package gpu

import (
	"time"

	"golang.org/x/sys/unix"
)

// hasteNice is the niceness of an agent's thread while the target's threads are held for it: they wait until it gets a
// CPU, which on a busy host it may have to share with many.
const hasteNice = -10

// longestHaste is how long it has that niceness at a time. Then it has what it had before, for as long again: whatever
// a target asks for, its thread is in front for no more than half of the time.
const longestHaste = time.Second

// haste is the better niceness that an agent's thread has for a moment. Threads that it makes do not inherit it. It
// ends with the gates, or with the agent where the daemon was killed.
type haste struct {
	tid    int             // 0: it has none
	before *unix.SchedAttr // what it had
	began  uint64          // ns
	again  uint64          // ns: not before this
}

// begin puts the thread in front. Without CAP_SYS_NICE it takes its turn.
func (h *haste) begin(tid uint32, now uint64) {
	if h.tid != 0 || tid == 0 || now < h.again {
		return
	}
	before, err := unix.SchedGetAttr(int(tid), 0)
	if err != nil || before.Policy != unix.SCHED_NORMAL || before.Nice <= hasteNice {
		return
	}
	front := *before
	front.Nice, front.Flags = hasteNice, before.Flags|unix.SCHED_FLAG_RESET_ON_FORK
	if unix.SchedSetAttr(int(tid), &front, 0) == nil {
		h.tid, h.before, h.began = int(tid), before, now
	}
}

// end gives the thread of that process back what it had.
func (h *haste) end(pid uint32, now uint64) {
	if h.tid == 0 {
		return
	}
	if threadLives(pid, uint32(h.tid)) {
		_ = unix.SchedSetAttr(h.tid, h.before, 0)
	}
	h.tid, h.again = 0, now+(now-h.began)
}
