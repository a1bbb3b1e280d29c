package agent_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// holdings is what an agent could leave behind in a process; private is resident memory that is not shared, in pages.
type holdings struct{ threads, fds, maps, private int }

func holds(t *testing.T, pid int) holdings {
	t.Helper()
	count := func(dir string) int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, dir))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident, shared int
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err == nil {
		_, err = fmt.Sscan(string(statm), &size, &resident, &shared)
	}
	if err != nil {
		t.Fatal(err)
	}
	return holdings{
		threads: count("task"),
		fds:     count("fd"),
		maps:    strings.Count(string(maps), "\n"),
		private: resident - shared,
	}
}

// gone checks that a process has neither the agent's thread nor its ring.
func gone(t *testing.T, pid int) error {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(maps), "inferscope-ring") {
		return errors.New("the ring is mapped")
	}
	comms, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	for _, c := range comms {
		if name, _ := os.ReadFile(c); strings.HasPrefix(string(name), "inferscope") || string(name) == "cupti\n" {
			return errors.New("the thread, or CUPTI's, is there")
		}
	}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.Contains(target, "inferscope") {
			return fmt.Errorf("descriptor %s is %s", fd, target)
		}
	}
	return nil
}

// TestAgentAfterDaemonEnds stops the heartbeat in the middle of a window: within 2 s nothing of the agent is left, and
// the victim goes on.
func TestAgentAfterDaemonEnds(t *testing.T) {
	p := play(t, settings{}, busy, replay)
	p.proceed()
	p.state(stateOpen)
	last := time.Now()
	ring := p.ring
	p.leave()
	for gone(t, p.victim.PID) != nil && time.Since(last) < 4*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	if err := gone(t, p.victim.PID); err != nil {
		t.Fatalf("4 s after the last heartbeat: %v", err)
	}
	took := time.Since(last)
	t.Logf("gone %v after the daemon", took.Round(time.Millisecond))
	if state := binary.LittleEndian.Uint32(ring[ringState:]); state != stateGone {
		t.Errorf("the ring's last word is state %d, want gone", state)
	}
	alive(t, p.victim)
}

// TestStartAgain starts and ends an agent that is mapped 1,000 times in four victims, with a window each, and counts
// what stays.
func TestStartAgain(t *testing.T) {
	const victims, cycles = 4, 250
	for i := range victims {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			startAgain(t, cycles)
		})
	}
}

func startAgain(t *testing.T, cycles int) {
	t.Helper()
	p := play(t, settings{slots: 1 << 14}, busy, replay)
	p.proceed()
	var after holdings
	for i := range cycles {
		p.state(stateOpen)
		p.until("a kernel", func() bool { p.flush(); return len(p.of(kindKernel)) > 0 })
		p.mode(modeQuit)
		p.until("the end",
			func() bool { p.read(); return p.get32(ringState) == stateGone && gone(t, p.victim.PID) == nil })
		p.read()
		if w := p.of(kindWindow); len(w) != 1 || w[0].ret != endFinalized {
			t.Fatalf("round %d: windows %+v, want one, finalized", i, w)
		}
		p.leave()
		const pages = 128 // half a megabyte, of all rounds together
		if now := holds(t, p.victim.PID); i == 4 {
			after = now
		} else if i > 4 &&
			(now.threads > after.threads || now.fds > after.fds || now.maps > after.maps+4 ||
				now.private > after.private+pages) {
			t.Fatalf("after round %d the victim holds %+v, after the fifth it held %+v", i, now, after)
		}
		p.all = nil
		if i < cycles-1 {
			p.again()
		}
	}
	alive(t, p.victim)
}

const alreadyRunning = -114 // -EALREADY

// again starts the next agent: the last one, which is gone by its own word, may have a step or two to go.
func (p *player) again() {
	p.t.Helper()
	p.until("the next agent", func() bool { return p.start() != alreadyRunning })
}

