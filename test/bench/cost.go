package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// Times of one slice of a comparison.
const (
	costSlice     = 150 * time.Millisecond
	costSettle    = 30 * time.Millisecond // after a source was switched, not counted
	costWarm      = 1500 * time.Millisecond
	costMaxSlices = 20   // of one measurement
	costBudget    = 0.02 // of the daemon's default
)

// steadyLoad is a program that makes the same step again and again (testdata/steady.c).
type steadyLoad struct {
	name    string
	work    time.Duration // of a step
	threads int           // that make steps in turn

	launches, allocs int // in a step
}

// costLoads are the programs of the table. budget_check.py measures such programs under a daemon that governs.
var costLoads = []steadyLoad{
	{name: "1,000 switches/s", work: 990 * time.Microsecond, threads: 2},
	{name: "3,000 switches/s", work: 325 * time.Microsecond, threads: 2},
	{name: "10,000 switches/s", work: 97 * time.Microsecond, threads: 2},
	{name: "30,000 switches/s", work: 30 * time.Microsecond, threads: 2},
	{name: "100,000 switches/s", work: 7 * time.Microsecond, threads: 2},
	{name: "1,000 launches/s", work: 990 * time.Microsecond, threads: 1, launches: 1},
	{name: "10,000 launches/s", work: 99 * time.Microsecond, threads: 1, launches: 1},
	{name: "45,000 launches/s", work: 22 * time.Microsecond, threads: 1, launches: 1},
	{name: "300,000 launches/s", work: 3300 * time.Nanosecond, threads: 1, launches: 1},
	{name: "1,000 cuMemAlloc+cuMemFree/s", work: 990 * time.Microsecond, threads: 1, allocs: 1},
	{name: "10,000 cuMemAlloc+cuMemFree/s", work: 99 * time.Microsecond, threads: 1, allocs: 1},
	{name: "100,000 cuMemAlloc+cuMemFree/s", work: 10 * time.Microsecond, threads: 1, allocs: 1},
	{name: "1 thread, computing", work: time.Millisecond, threads: 1},
	{name: "10 threads, 3,000 switches/s", work: 325 * time.Microsecond, threads: 10},
	{name: "100 threads, 3,000 switches/s", work: 325 * time.Microsecond, threads: 100},
	{name: "1,000 threads, 3,000 switches/s", work: 325 * time.Microsecond, threads: 1000},
}

// costSource is a source, or several, as the daemon has it by default.
type costSource struct {
	name  string
	parts []follower
}

// follower is what a daemon's source is here.
type follower interface {
	Follow(p *proc.Process) error
	Forget(p *proc.Process)
	Close() error
}

// costBench is what measures all cells of the table.
type costBench struct {
	dir, program, library string
	rings                 *ring.Rings
	sources               []costSource
	samples               *profile.Source
	cpu                   int
	rounds                int
	stop                  context.CancelFunc
	drained               sync.WaitGroup
}

// costTable measures the share of its time that each source takes of a program that makes steps,
// in slices with the source on and off in the order off, on, on, off, and prints it as Markdown.
func costTable(ctx context.Context, out, said io.Writer, rounds int, only *regexp.Regexp) error {
	if os.Geteuid() != 0 {
		return errors.New("attaching probes needs root: run it with sudo")
	}
	b, err := newCostBench(ctx, rounds)
	if err != nil {
		return err
	}
	defer b.close()
	fmt.Fprintf(out, "Added CPU time: kernel %s, %s, %d CPUs, %s, load %s, %d rounds of 4 slices of %v\n\n",
		kernel(), runtime.GOARCH, runtime.NumCPU(), model(), load(), rounds, costSlice)
	head, line := "| a program with |", "|---|"
	for _, s := range b.sources {
		head, line = head+" "+s.name+" |", line+"---|"
	}
	fmt.Fprintf(out, "%s steps/s |\n%s---|\n", head, line)
	for i := range costLoads {
		l := &costLoads[i]
		if !only.MatchString(l.name) {
			continue
		}
		fmt.Fprintln(said, l.name)
		cells, rate, err := b.row(ctx, l)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		fmt.Fprintf(out, "| %s | %s | %.0f |\n", l.name, strings.Join(cells, " | "), rate)
	}
	return nil
}

