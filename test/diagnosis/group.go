package diagnosis

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// group is a cgroup of the cpu controller, of either version.
type group struct {
	path string
	v2   bool
}

const (
	period = 100 * time.Millisecond // of the quota: the kernel's default (Documentation/scheduler/sched-bwc.rst)
	// weight is a hundred times the usual share of the CPU (1,024 in version 1, 100 in version 2, where it is the most
	// there is).
	weight = 100
)

// newGroup makes a cgroup that is removed at the end of the test.
func newGroup(tb testing.TB) (group, error) {
	tb.Helper()
	g, root := group{}, "/sys/fs/cgroup/cpu"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		g.v2, root = true, "/sys/fs/cgroup"
	}
	path, err := os.MkdirTemp(root, "inferscope-test-")
	if err != nil {
		return g, fmt.Errorf("make a cgroup: %w", err)
	}
	g.path = path
	tb.Cleanup(g.remove)
	return g, nil
}

func (g group) write(file, text string) error {
	if err := os.WriteFile(filepath.Join(g.path, file), []byte(text), 0o600); err != nil {
		return fmt.Errorf("set up a cgroup: %w", err)
	}
	return nil
}

func (g group) move(pid int) error { return g.write("cgroup.procs", strconv.Itoa(pid)) }

// limit gives the group so many percent of a CPU.
func (g group) limit(percent int) error {
	quota := int(period.Microseconds()) * percent / 100
	if g.v2 {
		return g.write("cpu.max", fmt.Sprintf("%d %d", quota, period.Microseconds()))
	}
	return g.write("cpu.cfs_quota_us", strconv.Itoa(quota))
}

// throttled returns for how long the quota was used up so far, in ns of its threads.
func (g group) throttled() uint64 {
	text, _ := os.ReadFile(filepath.Join(g.path, "cpu.stat")) // no file: no quota
	for line := range strings.Lines(string(text)) {
		var n uint64
		if _, err := fmt.Sscanf(line, "throttled_time %d", &n); err == nil {
			return n
		}
		if _, err := fmt.Sscanf(line, "throttled_usec %d", &n); err == nil {
			return n * 1000
		}
	}
	return 0
}

// prefer gives the group a multiple of the usual share of the CPUs.
func (g group) prefer(times int) error {
	if g.v2 {
		return g.write("cpu.weight", strconv.Itoa(100*times))
	}
	return g.write("cpu.shares", strconv.Itoa(1024*times))
}

// remove waits for the group's processes to be gone.
func (g group) remove() {
	for range 50 {
		if os.Remove(g.path) == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// forward puts this process, and with it all that it starts, before what else runs on the machine: that is not what is
// measured. Where that cannot be done, the truth says for how long the programs had no CPU. It returns the group of the
// others.
func forward(tb testing.TB) group {
	tb.Helper()
	g, err := newGroup(tb)
	if err == nil {
		err = g.prefer(weight)
	}
	if err == nil {
		err = g.move(os.Getpid())
	}
	if err != nil {
		tb.Logf("other programs may take CPUs away: %v", err)
	}
	usual := group{path: filepath.Dir(g.path), v2: g.v2}
	tb.Cleanup(func() { _ = usual.move(os.Getpid()) })
	return usual
}
