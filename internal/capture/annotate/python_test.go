package annotate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// testTimeout is how long a test waits for what must happen; nothing depends on how soon it does.
const testTimeout = 30 * time.Second

// script is a Python program that runs each line that it is sent, and answers "ok".
type script struct {
	t   *testing.T
	pid int
	in  io.Writer
	out *bufio.Scanner
}

const interpreter = `
import sys
from inferscope import scope
names = {"scope": scope}
print("ok", flush=True)
for line in sys.stdin:
    exec(line.replace("\\n", "\n"), names)
    print("ok", flush=True)
`

// start starts a Python that has imported the package; prefix is what to start it with.
func start(t *testing.T, prefix ...string) *script {
	t.Helper()
	needs.Root(t, "it opens the memory of other processes through /proc/PID/map_files")
	python := needs.Tool(t, "python3")
	where, err := filepath.Abs("../../../python")
	must.NoError(t, err)
	args := append(prefix, python, "-c", interpreter)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+where, "PYENV_VERSION=3.12.1")
	c := child.Start(t, cmd)
	s := &script{t: t, pid: c.PID, in: c.In, out: c.Out}
	s.answer()
	return s
}

func (s *script) answer() {
	s.t.Helper()
	for s.out.Scan() {
		if s.out.Text() == "ok" {
			return
		}
	}
	s.t.Fatal("the Python program ended")
}

// run runs Python code.
func (s *script) run(code string) {
	s.t.Helper()
	fmt.Fprintln(s.in, strings.ReplaceAll(code, "\n", `\n`))
	s.answer()
}

func describe(t *testing.T, pid int) *proc.Process {
	t.Helper()
	p, err := proc.Describe(pid)
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// collector gathers what a source feeds.
type collector struct {
	source *Source
	events []event.Event
}

func (c *collector) feed() {
	c.source.Feed(0, func(batch []event.Event) { c.events = append(c.events, batch...) })
}

// until feeds until ok.
func (c *collector) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !ok(); time.Sleep(10 * time.Millisecond) {
		if c.feed(); time.Now().After(end) {
			t.Fatalf("waited %s for %s; state %+v, losses %+v", testTimeout, what, c.source.State(), c.source.Losses())
		}
	}
}

func (c *collector) name(e *event.Event) string {
	text, _ := c.source.texts.row(e.Ret)
	return text
}

func follow(t *testing.T, p *proc.Process) *collector {
	t.Helper()
	c := &collector{source: New(zap.NewNop())}
	must.NoError(t, c.source.Follow(p))
	c.until(t, "the memory of scopes", func() bool { return c.source.State().State == "running" })
	c.feed()
	return c
}

func TestScopesOfAPythonProgram(t *testing.T) {
	s := start(t)
	s.run("with scope('before anybody records'): pass")
	p := describe(t, s.pid)
	c := follow(t, p)
	before := clock.Monotonic()
	s.run("with scope('outer'):\n with scope('inner', batch=32): pass")
	c.until(t, "two scopes", func() bool { return len(c.events) == 2 })
	inner, outer := &c.events[0], &c.events[1]
	if c.name(inner) != "inner" || c.name(outer) != "outer" {
		t.Errorf("the scopes are %q and %q", c.name(inner), c.name(outer))
	}
	if inner.Args[1] != outer.Args[0] || outer.Args[1] != 0 || inner.Args[2] != 0 {
		t.Errorf("they nest wrongly: %+v %+v", inner, outer)
	}
	if inner.Kind != event.Range || inner.Func != event.ScopeRange || inner.PID != p.PID || inner.TID != p.PID {
		t.Errorf("the event is %+v", inner)
	}
	if outer.TS < before || inner.TS < outer.TS || inner.End() > outer.End() || outer.End() > clock.Monotonic() {
		t.Errorf("the times are off: %+v %+v", inner, outer)
	}
	if text, _ := c.source.texts.row(int32(inner.Args[3])); text != `{"batch": 32}` || outer.Args[3] != 0 {
		t.Errorf("the attributes are %q and %d", text, outer.Args[3])
	}
	if rows, at := c.source.Ranges([]int32{0, inner.Ret, 999}); len(rows) != 1 || at[inner.Ret] != 1 || at[0] != 0 {
		t.Errorf("names are %q, %v", rows, at)
	}
	if got := c.source.Losses(); len(got) != 0 {
		t.Errorf("losses are %+v", got)
	}
}

// TestTheEndOfRecording: a program writes no scopes once nobody reads them, and what was written before is not lost.
func TestTheEndOfRecording(t *testing.T) {
	s := start(t)
	c := follow(t, describe(t, s.pid))
	s.run("with scope('last'): pass")
	must.NoError(t, c.source.Close())
	c.feed()
	if len(c.events) != 1 || c.name(&c.events[0]) != "last" {
		t.Errorf("the end has %+v", c.events)
	}
	s.run("import inferscope._scope as s\nassert not s._recording() and s._state.words[4] == 0")
}

