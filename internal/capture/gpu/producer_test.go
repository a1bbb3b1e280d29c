package gpu

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
)

// producer is a process that writes a ring as an agent does: testdata/producer.c.
type producer struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
	p     *proc.Process
}

var buildProducer = sync.OnceValue(func() func(testing.TB) string {
	var once sync.Once
	var path string
	return func(t testing.TB) string {
		once.Do(func() { path = compileKept(t) })
		return path
	}
})

// startProducer starts one, which is killed when the test ends.
func startProducer(t testing.TB) *producer {
	t.Helper()
	cmd := exec.Command(buildProducer()(t))
	c := child.Start(t, cmd)
	pr := &producer{t: t, cmd: cmd, stdin: c.In, lines: c.Out}
	pr.until("hello")
	var err error
	if pr.p, err = proc.Describe(c.PID); err != nil {
		t.Fatal(err)
	}
	pr.p.Root = pr.p.PID
	t.Cleanup(func() { _ = pr.p.Close() })
	return pr
}

// until reads to the line that begins with word, and returns it.
func (pr *producer) until(word string) string {
	pr.t.Helper()
	for pr.lines.Scan() {
		if strings.HasPrefix(pr.lines.Text(), word) {
			return pr.lines.Text()
		}
	}
	pr.t.Fatalf("the producer ended before it said %q", word)
	return ""
}

// do sends commands, each of which answers.
func (pr *producer) do(commands ...string) {
	pr.t.Helper()
	for _, c := range commands {
		pr.send(c)
		pr.until("done")
	}
}

func (pr *producer) send(command string) {
	pr.t.Helper()
	if _, err := io.WriteString(pr.stdin, command+"\n"); err != nil {
		pr.t.Fatal(err)
	}
}

// ring makes a ring and returns its descriptor in the producer.
func (pr *producer) ring(slots int, how string) (fd int) {
	pr.t.Helper()
	pr.send(fmt.Sprintf("ring %d %s", slots, how))
	if _, err := fmt.Sscanf(pr.until("ring"), "ring %d", &fd); err != nil {
		pr.t.Fatal(err)
	}
	pr.until("done")
	return fd
}

// Inject makes the producer's ring: the injector of these tests.
func (pr *producer) Inject(_ context.Context, _ *proc.Process, start start) (Entered, error) {
	return Entered{RingFD: pr.ring(int(start.Slots), ""), Stopped: 123 * time.Microsecond}, nil
}

// Wait has nothing to wait for.
func (pr *producer) Wait() error { return nil }

// collector takes events that are fed.
type collector struct{ events []event.Event }

func (c *collector) emit(batch []event.Event) { c.events = append(c.events, batch...) }

func (c *collector) of(k event.Kind) []event.Event {
	var out []event.Event
	for _, e := range c.events {
		if e.Kind == k {
			out = append(out, e)
		}
	}
	return out
}

// eventually fails the test unless ok becomes true; the deadline only finds what hangs.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("it never came to: %s", what)
}
