package diagnosis

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// laneCPUs is how many CPUs a lane has at least, and what is left over for the test itself: a program and its daemon
// disturb each other on one.
const laneCPUs = 2

// lane is where one scenario after the other runs, with its daemon, while others run in other lanes.
type lane struct {
	number int
	cpus   []int // its own; nil: all that the machine has, and there is no other lane
}

// first is the CPU of a scenario that stays on one.
func (l *lane) first() int {
	if len(l.cpus) == 0 {
		return 0
	}
	return l.cpus[0]
}

// enter makes this goroutine and all processes that it starts stay on the lane's CPUs; a process has the CPUs of the
// thread that started it. The thread ends with the goroutine.
func (l *lane) enter(t *testing.T) {
	t.Helper()
	if l.cpus == nil {
		return
	}
	runtime.LockOSThread()
	must.NoError(t, stay(0, l.cpus))
}

// stay binds a thread to CPUs; 0 is the calling one.
func stay(tid int, cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("stay on CPUs %v: %w", cpus, err)
	}
	return nil
}

// newLanes divides the CPUs that this process may use among n lanes, and leaves this process the rest: it answers
// requests and analyses.
func newLanes(n int) ([]lane, error) {
	if n <= 1 {
		return []lane{{}}, nil
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("find this process's CPUs: %w", err)
	}
	var cpus []int
	for cpu := range len(set) * strconv.IntSize {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	each, rest, err := share(cores(cpus, siblings), n)
	if err != nil {
		return nil, err
	}
	var lanes []lane
	for i, cpus := range each {
		lanes = append(lanes, lane{i, cpus})
	}
	runtime.GOMAXPROCS(len(cpus)) // lanes that look at the clock do not wait for an analysis to let go of the runtime
	return lanes, stayAll(rest)
}

// stayAll binds all threads of this process, and with them all that are born later.
func stayAll(cpus []int) error {
	for range 2 { // a thread that was born while the first pass went on is bound by the second
		threads, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			return fmt.Errorf("find this process's threads: %w", err)
		}
		for _, path := range threads {
			tid, _ := strconv.Atoi(filepath.Base(path))
			if err := stay(tid, cpus); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// siblings returns the CPUs that share a core with one: it alone where the kernel does not say
// (Documentation/admin-guide/cputopology.rst).
func siblings(cpu int) []int {
	text, _ := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	return append(parseList(string(text)), cpu)
}

// parseList reads a list of CPUs such as "0-1,8".
func parseList(text string) []int {
	var out []int
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		low, high, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(low)
		to := from
		if isRange && err == nil {
			to, err = strconv.Atoi(high)
		}
		for cpu := from; err == nil && cpu <= to; cpu++ {
			out = append(out, cpu)
		}
	}
	return out
}

// cores groups CPUs by the core that they share: what one does slows the others.
func cores(cpus []int, siblings func(int) []int) [][]int {
	var out [][]int
	seen := map[int]bool{}
	for _, cpu := range cpus {
		if seen[cpu] {
			continue
		}
		var core []int
		for _, other := range siblings(cpu) {
			if slices.Contains(cpus, other) && !seen[other] {
				core, seen[other] = append(core, other), true
			}
		}
		out = append(out, core)
	}
	return out
}

// share gives each of n lanes as many whole cores as the others, and returns those that are left over.
func share(cores [][]int, n int) (lanes [][]int, rest []int, err error) {
	threads := 1
	for _, core := range cores {
		threads = max(threads, len(core))
	}
	spare := (laneCPUs + threads - 1) / threads
	each := (len(cores) - spare) / n
	for i := range n {
		lane := slices.Concat(cores[i*max(each, 0) : (i+1)*max(each, 0)]...)
		if len(lane) < laneCPUs {
			return nil, nil, fmt.Errorf("%d cores are too few for %d lanes: ask for fewer with -lanes", len(cores), n)
		}
		lanes = append(lanes, lane)
	}
	return lanes, slices.Concat(cores[n*each:]...), nil
}

// job is a scenario that is to run, and its number.
type job struct {
	number int
	s      scenario
}

// disk reports whether it waits for the disk, which all lanes share.
func (j *job) disk() bool { return j.s.want == "disk" }

// queue holds the jobs that nobody has begun.
type queue struct {
	mu   sync.Mutex
	left []job
}

// next takes a job for a lane. Those that wait for the disk are the first lane's, so that they run one after the other.
func (q *queue) next(lane int) (job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.IndexFunc(q.left, func(j job) bool { return j.disk() == (lane == 0) })
	if at < 0 && lane == 0 && len(q.left) > 0 {
		at = 0
	}
	if at < 0 {
		return job{}, false
	}
	j := q.left[at]
	q.left = slices.Delete(q.left, at, at+1)
	return j, true
}

// sweep does all jobs, as many at once as there are lanes, and returns what came of them in their order. Each time one
// more is done, sofar is told all of them, so that a call that is cut short leaves something.
func sweep[V any](t *testing.T, lanes []lane, jobs []job, do func(*testing.T, *lane, *job) *V, sofar func([]*V)) []*V {
	t.Helper()
	q := queue{left: slices.Clone(jobs)}
	var mu sync.Mutex
	results := map[int]*V{}
	ordered := func() (all []*V) {
		for _, j := range jobs {
			if v := results[j.number]; v != nil {
				all = append(all, v)
			}
		}
		return all
	}
	var done sync.WaitGroup
	for i := range lanes {
		done.Go(func() {
			for j, ok := q.next(i); ok; j, ok = q.next(i) {
				t.Run(fmt.Sprintf("s%02d", j.number), func(t *testing.T) { // a neutral name: it is part of paths
					lanes[i].enter(t)
					v := do(t, &lanes[i], &j)
					mu.Lock()
					defer mu.Unlock()
					results[j.number] = v
					sofar(ordered())
				})
			}
		})
	}
	done.Wait()
	return ordered()
}
