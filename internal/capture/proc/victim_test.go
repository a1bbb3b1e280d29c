package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// testTimeout is how long a test waits for what must happen; nothing depends on how soon it does.
const testTimeout = 30 * time.Second

// victim is a process that does as it is told; see testdata/victim.c.
type victim struct {
	t       testing.TB
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	path    string // of the program
	library string // of a library without dependencies
	errors  bytes.Buffer
	pid     int
}

// scratch is a folder for all tests of a run; TestMain makes and removes it.
var scratch string

// built compiles the victim and its library once for all tests.
var built = sync.OnceValues(func() (dir string, err error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return "", errNoCompiler
	}
	dir = scratch
	source := filepath.Join(dir, "other.c")
	if err := os.WriteFile(source, []byte("int other(void) { return 42; }\n"), 0o600); err != nil {
		return dir, err
	}
	for _, args := range [][]string{
		{"-O1", "-o", filepath.Join(dir, "victim"), "testdata/victim.c", "-pthread", "-ldl"},
		{"-O1", "-o", filepath.Join(dir, "libother.so"), source, "-shared", "-fPIC", "-nostdlib"},
	} {
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			return dir, fmt.Errorf("cc %v: %w\n%s", args, err, out)
		}
	}
	return dir, nil
})

var errNoCompiler = errors.New("needs a C compiler (cc)")

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "inferscope-target-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// newVictim starts a victim that ends with the test, or skips the test where
// none can be built. Its library is its own, so that it may be removed.
func newVictim(t testing.TB) *victim {
	t.Helper()
	dir, err := built()
	if errors.Is(err, errNoCompiler) {
		t.Skip(err)
	}
	must.NoError(t, err)
	v := &victim{t: t, path: filepath.Join(dir, "victim"), library: filepath.Join(t.TempDir(), "libother.so")}
	content, err := os.ReadFile(filepath.Join(dir, "libother.so"))
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(v.library, content, 0o700))
	v.start()
	return v
}

func (v *victim) start() {
	v.t.Helper()
	v.cmd = exec.Command(v.path, "an argument", "(x) y")
	v.cmd.Stderr = &v.errors
	v.cmd.WaitDelay = time.Second // a child may hold the pipes
	c := child.Start(v.t, v.cmd)
	v.in, v.out, v.pid = c.In, c.Out, c.PID
	v.out.Buffer(nil, 1<<20)
	v.answer()
}

func (v *victim) stop() {
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}

// send gives a command that has no answer.
func (v *victim) send(format string, args ...any) {
	v.t.Helper()
	if _, err := fmt.Fprintf(v.in, format+"\n", args...); err != nil {
		v.t.Fatal(err)
	}
}

func (v *victim) answer() string {
	v.t.Helper()
	if !v.out.Scan() {
		v.t.Fatalf("the victim says nothing: %v %s", v.out.Err(), v.errors.String())
	}
	return v.out.Text()
}

// tell gives a command and returns the number in its answer.
func (v *victim) tell(format string, args ...any) int {
	v.t.Helper()
	numbers := v.numbers(format, args...)
	return numbers[len(numbers)-1]
}

// numbers gives a command and returns the numbers in its answer.
func (v *victim) numbers(format string, args ...any) []int {
	v.t.Helper()
	v.send(format, args...)
	var numbers []int
	for _, word := range strings.Fields(v.answer()) {
		if n, err := strconv.Atoi(word); err == nil {
			numbers = append(numbers, n)
		}
	}
	if len(numbers) == 0 {
		v.t.Fatalf("no number in the answer to %q", format)
	}
	return numbers
}

// must gives a command that answers 1 where it could be done.
func (v *victim) must(format string, args ...any) {
	v.t.Helper()
	if v.tell(format, args...) != 1 {
		v.t.Fatalf("the victim could not %s", fmt.Sprintf(format, args...))
	}
}

// described takes hold of a process for the length of the test.
func described(t testing.TB, pid int) *Process {
	t.Helper()
	p, err := Describe(pid)
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// watch is a Watcher whose changes are kept in order.
type watch struct {
	*Watcher
	t    testing.TB
	seen []Change
}

func newWatch(t testing.TB, o Options) *watch {
	t.Helper()
	needs.Root(t, "it loads BPF programs and looks into other processes")
	w, err := New(o)
	must.NoError(t, err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return &watch{Watcher: w, t: t}
}

func (w *watch) add(pid int) *Process {
	w.t.Helper()
	p, err := w.Add(pid)
	must.NoError(w.t, err)
	return p
}

// next returns the next change of that kind of that process, now or later.
func (w *watch) next(kind ChangeKind, pid int) Change {
	w.t.Helper()
	deadline := time.After(testTimeout)
	for {
		select {
		case c, ok := <-w.Changes():
			if !ok {
				w.t.Fatal("the changes have ended")
			}
			w.seen = append(w.seen, c)
			if c.Kind == kind && c.Process.PID == uint32(pid) {
				return c
			}
		case <-deadline:
			w.t.Fatalf("%v of %d did not come; seen: %v", kind, pid, w.story())
		}
	}
}

// story returns what was seen, but for mappings.
func (w *watch) story() []string {
	var story []string
	for _, c := range w.seen {
		if c.Kind != Mapped {
			story = append(story, fmt.Sprintf("%v %d", c.Kind, c.Process.PID))
		}
	}
	return story
}

func (w *watch) expect(want ...string) {
	w.t.Helper()
	if got := w.story(); strings.Join(got, "; ") != strings.Join(want, "; ") {
		w.t.Errorf("changes:\n got %v\nwant %v", got, want)
	}
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	must.NoError(t, err)
	return n
}
