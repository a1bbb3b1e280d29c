package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestPending looks at when a call counts as one of which no record has come.
func TestPending(t *testing.T) {
	const want = `nothing: 0
the quiet thread's: 1000
not its later one: 1000
nothing: 0
the first of two that share a place: 3000
nothing: 0
one that cannot be cleared: 4000
is there: 4000
is there: 4000
is there: 4000
until three flushes are over: 0
a flush from before says nothing: 6000
nothing: 0
nothing: 0
`
	if got := unit(t, "pending", "-O1"); got != want {
		t.Errorf("pending:\n%swant:\n%s", got, want)
	}
}

// TestRecordsComeSoon: of a call now and then, in a process that is quiet otherwise, each record is handed over by
// itself: nobody asks, and no buffer fills up.
func TestRecordsComeSoon(t *testing.T) {
	p := play(t, settings{}, "launch 1; sync; wait", "repeat 20 { launch 1 kernel=k_us1; sync; sleep 170ms }; wait")
	p.state(stateOpen)
	p.proceed()
	var worst, sum time.Duration
	n := 0
	p.until("20 kernels", func() bool {
		had := len(p.of(kindKernel))
		p.read()
		for _, s := range p.of(kindKernel)[had:] {
			late := time.Duration(monotonic() - s.ts - s.dur)
			worst, sum, n = max(worst, late), sum+late, n+1
		}
		return n == 20
	})
	t.Logf("records came %v after their ends at the latest, %v on average", worst, sum/20)
	if worst > time.Second {
		t.Errorf("a record came %v late: no flush was made for it", worst)
	}
	p.quit()
}

// TestLossesOfAnOpenWindow are told while it is open, and belong to it.
func TestLossesOfAnOpenWindow(t *testing.T) {
	p := play(t, settings{options: cudasim.Options{Env: []string{"CUDASIM_CUPTI_DROP_EVERY=10"}}},
		"launch 1; sync; wait", "launch 200 kernel=k_us1; sync; wait")
	p.state(stateOpen)
	p.proceed()
	p.victim.WaitLine("waiting")
	p.flush()
	if n := p.get64(ringLost); n < 19 || n > 21 {
		t.Errorf("the open window has lost %d of 200 records, want a tenth", n)
	}
	lost := p.get64(ringLost)
	p.mode(modeQuit)
	p.victim.Send("go")
	p.state(stateGone)
	p.read()
	if w := p.of(kindWindow); len(w) != 1 || w[0].args[1] < lost {
		t.Errorf("windows %+v, want one that lost %d", w, lost)
	}
	if n := p.get64(ringLost); n != 0 {
		t.Errorf("after the window %d are said to be lost", n)
	}
	p.leave()
}

// TestEveryRecordLost: where CUPTI drops all records no buffer ever comes back, and the window says all the same how
// many it has lost.
func TestEveryRecordLost(t *testing.T) {
	p := play(t, settings{options: cudasim.Options{Env: []string{"CUDASIM_CUPTI_DROP_EVERY=1"}}},
		"launch 1; sync; wait", "launch 200 kernel=k_us1; sync; wait", "sync; wait")
	p.state(stateOpen)
	p.proceed()
	p.victim.WaitLine("waiting")
	p.flush()
	if n := p.get64(ringLost); n < 200 {
		t.Errorf("the open window has lost %d of 200 records", n)
	}
	p.mode(modeOff)
	p.victim.Send("go")
	p.state(stateIdle)
	p.read()
	if w := p.of(kindWindow); len(w) != 1 || w[0].args[0] != 0 || w[0].args[1] < 200 || len(p.of(kindKernel)) != 0 {
		t.Errorf("windows %+v, want one that lost 200 records or more and has none", w)
	}
	p.quit()
}

// TestLastWordWaitsForRoom: a window that ends while the ring is full is not lost.
func TestLastWordWaitsForRoom(t *testing.T) {
	p := play(t, settings{slots: 256}, "launch 1; sync; wait", "launch 1000 kernel=k_us1; sync; wait", "sync; wait")
	p.state(stateOpen)
	p.proceed()
	p.victim.WaitLine("waiting")
	p.until("a full ring", func() bool { return p.get64(ringHead) == 256 })
	p.mode(modeOff)
	p.victim.Send("go")
	p.victim.WaitLine("waiting")
	time.Sleep(100 * time.Millisecond) // it ends its window, and finds no room
	p.read()
	p.state(stateIdle)
	p.read()
	if w := p.of(kindWindow); len(w) != 1 || p.get64(ringDropped) == 0 {
		t.Errorf("windows %+v, %d slots dropped; want one window, though there was no room for it at first",
			w, p.get64(ringDropped))
	}
	p.quit()
}

// TestThreadsOfCUPTI are not called like the agent's: who looks for that must find one.
func TestThreadsOfCUPTI(t *testing.T) {
	p := play(t, settings{}, busy, replay)
	p.proceed()
	p.state(stateOpen)
	p.until("the threads", func() bool { ours, cuptis := agentsAndCUPTIs(p); return ours == 1 && cuptis == 1 })
	p.quit()
}

// agentsAndCUPTIs counts the threads of p's target that are called so.
func agentsAndCUPTIs(p *player) (agents, cuptis int) {
	comms, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", p.victim.PID))
	for _, c := range comms {
		switch name, _ := os.ReadFile(c); strings.TrimSpace(string(name)) {
		case "inferscope":
			agents++
		case "cupti":
			cuptis++
		}
	}
	return agents, cuptis
}
