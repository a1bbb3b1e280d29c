package proc

import (
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestAddDescribes(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	p := w.add(v.pid)
	now := monotonic()
	want := Process{
		PID:   uint32(v.pid),
		NSPID: uint32(v.pid),
		Root:  uint32(v.pid),
		Payer: Payer{Root: uint32(v.pid)},
		UID:   uint32(os.Getuid()),
		Comm:  "victim", Cmdline: v.path + " an argument (x) y",
		StartTime: p.StartTime, Born: p.Born, Owned: []Stay{{p.Owned[0].From, 0}}, pidfd: p.pidfd,
	}
	if !reflect.DeepEqual(*p, want) {
		t.Errorf("got %+v, want %+v", *p, want)
	}
	if p.Born > now || now-p.Born > uint64(testTimeout) {
		t.Errorf("born at %d, now is %d", p.Born, now)
	}
	if !p.Alive() {
		t.Error("a running process is not alive")
	}
	if c := w.next(Appeared, v.pid); c.Process != p || c.At > now {
		t.Errorf("change %+v", c)
	}
	if again := w.add(v.pid); again != p {
		t.Error("added twice, it is another process")
	}
	if s := w.State(); s.State != "running" || s.Detail != "" {
		t.Errorf("state %+v", s)
	}
}

func TestForkAndExit(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	before := monotonic()
	child := v.tell("fork")
	after := monotonic()
	c := w.next(Appeared, child)
	p := c.Process
	if p.Parent != uint32(v.pid) || p.Root != uint32(v.pid) || p.Comm != "victim" || p.NSPID != uint32(child) {
		t.Errorf("child %+v", p)
	}
	if c.At != p.Born || p.Born < before || p.Born > after {
		t.Errorf("born at %d, forked between %d and %d", p.Born, before, after)
	}
	if real := described(t, child); real.ID() != p.ID() || real.Born > p.Born || p.Born-real.Born > 2*nsPerTick {
		t.Errorf("by the kernel %+v, by /proc %+v", p, real)
	}
	must.NoError(t, syscall.Kill(child, syscall.SIGKILL))
	x := w.next(Exited, child).Process
	if x.ExitCode != int32(syscall.SIGKILL) || x.Died < after || x.Alive() || p.Alive() {
		t.Errorf("after its death: %+v", x)
	}
	if p.Died != 0 {
		t.Error("the process that was handed out before has changed")
	}
	if living := w.Living(uint32(v.pid)); len(living) != 1 || living[0].PID != uint32(v.pid) {
		t.Errorf("after the child's death %+v run", living)
	}
	v.stop()
	w.next(Exited, v.pid)
	w.expect(fmt.Sprint("appeared ", v.pid), fmt.Sprint("appeared ", child),
		fmt.Sprint("exited ", child), fmt.Sprint("exited ", v.pid))
	if n, living := len(w.Processes()), w.Living(uint32(v.pid)); n != 2 || living != nil {
		t.Errorf("%d processes are remembered, want 2, and %+v run", n, living)
	}
}

func TestExitCodes(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	// As wait(2) gives them: the code in the second byte, the signal in the first.
	for command, want := range map[string]int32{
		"child-exit 0": 0, "child-exit 7": 7 << 8, "child-signal 9": 9, "child-signal 15": 15,
		"leader-first 5": 5 << 8,
	} {
		child := v.tell(command)
		if x := w.next(Exited, child).Process; x.ExitCode != want {
			t.Errorf("%s: exit code %#x, want %#x", command, x.ExitCode, want)
		}
	}
	v.send("exit 3")
	if x := w.next(Exited, v.pid).Process; x.ExitCode != 3<<8 {
		t.Errorf("the root's exit code is %#x", x.ExitCode)
	}
}

func TestGrandchildOfShortLife(t *testing.T) {
	for _, how := range []string{"grandchild", "daemon"} {
		t.Run(how, func(t *testing.T) {
			v := newVictim(t)
			w := newWatch(t, Options{})
			w.add(v.pid)
			family := v.numbers(how)
			child, grandchild := family[0], family[1]
			t.Cleanup(func() { _ = syscall.Kill(grandchild, syscall.SIGKILL) })
			w.next(Exited, child)
			w.expect(fmt.Sprint("appeared ", v.pid), fmt.Sprint("appeared ", child),
				fmt.Sprint("appeared ", grandchild), fmt.Sprint("exited ", child))
			p := w.seen[2].Process
			if p.Parent != uint32(child) || p.Root != uint32(v.pid) || !p.Alive() {
				t.Errorf("grandchild %+v", p)
			}
		})
	}
}

func TestDescendantsBeforeAdd(t *testing.T) {
	v := newVictim(t)
	child := v.tell("fork")
	threads := v.tell("threads 4")
	w := newWatch(t, Options{})
	w.add(v.pid)
	w.next(Appeared, child)
	w.expect(fmt.Sprint("appeared ", v.pid), fmt.Sprint("appeared ", child))
	if p := w.seen[1].Process; p.Parent != uint32(v.pid) || p.Root != uint32(v.pid) || threads != 4 {
		t.Errorf("child %+v", p)
	}
	_ = syscall.Kill(child, syscall.SIGTERM)
	if x := w.next(Exited, child); x.Process.ExitCode != int32(syscall.SIGTERM) {
		t.Errorf("exit code %d", x.Process.ExitCode)
	}
}

func TestExec(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	p := w.add(v.pid)
	v.send("exec %s", v.path)
	v.answer() // ready again
	c := w.next(Execed, v.pid)
	if c.Process.ID() != p.ID() || c.Process.Cmdline != v.path+" again" || !c.Process.Alive() || c.Process.Execs != 1 {
		t.Errorf("after the exec: %+v", c.Process)
	}
	v.send("exec %s", v.path) // what it is called does not change
	v.answer()
	if c := w.next(Execed, v.pid); c.Process.Cmdline != v.path+" again" || c.Process.Execs != 2 {
		t.Errorf("after the exec of the same program: %+v", c.Process)
	}
	child := v.tell("vfork /bin/true")
	w.next(Appeared, child)
	if e := w.next(Execed, child); e.Process.Comm != "true" {
		t.Errorf("after vfork and exec: %+v", e.Process)
	}
	w.next(Exited, child)
	w.expect(
		fmt.Sprint("appeared ", v.pid),
		fmt.Sprint("execed ", v.pid),
		fmt.Sprint("execed ", v.pid),
		fmt.Sprint("appeared ", child),
		fmt.Sprint("execed ", child),
		fmt.Sprint("exited ", child),
	)
}

func TestExecOfAnotherThread(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	child := v.tell("thread-exec /bin/true")
	w.next(Exited, child)
	w.expect(fmt.Sprint("appeared ", v.pid), fmt.Sprint("appeared ", child),
		fmt.Sprint("execed ", child), fmt.Sprint("exited ", child))
}

func TestThreadsAreNoProcesses(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	v.tell("threads 5")
	names := make(map[string]bool)
	for _, thread := range w.Threads(uint32(v.pid)) {
		if thread.PID != uint32(v.pid) {
			t.Errorf("thread %+v", thread)
		}
		names[thread.Name] = true
	}
	want := map[string]bool{"victim": true}
	for i := range 5 {
		want[fmt.Sprintf("worker-%d", i)] = true
	}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("names %v, want %v", names, want)
	}
	v.tell("threads 0")
	if n := len(w.Threads(uint32(v.pid))); n != 6 {
		t.Errorf("%d names after the threads have ended, want 6", n)
	}
	v.stop()
	w.next(Exited, v.pid)
	w.expect(fmt.Sprint("appeared ", v.pid), fmt.Sprint("exited ", v.pid))
	if n := len(w.Threads(uint32(v.pid))); n != 6 {
		t.Errorf("%d names after the process has ended, want 6", n)
	}
	if w.Threads(1) != nil {
		t.Error("names of a process that is not watched")
	}
}

