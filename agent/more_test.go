package agent_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/agent"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestQuitLeavesNothingSlower: where the last window ran into its deadline, one more on the way out puts graphs right.
func TestQuitLeavesNothingSlower(t *testing.T) {
	set := settings{
		mode:     modeWindows,
		on:       30 * time.Millisecond,
		period:   60 * time.Millisecond,
		deadline: 60 * time.Millisecond,
	}
	p := play(t, set, busy, "thread 1 { repeat 3000 { graph-launch 1 stream=1; sleep 300us } }; wait", replay)
	p.proceed()
	p.until("a graph that stays slower", func() bool { p.read(); return p.get32(ringGraphs) == 1 })
	p.mode(modeOff)
	p.state(stateIdle)
	p.put64(ringDeadline, uint64(2*time.Second))
	p.proceed()
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	windows := p.of(kindWindow)
	if w := windows[len(windows)-1]; w.ret != endFinalized || p.get32(ringGraphs) != 0 {
		t.Errorf("the last window is %+v, graphs %d; want a finalized one and 0", w, p.get32(ringGraphs))
	}
	p.leave()
	alive(t, p.victim)
}

// TestDevices are told with their names before anything that names them.
func TestDevices(t *testing.T) {
	p := play(
		t,
		settings{
			options: cudasim.Options{
				Env: []string{
					"CUDASIM_DEVICES=2",
					"CUDASIM_DEVICE_NAME=a GPU of which the name takes more than one slot of the ring: 0123456789",
				},
			},
		},
		"launch 1; sync; wait",
	)
	p.until("2 devices", func() bool { p.read(); return len(p.of(kindDevice)) == 2 })
	for i, d := range p.of(kindDevice) {
		if int(d.ret) != i || d.args[0] != 80<<30 || !strings.HasSuffix(p.names[d.tid], "ring: 0123456789") {
			t.Errorf("device %+v %q", d, p.names[d.tid])
		}
	}
	p.quit()
}

// TestRingIsSealed: nobody can pull the memory away from under the agent or the daemon.
func TestRingIsSealed(t *testing.T) {
	p := prepare(t, settings{still: true}, "wait")
	p.load()
	fd := int(binary.LittleEndian.Uint32(p.hello[12:]))
	pidfd, err := unix.PidfdOpen(p.victim.PID, 0)
	if err != nil {
		t.Skipf("pidfd_open: %v", err)
	}
	defer unix.Close(pidfd)
	ring, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		t.Skipf("the agent has closed the ring already, as it should: %v", err)
	}
	defer unix.Close(ring)
	if err := unix.Ftruncate(ring, 0); err == nil {
		t.Error("the ring can be cut")
	}
	if err := unix.Ftruncate(ring, 1<<30); err == nil {
		t.Error("the ring can grow")
	}
}

// TestInjectionAtTheStart loads the image as CUDA does where CUDA_INJECTION64_PATH names it: no parameters are patched,
// and the daemon finds the ring by its name: from the moment on at which CUDA goes on, whenever the agent's thread has
// its turn.
func TestInjectionAtTheStart(t *testing.T) {
	image, err := agent.Image(runtime.GOARCH)
	if err != nil {
		t.Skip(err)
	}
	p := prepare(t, settings{}, "wait", replayWithout)
	path := filepath.Join(p.dir, "agent.so")
	write(t, path, image)
	p.say("inject " + path)
	if got := p.hear(); got != "1" {
		t.Fatalf("InitializeInjection says %s, want 1", got)
	}
	fd := ringOf(p.victim.PID)
	if fd < 0 {
		t.Fatal("CUDA goes on, and there is no ring yet: a daemon would inject another agent")
	}
	p.say("go on")
	p.mapRing(fd)
	p.proceed()
	p.until("a window", func() bool { p.read(); return len(p.of(kindWindow)) > 0 })
	p.quit()
}

const replayWithout = "repeat 100000 { launch 3 kernel=k_us5; sync; sleep 200us }; wait"

// ringOf returns the descriptor of a process's ring, or -1.
func ringOf(pid int) int {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, path := range fds {
		if target, _ := os.Readlink(path); strings.Contains(target, "memfd:inferscope-ring") {
			var fd int
			_, _ = fmt.Sscan(filepath.Base(path), &fd)
			return fd
		}
	}
	return -1
}

// TestKillersAreNotInTheSources: of the five ways to kill a target, each takes a call that stands nowhere, or at one
// place only: GRAPH_TRACE; buffers before the subscription; finalize outside a callback; finalize with the kinds off;
// finalize while another thread launches graphs.
func TestKillersAreNotInTheSources(t *testing.T) {
	files, err := filepath.Glob("src/*.c")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d sources, %v", len(files), err)
	}
	comment := regexp.MustCompile(`(?s)/\*.*?\*/`)
	all := ""
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all += comment.ReplaceAllString(string(b), "")
	}
	for pattern, want := range map[string]int{
		`\b51\b`:                              0,
		`cupti\.finalize\(`:                   1,
		`cupti\.subscribe\(`:                  1,
		`cupti\.buffers\(`:                    1,
		`cupti\.enable\(`:                     1,
		`window_finish\(caller\(\), phase\);`: 1,
		`\bcuptiActivityEnable(_v2)?`:         1, // its name in the table
	} {
		if n := len(regexp.MustCompile(pattern).FindAllString(all, -1)); n != want {
			t.Errorf("%s stands %d times in the sources, want %d", pattern, n, want)
		}
	}
	for _, order := range []string{
		`(?s)int error = the\.kept \? 0 : library_find\(\);[^}]*window_subscribe\(\);.*?return window_open\(\);`,
		`(?s)int window_subscribe\(void\)\s*\{[^}]*if \(the\.kept\)\s*return 0;[^}]*cupti\.subscribe\(`,
		`(?s)int window_open\(void\)\s*\{[^}]*the\.kept \? 0 : set_up\(\)`,
	} {
		if !regexp.MustCompile(order).MatchString(all) {
			t.Errorf("the sources do not subscribe before anything else of CUPTI: no %s", order)
		}
	}
	if n := strings.Count(all, "window_open()"); n != 1 {
		t.Errorf("window_open is called at %d places, want 1", n)
	}
	if !regexp.MustCompile(`(?s)void window_finish\(uint32_t tid, uint32_t before\)\s*\{\s*uint64_t t;\s*if \(!others_out\(tid\) \|\| !graphs_out\(tid\)\) \{[^}]*return;\s*\}[^}]*kinds_off\(\);[^}]*flush\([^}]*window_leave\([^}]*given_up = !graphs_allow\(tid\);\s*if \(!the\.window\.given_up\)\s*the\.cupti\.finalize\(\);\s*left_all\(tid\);\s*outside_end\(\);`).
		MatchString(all) {
		t.Error(
			"window_finish is not: others outside, graphs held, kinds off, flush, unsubscribe, finalize unless other " +
				"threads launch graphs, in one go",
		)
	}
}
