package proc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"golang.org/x/sys/unix"
)

// recordPause is how long records gather after the first. It leaves 80 of the
// promised 100 ms to whoever attaches, and makes one change of all the libraries
// that a program loads one after the other.
const recordPause = 20 * time.Millisecond

// mapRecords reads the mmap2 records of one dummy perf event per CPU: the kernel
// writes one for each executable mapping of any process, and nothing else. The
// first wakes us up, at most 50 times a second. A timer instead would cost 0.5%
// of a core for ever (a wake-up of a Go program: 100 to 130 µs on the 2-core
// development machine), though an inference server maps nothing for hours.
type mapRecords struct {
	online string // file that lists the CPUs that are online
	rings  []*mapRing
	on     bool
	epoll  int
	end    int           // eventfd that ends the wait
	due    chan struct{} // there are records
	ended  chan struct{} // closed when nobody waits any more
	quit   chan struct{} // closed to end the wait
}

func openMapRecords(online string) (*mapRecords, error) {
	cpus, err := procfile.CPUs(online)
	if err != nil {
		return nil, err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("waiting for mappings: %w", err)
	}
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for mappings: %w", err), unix.Close(epoll))
	}
	m := &mapRecords{
		online: online, epoll: epoll, end: end,
		due: make(chan struct{}), ended: make(chan struct{}), quit: make(chan struct{}),
	}
	err = m.await(end)
	for _, cpu := range cpus {
		if err == nil {
			err = m.open(cpu)
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.release())
	}
	go m.wait()
	return m, nil
}

// await adds a descriptor to those that wait returns for.
func (m *mapRecords) await(fd int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(m.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("waiting for mappings: %w", err)
	}
	return nil
}

func (m *mapRecords) open(cpu int) error {
	ring, err := openMapRing(cpu)
	if errors.Is(err, unix.ENODEV) { // went offline just now
		return nil
	}
	if err == nil {
		if err = m.await(ring.fd); err == nil && m.on {
			err = ring.watch(true)
		}
		if err != nil {
			_ = ring.close()
		}
	}
	if err != nil {
		return fmt.Errorf("watching mappings on CPU %d: %w", cpu, err)
	}
	m.rings = append(m.rings, ring)
	return nil
}

// wait signals that there are records, a while after the first.
func (m *mapRecords) wait() {
	defer close(m.ended)
	events := make([]unix.EpollEvent, 64)
	for {
		if !m.poll(events, -1) {
			return
		}
		time.Sleep(recordPause)
		// What woke us and what came since is taken by the drain that follows.
		if !m.poll(events, 0) {
			return
		}
		select {
		case m.due <- struct{}{}:
		case <-m.quit:
			return
		}
	}
}

// poll waits for records; false when there is nothing to wait for any more. The
// kernel forgets with the answer that there were any (perf_poll), so that it
// does not matter whether all CPUs fit into events.
func (m *mapRecords) poll(events []unix.EpollEvent, timeout int) bool {
	for {
		n, err := unix.EpollWait(m.epoll, events, timeout)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		ending := slices.ContainsFunc(events[:max(n, 0)], func(e unix.EpollEvent) bool { return e.Fd == int32(m.end) })
		return err == nil && !ending
	}
}

func (m *mapRecords) signal() <-chan struct{} { return m.due }
func (m *mapRecords) detail() string          { return "" }

func (m *mapRecords) watch(on bool) error {
	m.on = on
	var errs []error
	for _, ring := range m.rings {
		errs = append(errs, ring.watch(on))
	}
	return errors.Join(errs...)
}

func (m *mapRecords) drain(live map[uint32]*entry, changed func(*entry, uint64), found func(uint32)) bool {
	lost := false
	for _, ring := range m.rings {
		lost = ring.drain(func(pid uint32, at uint64, path []byte) {
			if e := live[pid]; e != nil {
				changed(e, at)
			} else if isDriver(string(path[bytes.LastIndexByte(path, '/')+1:])) {
				found(pid)
			}
		}) || lost
	}
	return lost
}

// refresh follows CPUs that come and go. The event of a CPU that went offline
// stays dead when the CPU is back, so it is given up at once; what was mapped on
// a CPU before it was watched went unseen.
func (m *mapRecords) refresh() bool {
	cpus, err := procfile.CPUs(m.online)
	if err != nil {
		return false
	}
	changed := false
	m.rings = slices.DeleteFunc(m.rings, func(r *mapRing) bool {
		if slices.Contains(cpus, r.cpu) {
			return false
		}
		_ = r.close()
		changed = true
		return true
	})
	for _, cpu := range cpus {
		known := slices.ContainsFunc(m.rings, func(r *mapRing) bool { return r.cpu == cpu })
		if !known && m.open(cpu) == nil {
			changed = true
		}
	}
	return changed
}

func (m *mapRecords) close() error {
	close(m.quit)
	_, err := unix.Write(m.end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	if err != nil { // then it waits for ever, and must keep what it waits on
		return fmt.Errorf("ending the wait for mappings: %w", err)
	}
	<-m.ended
	return m.release()
}

func (m *mapRecords) release() error {
	errs := []error{unix.Close(m.epoll), unix.Close(m.end)}
	for _, ring := range m.rings {
		errs = append(errs, ring.close())
	}
	m.rings = nil
	return errors.Join(errs...)
}
