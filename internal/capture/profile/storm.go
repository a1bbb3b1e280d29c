package profile

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// switchNS returns what a thread's events add to each of its switches, in ns: the kernel takes
// them off the CPU and puts them on it again, and sets a timer, which is the sooner due the
// higher the frequency. From BenchmarkSwitches at 1, 99 and 2,000 Hz in a virtual machine,
// where setting a timer is dear.
func switchNS(hz int) float64 { return 2600 + 6*float64(hz) }

// slice is for how long a process that is in a storm is sampled at a time; one that is not is
// looked at each calm. No pause is longer than longest, which is long enough for 600,000 switches
// a second and a budget of 2%: some samples are needed.
const (
	slice              = 100 * time.Millisecond
	stormCheckInterval = 10 * slice
	longest            = 100 * slice
)

// storm keeps what sampling adds to the switches of one process within the budget: a process
// that switches so often that it would be more is sampled in slices, with pauses between.
type storm struct {
	since  uint64        // ns of CLOCK_MONOTONIC, when it began to be sampled or paused
	before uint64        // its switches then
	pause  time.Duration // between slices; 0: it is sampled all the time
	off    bool
	rate   float64 // switches a second in the last slice
	pauses uint64
}

// pauseAt returns how long a process that switches so often a second is left alone after each
// slice, for sampling it at hz to take no more than budget, a share of one CPU.
func pauseAt(rate float64, hz int, budget float64) time.Duration {
	cost := rate * switchNS(hz) / 1e9
	return time.Duration(min(max(0, (cost/budget-1)*float64(slice)), float64(longest)))
}

// boundStorms looks at each CPU, or at each process where events are of threads, until ctx ends:
// often while one of them is in a storm.
func (s *Source) boundStorms(ctx context.Context) {
	for next := stormCheckInterval; ; next = s.lookForStorms() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// lookForStorms returns when to look again.
func (s *Source) lookForStorms() time.Duration {
	if s.cpus != nil {
		s.cpus.look(time.Now())
		return lookForSwitches
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := stormCheckInterval
	for _, q := range s.procs {
		if !q.opened {
			continue
		}
		q.storm.look(q.threads, s.opts.Budget, clock.Monotonic())
		q.left = q.threads.left
		if q.storm.pause > 0 {
			next = slice
		}
	}
	return next
}

// look pauses a process at the end of a slice, or lets it be sampled again.
//
// Its events are closed for a pause: the kernel looks through those of a thread at each
// switch also when they are off.
func (m *storm) look(t *threads, budget float64, now uint64) {
	took := time.Duration(now - m.since)
	switch {
	case t.hz == 0:
		*m = storm{pauses: m.pauses} // nothing is sampled
	case m.since == 0:
		m.since, m.before = now, t.switches()
	case m.off && took >= m.pause:
		_, _ = t.open() // of a process that is gone: Forget follows
		m.off, m.since, m.before = false, now, 0
	case m.off, m.pause == 0 && took < stormCheckInterval-slice:
	default:
		n := t.switches()
		m.rate = float64(n-min(n, m.before)) / took.Seconds()
		m.pause = pauseAt(m.rate, t.hz, budget)
		if m.off = m.pause > 0; m.off {
			t.close()
			m.pauses++
		}
		m.since, m.before = now, n
	}
}

// String reports how much of the time a process in a storm is sampled.
func (m *storm) String() string {
	return fmt.Sprintf(
		"it leaves its CPUs %.0f times a second, so that it is sampled for %v and then left alone for %v",
		m.rate,
		slice,
		m.pause.Round(time.Millisecond),
	)
}

// switches returns how often the threads left their CPUs while they were sampled, those
// that inherited their event included.
func (t *threads) switches() uint64 {
	at := slices.Index(t.causes, event.Switch)
	if at < 0 {
		return 0
	}
	var sum uint64
	for _, fds := range t.events {
		if at < len(fds) {
			sum += readCount(fds[at])
		}
	}
	return sum
}

// readCount reads the count of an event without a read_format (perf_event_open(2)); 0 if it cannot be read.
func readCount(fd int) uint64 {
	var b [8]byte
	if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}