func newCostBench(ctx context.Context, rounds int) (b *costBench, err error) {
	b = &costBench{rounds: rounds, cpu: runtime.NumCPU() - 1}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "inferscope-cost-"); err != nil {
		return nil, fmt.Errorf("make a folder to build in: %w", err)
	}
	sim, err := simulated()
	if err != nil {
		return nil, err
	}
	b.library = sim.Libcuda(cudasim.Shape580)
	b.program = filepath.Join(b.dir, "steady")
	cmd := exec.CommandContext(ctx, "cc", "-O2", "-Wall", "-pthread", "-o", b.program,
		filepath.Join(sim.Root, "test", "bench", "testdata", "steady.c"), "-ldl")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, text)
	}
	if b.rings, err = ring.New(ring.Options{Bytes: 64 << 20}); err != nil {
		return nil, err
	}
	if err := b.open(); err != nil {
		return nil, err
	}
	// What measures leaves the CPU of the program alone, as a daemon does on a host that has room.
	if b.cpu > 0 {
		var others unix.CPUSet
		for i := range b.cpu {
			others.Set(i)
		}
		for _, tid := range threadsOf(os.Getpid()) {
			_ = unix.SchedSetaffinity(tid, &others) // then it is in the way now and then
		}
	}
	return b, nil
}

// open makes the sources with the daemon's defaults, and begins to drain what they say.
func (b *costBench) open() error {
	var err error
	if b.samples, err = profile.New(profile.Options{
		Helper: []string{"/proc/self/exe"}, Switches: profile.DefaultSwitch, Budget: costBudget,
	}); err != nil {
		return err
	}
	b.sources = append(b.sources, costSource{"samples", []follower{b.samples}})
	switches, err := sched.New(b.rings, sched.Options{})
	if err != nil {
		return err
	}
	b.sources = append(b.sources, costSource{"thread switches", []follower{switches}})
	timed, err := cudaapi.New(b.rings, cudaapi.Options{Launches: cudaapi.LaunchesOff})
	if err != nil {
		return err
	}
	b.sources = append(b.sources, costSource{"timed calls", []follower{timed}},
		costSource{"these three", []follower{b.samples, switches, timed}})
	launches, err := cudaapi.New(b.rings, cudaapi.Options{Launches: cudaapi.LaunchesOn})
	if err != nil {
		return err
	}
	b.sources = append(b.sources, costSource{"calls with each launch", []follower{launches}})
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.drained.Go(func() {
		for ctx.Err() == nil {
			b.rings.Drain(func([]event.Event) {})
			b.samples.Feed(0, func([]event.Event) {})
			_ = rest(ctx, 10*time.Millisecond)
		}
	})
	return nil
}

func (b *costBench) close() {
	if b.stop != nil {
		b.stop()
		b.drained.Wait()
	}
	closed := map[follower]bool{}
	for _, s := range b.sources {
		for _, part := range s.parts {
			if !closed[part] {
				closed[part] = true
				_ = part.Close()
			}
		}
	}
	if b.rings != nil {
		_ = b.rings.Close()
	}
	_ = os.RemoveAll(b.dir)
}

// simulated builds the simulated CUDA.
func simulated() (cudasim.Paths, error) {
	var sim cudasim.Paths
	err := attempt(func(tb testing.TB) { sim = cudasim.Build(tb) })
	if err != nil {
		return sim, fmt.Errorf("build the simulated CUDA: %w", err)
	}
	return sim, nil
}

// steady is a running testdata/steady.c.
type steady struct {
	cmd     *exec.Cmd
	counter []byte
	p       *proc.Process
}

