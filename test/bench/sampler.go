package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/recording/event"
)

const (
	sampleHz     = 999 // ten times the default, so that a second holds enough samples
	sampleWarm   = 2 * time.Second
	sampleFor    = 5 * time.Second
	sampleDrain  = 100 * time.Millisecond // the daemon's
	sampleWait   = 60 * time.Second
	defaultHz    = profile.DefaultHz
	busyThreads  = 100
	cpuScheduled = 2 // CPUCLOCK_SCHED of include/linux/posix-timers.h
)

// sampledScript is Python that calls Python, and C that calls Python.
const sampledScript = `
def spin(n):
    x = 0
    for i in range(n):
        x += i
    return x
print("ready", flush=True)
while True:
    list(map(spin, [2000] * 20))
`

// sampleCosts measures what CPU samples cost a target, and those that read them. The
// machine has too few CPUs for 100 busy threads: a sample's cost is measured, and multiplied.
func sampleCosts(ctx context.Context, l *lab, t *table) error {
	l.say("samples of a Python thread at %d Hz", sampleHz)
	cmd := exec.CommandContext(ctx, "python3", "-c", sampledScript)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start a Python to sample: %w", err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("the Python to sample said %q: %w", line, err)
	}
	p, err := proc.Describe(cmd.Process.Pid)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	symbols := symbol.New(symbol.Options{})
	source, err := profile.New(profile.Options{Hz: sampleHz, Helper: []string{"/proc/self/exe"}, Symbols: symbols})
	if err != nil {
		return err
	}
	c, err := measureSamples(ctx, source, p)
	if err = errors.Join(err, source.Close()); err != nil {
		return err
	}
	c.print(t, symbols.Stats())
	return nil
}

// sampleCost is what some samples cost.
type sampleCost struct {
	samples, whole int
	unwinder       time.Duration // from the start until it ran
	reader, helper time.Duration // CPU
	runs           uint64        // of the BPF programs
	inTarget       time.Duration // they took
	memory         int64         // bytes, of the helper
}

func measureSamples(ctx context.Context, s *profile.Source, p *proc.Process) (*sampleCost, error) {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return nil, err
	}
	defer stats.Close()
	c, began := &sampleCost{}, time.Now()
	if err := s.Follow(p); err != nil {
		return nil, err
	}
	for len(s.Helpers()) == 0 {
		if strings.Contains(s.State().Detail, "none: ") || time.Since(began) > sampleWait {
			return nil, fmt.Errorf("sampling: %s", s.State().Detail)
		}
		if err := rest(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
	c.unwinder = time.Since(began)
	if err := c.drain(ctx, s, sampleWarm); err != nil {
		return nil, err
	}
	*c = sampleCost{unwinder: c.unwinder}
	helper := s.Helpers()[0]
	ownCPU, helperCPU := cpuOf(os.Getpid()), cpuOf(helper)
	runs, spent := programTime("sample_clock")
	if err := c.drain(ctx, s, sampleFor); err != nil {
		return nil, err
	}
	c.reader, c.helper = cpuOf(os.Getpid())-ownCPU, cpuOf(helper)-helperCPU
	c.runs, c.inTarget = programTime("sample_clock")
	c.runs, c.inTarget = c.runs-runs, c.inTarget-spent
	c.memory = residentOf(helper)
	return c, nil
}

// drain takes samples as the daemon does.
func (c *sampleCost) drain(ctx context.Context, s *profile.Source, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := rest(ctx, sampleDrain); err != nil {
			return err
		}
		s.Feed(0, func(batch []event.Event) {
			for i := range batch {
				c.samples++
				if event.StackOrigin(batch[i].Args[1]) == event.Whole {
					c.whole++
				}
			}
		})
	}
	if c.samples == 0 {
		return errors.New("no sample came")
	}
	return nil
}

func (c *sampleCost) print(t *table, s symbol.Stats) {
	each := func(d time.Duration) string { return fmt.Sprintf("%.1f us", d.Seconds()*1e6/float64(c.samples)) }
	scaled := func(d time.Duration) string {
		return fmt.Sprintf("%.2f %%", 100*d.Seconds()/float64(c.samples)*defaultHz*busyThreads)
	}
	t.title("CPU samples of a busy Python thread, %d of them, %.1f %% whole", c.samples,
		100*float64(c.whole)/float64(c.samples))
	perRun := float64(c.inTarget.Nanoseconds()) / float64(max(1, c.runs))
	t.add("a sample, in the target", fmt.Sprintf("%.1f us", perRun/1e3),
		fmt.Sprintf("%.2f %% of a busy thread at %d Hz", perRun*defaultHz/1e7, defaultHz))
	t.add("a sample, in the daemon", each(c.reader), "CPU; naming and the timer included")
	t.add("a sample, in the unwinder's process", each(c.helper), "CPU")
	t.add(fmt.Sprintf("both, %d busy threads at %d Hz", busyThreads, defaultHz), scaled(c.reader+c.helper),
		"of a core, from the rows above")
	t.add("from the start to a running unwinder", fmt.Sprintf("%.0f ms", c.unwinder.Seconds()*1e3),
		"until then: Python frames and the leaf")
	t.add("memory of the unwinder's process", fmt.Sprintf("%d MB", c.memory/1e6), "with one Python known")
	if n := s.Hits + s.Misses; n > 0 {
		t.add("symbols found in the cache", fmt.Sprintf("%.1f %%", 100*float64(s.Hits)/float64(n)),
			fmt.Sprintf("of %d that were asked for", n))
	}
}

// cpuOf returns the CPU time of a process with all its threads; 0 where it is gone.
func cpuOf(pid int) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|cpuScheduled, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

func residentOf(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, pages int64
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &pages)
	}
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// programTime adds up the runs of the BPF programs of a name, and what they took, tail calls included.
func programTime(name string) (runs uint64, took time.Duration) {
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it is gone
		}
		if info, err := program.Info(); err == nil && info.Name == name {
			if s, err := program.Stats(); err == nil {
				runs, took = runs+s.RunCount, took+s.Runtime
			}
		}
		_ = program.Close()
	}
	return runs, took
}
