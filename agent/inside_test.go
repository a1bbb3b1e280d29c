package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestOldOrderKills: test/gpu/inside.c on the simulated CUDA, which dies in the cases in which the real one was seen to
// (an H200, CUPTI 13.0): somebody subscribes while a thread is behind a callback in which, or beside which, CUPTI was
// left.
func TestOldOrderKills(t *testing.T) {
	sim := cudasim.Build(t)
	program := filepath.Join(t.TempDir(), "inside")
	if text, err := exec.Command(
		"gcc", "-O2", "-pthread", "-o", program, "../test/gpu/inside.c", "-ldl",
	).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, text)
	}
	for number, want := range map[string]string{
		"0": "signal", "1": "", "2": "", "3": "signal", "8": "signal", "12": "signal",
	} {
		c := exec.Command(program, sim.Libcupti(), number)
		c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+sim.LibraryPath(580))
		out, err := c.CombinedOutput()
		if died := err != nil && strings.Contains(err.Error(), "signal"); died != (want != "") {
			t.Errorf("case %s: %v, want it to die: %v\n%s", number, err, want != "", out)
		}
		if want != "" && !strings.Contains(string(out), "libcupti") {
			t.Errorf("case %s died elsewhere:\n%s", number, out)
		}
	}
}

// TestWordOfThoseInside: an agent that has gone while a thread lay still behind the callback in which CUPTI went leaves
// word of it, and the next one, of whatever image, opens no window before that thread has moved on.
func TestWordOfThoseInside(t *testing.T) {
	const still = 2 * time.Second
	p := play(
		t,
		settings{options: cudasim.Options{Env: []string{fmt.Sprintf("CUDASIM_CUPTI_STALL_NS=%d", still)}}},
		graphed,
		"repeat 100000 { launch 1 kernel=k_us5 stream=1; graph-launch 1 stream=1; ssync stream=1; sleep 300us }; wait",
	)
	p.proceed()
	p.state(stateOpen)
	p.until("calls", func() bool { p.flush(); return len(p.callers()) > 0 })
	p.mode(modeQuit)
	p.state(stateGone)
	left := time.Now()
	p.leave()
	maps := func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.victim.PID))
		return err == nil && strings.Contains(string(b), "inferscope-inside")
	}
	if !maps() {
		t.Fatal("no word is left of the thread that lies still")
	}
	p.load()
	p.until("that the word was heard", func() bool { return !maps() })
	p.until("a window", func() bool { return p.get32(ringState) == stateOpen })
	if took := time.Since(left); took < still*3/4 {
		t.Errorf("a window opened %v after CUPTI was left, beside a thread that lay still for %v", took, still)
	}
	alive(t, p.victim)
}

// TestWordOfGraphs: an agent whose last window ended without a finalize leaves word of the graphs that ran in it. The
// next one, of another image, finalizes in no window in which they have not run again: the simulated target dies of that.
func TestWordOfGraphs(t *testing.T) {
	p := play(t, settings{deadline: 60 * time.Millisecond}, busy,
		"repeat 200 { graph-launch 1 stream=1; sleep 1ms }; wait",
		"repeat 1000 { launch 3 kernel=k_us5; ssync stream=1; sleep 300us }; wait", replay)
	p.proceed()
	p.state(stateOpen)
	p.until("graphs in a window", func() bool { p.flush(); return len(p.of(kindCall)) >= 100 })
	p.quit()
	if w := p.lastWindow(); w.ret != endDisabled {
		t.Fatalf("the last window is %+v, want one that ended disabled", w)
	}
	p.all = nil
	p.proceed()
	p.load()
	p.state(stateOpen)
	p.quit()
	if w := p.lastWindow(); w.ret != endDisabled {
		t.Errorf("a window in which no graph ran again is %+v, want one that ended disabled", w)
	}
	p.proceed()
	alive(t, p.victim)
	p.all = nil
	p.load()
	p.state(stateOpen)
	p.until("graphs in a window", func() bool { p.flush(); return len(p.of(kindCall)) >= 100 })
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	p.proven()
	p.leave()
	alive(t, p.victim)
}