// TestSecondStart is refused while one runs, which is not disturbed.
func TestSecondStart(t *testing.T) {
	p := play(t, settings{}, busy, replay)
	if got := p.start(); got != alreadyRunning {
		t.Errorf("a second start returned %d, want %d", got, alreadyRunning)
	}
	p.proceed()
	p.until("a kernel", func() bool { p.flush(); return len(p.of(kindKernel)) > 0 })
	p.quit()
	alive(t, p.victim)
}

// TestForkedChildIsSilent: a child has no ring and writes nothing, though it calls through the same callbacks.
func TestForkedChildIsSilent(t *testing.T) {
	p := play(
		t,
		settings{},
		"launch 1; sync; wait",
		"launch 10 kernel=parent_us1; sync; fork nowait { launch 500 kernel=child_us1; sync; sleep 1s }; launch 20 "+
			"kernel=parent_us1; sync; wait",
	)
	p.state(stateOpen)
	p.proceed()
	child, err := cudasim.ParsePID(p.victim.WaitLine("child"))
	if err != nil {
		t.Fatal(err)
	}
	p.victim.WaitLine("waiting")
	p.until("the child's launches", func() bool {
		truth, err := cudasim.ReadTruth(p.victim.TruthOf(child))
		return err == nil && truth.Count("cuLaunchKernel") >= 500
	})
	if err := gone(t, child); err != nil && !strings.Contains(err.Error(), "descriptor") {
		t.Errorf("in the child: %v", err)
	}
	p.flush()
	if n, calls := len(p.of(kindKernel)), len(p.of(kindCall)); n != 30 || calls != 30 {
		t.Errorf("%d kernels and %d launches, want 30 of the parent's", n, calls)
	}
	p.quit()
}

// TestFullRing drops and counts, and what it wrote before is whole.
func TestFullRing(t *testing.T) {
	p := play(t, settings{slots: 256}, "launch 1 kernel=k_us1; sync; wait",
		"launch 1000 kernel=k_us1; sync; wait", "launch 50 kernel=k_us1; sync; wait")
	p.state(stateOpen)
	p.proceed()
	p.victim.WaitLine("waiting")
	want := p.get64(ringFlush) + 1
	p.put64(ringFlush, want)
	p.wake()
	p.until("flush", func() bool { return p.get32(ringFlushed) == uint32(want) })
	if head, dropped := p.get64(ringHead), p.get64(ringDropped); head != 256 || dropped < 1500 {
		t.Errorf("head %d, dropped %d; want 256 and the rest of 1,000 launches and kernels", head, dropped)
	}
	p.read()
	if len(p.all) < 200 {
		t.Errorf("%d slots could be read of 256", len(p.all))
	}
	had := len(p.of(kindKernel))
	p.victim.Send("go")
	p.victim.WaitLine("waiting")
	p.flush()
	if n := len(p.of(kindKernel)) - had; n != 50 {
		t.Errorf("%d kernels after there was room again, want 50", n)
	}
	p.quit()
}

// TestWildTail: a tail that no reader can have means no room, and never a write outside the ring.
func TestWildTail(t *testing.T) {
	p := play(t, settings{slots: 64}, "launch 1; sync; wait", "launch 200 kernel=k_us1; sync; wait")
	p.state(stateOpen)
	p.put64(ringTail, p.get64(ringHead)+1000)
	p.proceed()
	p.victim.WaitLine("waiting")
	if p.get64(ringDropped) < 200 {
		t.Errorf("%s: want all dropped", p.status())
	}
	p.mode(99) // no mode: no daemon of ours
	p.state(stateGone)
	p.leave()
}

// TestExit hands over what was recorded when the victim ends in the middle of a window.
func TestExit(t *testing.T) {
	p := play(t, settings{}, "launch 1; sync; wait", "launch 40 kernel=k_us1; sync; exit")
	p.state(stateOpen)
	p.proceed()
	p.victim.Finish()
	p.read()
	if n := len(p.of(kindKernel)); n != 40 {
		t.Errorf("%d kernels are in the ring of a target that has ended, want 40", n)
	}
	if p.get32(ringState) != stateGone {
		t.Errorf("%s, want gone", p.status())
	}
}

