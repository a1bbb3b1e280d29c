package agent_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

const busy = "stream-new nonblocking; graph 3 stream=1 kernel=n_us1; graph-launch 5 stream=1; ssync stream=1; wait"

// replay makes a victim launch and synchronize for as long as it takes: it is killed in the end.
const replay = "repeat 100000 { launch 3 kernel=k_us5; graph-launch 2 stream=1; ssync stream=1; sleep 200us }; wait"

// TestWindows opens and ends windows in the good way while graphs are replayed, and nothing is harmed.
func TestWindows(t *testing.T) {
	p := play(t, settings{mode: modeWindows, on: 50 * time.Millisecond, period: 100 * time.Millisecond}, busy, replay)
	p.proceed()
	p.until("10 windows", func() bool { p.read(); return p.get32(ringWindows) >= 10 })
	p.mode(modeOff)
	p.until("idle", func() bool { return p.get32(ringState) == stateIdle && p.get64(ringBegan) == 0 })
	p.read()
	for _, w := range p.of(kindWindow) {
		if w.ret != endFinalized || w.dur < uint64(50*time.Millisecond) || w.args[1] != 0 || w.fn != 1 {
			t.Errorf("window %+v, want a finalized one of 50 ms or more without losses", w)
		}
	}
	steps(t, p)
	p.quit()
	inside(t, p)
	alive(t, p.victim)
}

// steps checks that each window says what its steps took, and that these are all of its way in and out.
func steps(t *testing.T, p *player) {
	t.Helper()
	windows, all := p.of(kindWindow), p.of(kindSteps)
	if len(windows) != len(all) {
		t.Fatalf("%d windows, the steps of %d", len(windows), len(all))
	}
	sum := func(args []uint64) (ns uint64) {
		for _, a := range args {
			ns += a&0xffffffff + a>>32
		}
		return ns
	}
	for i, s := range all {
		w := windows[i]
		in, out := sum(s.args[:2]), sum(s.args[2:])
		if s.ts+w.args[2] != w.ts || in > w.args[2] || out > w.args[3] || in == 0 || out == 0 {
			t.Errorf("window %+v: its steps %+v sum to %d ns on the way in, %d on the way out", w, s, in, out)
		}
	}
}

// TestPeriodIsShortened: the next window comes by a period that was shortened while it was waited for, and not by the
// one that held when the last window ended.
func TestPeriodIsShortened(t *testing.T) {
	p := play(t, settings{mode: modeWindows, on: 20 * time.Millisecond, period: time.Hour}, busy, replay)
	p.proceed()
	p.until("a window", func() bool { p.read(); return p.get32(ringWindows) == 1 })
	p.until("idle", func() bool { return p.get32(ringState) == stateIdle })
	p.put64(ringPeriod, uint64(100*time.Millisecond))
	p.wake()
	p.until("3 windows", func() bool { p.read(); return p.get32(ringWindows) >= 3 })
	p.quit()
	alive(t, p.victim)
}

// callsByID returns the calls that have ended by the numbers that records name them by.
func callsByID(truth *cudasim.Truth) map[uint64]cudasim.Call {
	calls := make(map[uint64]cudasim.Call, len(truth.Calls))
	for _, c := range truth.Calls {
		calls[c.ID&0xffffffff] = c
	}
	return calls
}

// inside checks that every kernel that was launched and ran in a window was recorded. CUPTI decides in the call whether
// there is a record: of a kernel whose call outlasts the window, however soon that kernel is over, there may be none.
func inside(t *testing.T, p *player) {
	t.Helper()
	truth := p.victim.Truth()
	calls, got := callsByID(truth), map[uint64]int{}
	for _, s := range p.of(kindKernel) {
		got[s.args[0]&0xffffffff]++
	}
	missing := 0
	for _, w := range p.of(kindWindow) {
		for _, o := range truth.Ops {
			c, ended := calls[o.Call]
			if o.Kind == cudasim.Kernel && ended && o.Submit > w.ts && max(o.End, c.Exit) < w.ts+w.dur &&
				got[o.Call] == 0 {
				missing++
			}
		}
	}
	said := uint64(0)
	for _, w := range p.of(kindWindow) {
		said += w.args[0]
	}
	if n := len(p.of(kindKernel)) + len(p.of(kindCopy)); uint64(n) > said {
		t.Errorf("the windows say that they have %d records; there are %d of kernels and copies", said, n)
	}
	if missing > 0 || len(got) == 0 {
		t.Errorf("%d kernels inside windows are missing; %d calls were seen", missing, len(got))
	}
}

// alive checks that a victim still makes calls that succeed.
func alive(t *testing.T, v *cudasim.Victim) {
	t.Helper()
	before := v.Truth().Count("cuLaunchKernel")
	for end := time.Now().Add(10 * time.Second); v.Truth().Count("cuLaunchKernel") < before+100; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the victim launches no more; stderr: %s", v.Stderr())
		}
	}
	if n := v.Truth().FailedCount("cuLaunchKernel"); n > 0 {
		t.Errorf("%d launches failed", n)
	}
}

