package agent_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// The numbers of enum agent_window.
const windowCalls, windowOwn = 1, 2

// errorGraphThreads is of enum agent_error.
const errorGraphThreads = 1005

// locked is a CUPTI that comes in, and goes, when all other threads are outside of the driver for a moment.
var locked = cudasim.Options{Env: []string{"CUDASIM_CUPTI_LOCK=1"}}

// four threads call the driver for as long as it takes.
const four = "thread 4 { repeat 100000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 300us } }; wait"

// three threads that call the driver beside what follows.
const three = "thread 3 nowait { repeat 100000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 300us } }; "

// finalizers returns the threads that called cuptiFinalize so far, each with the call in whose callback it was.
func finalizers(t *testing.T, truth *cudasim.Truth) map[uint32][]string {
	t.Helper()
	calls, out := map[uint64]cudasim.Call{}, map[uint32][]string{}
	for _, c := range truth.Calls {
		calls[c.ID] = c
	}
	for _, c := range truth.Calls {
		if c.Name == "cuptiFinalize" {
			around := calls[c.Outer]
			if c.Outer != c.ID && around.TID != c.TID {
				t.Errorf("cuptiFinalize is thread %d's and inside of a call of thread %d", c.TID, around.TID)
			}
			out[c.TID] = append(out[c.TID], around.Name)
		}
	}
	return out
}

// tid returns the agent's thread, as its last hello says.
func (p *player) tid() uint32 { return binary.LittleEndian.Uint32(p.hello[16:]) }

// callers returns the threads that made the calls which were read.
func (p *player) callers() (all []uint32) {
	for _, s := range p.of(kindCall) {
		if !slices.Contains(all, s.tid) {
			all = append(all, s.tid)
		}
	}
	return all
}

// TestOwnWayOut: where several threads make calls, none of them finalizes CUPTI, which it would wait for while the
// others are inside the driver. The agent's own thread does, in the good way: at the exit of a synchronizing call.
func TestOwnWayOut(t *testing.T) {
	p := play(t, settings{options: locked}, plain, four)
	p.proceed()
	own, theirs, row := map[uint32]bool{}, 0, 0
	for i := 0; i < 10; {
		p.state(stateOpen)
		p.until("calls of several threads", func() bool { p.flush(); return len(p.callers()) > 1 })
		own[p.tid()] = true
		p.mode(modeQuit)
		p.state(stateGone)
		p.read()
		w := p.lastWindow()
		if w.ret != endFinalized || w.fn&windowCalls == 0 || p.get32(ringGraphs) != 0 {
			t.Errorf("round %d: window %+v, want one that was finalized", i, w)
		}
		if w.fn&windowOwn != 0 {
			i, row = i+1, 0
		} else { // a thread had no CPU to come out of the driver when the agent's thread tried: once more
			theirs, row = theirs+1, row+1
		}
		if row > 1 {
			t.Fatalf("round %d: a thread of the target finalized twice", i)
		}
		inside(t, p)
		p.leave()
		p.all = nil
		if i < 10 {
			p.again()
		}
	}
	alive(t, p.victim)
	rounds := -theirs
	for tid, in := range finalizers(t, p.victim.Truth()) {
		rounds += len(in)
		want := "cuCtxSynchronize"
		if !own[tid] {
			want = "cuStreamSynchronize"
			theirs -= len(in)
		}
		for _, name := range in {
			if name != want {
				t.Errorf("thread %d finalized in %q, want at the exit of %s", tid, name, want)
			}
		}
	}
	if rounds != 10 || theirs != 0 {
		t.Errorf("CUPTI was finalized in %d rounds, want 10; %d windows do not say by whom", rounds, theirs)
	}
}

// theirWayOut ends an agent whose open window a thread of the target must finalize, unharmed.
func theirWayOut(t *testing.T, p *player) {
	t.Helper()
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	if w := p.lastWindow(); w.ret != endFinalized || w.fn != windowCalls {
		t.Errorf("window %+v, want one that a thread of the target finalized", w)
	}
	p.leave()
	alive(t, p.victim)
}