// TestThreads records launches of many threads on streams of their own, each with its thread.
func TestThreads(t *testing.T) {
	for _, n := range []int{1, 8, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			script := fmt.Sprintf(
				"repeat 8 { stream-new nonblocking }; launch 1; h2d 256 async pinned stream=3; sync; wait; thread %d "+
					"{ repeat 100 { launch 2 kernel=k_us2 stream=1; launch 1 kernel=m_us1 stream=2 ex; ssync "+
					"stream=1; h2d 256 async pinned stream=3 } }; sync; wait",
				n,
			)
			p := play(t, settings{slots: 1 << 18}, script)
			p.state(stateOpen)
			p.proceed()
			p.victim.WaitLine("waiting")
			p.flush()
			p.quit()
			compare(t, p, p.victim.Truth(), map[uint8]int{kindKernel: 300 * n, kindCopy: 100 * n})
			calls(t, p)
		})
	}
}

// calls compares the launches that callbacks saw with the truth: thread, time, stream, grid.
func calls(t *testing.T, p *player) {
	t.Helper()
	truth := map[uint64]cudasim.Call{}
	for _, c := range p.victim.Truth().Calls {
		truth[c.ID] = c
	}
	n := 0
	for _, s := range p.of(kindCall) {
		if s.fn != 307 && s.fn != 652 {
			continue
		}
		n++
		c := truth[uint64(uint32(s.ret))]
		if c.TID != s.tid || s.ts < c.Enter || s.ts+s.dur > c.Exit || s.args[1] != c.Stream ||
			s.args[2]&0xffffffff != uint64(c.Grid[0]) {
			t.Fatalf("call %+v, truth %+v", s, c)
		}
	}
	if want := len(p.of(kindKernel)); n != want {
		t.Errorf("%d launches by callback for %d kernels", n, want)
	}
}

// TestHello checks the times in it: the thread that injected the agent must be free again at once.
func TestHello(t *testing.T) {
	p := play(t, settings{}, "wait")
	entered, left := binary.LittleEndian.Uint64(p.hello[24:]), binary.LittleEndian.Uint64(p.hello[32:])
	if entered == 0 || left < entered || left > monotonic() {
		t.Errorf("entered %d, left %d", entered, left)
	}
	t.Logf("the thread was in the agent for %v", time.Duration(left-entered))
	tid := binary.LittleEndian.Uint32(p.hello[16:])
	p.until("a thread of that name", func() bool { // but for the moment in which it turns CUPTI on
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", p.victim.PID, tid))
		return err == nil && string(comm) == "inferscope\n"
	})
	if build := hex.EncodeToString(p.ring[16:36]); build != p.describe.BuildID {
		t.Errorf("the ring says build %s, the image is %s", build, p.describe.BuildID)
	}
	p.quit()
}

// TestRealCUPTI gives the agent the real libcupti beside the simulated driver, which it cannot work with: it must
// say no, and the agent must pass that on and leave the process well.
func TestRealCUPTI(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the real libraries are fetched for amd64 only")
	}
	for _, part := range []nvlibs.Part{nvlibs.CUPTI11, nvlibs.CUPTI12, nvlibs.CUPTI13} {
		t.Run(string(part), func(t *testing.T) {
			path := nvlibs.Library(t, part)
			p := play(t, settings{cupti: path}, busy, replay)
			p.state(stateRefused)
			got := string(p.ring[ringPath : ringPath+240])
			if !strings.HasPrefix(got, path+"\x00") || p.get32(ringError) >= 1000 {
				t.Errorf("%q, error %d; want CUPTI's own word on %s", got, int32(p.get32(ringError)), path)
			}
			t.Logf("%s, version %d: error %d",
				got[:strings.IndexByte(got, 0)], p.get32(ringVersion), int32(p.get32(ringError)))
			p.proceed()
			alive(t, p.victim)
			p.quit()
			alive(t, p.victim)
		})
	}
}