func TestStormOfForks(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	children := v.numbers("storm 500")
	if len(children) != 500 {
		t.Fatalf("%d children", len(children))
	}
	v.send("exit 0")
	w.next(Exited, v.pid)
	codes := make(map[uint32]int32)
	appeared := make(map[uint32]int)
	for _, c := range w.seen {
		switch c.Kind {
		case Appeared:
			appeared[c.Process.PID]++
		case Exited:
			if appeared[c.Process.PID] != 1 {
				t.Errorf("%d exited after it appeared %d times", c.Process.PID, appeared[c.Process.PID])
			}
			codes[c.Process.PID] = c.Process.ExitCode
		}
	}
	for i, child := range children {
		if code, ok := codes[uint32(child)]; !ok || code != int32(i%100)<<8 {
			t.Fatalf("child %d of 500: exited %v with %#x", i, ok, code)
		}
	}
	if len(appeared) != 501 || len(w.Losses()) != 0 {
		t.Errorf("%d appeared, losses %v", len(appeared), w.Losses())
	}
}

func TestOthersAreNotWatched(t *testing.T) {
	v, other := newVictim(t), newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	other.tell("fork")
	other.tell("vfork /bin/true")
	child := v.tell("child-exit 1")
	w.next(Exited, child)
	w.expect(fmt.Sprint("appeared ", v.pid), fmt.Sprint("appeared ", child), fmt.Sprint("exited ", child))
}

