package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// newcomer is a victim that loads the agent when it is told to, as CUDA does where CUDA_INJECTION64_PATH names it.
type newcomer struct {
	*cudasim.Victim
	t     *testing.T
	image string
	in    *os.File
	out   *bufio.Reader
}

// startNewcomer starts one; the script has to begin with a wait.
func startNewcomer(t *testing.T, in *AgentInjector, script ...string) *newcomer {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	library := path("starter.so")
	if text, err := exec.Command(
		"gcc", "-shared", "-fPIC", "-o", library, "../../../agent/testdata/starter.c", "-ldl", "-lpthread",
	).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, text)
	}
	if err := errors.Join(
		os.WriteFile(path("agent.so"), in.image, 0o600), unix.Mkfifo(path("in"), 0o600),
		unix.Mkfifo(path("out"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	n := &newcomer{t: t, image: path("agent.so")}
	n.Victim = cudasim.Start(
		t,
		cudasim.Options{
			Env: []string{"LD_PRELOAD=" + library, "STARTER_IN=" + path("in"), "STARTER_OUT=" + path("out")},
		},
		script...)
	n.WaitLine("waiting")
	var err error
	if n.in, err = os.OpenFile(path("in"), os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	out, err := os.Open(path("out"))
	if err != nil {
		t.Fatal(err)
	}
	n.out = bufio.NewReader(out)
	t.Cleanup(func() { _, _ = n.in.Close(), out.Close() })
	return n
}

func (n *newcomer) setState(line string) {
	n.t.Helper()
	if _, err := fmt.Fprintln(n.in, line); err != nil {
		n.t.Fatal(err)
	}
}

// loadAgent returns when CUDA would go on. The agent's thread has not had its turn yet: goOn gives it.
func (n *newcomer) loadAgent() {
	n.t.Helper()
	n.setState("inject " + n.image)
	if said, err := n.out.ReadString('\n'); err != nil || strings.TrimSpace(said) != "1" {
		n.t.Fatalf("InitializeInjection says %q, %v", said, err)
	}
}

func (n *newcomer) goOn() { n.setState("go on") }

// used checks that the agent that came by itself records everything, and that no thread was stopped for it.
func (n *newcomer) used(s *Source, p *proc.Process, got *collector) {
	n.t.Helper()
	drain(n.t, s, got, "the agent records all the time", func() bool {
		return stateOf(s, p.PID) == string(running) && s.recording(p.Root)
	})
	n.Go()
	n.WaitLine("waiting")
	s.Flush(n.t.Context(), []uint32{p.PID})
	s.Feed(0, got.emit)
	compareKernels(n.t, s, p, n.Victim, got.of(event.Kernel))
	if a := s.Agents()[0]; a.Stopped != 0 {
		n.t.Errorf("a thread was stopped: %+v", a)
	}
}

// TestAgentLoadedAtStart: an agent that came with the program is used although its thread has not begun, nothing is
// injected, and it is told what the daemon wants.
func TestAgentLoadedAtStart(t *testing.T) {
	opts := simOptions(t, Continuous)
	in, ok := opts.Inject.(*AgentInjector)
	if !ok {
		t.Fatal("no injector")
	}
	n := startNewcomer(t, in, "wait", "wait", "rate 2000 for 200ms", "sync", "wait")
	n.loadAgent()
	opts.Inject = noInjector{t}
	s := newTestSource(t, opts)
	p := watch(t, s, n.Victim)
	var got collector
	drain(t, s, &got, "the agent is taken over", func() bool { return stateOf(s, p.PID) == string(running) })
	n.goOn()
	n.Send("go")
	n.used(s, p, &got)
}

// preceded is an injector before which the agent comes by itself, at the worst moment: the daemon has just found that
// there is none.
type preceded struct {
	injector
	come  func()
	calls int
	err   error
}

func (p *preceded) Inject(ctx context.Context, process *proc.Process, start start) (Entered, error) {
	if p.calls++; p.calls == 1 {
		p.come()
	}
	entered, err := p.injector.Inject(ctx, process, start)
	p.err = err
	return entered, err
}

// TestAgentThatComesByItself: where CUDA loads an agent after the daemon has found none, no second one is injected,
// and that one is used.
func TestAgentThatComesByItself(t *testing.T) {
	opts := simOptions(t, Continuous)
	in, ok := opts.Inject.(*AgentInjector)
	if !ok {
		t.Fatal("no injector")
	}
	n := startNewcomer(t, in, "wait", "until { rate 2000 for 20ms; sync }", "rate 2000 for 200ms", "sync", "wait")
	first := &preceded{injector: in, come: func() { n.loadAgent(); n.goOn(); n.Send("go") }}
	opts.Inject = first
	s := newTestSource(t, opts)
	p := watch(t, s, n.Victim)
	var got collector
	n.used(s, p, &got)
	if first.calls != 1 || !errors.Is(first.err, inject.ErrPreceded) {
		t.Errorf("%d attempts to bring one in, the last one: %v; want 1 and %v",
			first.calls, first.err, inject.ErrPreceded)
	}
	if rings := ringFiles(p); len(rings) > 1 {
		t.Errorf("the process has %d rings open", len(rings))
	}
}

// TestYoungProcesses: no agent is injected into a process before it is old enough, nor when it ends before that.
func TestYoungProcesses(t *testing.T) {
	pr := startProducer(t)
	for _, c := range []struct {
		name  string
		age   time.Duration
		calls int
	}{{"too young", time.Hour, 0}, {"old enough", 1, 1}} {
		t.Run(c.name, func(t *testing.T) {
			in := &failing{err: errRefused}
			s := newTestSource(t, Options{Inject: in, MinAge: c.age})
			young := *pr.p
			young.Born = clock.Monotonic() - 1000
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, _, err := s.injectAgent(ctx, &young)
				ended <- err
			}()
			if c.calls == 0 {
				cancel()
			}
			err := <-ended
			cancel()
			if in.calls != c.calls || c.calls == 0 && !errors.Is(err, context.Canceled) {
				t.Errorf("%d agents are injected (%v), want %d", in.calls, err, c.calls)
			}
		})
	}
}