// TestOthersWayOut: with graphs it is the thread of the target that launches them that finalizes. The simulated target
// dies where another one does.
func TestOthersWayOut(t *testing.T) {
	p := play(
		t,
		settings{options: locked},
		graphed,
		three+"repeat 100000 { launch 1 kernel=k_us5 stream=1; graph-launch 1 stream=1; ssync stream=1; sleep 300us "+
			"}; wait",
	)
	p.proceed()
	p.state(stateOpen)
	p.until("calls of several threads", func() bool { p.flush(); return len(p.callers()) > 1 })
	theirWayOut(t, p)
	if all := finalizers(t, p.victim.Truth()); len(all) != 1 || all[uint32(p.victim.PID)] == nil {
		t.Errorf("CUPTI was finalized by %v; the thread that launches graphs is %d", all, p.victim.PID)
	}
}

// TestOwnWayOutOfOneThread: without graphs no thread of the target finalizes, also where there is one only.
func TestOwnWayOutOfOneThread(t *testing.T) {
	p := play(t, settings{options: locked}, graphed,
		"repeat 100000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; sleep 300us }; wait")
	p.proceed()
	p.state(stateOpen)
	p.until("calls", func() bool { p.flush(); return len(p.callers()) > 0 })
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	if w := p.lastWindow(); w.ret != endFinalized || w.fn != windowCalls|windowOwn {
		t.Errorf("window %+v, want one that the agent's own thread finalized", w)
	}
	p.leave()
	alive(t, p.victim)
}

// TestLauncherIsKnownFromProbes: the daemon's probes see graphs that are launched between windows. While the thread
// that it tells of lives no other finalizes, though none was launched in a window.
func TestLauncherIsKnownFromProbes(t *testing.T) {
	for _, lives := range []bool{true, false} {
		t.Run(fmt.Sprint(lives), func(t *testing.T) {
			p := play(t, settings{options: locked}, plain, four)
			p.proceed()
			p.state(stateOpen)
			p.until("calls of several threads", func() bool { p.flush(); return len(p.callers()) > 1 })
			told, want, fn := p.callers()[0], p.callers()[0], uint16(windowCalls)
			if !lives {
				told, want, fn = 1<<30, p.tid(), windowCalls|windowOwn // more than any kernel counts threads to
			}
			p.put32(ringGrapher, told)
			p.mode(modeQuit)
			p.state(stateGone)
			p.read()
			if w := p.lastWindow(); w.ret != endFinalized || w.fn != fn {
				t.Errorf("window %+v, want one that was finalized, with func %d", w, fn)
			}
			p.leave()
			alive(t, p.victim)
			if all := finalizers(t, p.victim.Truth()); len(all) != 1 || all[want] == nil {
				t.Errorf("CUPTI was finalized by %v, want thread %d", all, want)
			}
		})
	}
}

// TestSeveralThreadsLaunchGraphs: where several threads launch graphs nobody finalizes, since each would while another
// one launches: the window ends at once, and no other is opened. The simulated target dies otherwise.
func TestSeveralThreadsLaunchGraphs(t *testing.T) {
	p := play(
		t,
		settings{},
		graphed,
		"thread 4 { repeat 20000 { launch 1 kernel=k_us5 stream=1; graph-launch 1 stream=1; ssync stream=1; sleep "+
			"300us } }; wait",
	)
	p.proceed()
	p.until("a refusal", func() bool { p.read(); return p.get32(ringError) == errorGraphThreads })
	if w := p.lastWindow(); w.ret != endRefused {
		t.Errorf("the last window is %+v, want a refused one", w)
	}
	if all := p.of(kindWindow); len(all) != 2 || all[0].ret != endDisabled {
		t.Errorf("windows %+v, want a disabled one and a refused one", all)
	}
	p.mode(modeQuit)
	p.state(stateGone)
	p.leave()
	alive(t, p.victim)
	if all := finalizers(t, p.victim.Truth()); len(all) != 0 {
		t.Errorf("CUPTI was finalized by %v", all)
	}
}

// TestOwnCallUnseen: where CUPTI does not call back at the agent's own call, a thread of the target ends the window.
func TestOwnCallUnseen(t *testing.T) {
	mute := cudasim.Options{Env: []string{"CUDASIM_CUPTI_LOCK=1", "CUDASIM_CUPTI_MUTE=1"}}
	p := play(t, settings{options: mute}, plain, four)
	p.proceed()
	p.state(stateOpen)
	p.until("calls of several threads", func() bool { p.flush(); return len(p.callers()) > 1 })
	theirWayOut(t, p)
	if all := finalizers(t, p.victim.Truth()); len(all) != 1 || all[p.tid()] != nil {
		t.Errorf("CUPTI was finalized by %v; the agent's thread is %d", fmt.Sprint(all), p.tid())
	}
}