// TestAProcessThatEnds: what it wrote last is read after its end.
func TestAProcessThatEnds(t *testing.T) {
	s := start(t)
	p := describe(t, s.pid)
	c := follow(t, p)
	fmt.Fprintln(s.in, `import os\nwith scope("last"): pass\nos._exit(0)`)
	for s.out.Scan() {
	}
	c.source.Forget(p)
	c.until(t, "the last scope", func() bool { return len(c.events) == 1 })
	if st := c.source.State(); st.State != "waiting" {
		t.Errorf("state is %+v", st)
	}
}

// TestChildren: a forked child that never runs another program has a ring of its own, from its first scope on.
func TestChildren(t *testing.T) {
	s := start(t)
	c := follow(t, describe(t, s.pid))
	s.run(
		"import os\nr, w = os.pipe()\nchild = os.fork()\nif child == 0:\n with scope('in the child'): pass\n" +
			" os.read(r, 1)\n os._exit(0)",
	)
	pid := s.number("child")
	child := describe(t, pid)
	must.NoError(t, c.source.Follow(child))
	c.until(t, "the child's scope", func() bool { return len(c.events) == 1 })
	if e := &c.events[0]; e.PID != uint32(pid) || e.TID != uint32(pid) || c.name(e) != "in the child" {
		t.Errorf("the event is %+v %q", e, c.name(e))
	}
	s.run("os.write(w, b'x')")
}

// TestRingsThatGo: a child lets its parent's ring go when it makes its own, at any moment between a look for rings and
// the opening of one.
func TestRingsThatGo(t *testing.T) {
	s := start(t)
	p := describe(t, s.pid)
	s.run(
		"import threading, inferscope._ring as r, inferscope._scope as s\ndel s._state.words, s._state.ring\n" +
			"r.os.getpid = lambda: 1\ngo = [1]\ndef work():\n while go: r.Ring()\n" +
			"threading.Thread(target=work).start()",
	)
	found := 0
	for range 2000 {
		ring, err := open(p)
		if !errors.Is(err, errNoRing) {
			t.Fatalf("%+v, %v: want none, for all that come are another process's", ring, err)
		}
		found += len(procfile.Mapped(p.PID, memfd))
	}
	if s.run("go.clear()"); found == 0 {
		t.Error("no ring was ever mapped")
	}
}

// number returns a variable of the program.
func (s *script) number(name string) int {
	s.t.Helper()
	fmt.Fprintf(s.in, "print('=', %s, flush=True)\n", name)
	n := 0
	for s.out.Scan() && s.out.Text() != "ok" {
		if text, ok := strings.CutPrefix(s.out.Text(), "= "); ok {
			n, _ = strconv.Atoi(text)
		}
	}
	return n
}

// TestNamespace: threads are told by the host's ids although the program knows others.
func TestNamespace(t *testing.T) {
	s := start(t, "unshare", "--pid", "--fork", "--kill-child")
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.pid, s.pid))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil || pid == 0 {
		t.Skipf("needs pid namespaces and /proc/PID/task/TID/children: %v", err)
	}
	p := describe(t, pid)
	if p.NSPID == p.PID {
		t.Fatalf("the program is in no namespace of its own: %+v", p)
	}
	c := follow(t, p)
	s.run(
		"import threading\ndef work():\n with scope('there'): pass\n" +
			"t = threading.Thread(target=lambda: (work(), done.wait()))\ndone = threading.Event()\nt.start()",
	)
	c.until(t, "the thread's scope", func() bool { return len(c.events) == 1 })
	if tid := c.events[0].TID; tid == 0 || tid == p.PID || !exists(fmt.Sprintf("/proc/%d/task/%d", pid, tid)) {
		t.Errorf("the thread is %d of the host", tid)
	}
	s.run("done.set()")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestARingThatCannotBeTrusted is refused, and told.
func TestARingThatCannotBeTrusted(t *testing.T) {
	for what, c := range map[string]struct{ code, want string }{
		"unsealed": {"os.ftruncate(fd, size)", "not sealed"},
		"small":    {"os.ftruncate(fd, 8192); fcntl.fcntl(fd, 1033, 6)", "do not fit"},
		"no magic": {"os.ftruncate(fd, size); fcntl.fcntl(fd, 1033, 6); m[0] = 0", "does not begin"},
	} {
		t.Run(what, func(t *testing.T) {
			s := start(t)
			s.run("import inferscope._scope as s, inferscope._ring as r, os, fcntl, mmap\n" +
				"size = r.HEADER + r.SLOTS * r.RECORD + r.NAMES\nhead = bytes(s._state.ring._map[:64])\n" +
				"s._state.words = None\ns._state.ring = None\nfd = os.memfd_create('inferscope-scopes', 2)\n" +
				"os.ftruncate(fd, 4096)\nm = mmap.mmap(fd, 4096)\nm[:64] = head\n" + c.code)
			src := &collector{source: New(zap.NewNop())}
			must.NoError(t, src.source.Follow(describe(t, s.pid)))
			src.until(t, "a refusal", func() bool { return len(src.source.Losses()) == 1 })
			if l := src.source.Losses()[0]; !strings.Contains(l.Detail, c.want) {
				t.Errorf("the loss is %+v, want %q", l, c.want)
			}
		})
	}
}
