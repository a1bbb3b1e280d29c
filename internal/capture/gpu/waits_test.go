package gpu

import (
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// crowd keeps a CPU busy with n processes until the returned function is called.
func crowd(t *testing.T, cpu, n int) (end func()) {
	t.Helper()
	set := unix.CPUSet{}
	set.Set(cpu)
	var all []*exec.Cmd
	end = sync.OnceFunc(func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
	t.Cleanup(end)
	for range n {
		c := exec.Command("sh", "-c", "while :; do :; done")
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		if err := unix.SchedSetaffinity(c.Process.Pid, &set); err != nil {
			t.Fatal(err)
		}
		schedule(t, c.Process.Pid, unix.SCHED_NORMAL, 0, 0) // whatever niceness this test runs at
	}
	return end
}

// schedule gives a thread a policy, a priority and a niceness.
func schedule(t *testing.T, tid int, policy, priority uint32, nice int32) {
	t.Helper()
	a := unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority, Nice: nice,
		Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}
	if err := unix.SchedSetAttr(tid, &a, 0); err != nil {
		t.Fatal(err)
	}
}

// pin leaves a thread one of its CPUs, and returns that and all that it had.
func pin(t *testing.T, tid int) (cpu int, all unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(tid, &all); err != nil {
		t.Fatal(err)
	}
	for !all.IsSet(cpu) {
		cpu++
	}
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &one); err != nil {
		t.Fatal(err)
	}
	return cpu, all
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
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "an agent", func() bool { return ringOf(s, p) != nil })
	schedule(t, tid, unix.SCHED_FIFO, 1, 0)
	of := func() recording.AgentStatus { return s.Agents()[0] }
	finalized := func() uint64 { a := of(); return a.Windows - a.Disabled - a.Kept }
	drain(t, s, &got, "a finalized window", func() bool { return finalized() > 0 })

	cpu, all := pin(t, tid)
	schedule(t, tid, unix.SCHED_NORMAL, 0, 19)
	end := crowd(t, cpu, 2)
	drain(t, s, &got, "windows that are not finalized, and word of it",
		func() bool { return of().Starved > 2 && strings.Contains(of().Detail, "waits for CPUs") })
	a, before := of(), finalized()
	if a.Starved > a.Disabled+a.Kept {
		t.Errorf("of %d windows %d are disabled, %d kept, %d starved", a.Windows, a.Disabled, a.Kept, a.Starved)
	}
	end()
	schedule(t, tid, unix.SCHED_FIFO, 1, 0)
	if err := unix.SchedSetaffinity(tid, &all); err != nil {
		t.Fatal(err)
	}
	drain(t, s, &got, "a window that is finalized again", func() bool { return finalized() > before })
	drain(t, s, &got, "no word of it", func() bool { return !strings.Contains(of().Detail, "waits for CPUs") })
	if n := v.Truth().FailedCount("cuGraphLaunch"); n > 0 || !p.Alive() {
		t.Errorf("%d launches failed; alive: %v", n, p.Alive())
	}
	if h := of().Sections; h == nil || h.Work.Sum == 0 {
		t.Errorf("the sections are %+v", h)
	}
}

