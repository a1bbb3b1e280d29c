package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

const (
	drainCalls = 50_000 // 72 bytes each fit into one CPU's ring, 4 MiB by default
	goalDrain  = 20.0   // ns per event
)

// drainCosts measures the reader on events that our program has written on the
// driver's CPU, so that each is fetched from there as in real life.
func drainCosts(ctx context.Context, l *lab, t *table) error {
	l.say("drain")
	path := l.sim.Libcuda(cudasim.Shape580)
	target, err := l.start(ctx, path)
	if err != nil {
		return err
	}
	defer target.stop()
	if err := avoid(l.cpu); err != nil {
		return err
	}
	o, err := newOurs("")
	if err != nil {
		return err
	}
	defer func() { _ = o.close() }()
	o.fill()
	off, err := o.probeLaunches(path, target.pid)
	if err != nil {
		return err
	}
	defer off()
	var read, kept []float64
	for i := range 2 * (l.rounds + 1) {
		f := o.drain
		if i%2 == 0 {
			f = o.discard
		}
		ns, err := drainOnce(target, f)
		if err == nil {
			err = o.lost()
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
		switch {
		case i < 2: // the first of each touches memory for the first time
		case i%2 == 0:
			read = append(read, ns)
		default:
			kept = append(kept, ns)
		}
	}
	ns := overhead.Median(read)
	t.title("Drain of %d events that our probe wrote on another CPU (CPU time of the reader)", drainCalls)
	t.held("ring reader", fmt.Sprintf("%.1f ns", ns), "per event",
		fmt.Sprintf("<= %.0f ns", goalDrain), ns <= goalDrain)
	t.add("ring reader and recorder", fmt.Sprintf("%.1f ns", overhead.Median(kept)),
		"per event, once the recorder has taken all its memory")
	return nil
}

// fill makes the recorder take all its memory, which costs more per event than all the rest. What fills it
// is of now: what had expired would be let go of, and its memory given back, with the first event that is read.
func (o *ours) fill() {
	batch := make([]event.Event, 256)
	for i := range batch {
		batch[i].TS = clock.Monotonic()
	}
	for range recorderBytes / event.Size / len(batch) {
		o.recorder.Append(batch...)
	}
}

// drainOnce has the target fill the rings and measures how f empties them.
func drainOnce(target *driver, f func() int) (nsPerEvent float64, err error) {
	if _, err := target.call("call", drainCalls); err != nil {
		return 0, err
	}
	took, n := threadTime(f)
	if n != drainCalls {
		return 0, fmt.Errorf("%d calls were made and %d drained", drainCalls, n)
	}
	return float64(took) / float64(n), nil
}

// discard drains and reads a word of each event, as whoever drains must.
func (o *ours) discard() int {
	var sum uint64
	n := o.rings.Drain(func(batch []event.Event) {
		for i := range batch {
			sum += batch[i].Args[0]
		}
	})
	o.sum += sum
	return n
}

// probeLaunches puts our program on cuLaunchKernel, and leaves draining to the caller.
func (o *ours) probeLaunches(path string, pid uint32) (off func(), err error) {
	all, err := exports(path)
	if err != nil {
		return nil, err
	}
	f, err := find(all, launchName)
	if err != nil {
		return nil, err
	}
	site, err := f.site(0)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	at, err := o.attacher.Attach(file, pid, []uprobe.Site{site})
	if err != nil {
		return nil, err
	}
	return func() { _ = at.Close() }, nil
}

// threadTime runs f and returns the CPU time that its thread took for it.
func threadTime(f func() int) (time.Duration, int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := threadClock()
	n := f()
	return threadClock() - from, n
}

// threadClock is the CPU time of the calling thread.
func threadClock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // it cannot fail: the clock exists
	return time.Duration(t.Nano())
}

// avoid moves every thread of this process, and with them those that come later, off
// a CPU; -1 is none.
func avoid(cpu int) error {
	if cpu < 0 {
		return nil
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("ask for the CPUs of this process: %w", err)
	}
	set.Clear(cpu)
	if set.Count() == 0 {
		return nil
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list own threads: %w", err)
	}
	for _, t := range threads {
		var tid int
		if _, err := fmt.Sscan(t.Name(), &tid); err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move thread %d off CPU %d: %w", tid, cpu, err)
		}
	}
	return nil
}