func (b *costBench) start(ctx context.Context, l *steadyLoad) (*steady, error) {
	path := filepath.Join(b.dir, "counter")
	if err := os.WriteFile(path, make([]byte, 8), 0o600); err != nil {
		return nil, fmt.Errorf("make the counter of steps: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the counter of steps: %w", err)
	}
	defer f.Close()
	s := &steady{}
	if s.counter, err = unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map the counter of steps: %w", err)
	}
	s.cmd = exec.CommandContext(ctx, b.program, path, fmt.Sprint(b.cpu), b.library,
		fmt.Sprint(l.work.Nanoseconds()), fmt.Sprint(l.threads), fmt.Sprint(l.launches), fmt.Sprint(l.allocs))
	s.cmd.Env = append(os.Environ(), "CUDASIM_TRUTH_LEVEL=off", "LD_LIBRARY_PATH="+filepath.Dir(b.library))
	s.cmd.Stderr = os.Stderr
	if _, err := s.cmd.StdinPipe(); err != nil { // it runs until that is closed
		return nil, fmt.Errorf("make a pipe for the program: %w", err)
	}
	outPipe, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for the program: %w", err)
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the program: %w", err)
	}
	var pid int
	if _, err := fmt.Fscanf(outPipe, "ready %d\n", &pid); err != nil {
		s.stop()
		return nil, fmt.Errorf("the program is not ready: %w", err)
	}
	if s.p, err = proc.Describe(pid); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *steady) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	if s.p != nil {
		_ = s.p.Close()
	}
	_ = unix.Munmap(s.counter)
}

func (s *steady) steps() uint64 { return binary.NativeEndian.Uint64(s.counter) }

// pace returns the CPU time of a step, in ns, over a slice. The program does nothing but compute and
// switch on one CPU, so that this is its time but for what other programs have of that CPU.
func (s *steady) pace(ctx context.Context, d time.Duration) (float64, error) {
	var n uint64
	var took time.Duration
	from, ran := s.steps(), cpuOf(s.cmd.Process.Pid)
	for range costMaxSlices { // a busy machine lets it run later
		if err := rest(ctx, d); err != nil {
			return 0, err
		}
		n, took = s.steps()-from, cpuOf(s.cmd.Process.Pid)-ran
		if took >= d/4 && n > 0 {
			return float64(took.Nanoseconds()) / float64(n), nil
		}
	}
	return 0, fmt.Errorf("it made %d steps in %v of CPU: the machine is too busy", n, took)
}

// row measures one program with every source.
func (b *costBench) row(ctx context.Context, l *steadyLoad) (cells []string, rate float64, err error) {
	s, err := b.start(ctx, l)
	if err != nil {
		return nil, 0, err
	}
	defer s.stop()
	for i := range b.sources {
		cell, base, err := b.cell(ctx, s, &b.sources[i])
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", b.sources[i].name, err)
		}
		cells, rate = append(cells, cell), 1e9/base
	}
	return cells, rate, nil
}

// cell compares slices with a source on with those around them.
func (b *costBench) cell(ctx context.Context, s *steady, source *costSource) (text string, base float64, err error) {
	// the unwinder reads its tables, and the rates are learned
	if err := b.turn(ctx, s, source, true, costWarm); err != nil {
		return "", 0, err
	}
	if err := b.turn(ctx, s, source, false, costSettle); err != nil {
		return "", 0, err
	}
	var added, offs []float64
	for range b.rounds {
		var ns [4]float64
		for i := range ns {
			on := i == 1 || i == 2
			if i == 1 || i == 3 {
				if err := b.turn(ctx, s, source, on, costSettle); err != nil {
					return "", 0, err
				}
			}
			if ns[i], err = s.pace(ctx, costSlice); err != nil {
				return "", 0, err
			}
		}
		added = append(added, 100*((ns[1]+ns[2])/(ns[0]+ns[3])-1))
		offs = append(offs, ns[0], ns[3])
	}
	mid, half := interval(added)
	return fmt.Sprintf("%+.2f ± %.2f%%", mid, half), overhead.Median(offs), nil
}

// turn switches a source on or off and lets that settle.
func (b *costBench) turn(ctx context.Context, s *steady, source *costSource, on bool, settle time.Duration) error {
	for _, part := range source.parts {
		if !on {
			part.Forget(s.p)
		} else if err := part.Follow(s.p); err != nil {
			return err
		}
	}
	return rest(ctx, settle)
}

// interval returns the median and half of its 95% interval, by order statistics: other work of the
// host changes how fast a CPU computes by more than what is measured, in some slices and not in others.
func interval(x []float64) (mid, half float64) {
	s := slices.Sorted(slices.Values(x))
	n := len(s)
	reach := int(math.Ceil(0.98 * math.Sqrt(float64(n))))
	low, high := max(0, n/2-reach), min(n-1, (n-1)/2+reach)
	return overhead.Median(s), (s[high] - s[low]) / 2
}
