package proc

import (
	"errors"
	"fmt"
	"time"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"golang.org/x/sys/unix"
)

// mapSource notices that processes map files executable.
type mapSource interface {
	// signal is received from when drain should be called.
	signal() <-chan struct{}
	// watch reports whether there is anything to notice; off at first. Off costs nothing.
	watch(on bool) error
	// drain calls changed for each process of live that may have mapped a file
	// executable since the last call, with the time in CLOCK_MONOTONIC ns. It
	// reports true if any other process of live may have done so too. found is called
	// for each process that is not in live and has mapped the library of a GPU's
	// driver, as far as the source can see such processes.
	drain(live map[uint32]*entry, changed func(e *entry, at uint64), found func(pid uint32)) (lost bool)
	// refresh is called each second; it reports as drain does.
	refresh() (lost bool)
	// detail reports what a person should know about this source; empty if all is well.
	detail() string
	close() error
}

// newMapSource prefers the kernel's records; without the right to have them, it polls.
func newMapSource(fs *procfs, poll bool) mapSource {
	if poll {
		return newMapPoller(fs, "as asked for")
	}
	records, err := openMapRecords(procfile.OnlineCPUs)
	if err != nil {
		return newMapPoller(fs, explainPerf(err))
	}
	return records
}

func explainPerf(err error) string {
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Sprintf("perf_event_open is refused (%v): it needs CAP_PERFMON", err)
	}
	return err.Error()
}

// mapPoller asks each process how much it has mapped executable. That is one
// line of /proc/PID/status (30 µs) where the mappings themselves would be
// thousands (1 ms). It misses only a process that unmaps as much as it maps
// within an interval, which its next mapping brings to light.
type mapPoller struct {
	fs     *procfs
	reason string
	on     chan bool // closed to end
	tick   chan struct{}
}

// pollInterval leaves half of the promised 100 ms to whoever attaches. At 30 µs
// a process it costs 0.06% of a core each.
const pollInterval = 50 * time.Millisecond

func newMapPoller(fs *procfs, reason string) *mapPoller {
	m := &mapPoller{fs: fs, reason: reason, on: make(chan bool), tick: make(chan struct{})}
	go m.run()
	return m
}

// run ticks while there is something to look at.
func (m *mapPoller) run() {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	ticker.Stop()
	var due chan<- struct{}
	for {
		select {
		case on, ok := <-m.on:
			if !ok {
				return
			}
			ticker.Stop()
			if due = nil; on {
				ticker.Reset(pollInterval)
			}
		case <-ticker.C:
			due = m.tick
		case due <- struct{}{}:
			due = nil
		}
	}
}

func (m *mapPoller) signal() <-chan struct{} { return m.tick }

func (m *mapPoller) watch(on bool) error {
	m.on <- on
	return nil
}

func (m *mapPoller) drain(live map[uint32]*entry, changed func(*entry, uint64), _ func(uint32)) bool {
	for pid, e := range live {
		s, err := m.fs.status(pid)
		// The pid may be another's by now: a needless look at e's mappings then.
		if err != nil || s.exec == e.exec {
			continue
		}
		e.exec = s.exec
		changed(e, monotonic())
	}
	return false
}

func (m *mapPoller) refresh() bool { return false }

func (m *mapPoller) detail() string {
	return fmt.Sprintf("mappings are polled every %v: %s", pollInterval, m.reason)
}

func (m *mapPoller) close() error {
	close(m.on)
	return nil
}
