package sched_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// limits are the files of a cgroup that limit it, and their content: of the controller's
// own hierarchy (cgroups of version 1), or of the only one (version 2).
type limits struct {
	controller string
	v1, v2     map[string]string
}

func tenthOfACPU() limits {
	return limits{
		"cpu",
		map[string]string{"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "5000"},
		map[string]string{"cpu.max": "5000 50000"},
	}
}

func twelveMegabytes() limits {
	return limits{
		"memory",
		map[string]string{"memory.limit_in_bytes": "12582912"},
		map[string]string{"memory.max": "12582912"},
	}
}

// cgroup makes a cgroup with these limits, and returns its folder.
func cgroup(t *testing.T, l limits) string {
	t.Helper()
	for _, try := range []struct {
		root  string
		files map[string]string
	}{{"/sys/fs/cgroup/" + l.controller, l.v1}, {"/sys/fs/cgroup", l.v2}} {
		if dir := newCgroup(t, try.root); dir != "" && fill(dir, try.files) == nil {
			return dir
		}
	}
	t.Skipf("needs a cgroup with the %s controller", l.controller)
	return ""
}

// newCgroup makes a cgroup that is removed at the end; "" where that is not to be had.
func newCgroup(t *testing.T, root string) string {
	t.Helper()
	dir := filepath.Join(root, "inferscope-test-"+strconv.Itoa(os.Getpid()))
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil || os.Mkdir(dir, 0o755) != nil {
		return ""
	}
	t.Cleanup(func() {
		for range 100 { // the kernel may take a moment to forget who was in it
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return dir
}

func fill(dir string, files map[string]string) error {
	for file, value := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

func move(t *testing.T, pid uint32, dir string) {
	t.Helper()
	if err := fill(dir, map[string]string{"cgroup.procs": strconv.Itoa(int(pid))}); err != nil {
		t.Skip("cannot move a process: ", err)
	}
}

func TestThrottledByACgroup(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	dir := cgroup(t, tenthOfACPU()) // before the waiter: it is removed after the waiter has ended
	v := behave(t, "busy")
	move(t, v.pid, dir)
	w := newWatch(t, sched.Options{}, v.pid)
	w.last(2 * window)
	s := w.look()
	th := s.thread(v.pid)
	if s.share(th.Totals[threads.Running]) > 0.3 || s.share(th.Totals[threads.Runnable]) < 0.7 ||
		th.Totals[threads.Blocked] != 0 {
		t.Errorf("with a tenth of a CPU: %s", s.describe(th))
	}
}

// counter returns a counter of a cgroup file in ns: the number behind one of the words.
func counter(t *testing.T, file string, words map[string]uint64) uint64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Skip("needs the counters of the cgroup: ", err)
	}
	fields := strings.Fields(strings.ReplaceAll(string(text), "=", " "))
	for i, f := range fields[:max(1, len(fields))-1] {
		if unit := words[f]; unit != 0 {
			n, err := strconv.ParseUint(fields[i+1], 10, 64)
			must.NoError(t, err)
			return n * unit
		}
	}
	t.Skipf("%s has none of the counters", file)
	return 0
}

// summary returns what a report is made of, of the last so many ns, and the report.
func summary(t *testing.T, d *daemon.Daemon, pid uint32, last time.Duration) (*cpu.Summary, string) {
	t.Helper()
	recording, err := d.Record(context.Background(), api.Asker{Any: true}, pid, last, 0)
	must.NoError(t, err)
	defer recording.Release()
	rec := streamed(t, recording)
	var text bytes.Buffer
	must.NoError(t, report.Markdown(&text, report.New(rec)))
	return cpu.Summarize(rec), text.String()
}

// within reports whether two figures differ by at most so much of the second, or by so much at all.
func within(got, want uint64, part float64, slack uint64) bool {
	return max(got, want)-min(got, want) <= max(uint64(part*float64(want)), slack)
}

// The time that a quota took away is what cpu.stat says, and the report gives it as the
// reason why the thread was ready without a CPU.
func TestThrottlingIsTheReason(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	dir := cgroup(t, tenthOfACPU())
	v := behave(t, "busy")
	move(t, v.pid, dir)
	d := serve(t, v.pid)
	throttled := func() uint64 {
		return counter(t, filepath.Join(dir, "cpu.stat"),
			map[string]uint64{"throttled_time": 1, "throttled_usec": 1000})
	}
	time.Sleep(200 * time.Millisecond)
	before := throttled()
	time.Sleep(1500 * time.Millisecond)
	truth := throttled() - before
	s, text := summary(t, d, v.pid, 1500*time.Millisecond)
	if p := &s.Pressure; !p.Known || !within(p.Throttled, truth, 0.15, 0) || p.Periods < 10 {
		t.Errorf("throttled for %d ns in %d periods of a window of %d; cpu.stat says %d",
			p.Throttled, p.Periods, s.Length, truth)
	}
	if th := s.Threads[0]; float64(th.Runnable) < 0.7*float64(s.Length) || th.Blocked != 0 {
		t.Errorf("the thread %+v was not ready all the time", th)
	}
	// The CPU goes idle, or on a busy machine to somebody else.
	if len(s.Pressure.Takers) == 0 {
		t.Error("nobody took the CPU")
	}
	for _, want := range []string{"Throttled", "the cgroup used up its CPU quota", "ready, but without a CPU"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
}

// The time for which a cgroup with little memory stalled is what its memory.pressure says.
func TestMemoryPressure(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	dir, stalls := cgroup(t, twelveMegabytes()), ""
	if stalls = dir; strings.HasPrefix(dir, "/sys/fs/cgroup/memory") { // stalls are counted in the other hierarchy
		if stalls = newCgroup(t, "/sys/fs/cgroup/unified"); stalls == "" {
			t.Skip("needs a cgroup of version 2")
		}
	}
	v := behave(t, "thrash", onDisk(t))
	move(t, v.pid, dir)
	if stalls != dir {
		move(t, v.pid, stalls)
	}
	fmt.Fprintln(v.in)
	d := serve(t, v.pid)
	stalled := func() uint64 {
		return counter(t, filepath.Join(stalls, "memory.pressure"), map[string]uint64{"total": 1000})
	}
	time.Sleep(500 * time.Millisecond)
	before := stalled()
	time.Sleep(1500 * time.Millisecond)
	truth := stalled() - before
	if truth == 0 {
		t.Skip("the kernel keeps the file in memory whatever the limit")
	}
	s, text := summary(t, d, v.pid, 1500*time.Millisecond)
	if p := &s.Pressure; !p.Known || !within(p.MemoryStall, truth, 0.5, uint64(20*time.Millisecond)) {
		t.Errorf("stalled for %d ns; memory.pressure says %d", p.MemoryStall, truth)
	}
	if said := strings.Contains(text, "stalls for want of memory"); said != (100*s.Pressure.MemoryStall >= s.Length) {
		t.Errorf("the report tells of %d ns in %d: %v\n%s", s.Pressure.MemoryStall, s.Length, said, text)
	}
}
