package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// memoryPeriod is how often memory is looked at: what a process took and gave back within is not seen.
const memoryPeriod = 100 * time.Millisecond

// Memory follows the resident memory of a process and its children: the daemon has its
// unwinder in a process of its own.
type Memory struct {
	pid  int
	stop chan struct{}
	done sync.WaitGroup

	mu        sync.Mutex
	now, peak int64
}

// follow begins; Close ends it.
func follow(pid int) *Memory {
	m := &Memory{pid: pid, stop: make(chan struct{})}
	m.done.Go(func() {
		tick := time.NewTicker(memoryPeriod)
		defer tick.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-tick.C:
				m.look()
			}
		}
	})
	return m
}

// close ends the following.
func (m *Memory) close() {
	close(m.stop)
	m.done.Wait()
}

// Bytes returns what is resident now, and the most that was seen.
func (m *Memory) Bytes() (now, peak int64) {
	m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.peak
}

func (m *Memory) look() {
	now := Resident(m.pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
	m.peak = max(m.peak, now)
}

// Resident returns the bytes of a process and its children as the kernel shares them out
// (Pss): a physical page counts once, however many of them map it. VmRSS counts the data
// of a BPF ring twice, because it is mapped twice in a row, and the program's own pages
// once in each process. Children in but are left out: they are another program.
func Resident(pid int, but ...int) int64 {
	var sum int64
	for _, pid := range Family(pid) {
		if !slices.Contains(but, pid) {
			sum += shared(pid)
		}
	}
	return sum
}

// Family returns a process and its children (proc(5), /proc/PID/task/TID/children).
func Family(pid int) []int {
	pids := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		text, _ := os.ReadFile(path) // a thread may end meanwhile
		for field := range strings.FieldsSeq(string(text)) {
			var child int
			if n, _ := fmt.Sscan(field, &child); n == 1 {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// shared reads Pss, in bytes (proc(5), /proc/PID/smaps_rollup, Linux 4.14); 0 of a process that is gone.
func shared(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.SplitSeq(string(text), "\n") {
		var kib int64
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
