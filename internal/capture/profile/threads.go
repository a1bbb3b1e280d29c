package profile

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// maxThreads bounds how many threads of one process get an event of their own;
// threads that are born later inherit theirs.
const maxThreads = 16384

// listRounds is how often the threads are listed at most while new ones appear.
const listRounds = 8

// threads are the perf events of one process, where events of CPUs are refused.
type threads struct {
	pid      uint32
	events   map[uint32][]int // by tid; descriptors
	left     refusal
	programs *programs
	clock    *ticker
	hz       int // 0: nothing is sampled
	causes   []event.SampleCause
	files    *descriptors
}

// descriptors bounds how many files the events of all processes may be: the rest of
// the daemon needs some as well.
type descriptors struct{ left atomic.Int64 }

var errDescriptors = fmt.Errorf("half of the files that this process may open are events: %w", unix.EMFILE)

// allowedDescriptors is half of what this process may open.
func allowedDescriptors() *descriptors {
	d, limit := &descriptors{}, unix.Rlimit{Cur: 2 * maxThreads}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // fails for no process of its own
	d.left.Store(int64(min(limit.Cur, 1<<20) / 2))
	return d
}

// refusal counts threads without an event of their own.
type refusal struct {
	threads int
	why     error // of the last one
}

// open samples every thread that exists and is not sampled yet. A thread that
// appears between two listings was born meanwhile, of one that had an event already
// or of one that had not: nothing says which, so it gets an event too, and the
// program drops the samples of a thread's second event.
func (t *threads) open() (refusal, error) {
	t.left = refusal{}
	if t.hz == 0 {
		return t.left, nil
	}
	for range listRounds {
		tids, err := listThreads(t.pid)
		if err != nil {
			return t.left, fmt.Errorf("list the threads of pid %d: %w", t.pid, err)
		}
		fresh := 0
		for _, tid := range tids {
			if _, ok := t.events[tid]; ok || len(t.events) >= maxThreads {
				continue
			}
			fresh++
			t.openThread(tid)
		}
		if fresh == 0 {
			break
		}
	}
	return t.left, nil
}

// openThread opens the events of one thread; a thread that is gone is none.
func (t *threads) openThread(tid uint32) {
	t.events[tid] = nil
	for _, cause := range t.causes {
		fd, err := t.openEvent(tid, cause)
		switch {
		case errors.Is(err, unix.ESRCH):
			return
		case err != nil:
			t.left = refusal{t.left.threads + 1, err}
			return
		}
		t.events[tid] = append(t.events[tid], fd)
	}
}

func (t *threads) openEvent(tid uint32, cause event.SampleCause) (int, error) {
	if t.files.left.Load() <= 0 {
		return -1, openError(errDescriptors)
	}
	fd, err := t.clock.open(tid, t.hz, cause, t.programs.program(cause).FD())
	if err == nil {
		t.files.left.Add(-1)
	}
	return fd, err
}

// close takes all events off: also those that threads inherited.
func (t *threads) close() {
	for tid, fds := range t.events {
		for _, fd := range fds {
			unix.Close(fd)
		}
		t.files.left.Add(int64(len(fds)))
		delete(t.events, tid)
	}
}

// listThreads returns the thread ids of pid. The caller knows that it is still the
// process it means, or finds out afterwards.
func listThreads(pid uint32) ([]uint32, error) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	tids := make([]uint32, 0, len(names))
	for _, name := range names {
		if tid, err := strconv.ParseUint(name, 10, 32); err == nil {
			tids = append(tids, uint32(tid))
		}
	}
	return tids, nil
}
