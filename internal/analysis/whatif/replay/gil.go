package replay

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// A thread that waits for the lock of a Python interpreter (GIL) wakes up each 5 ms (sys.getswitchinterval) and waits
// on. Where the lock has passed to another thread meanwhile it asks for nothing (take_gil in Python/ceval_gil.c): the
// wait is one, and ends as soon as those before it have had the lock. Where it has not, its holder is made to let go:
// the holder would have kept it, so that those 5 ms do not get shorter with what the holder does.

// mostAsking is for how long a thread runs at most between two waits that are one, ns.
const mostAsking = 100_000

// grant is the end of a wait for the lock: the place of its last interval among those of its thread, and the lane of
// the thread that let go, and when.
type grant struct {
	last, lane int32
	at         uint64
}

// granted finds the end of a wait for the lock that begins with the first of a thread's intervals; false where that is
// not known, and where a holder was made to let go.
func (w *writer) granted() (g grant, ok bool) {
	for i := range w.intervals {
		iv := &w.intervals[i]
		switch {
		case iv.State == threads.Runnable && w.b.name.WakingUp(iv),
			iv.State == threads.Running && iv.Dur() <= mostAsking:
			continue
		case iv.State != threads.Blocked || iv.From >= w.limit || !w.b.isGIL(iv):
			return g, ok // it has had the lock since it looked last
		case iv.To > w.limit:
			return grant{}, false
		}
		if l, at, ended := w.b.waited(w.lane, iv); ended {
			return grant{int32(i), l, at}, true
		}
		p, passed := w.b.passed(w.pid, w.lane, iv.From, iv.To)
		if !passed {
			return grant{}, false
		}
		g, ok = grant{int32(i), p.lane, iv.To}, true
	}
	return grant{}, false
}

func (b *builder) isGIL(iv *threads.Interval) bool {
	what, _ := b.name.Blocked(iv)
	return what.Cause == cause.GIL
}

// pass is that a thread got the lock from another one.
type pass struct {
	at   uint64 // ns
	lane int32  // of the thread that got it
}

// passed returns the last thread that got the lock of a process's interpreter within (from, to), but for one.
func (b *builder) passed(pid uint32, but int32, from, to uint64) (pass, bool) {
	if b.passes == nil {
		b.findPasses()
	}
	list := b.passes[pid]
	i, _ := slices.BinarySearchFunc(list, to, func(p pass, at uint64) int { return cmp.Compare(p.at, at) })
	for i--; i >= 0 && list[i].at > from; i-- {
		if list[i].lane != but {
			return list[i], true
		}
	}
	return pass{}, false
}

func (b *builder) findPasses() {
	b.passes = map[uint32][]pass{}
	for i := range b.ths {
		for _, iv := range b.clipped(&b.ths[i]) {
			if _, at, ok := b.waker(&iv); ok && b.isGIL(&iv) {
				pid := b.ths[i].PID
				b.passes[pid] = append(b.passes[pid], pass{at, int32(i)})
			}
		}
	}
	for _, list := range b.passes {
		slices.SortFunc(list, func(x, y pass) int { return cmp.Compare(x.at, y.at) })
	}
}
