package agent_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// slow is a CUPTI that takes 600 ms to let the agent in, which is more than KEEP_AFTER of window.c: so it is where
// threads are nearly always inside the driver.
var slow = cudasim.Options{Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=600000000"}}

// keeping are windows of 40 ms every 100 ms.
var keeping = settings{mode: modeWindows, on: 40 * time.Millisecond, period: 100 * time.Millisecond, options: slow}

const (
	// plain launches and synchronizes without graphs.
	plain = "stream-new nonblocking; launch 1 stream=1; ssync stream=1; wait"
	// more goes on for as long as it takes.
	more = "repeat 100000 { launch 3 kernel=k_us5 stream=1; h2d 256 async pinned stream=1; ssync stream=1; sleep " +
		"200us }; wait"
	// graphed has a graph, which it does not launch before it is told to.
	graphed = "stream-new nonblocking; graph 3 stream=1 kernel=n_us1; launch 1 stream=1; ssync stream=1; wait"
)

// kept waits for n windows after which the agent stayed subscribed.
func (p *player) kept(n int) {
	p.t.Helper()
	p.until(fmt.Sprintf("%d kept windows", n), func() bool { p.read(); return len(p.ends(endKept)) >= n })
}

// ends returns the windows that ended so.
func (p *player) ends(how int32) (out []slot) {
	for _, w := range p.of(kindWindow) {
		if w.ret == how {
			out = append(out, w)
		}
	}
	return out
}

// lastWindow returns the one that ended last.
func (p *player) lastWindow() slot {
	p.t.Helper()
	w := p.of(kindWindow)
	if len(w) == 0 {
		p.t.Fatalf("no window; %s", p.status())
	}
	return w[len(w)-1]
}

// proven checks that the last window was finalized after the kinds had been on long enough for it (PROVEN of loop.c).
func (p *player) proven() {
	p.t.Helper()
	if w := p.lastWindow(); w.ret != endFinalized || w.dur < uint64(300*time.Millisecond) || p.get32(ringGraphs) != 0 {
		p.t.Errorf("the way out is %+v, graphs %d; want a finalized window of 300 ms or more, and 0",
			w, p.get32(ringGraphs))
	}
}

// TestKeptWindows: one slow subscription serves all windows, which come at their period and as a rule miss nothing; at
// the end CUPTI is finalized in the good way.
func TestKeptWindows(t *testing.T) {
	p := play(t, keeping, plain, more)
	p.proceed()
	p.kept(12)
	p.until("half of the windows to miss nothing", func() bool {
		p.read() // records of a thread that lost its CPU inside CUPTI are missing
		all := p.ends(endKept)
		return 2*len(slices.DeleteFunc(slices.Clone(all), func(w slot) bool { return w.args[1] != 0 })) >= len(all)
	})
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	p.proven()
	p.leave()
	inside(t, p)
	alive(t, p.victim)
	windows := p.ends(endKept)
	for i, w := range windows {
		if w.fn != 1 || w.dur < uint64(40*time.Millisecond) {
			t.Errorf("window %d is %+v; want one of 40 ms or more", i, w)
		}
		if took := time.Duration(w.args[2]); (i == 0) != (took >= 600*time.Millisecond) {
			t.Errorf("window %d took %v to open; only the first has to subscribe", i, took)
		}
		if i > 0 && w.ts-windows[i-1].ts < uint64(100*time.Millisecond) {
			t.Errorf("window %d began %v after the one before, want 100 ms", i, time.Duration(w.ts-windows[i-1].ts))
		}
	}
	// A subscription for each of them would have taken 600 ms each.
	if took := time.Duration(windows[11].ts - windows[0].ts); took > 11*600*time.Millisecond {
		t.Errorf("12 windows took %v", took)
	}
	outside(t, p)
}

// outside checks that what was called between windows was not recorded: the kinds and the callbacks were off. A call
// that was under way when they went on or off may have a record, although what it launched may be over before they went
// on.
func outside(t *testing.T, p *player) {
	t.Helper()
	calls := callsByID(p.victim.Truth())
	windows := p.of(kindWindow)
	for _, s := range append(p.of(kindKernel), p.of(kindCall)...) {
		id := uint64(uint32(s.ret))
		if s.kind == kindKernel {
			id = s.args[0] & 0xffffffff
		}
		c, ok := calls[id]
		if !ok {
			t.Fatalf("slot %+v is of a call that never was", s)
		}
		if !slices.ContainsFunc(
			windows,
			func(w slot) bool { return c.Enter <= w.ts+w.dur+w.args[3] && c.Exit >= w.ts-w.args[2] },
		) {
			t.Fatalf("slot %+v is of a call in [%d, %d], which is in no window", s, c.Enter, c.Exit)
		}
	}
}

// TestKeptThenGraphs: from the first graph that runs in a window on, windows end in the old way. The simulated target
// dies where graphs ran with kinds on, which then went off, and CUPTI is finalized.
func TestKeptThenGraphs(t *testing.T) {
	p := play(t, keeping, graphed,
		"repeat 800 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 200us }; wait", replay)
	p.proceed()
	p.kept(3)
	p.victim.WaitLine("waiting") // between windows or in one: as it comes
	p.read()
	before := len(p.of(kindWindow))
	p.victim.Send("go")
	p.until("two finalized windows", func() bool { p.read(); return len(p.ends(endFinalized)) >= 2 })
	for i, w := range p.of(kindWindow)[before+1:] { // the one that was open may have ended just before
		if w.ret != endFinalized {
			t.Errorf("window %d with graphs is %+v, want a finalized one", i, w)
		}
	}
	p.quit()
	alive(t, p.victim)
}

// TestKeptWithGraphsBetween: graphs that run only while the kinds are off do the way out no harm either.
func TestKeptWithGraphsBetween(t *testing.T) {
	set := keeping
	set.period = 2 * time.Second
	p := play(t, set, graphed, "launch 3 kernel=k_us5 stream=1; ssync stream=1; wait",
		"graph-launch 20 stream=1; ssync stream=1; wait", replay)
	p.proceed()
	p.kept(1)
	p.state(stateKept)
	p.proceed() // the end of the first wait is not waited for: it is there
	p.victim.WaitLine("waiting")
	if p.get32(ringState) != stateKept {
		t.Skip("this machine is too slow: another window has begun")
	}
	p.victim.Send("go")
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	p.proven()
	p.leave()
	alive(t, p.victim)
}

// TestKeptOff gives the subscription up when nothing is wanted any more, and takes it again.
func TestKeptOff(t *testing.T) {
	p := play(t, keeping, plain, more)
	p.proceed()
	p.kept(2)
	p.mode(modeOff)
	p.state(stateIdle)
	p.read()
	p.proven()
	n := len(p.of(kindWindow))
	p.mode(modeContinuous)
	p.state(stateOpen)
	p.mode(modeWindows)
	p.until("a kept window",
		func() bool { p.read(); return len(p.of(kindWindow)) > n && p.lastWindow().ret == endKept })
	if w := p.of(kindWindow)[n]; w.args[2] < uint64(600*time.Millisecond) {
		t.Errorf("after mode off the next window is %+v: it did not subscribe anew", w)
	}
	p.quit()
	inside(t, p)
	alive(t, p.victim)
}

// TestKeptThenThreads: where it turns out between windows that several threads launch graphs, no window opens that
// could give the subscription up in the good way: it is given up at once, and the next agent can subscribe.
func TestKeptThenThreads(t *testing.T) {
	for what, next := range map[string]uint32{"windows": modeWindows, "off": modeOff, "quit": modeQuit} {
		t.Run(what, func(t *testing.T) {
			set := keeping
			set.period = 500 * time.Millisecond // room to tell it between windows
			p := play(t, set, plain, more)
			p.proceed()
			p.kept(1)
			p.state(stateKept)
			p.put32(ringThreads, 1)
			if p.mode(next); next != modeQuit {
				p.until("the end of the subscription", func() bool { p.read(); return p.get32(ringState) != stateKept })
				p.mode(modeQuit)
			}
			p.state(stateGone)
			p.leave()
			p.all = nil
			p.again()
			p.kept(1) // and not refused with error 39
			p.quit()
			alive(t, p.victim)
		})
	}
}

// TestKeptSubscriptionAfterDaemonEnds: the subscription is given up in the good way, in bounded time.
func TestKeptSubscriptionAfterDaemonEnds(t *testing.T) {
	p := play(t, keeping, plain, more)
	p.proceed()
	p.kept(2)
	p.state(stateKept)
	ring, last := p.ring, time.Now()
	close(p.stop)
	p.stop = make(chan struct{})
	for gone(t, p.victim.PID) != nil && time.Since(last) < 10*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("gone %v after the daemon", time.Since(last).Round(time.Millisecond))
	if err := gone(t, p.victim.PID); err != nil {
		t.Fatalf("10 s after the last heartbeat: %v", err)
	}
	p.ring = ring
	p.read()
	p.proven()
	p.ring = nil
	alive(t, p.victim)
}

// TestKeptIdle: a target that makes no calls at the end is left in the second best way, after its deadline; or not left
// where its threads get no CPU to be seen outside, which is tried again.
func TestKeptIdle(t *testing.T) {
	how := int32(endKept)
	for try := 0; try < 3 && how == endKept; try++ {
		how = idleWayOut(t)
	}
	if how != endDisabled {
		t.Errorf("the way out of an idle target is %d, want disabled", how)
	}
}

// idleWayOut returns how the last window of an idle target ends.
func idleWayOut(t *testing.T) int32 {
	t.Helper()
	set := keeping
	set.deadline = 100 * time.Millisecond
	p := play(t, set, plain, "wait", more)
	p.proceed()
	p.kept(2)
	p.quit()
	// CUPTI, which was not finalized, may have a thread that was made by the agent's and bears its name.
	own := fmt.Sprintf("/proc/%d/task/%d", p.victim.PID, binary.LittleEndian.Uint32(p.hello[16:]))
	p.until("end of the agent's thread", func() bool { _, err := os.Stat(own); return os.IsNotExist(err) })
	p.proceed()
	alive(t, p.victim)
	return p.lastWindow().ret
}

// TestKeptExit: a target may end while the agent is subscribed and the kinds are off.
func TestKeptExit(t *testing.T) {
	set := keeping
	set.period = 20 * time.Second
	p := play(t, set, plain, "repeat 200 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 200us }; wait", "exit")
	p.proceed()
	p.kept(1)
	p.state(stateKept)
	p.victim.WaitLine("waiting")
	p.victim.Send("go")
	p.victim.Finish()
	if p.get32(ringState) != stateGone {
		t.Errorf("%s, want gone", p.status())
	}
}

// TestFastSubscriptionIsGivenUp: where subscribing takes less, most windows are finalized. With the slow one none is.
func TestFastSubscriptionIsGivenUp(t *testing.T) {
	set := keeping
	set.options = cudasim.Options{Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_NS=20000000"}}
	p := play(t, set, plain, more)
	p.proceed()
	p.until("5 finalized windows", func() bool { p.read(); return len(p.ends(endFinalized)) >= 5 })
	p.quit()
	if n, all := len(p.ends(endFinalized)), len(p.of(kindWindow)); 2*n <= all {
		t.Errorf("%d of %d windows were finalized", n, all)
	}
	alive(t, p.victim)
}

// TestQuitWhileItWaits: told to go while CUPTI does not let it in, the agent goes when it has been in for a moment:
// what a subscription makes, only a window that ends well takes back.
func TestQuitWhileItWaits(t *testing.T) {
	for _, m := range []uint32{modeQuit, modeOff} {
		set, wait := keeping, filepath.Join(t.TempDir(), "wait")
		write(t, wait, nil)
		set.options = cudasim.Options{
			Env: []string{"CUDASIM_CUPTI_SUBSCRIBE_FILE=" + wait, "CUDASIM_CUPTI_SUBSCRIBE_NS=600000000"},
		}
		set.deadline = 20 * time.Second // for threads that get no CPU to come out of the driver
		p := play(t, set, plain, more)
		p.proceed()
		p.until("the wait", func() bool { return p.get64(ringOpening) != 0 })
		if state, since := p.get32(ringState), p.get64(ringOpening); state != stateOpening || since > monotonic() {
			t.Errorf("it waits in state %d since %d, want %d", state, since, stateOpening)
		}
		before := p.victim.Truth().Count("cuLaunchKernel")
		p.until("launches meanwhile", func() bool { return p.victim.Truth().Count("cuLaunchKernel") > before+100 })
		p.mode(m)
		if err := os.Remove(wait); err != nil {
			t.Fatal(err)
		}
		p.until("the end of the wait", func() bool { return p.get64(ringOpening) == 0 })
		p.state(map[uint32]uint32{modeQuit: stateGone, modeOff: stateIdle}[m])
		p.read()
		if n := len(p.of(kindWindow)); n != 1 || p.lastWindow().ret != endFinalized {
			t.Errorf("mode %d: %d windows, the last %+v; want one that was finalized", m, n, p.lastWindow())
		}
		p.until("CUPTI's own thread to end", func() bool { _, cuptis := agentsAndCUPTIs(p); return cuptis == 0 })
		if m == modeOff { // and CUPTI is free again
			p.mode(modeContinuous)
			p.state(stateOpen)
			p.quit()
		}
		p.leave()
		alive(t, p.victim)
	}
}

// TestKindsOffWhileThreadsAreInside: windows end while a thread lies still in CUPTI's own work, for longer than anybody
// waits for it: their kinds go off, and nothing that the thread still uses is freed, then or at the way out.
func TestKindsOffWhileThreadsAreInside(t *testing.T) {
	set := keeping
	set.options.Env = append(slices.Clone(slow.Env), fmt.Sprintf("CUDASIM_CUPTI_WORK_NS=%d", 15*time.Millisecond))
	p := play(t, set, plain, more)
	p.proceed()
	unproven := func() (n int) {
		for _, w := range p.ends(endKept) {
			if w.args[1] != 0 {
				n++
			}
		}
		return n
	}
	p.until("windows that ended beside a thread", func() bool { p.read(); return unproven() >= 3 })
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	if w := p.lastWindow(); w.ret == endFinalized && w.dur < uint64(300*time.Millisecond) {
		t.Errorf("the way out is %+v: finalized before the kinds had been on for 300 ms", w)
	}
	p.leave()
	alive(t, p.victim)
}

// TestWindowRefusedWhileThreadsAreInside: in the moment in which a window begins several threads launch graphs all of a
// sudden, so that it is turned away. A kept subscription outlives that, too, while threads lie still in CUPTI's own
// work.
func TestWindowRefusedWhileThreadsAreInside(t *testing.T) {
	const still = 2 * time.Second
	set := keeping
	set.options.Env = append(slices.Clone(slow.Env), fmt.Sprintf("CUDASIM_CUPTI_WORK_NS=%d", still),
		"STARTER_LINGER=100")
	// They sleep most of the time: a subscription waits until all of them are outside of the driver at once.
	const calls = "repeat 100000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 5ms }"
	p := play(t, set, plain, "thread 3 nowait { stream-new nonblocking; "+calls+" }; "+calls+"; wait")
	p.proceed()
	p.kept(1)
	p.until("the beginning of a window", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/wchan", p.victim.PID, p.tid()))
		return err == nil && strings.Contains(string(b), "nanosleep") && p.get32(ringState) == stateOpening
	})
	p.put32(ringThreads, 1)
	p.until("a refusal", func() bool { p.read(); return len(p.ends(endRefused)) > 0 })
	p.put32(ringThreads, 0)
	time.Sleep(still) // the threads go on
	alive(t, p.victim)
	p.quit()
	alive(t, p.victim)
}
