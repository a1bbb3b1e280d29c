package cudasim

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
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Options say how a victim runs. The zero value is the dlopen victim on the driver API of shape 580 with every call in
// the truth.
type Options struct {
	Shape   int           // Shape535 or Shape580; 0 is Shape580
	Lib     string        // "driver" or "runtime"; "" leaves it to the program
	Level   string        // CUDASIM_TRUTH_LEVEL: "calls", "counts" or "off"; "" is calls
	Program []string      // program and its first arguments; nil is Paths.Victim
	Args    []string      // options before the script, such as "--late"
	Env     []string      // more environment, such as "CUDASIM_KERNEL_SLOTS=4"
	User    uint32        // its user and group, of whom it has no other rights; 0 is the test's
	NoReady bool          // do not wait for "ready": for --late, and for scripts that fail
	Timeout time.Duration // for each wait below; 0 is 30 s
}

// Victim is a running victim program.
type Victim struct {
	PID   int
	tb    testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	limit time.Duration
	truth string // prefix of its truth files

	mu     sync.Mutex
	lines  []string
	stderr bytes.Buffer
	more   chan struct{} // closed and replaced at each new line
	eof    chan struct{}
	waited chan struct{}
	err    error
}

// Start runs a victim with a script, each argument one or more commands, waits until CUDA is up in it, and kills it
// when the test ends.
func Start(tb testing.TB, o Options, script ...string) *Victim {
	tb.Helper()
	p := Build(tb)
	v := &Victim{
		tb:     tb,
		limit:  o.Timeout,
		truth:  filepath.Join(tb.TempDir(), "truth"),
		more:   make(chan struct{}),
		eof:    make(chan struct{}),
		waited: make(chan struct{}),
	}
	if v.limit == 0 {
		v.limit = 30 * time.Second
	}
	v.cmd = command(p, o, script)
	v.cmd.Env = environment(p, o, v.truth)
	if o.User != 0 {
		v.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: o.User, Gid: o.User}}
		dir := filepath.Dir(v.truth)
		err := errors.Join(
			os.Chown(dir, int(o.User), int(o.User)),
			os.Chmod(filepath.Dir(dir), 0o711),
		) // of all temporary folders
		must.NoError(tb, err)
	}
	if err := v.start(); err != nil {
		tb.Fatalf("cudasim: start %s: %v", v.cmd.Path, err)
	}
	tb.Cleanup(v.Kill)
	if !o.NoReady {
		v.WaitLine("ready")
	}
	return v
}

func command(p Paths, o Options, script []string) *exec.Cmd {
	argv := append([]string(nil), o.Program...)
	if len(argv) == 0 {
		argv = []string{p.Victim}
	}
	if o.Lib != "" {
		argv = append(argv, "--lib", o.Lib)
	}
	argv = append(append(argv, o.Args...), script...)
	return exec.Command(argv[0], argv[1:]...)
}

func environment(p Paths, o Options, truth string) []string {
	shape, level := o.Shape, o.Level
	if shape == 0 {
		shape = Shape580
	}
	if level == "" {
		level = "calls"
	}
	env := append(os.Environ(), "LD_LIBRARY_PATH="+p.LibraryPath(shape), "CUDASIM_TRUTH="+truth,
		"CUDASIM_TRUTH_LEVEL="+level)
	return append(env, o.Env...)
}

func (v *Victim) start() error {
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if v.stdin, err = v.cmd.StdinPipe(); err != nil {
		return err
	}
	v.cmd.Stderr = lockedWriter{v}
	v.cmd.WaitDelay = time.Second // a forked child may keep the pipes
	if err := v.cmd.Start(); err != nil {
		return err
	}
	v.PID = v.cmd.Process.Pid
	go v.read(out)
	return nil
}

type lockedWriter struct{ v *Victim }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.v.mu.Lock()
	defer w.v.mu.Unlock()
	return w.v.stderr.Write(b)
}

func (v *Victim) read(out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		v.mu.Lock()
		v.lines = append(v.lines, s.Text())
		close(v.more)
		v.more = make(chan struct{})
		v.mu.Unlock()
	}
	close(v.eof)
	v.err = v.cmd.Wait()
	close(v.waited)
}