// TestStarvedAgent: where the agent's own thread hardly gets a CPU, a window that is not wanted any more ends by its
// deadline, and another one, which is to remove CUPTI, opens only a period later. It is removed once there is CPU time.
func TestStarvedAgent(t *testing.T) {
	opts := simOptions(t, Continuous)
	opts.Period, opts.Deadline, opts.Gate = 2*time.Second, 300*time.Millisecond, gates(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "until { launch 3 kernel=k_us5; sync; sleep 2ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	var r *ring
	drain(t, s, &got, "an agent", func() bool { r = ringOf(s, p); return r != nil })
	in := func(state uint32) func() bool { return func() bool { return r.load32(ringState) == state } }
	drain(t, s, &got, "a window", in(stateOpen))
	s.mu.Lock()
	tid := int(s.sessions[p.ID()].agentThread())
	s.mu.Unlock()
	cpu, all := pin(t, tid)
	schedule(t, tid, unix.SCHED_BATCH, 0, 19) // no haste either
	end := crowd(t, cpu, 2)

	of := func() recording.AgentStatus { return s.Agents()[0] }
	drain(t, s, &got, "a window that is not wanted, and ends", func() bool {
		s.mu.Lock()
		if in(stateOpen)() {
			s.opts.Mode = Off
		} else if in(stateIdle)() { // it got a CPU at once, and was finalized: another one
			s.opts.Mode = Continuous
		}
		s.mu.Unlock()
		return of().Starved > 0
	})
	before := of().Windows
	drain(t, s, &got, "word of it", func() bool { return strings.Contains(of().Detail, "39), and records of that") })
	drain(t, s, &got, "another window", func() bool { return of().Windows > before })
	g, _, _ := s.GPU(p.Root, []uint32{p.PID}, p.Born, clock.Monotonic(), nil, nil)
	g.Windows = slices.DeleteFunc(g.Windows, func(w recording.GPUWindow) bool { return !w.Activity })
	if w := g.Windows; w[before].From-w[before-1].From < uint64(opts.Period) {
		t.Errorf("the windows are %+v", w)
	}
	end()
	schedule(t, tid, unix.SCHED_FIFO, 1, 0)
	if err := unix.SchedSetaffinity(tid, &all); err != nil {
		t.Fatal(err)
	}
	drain(t, s, &got, "an agent that has removed CUPTI", in(stateIdle))
	drain(t, s, &got, "no word of it", func() bool { return !strings.Contains(of().Detail, "waits for CPUs") })
	if a := of(); a.Windows == a.Kept || !p.Alive() {
		t.Errorf("the agent is %+v, alive: %v", a, p.Alive())
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
		{6 * ms, 6 * ms, ms, 0, recording.Sections{ // the agent gave up: nothing was removed
			Drain:   recording.Times{Counts: [5]uint32{0, 0, 1}, Sum: 5 * ms, Longest: 5 * ms},
			CPUWait: recording.Times{Counts: [5]uint32{1}, Sum: ms, Longest: ms},
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

// TestStarvedWindowsKeepTheirRecords: where subscribing is slow the subscription is kept, and the records of each
// window come at its end. An agent that hardly gets a CPU asks late for the gates that this needs, and waits for them.
func TestStarvedWindowsKeepTheirRecords(t *testing.T) {
	opts := simOptions(t, Windows)
	opts.On, opts.Period, opts.Gate = 50*time.Millisecond, 200*time.Millisecond, gates(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts", Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=400000000"}},
		"until { launch 20 kernel=k_us5; sync; spin 100us }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	ended := func() uint64 { return s.Agents()[0].Kept }
	drain(t, s, &got, "a kept window", func() bool { return len(s.Agents()) > 0 && ended() > 0 })
	s.mu.Lock()
	tid := int(s.sessions[p.ID()].agentThread())
	s.mu.Unlock()
	cpu, _ := pin(t, int(v.PID))
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &one); err != nil {
		t.Fatal(err)
	}
	crowd(t, cpu, 2)
	before, since := ended(), clock.Monotonic()
	drain(t, s, &got, "thirty kept windows", func() bool { return ended() >= before+30 })
	g, _, _ := s.GPU(p.Root, []uint32{p.PID}, p.Born, clock.Monotonic(), nil, nil)
	all, lost := 0, 0
	for _, w := range g.Windows {
		if w.Activity && w.From > since && w.End == kept {
			all++
			if w.Dropped > 0 {
				lost++
			}
		}
	}
	if all == 0 || lost > all/2 { // of those that do not wait, six in ten
		t.Errorf("%d of %d windows lost records", lost, all)
	}
	t.Logf("%d of %d windows lost records", lost, all)
}
