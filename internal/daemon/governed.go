package daemon

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// governed is the governor's view of one target. It implements overhead.Target.
type governed struct {
	root     uint32
	progress *overhead.Progress
	activity activity // may be nil

	mu      sync.Mutex
	pids    []uint32
	cpu     map[uint32]uint64 // by process: never less than it was
	ended   uint64            // ns of processes that have ended
	threads map[uint32]*scheduled
}

// scheduled is the last reading of a thread.
type scheduled struct {
	pid             uint32
	cpu, slices     uint64 // of schedstat
	counted, waited uint64 // slices when the switches were read, and how many of them were its own wish
	seen            bool
}

func newGoverned(root uint32, activity activity) *governed {
	return &governed{
		root:     root,
		progress: overhead.NewProgress(),
		activity: activity,
		cpu:      map[uint32]uint64{},
		threads:  map[uint32]*scheduled{},
	}
}

func (t *governed) setProcesses(pids []uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pids = pids
	for pid, ns := range t.cpu {
		if !slices.Contains(pids, pid) {
			t.ended += ns
			delete(t.cpu, pid)
		}
	}
}

func (t *governed) processes() []uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.pids)
}

// PID returns the root process.
func (t *governed) PID() uint32 { return t.root }

// Progress returns the count of the target's repeated calls.
func (t *governed) Progress() *overhead.Progress { return t.progress }

// Runs returns the probe runs of a source in all processes of the target.
func (t *governed) Runs(s overhead.Source) overhead.Runs {
	var sum overhead.Runs
	for _, pid := range t.processes() {
		sum = sum.Add(s.Runs(pid))
	}
	return sum
}

// CPU returns the CPU time of its processes so far, in ns.
func (t *governed) CPU() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.ended
	for _, pid := range t.pids {
		var at unix.Timespec
		if unix.ClockGettime(cpuClock(int(pid)), &at) == nil {
			t.cpu[pid] = max(t.cpu[pid], uint64(at.Nano()))
		}
		sum += t.cpu[pid]
	}
	return sum
}

// Limits for reading threads: one costs 5 µs, its switches 20 µs more.
const (
	maxLooked   = 256 // threads of a target
	maxSwitches = 32  // of them whose switches are read at a time
	fewSwitches = 50  // since the last time that are not worth reading
)

// Threads returns the kernel's accounting of the target's busiest and most often switched threads.
func (t *governed) Threads() []overhead.Thread {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.threads {
		s.seen = false
	}
	for _, pid := range t.pids {
		t.look(pid)
	}
	t.readSwitches()
	out := make([]overhead.Thread, 0, len(t.threads))
	for tid, s := range t.threads {
		if !s.seen {
			delete(t.threads, tid)
			continue
		}
		out = append(out, overhead.Thread{TID: tid, CPU: s.cpu, Switches: s.waited})
	}
	slices.SortFunc(out, func(a, b overhead.Thread) int { return cmp.Compare(a.TID, b.TID) })
	return out
}

// look reads how long and how often each thread of a process was on a CPU.
func (t *governed) look(pid uint32) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return // it has ended
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxLooked) // what could be read is looked at
	for _, name := range names {
		text, err := os.ReadFile(dir.Name() + "/" + name + "/schedstat")
		tid, e := strconv.ParseUint(name, 10, 32)
		fields := bytes.Fields(text)
		if err != nil || e != nil || len(fields) < 3 {
			continue
		}
		s := t.threads[uint32(tid)]
		if s == nil {
			if len(t.threads) >= 4*maxLooked {
				continue
			}
			s = &scheduled{pid: pid}
			t.threads[uint32(tid)] = s
		}
		s.seen = true
		s.cpu, _ = strconv.ParseUint(string(fields[0]), 10, 64) // the kernel writes numbers
		s.slices, _ = strconv.ParseUint(string(fields[2]), 10, 64)
	}
}

// readSwitches reads the voluntary context switches of the threads that switch most.
func (t *governed) readSwitches() {
	var busy []uint32
	for tid, s := range t.threads {
		if s.seen && s.slices-min(s.slices, s.counted) >= fewSwitches {
			busy = append(busy, tid)
		}
	}
	slices.SortFunc(busy, func(a, b uint32) int {
		return cmp.Compare(t.threads[b].slices-t.threads[b].counted, t.threads[a].slices-t.threads[a].counted)
	})
	for _, tid := range busy[:min(len(busy), maxSwitches)] {
		s := t.threads[tid]
		text, err := procfile.ReadStatus(fmt.Sprintf("/proc/%d/task/%d/status", s.pid, tid))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(text.Field("voluntary_ctxt_switches"), 10, 64); err == nil {
			s.waited, s.counted = n, s.slices
		}
	}
}

// felt is how long before and after its records a GPU window disturbs the target: CUPTI is attached and detached.
const felt = 100_000_000

// Disturbed reports whether a GPU window began or ended in [from, to] (ns).
func (t *governed) Disturbed(from, to uint64) bool {
	if t.activity == nil {
		return false
	}
	from -= min(from, felt)
	g, _, _ := t.activity.GPU(t.root, t.processes(), from, to+felt, nil, nil)
	if g == nil {
		return false
	}
	for _, w := range g.Windows {
		if w.From > from || w.To < to+felt && w.End != "open" {
			return true
		}
	}
	return false
}
