package gpu

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// crowd keeps a CPU busy with n threads until the returned function is called.
func crowd(t *testing.T, cpu, n int) (end func()) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	for range n {
		go func() {
			defer func() { done <- struct{}{} }()
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			set := unix.CPUSet{}
			set.Set(cpu)
			_ = unix.SchedSetaffinity(0, &set)
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	return func() {
		close(stop)
		for range n {
			<-done
		}
	}
}

// TestStarvedThreadDoesNotFinalize: a thread that launches graphs and hardly gets a CPU would hold others for long
// while it removes CUPTI. Windows end otherwise, and are finalized again when it gets one.
func TestStarvedThreadDoesNotFinalize(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 50*time.Millisecond, 100*time.Millisecond, gates(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"},
		"stream-new nonblocking; graph 8 stream=1 kernel=n_us1; until { graph-launch stream=1; ssync stream=1; spin "+
			"50us }")
	tid := int(v.PID)
	schedule := func(policy uint32, priority uint32, nice int32) {
		a := unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority, Nice: nice,
			Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		}
		if err := unix.SchedSetAttr(tid, &a, 0); err != nil {
			t.Fatal(err)
		}
	}
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "an agent", func() bool { return ringOf(s, p) != nil })
	schedule(unix.SCHED_FIFO, 1, 0)
	of := func() recording.AgentStatus { return s.Agents()[0] }
	finalized := func() uint64 { a := of(); return a.Windows - a.Disabled - a.Kept }
	drain(t, s, &got, "a finalized window", func() bool { return finalized() > 0 })

	cpu := 0
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &all); err != nil {
		t.Fatal(err)
	}
	for !all.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &one); err != nil {
		t.Fatal(err)
	}
	schedule(unix.SCHED_NORMAL, 0, 19)
	end := crowd(t, cpu, 2)
	drain(t, s, &got, "windows that are not finalized, and word of it",
		func() bool { return of().Starved > 2 && strings.Contains(of().Detail, "waits for CPUs") })
	a, before := of(), finalized()
	if a.Starved > a.Disabled+a.Kept {
		t.Errorf("of %d windows %d are disabled, %d kept, %d starved", a.Windows, a.Disabled, a.Kept, a.Starved)
	}
	end()
	schedule(unix.SCHED_FIFO, 1, 0)
	if err := unix.SchedSetaffinity(tid, &all); err != nil {
		t.Fatal(err)
	}
	drain(t, s, &got, "a window that is finalized again", func() bool { return finalized() > before })
	drain(t, s, &got, "no word of it", func() bool { return !strings.Contains(of().Detail, "waits for CPUs") })
	if n := v.Truth().FailedCount("cuGraphLaunch"); n > 0 || !p.Alive() {
		t.Errorf("%d launches failed; alive: %v", n, p.Alive())
	}
	if h := of().Sections; h == nil || h.Work.Sum == 0 || h.CPUWait.Sum == 0 {
		t.Errorf("the sections are %+v", h)
	}
}

// TestSectionParts: the parts of a critical section add up to it, whatever the agent says of them.
func TestSectionParts(t *testing.T) {
	const ms = 1_000_000
	sum := func(s *recording.Sections) uint64 { return s.Drain.Sum + s.CPUWait.Sum + s.Work.Sum }
	for _, c := range []struct {
		dur, drain, early, late uint64
		want                    recording.Sections
	}{
		{30 * ms, 4 * ms, ms, 24 * ms, recording.Sections{
			Drain:   recording.Times{Counts: [5]uint32{0, 0, 1}, Sum: 3 * ms, Longest: 3 * ms},
			CPUWait: recording.Times{Counts: [5]uint32{0, 0, 0, 0, 1}, Sum: 25 * ms, Longest: 25 * ms},
			Work:    recording.Times{Counts: [5]uint32{0, 1}, Sum: 2 * ms, Longest: 2 * ms},
		}},
		{3 * ms, ms, 1 << 60, 1 << 60, recording.Sections{
			Drain:   recording.Times{Counts: [5]uint32{1}},
			CPUWait: recording.Times{Counts: [5]uint32{0, 0, 1}, Sum: 3 * ms, Longest: 3 * ms},
			Work:    recording.Times{Counts: [5]uint32{1}},
		}},
	} {
		d := decoder{facts: newFacts(1), now: 1_000 * ms, pid: 1}
		args := [4]uint64{c.drain, c.early, c.late}
		e := event.Event{Kind: event.Kind(kindHold), TS: 500 * ms, Dur: c.dur, Args: args}
		d.decode(&e)
		if got := d.facts.held(); got == nil || *got != c.want || sum(got) != c.dur || d.count.malformed != 0 {
			t.Errorf("%+v makes %+v, want %+v", c, got, c.want)
		}
	}
	d := decoder{facts: newFacts(1), now: 1_000 * ms, pid: 1}
	d.decode(&event.Event{Kind: event.Kind(kindHold), TS: 500 * ms, Dur: 1, Args: [4]uint64{2}})
	if d.count.malformed != 1 || d.facts.held() != nil {
		t.Errorf("a drain longer than its section: %d malformed, %+v", d.count.malformed, d.facts.held())
	}
}