func TestTwoTargets(t *testing.T) {
	a, b := newVictim(t), newVictim(t)
	w := newWatch(t, Options{})
	w.add(a.pid)
	w.add(b.pid)
	child := b.tell("fork")
	if p := w.next(Appeared, child).Process; p.Root != uint32(b.pid) {
		t.Errorf("root of b's child: %+v", p)
	}
	a.stop()
	w.next(Exited, a.pid)
	second := b.tell("fork")
	if p := w.next(Appeared, second).Process; p.Root != uint32(b.pid) {
		t.Errorf("root of b's second child: %+v", p)
	}
}

// Where the kernel's ring overflows, every child that still runs is found again,
// the loss is counted, and children of later days are followed as ever.
func TestLostBirthsAreFound(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{ringBytes: 4096, buffered: 1})
	w.add(v.pid)
	var children []int
	_ = w.do(func() { // while the loop stands still
		for range 100 {
			children = append(children, v.tell("fork"))
		}
	})
	found := make(map[uint32]bool)
	deadline := time.After(testTimeout)
	for len(found) < len(children)+1 {
		select {
		case c := <-w.Changes():
			if c.Kind == Appeared && found[c.Process.PID] {
				t.Errorf("%d appeared twice", c.Process.PID)
			}
			found[c.Process.PID] = true
			if c.Process.Root != uint32(v.pid) {
				t.Errorf("root of %+v", c.Process)
			}
		case <-deadline:
			t.Fatalf("%d of %d found", len(found), len(children)+1)
		}
	}
	if l := w.Losses(); len(l) != 1 || l[0].Where != "kernel ring" || l[0].Count == 0 {
		t.Errorf("losses %v", l)
	}
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
	v.stop()
	for _, child := range append(children, v.pid) {
		must.NoError(t, w.waitGone(uint32(child)))
	}
}

// waitGone waits until a process is among the dead, by event or by sweep.
func (w *watch) waitGone(pid uint32) error {
	deadline := time.Now().Add(testTimeout)
	for time.Now().Before(deadline) {
		for _, p := range w.Processes() {
			if p.PID == pid && p.Died != 0 {
				return nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("pid %d is still among the living", pid)
}

// A worker that names itself and gives up root is shown as what it has become.
func TestNewNameAndOwner(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	v.must("name worker-of-mine-is-long")
	v.must("setuid 65534")
	want := "worker-of-mine-"[:15] // TASK_COMM_LEN
	deadline := time.Now().Add(testTimeout)
	for {
		all := w.Processes()
		if len(all) == 1 && all[0].Comm == want && all[0].UID == 65534 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %+v", all)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestRefused(t *testing.T) {
	v := newVictim(t)
	zombie := v.tell("zombie")
	v.tell("threads 1")
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", v.pid))
	if err != nil || len(entries) != 2 {
		t.Fatalf("threads: %v %v", entries, err)
	}
	gone := exec.Command("/bin/true")
	must.NoError(t, gone.Run())
	for _, c := range []struct {
		pid  int
		want string
	}{
		{0, "pid 0: not a process id"},
		{-1, "pid -1: not a process id"},
		{1 << 40, "pid 1099511627776: not a process id"},
		{gone.Process.Pid, fmt.Sprintf("pid %d: no such process", gone.Process.Pid)},
		{zombie, fmt.Sprintf("pid %d is a zombie (victim): it has ended and waits for its parent", zombie)},
		{atoi(t, entries[1].Name()), fmt.Sprintf("pid %s is a thread of process %d", entries[1].Name(), v.pid)},
		{2, "pid 2 is a kernel thread (kthreadd)"},
	} {
		if s, err := newProcfs(procRoot).stat(2); c.pid == 2 && (err != nil || s.flags&pfKthread == 0) {
			t.Log("pid 2 is no kernel thread here: in a pid namespace")
			continue
		}
		_, err := Describe(c.pid)
		if err == nil || err.Error() != c.want || clierror.CodeOf(err) != clierror.NoProcess ||
			clierror.HintOf(err) == "" {
			t.Errorf("pid %d: %v (code %d), want %q", c.pid, err, clierror.CodeOf(err), c.want)
		}
	}
}

func TestCloseEndsChanges(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	p := w.add(v.pid)
	must.NoError(t, w.Close())
	for range w.Changes() {
		t.Error("a change after Close")
	}
	if _, err := w.Add(v.pid); err == nil {
		t.Error("added after Close")
	}
	if p.Alive() || w.Processes() != nil || w.State().State != "off" || w.Close() != nil {
		t.Error("something is left after Close")
	}
	if v.tell("fork") == 0 {
		t.Error("the target did not survive")
	}
}
