package target

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// mapSource notices that processes map files executable.
type mapSource interface {
	// interval is how often drain is to be called.
	interval() time.Duration
	// drain calls changed for each process of live that may have mapped a file
	// executable since the last call, with the time in CLOCK_MONOTONIC ns. It
	// reports true if any other process of live may have done so too.
	drain(live map[uint32]*entry, changed func(e *entry, at uint64)) (lost bool)
	// refresh is called each second; it reports as drain does.
	refresh() (lost bool)
	// detail says what a person should know about this source; empty if all is well.
	detail() string
	close() error
}

// newMapSource prefers the kernel's records; without the right to have them, it polls.
func newMapSource(fs *procfs, poll bool) mapSource {
	if poll {
		return &mapPoller{fs: fs, reason: "as asked for"}
	}
	records, err := openMapRecords(onlineCPUs)
	if err != nil {
		return &mapPoller{fs: fs, reason: explainPerf(err)}
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
// line of /proc/PID/status (20 µs) where the mappings themselves would be
// thousands (1 ms). It misses only a process that unmaps as much as it maps
// within an interval, which its next mapping brings to light.
type mapPoller struct {
	fs     *procfs
	reason string
}

// pollInterval keeps the promise that a library is probed within 100 ms, nearly.
const pollInterval = 80 * time.Millisecond

func (m *mapPoller) interval() time.Duration { return pollInterval }

func (m *mapPoller) drain(live map[uint32]*entry, changed func(*entry, uint64)) bool {
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

func (m *mapPoller) close() error { return nil }