// TestNoExitToEndAt lets a window run into its deadline, twice as many times as it takes, and then recover: the
// simulated target dies where kinds go off, graphs run on, and CUPTI is finalized.
func TestNoExitToEndAt(t *testing.T) {
	set := settings{
		mode:     modeWindows,
		on:       30 * time.Millisecond,
		period:   60 * time.Millisecond,
		deadline: 60 * time.Millisecond,
	}
	p := play(t, set, busy, "thread 1 { repeat 3000 { graph-launch 1 stream=1; sleep 300us } }; wait", replay)
	p.proceed()
	p.until("3 windows", func() bool { p.read(); return len(p.of(kindWindow)) >= 3 })
	for _, w := range p.of(kindWindow) {
		if w.ret != endDisabled {
			t.Errorf("window %+v, want one that ended at its deadline", w)
		}
	}
	if p.get32(ringGraphs) != 1 {
		t.Error("nothing says that graphs stay slower")
	}
	p.proceed()
	p.until("a window that was finalized",
		func() bool { p.read(); return p.of(kindWindow)[len(p.of(kindWindow))-1].ret == endFinalized })
	for _, w := range p.of(kindWindow) {
		if w.ret == endFinalized && w.dur < uint64(300*time.Millisecond) {
			t.Errorf("window %+v was finalized before the kinds had been on for 300 ms", w)
		}
		if w.ret == endFinalized {
			break // the next may be short again
		}
	}
	p.until("graphs at their speed", func() bool { return p.get32(ringGraphs) == 0 })
	p.quit()
	alive(t, p.victim)
}

// TestIdleTarget: windows of a target that makes no calls end well, by the agent's own call.
func TestIdleTarget(t *testing.T) {
	p := play(
		t,
		settings{
			mode:     modeWindows,
			on:       20 * time.Millisecond,
			period:   40 * time.Millisecond,
			deadline: 50 * time.Millisecond,
		},
		busy,
		"launch 1; ssync stream=1; wait",
	)
	p.until("three windows", func() bool { p.read(); return p.get32(ringWindows) >= 3 })
	for _, w := range p.of(kindWindow) {
		if w.ret != endFinalized {
			t.Errorf("window %+v, want a finalized one", w)
		}
	}
	p.proceed()
	p.mode(modeOff)
	p.state(stateIdle)
	p.quit()
}

// TestAnotherProfiler finds CUPTI taken: nothing of it is touched, or the victim would die at its exit.
func TestAnotherProfiler(t *testing.T) {
	p := play(t, settings{options: cudasim.Options{Env: []string{"CUDASIM_CUPTI_BUSY=1"}}}, "wait", "launch 10; sync")
	p.state(stateRefused)
	p.until("a refused window", func() bool { p.read(); return len(p.of(kindWindow)) > 0 })
	if w := p.of(kindWindow)[0]; w.ret != endRefused || w.args[0] != 39 || p.get32(ringError) != 39 {
		t.Errorf("window %+v, error %d; want 39", w, p.get32(ringError))
	}
	const name = "CUPTI for another profiler\x00"
	if got := string(p.ring[ringHolder : ringHolder+len(name)]); got != name {
		t.Errorf("%q holds CUPTI, want %q", got, name)
	}
	p.proceed()
	p.victim.Finish()
}

// TestAnotherProfilerWithoutAName: a CUPTI of before 13.3 does not say who holds it.
func TestAnotherProfilerWithoutAName(t *testing.T) {
	p := play(t,
		settings{options: cudasim.Options{Shape: cudasim.Shape535, Env: []string{"CUDASIM_CUPTI_BUSY=1"}}},
		"wait", "launch 10; sync")
	p.state(stateRefused)
	if p.ring[ringHolder] != 0 || p.get32(ringError) != 39 {
		t.Errorf("%q holds CUPTI, error %d", p.ring[ringHolder:ringHolder+64], p.get32(ringError))
	}
	p.proceed()
	p.victim.Finish()
}

// TestEndThatIsWantedNoMore: a window that waits for its end, here for gates that nobody arms, and then is to go on
// says that it is open.
func TestEndThatIsWantedNoMore(t *testing.T) {
	p := play(t, settings{mode: modeOff, on: 20 * time.Millisecond, period: 40 * time.Millisecond}, busy,
		"launch 1; ssync stream=1; wait")
	p.put32(ringGate, uint32(syscall.SIGURG)|uint32(syscall.SIGWINCH)<<16)
	p.mode(modeWindows)
	p.state(stateClosing)
	p.mode(modeContinuous)
	p.state(stateOpen)
	p.put32(ringGate, 0)
	p.proceed()
	p.quit()
}

// TestSignalsChosenAnew: where a new daemon chooses other signals to hold threads by, the agent asks for the gates
// anew, and does not rely on those of before.
func TestSignalsChosenAnew(t *testing.T) {
	set := settings{mode: modeOff, on: 20 * time.Millisecond, period: 40 * time.Millisecond, deadline: time.Minute}
	p := play(t, set, busy, "launch 1; ssync stream=1; wait")
	p.put32(ringGate, uint32(syscall.SIGURG)|uint32(syscall.SIGWINCH)<<16)
	p.mode(modeWindows)
	p.state(stateClosing)
	asked := p.get32(ringAsk)
	p.put32(ringGate, uint32(syscall.SIGWINCH)|uint32(syscall.SIGURG)<<16)
	p.put32(ringGated, 1)
	p.put32(ringArmed, asked)
	p.wake()
	p.until("another ask", func() bool { return p.get32(ringAsk) != asked })
	if n := p.get32(ringWindows); n != 0 {
		t.Errorf("%d windows ended while the gates sent signals that nobody handled", n)
	}
	p.put32(ringArmed, p.get32(ringAsk))
	p.wake()
	p.until("a window", func() bool { return p.get32(ringWindows) > 0 })
	p.put32(ringGate, 0)
	p.proceed()
	p.quit()
}