// line takes the first line not yet taken that begins with the word, and all lines before it.
func (v *Victim) line(word string) (string, chan struct{}, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, l := range v.lines {
		if l == word || strings.HasPrefix(l, word+" ") {
			v.lines = v.lines[i+1:]
			return strings.TrimSpace(strings.TrimPrefix(l, word)), v.more, true
		}
	}
	return "", v.more, false
}

// WaitLine waits for a line of the victim's output that begins with a word, and returns the rest of it. The test fails
// when the victim ends or the time is over before that.
func (v *Victim) WaitLine(word string) string {
	v.tb.Helper()
	timeout := time.After(v.limit)
	for {
		rest, more, ok := v.line(word)
		if ok {
			return rest
		}
		select {
		case <-more:
		case <-v.eof:
			if rest, _, ok := v.line(word); ok {
				return rest
			}
			v.tb.Fatalf("cudasim: the victim ended before it said %q; stderr: %s", word, v.Stderr())
		case <-timeout:
			v.tb.Fatalf("cudasim: the victim did not say %q within %v; stderr: %s", word, v.limit, v.Stderr())
		}
	}
}

// Send writes a line to the victim's stdin.
func (v *Victim) Send(line string) {
	v.tb.Helper()
	if _, err := io.WriteString(v.stdin, line+"\n"); err != nil {
		v.tb.Fatalf("cudasim: write to the victim: %v", err)
	}
}

// Go lets a victim that has come to its next "wait" command go on.
func (v *Victim) Go() {
	v.tb.Helper()
	v.WaitLine("waiting")
	v.Send("go")
}

// Wait waits for the victim's end and returns what exec.Cmd.Wait says.
func (v *Victim) Wait() error {
	v.tb.Helper()
	select {
	case <-v.waited:
		return v.err
	case <-time.After(v.limit):
		v.tb.Fatalf("cudasim: the victim did not end within %v", v.limit)
		return nil
	}
}

// Finish waits for the victim's end and fails the test unless it ended well.
func (v *Victim) Finish() {
	v.tb.Helper()
	if err := v.Wait(); err != nil {
		v.tb.Fatalf("cudasim: victim: %v; stderr: %s", err, v.Stderr())
	}
}

// Kill ends the victim at once, as kill -9 does. Killing one that has ended is no error.
func (v *Victim) Kill() {
	if err := v.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		v.tb.Errorf("cudasim: kill the victim: %v", err)
	}
	<-v.waited
}

// Stderr is what the victim has written to stderr so far.
func (v *Victim) Stderr() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stderr.String()
}

// TruthPath is the truth file of the victim's first process image; TruthOf(v.PID) in other words.
func (v *Victim) TruthPath() string { return v.TruthOf(v.PID) }

// TruthOf is the truth file of a process of the victim, such as a forked child. An image after an exec writes the same
// name with .1 after it, the next .2.
func (v *Victim) TruthOf(pid int) string { return v.truth + "." + strconv.Itoa(pid) }

// Truth reads the truth of the victim's first image as it is now, running or not.
func (v *Victim) Truth() *Truth {
	v.tb.Helper()
	t, err := ReadTruth(v.TruthPath())
	if err != nil {
		v.tb.Fatalf("cudasim: %v", err)
	}
	return t
}

// Truths reads all truth files of the victim: its own, its children's, and those of later images.
func (v *Victim) Truths() []*Truth {
	v.tb.Helper()
	paths, err := filepath.Glob(v.truth + ".*")
	if err != nil {
		v.tb.Fatalf("cudasim: %v", err)
	}
	var all []*Truth
	for _, p := range paths {
		t, err := ReadTruth(p)
		if err != nil {
			v.tb.Fatalf("cudasim: %v", err)
		}
		all = append(all, t)
	}
	return all
}

// ParsePID reads the number at the start of a line's rest, as WaitLine("child") returns it.
func ParsePID(rest string) (int, error) {
	word, _, _ := strings.Cut(rest, " ")
	pid, err := strconv.Atoi(word)
	if err != nil {
		return 0, fmt.Errorf("%q is no pid: %w", rest, err)
	}
	return pid, nil
}
