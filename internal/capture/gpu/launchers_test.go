package gpu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestLaunchers: several threads that live launch graphs; one that took over from one that has ended is alone.
func TestLaunchers(t *testing.T) {
	runtime.LockOSThread() // this one lives, too
	defer runtime.UnlockOSThread()
	pid, tid := uint32(os.Getpid()), uint32(unix.Gettid())
	var l launchers
	for range 3 {
		l.note(pid, tid)
	}
	if l.several {
		t.Error("one thread is taken for several")
	}
	if l.note(pid, otherThread(t)); !l.several {
		t.Error("two threads are taken for one")
	}
	l = launchers{first: 1 << 30} // more than a pid can be
	if l.note(pid, tid); l.several || l.first != tid {
		t.Errorf("after a thread that has ended: %+v", l)
	}
	if l.note(pid, tid+1_000_000); l.several {
		t.Error("a launch is told of late, by a thread that has ended since: that makes one of two that live")
	}
	for i := range uint32(takeovers + 1) {
		l.note(pid, 1<<29+i)
	}
	if !l.several {
		t.Error(
			"beside one that lives ever new ones launch, which are told of when they have ended, and it is taken for one",
		)
	}
	l = launchers{}
	for i := range uint32(takeovers + 1) {
		if l.note(pid, 1<<30+i); l.several {
			t.Errorf("%d threads, one after the other, are taken for several", i+1)
		}
	}
	if l.note(pid, tid); !l.several {
		t.Error("a new thread for each launch is taken for one")
	}
}

// otherThread is one of this process that lives until the test has ended.
func otherThread(t *testing.T) uint32 {
	t.Helper()
	tid, end := make(chan int), make(chan struct{})
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		tid <- unix.Gettid()
		<-end
	}()
	t.Cleanup(func() { close(end) })
	return uint32(<-tid)
}

// secondThread is one of a process, not its first: the first of those there, when it has one.
func secondThread(t *testing.T, pid uint32) uint32 {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		tids, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, tid := range tids {
			if n, err := strconv.ParseUint(tid.Name(), 10, 32); err == nil && uint32(n) != pid {
				return uint32(n)
			}
		}
	}
	t.Fatalf("pid %d has one thread", pid)
	return 0
}

// graphCall is a launch of a graph as a probe reports it: of function 1, by what graphIndex says.
func graphCall(pid, tid uint32, ts uint64) event.Event {
	return event.Event{Kind: event.Call, Flags: event.Timed, PID: pid, TID: tid, Func: 1, TS: ts}
}

func graphIndex(name string) (uint16, bool) {
	if name == "cuGraphLaunch" {
		return 1, true
	}
	return 0, false
}

// TestNoWindowWhereThreadsLaunchGraphs: where probes see several threads launch graphs while they watch, no window is
// opened at all.
func TestNoWindowWhereThreadsLaunchGraphs(t *testing.T) {
	in := realInjector(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "thread 1 nowait { sleep 1000s }",
		"until { rate 2000 for 20ms; sync }")
	s := newTestSource(t, Options{
		Inject: in,
		Build:  in.Build(),
		Index:  graphIndex,
		Watch:  time.Hour,
		On:     20 * time.Millisecond,
		Period: 60 * time.Millisecond,
	})
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "the agent is there", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.sessions[p.ID()].ring != nil
	})
	now := clock.Monotonic()
	s.Observe([]event.Event{graphCall(p.PID, p.PID, now), graphCall(p.PID, secondThread(t, p.PID), now)})
	s.mu.Lock()
	s.opts.Watch = 0 // it was long enough
	s.mu.Unlock()
	drain(t, s, &got, "a refusal", func() bool { return stateOf(s, p.PID) == string(refused) })
	if n := len(got.of(event.Kernel)); n > 0 {
		t.Errorf("%d kernels were recorded", n)
	}
	if a := s.Agents()[0]; a.Windows > 0 || a.Slower != "" {
		t.Errorf("the agent is %+v, want no window and nothing that stays", a)
	}
}

// TestNoWindowWithoutProbes: where probes see no calls any more windows end, no other opens, and no agent comes.
func TestNoWindowWithoutProbes(t *testing.T) {
	var blind atomic.Bool
	look := func(*proc.Process) error {
		if blind.Load() {
			return errors.New("the probes have gone; restart the daemon")
		}
		return nil
	}
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024, Mode: Continuous, Unobservable: look})
	join(t, s, pr)
	if mode, _ := modeIn(pr); mode != modeContinuous {
		t.Fatalf("mode %d, want %d", mode, modeContinuous)
	}
	blind.Store(true)
	eventually(t, "its windows end", func() bool { mode, _ := modeIn(pr); return mode == modeOff })
	newcomer := startProducer(t)
	image, err := proc.Image(newcomer.p)
	if err != nil {
		t.Fatal(err)
	}
	other := newTestSource(t, Options{Inject: noInjector{t}, Unobservable: look})
	other.begin(newcomer.p, image)
	for _, c := range []struct {
		s   *Source
		pid uint32
	}{{s, pr.p.PID}, {other, newcomer.p.PID}} {
		eventually(t, "word of it", func() bool { return stateOf(c.s, c.pid) == string(refused) })
		if d := detailOf(c.s, c.pid); !strings.Contains(d, "the probes have gone; restart the daemon") {
			t.Errorf("it is said %q", d)
		}
	}
}

// TestAgentIsToldWhoLaunchesGraphs: as the process itself counts its threads, and anew when another one does after the
// first has ended.
func TestAgentIsToldWhoLaunchesGraphs(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: pr, Slots: 1024, Index: graphIndex})
	join(t, s, pr)
	told := func() uint32 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.sessions[pr.p.ID()].ring.load32(ringGraphThread)
	}
	if told() != 0 {
		t.Error("it is told of a thread before one launched a graph")
	}
	s.Observe([]event.Event{graphCall(pr.p.PID, 1<<30, clock.Monotonic())}) // has ended by now
	s.sendHeartbeat(clock.Monotonic())
	if told() != 0 {
		t.Error("it is told of a thread that has ended")
	}
	s.Observe([]event.Event{graphCall(pr.p.PID, pr.p.PID, clock.Monotonic())})
	s.sendHeartbeat(clock.Monotonic())
	if told() != pr.p.NSPID {
		t.Errorf("it is told of %d, want %d", told(), pr.p.NSPID)
	}
}

// TestLaunchersOfAProgram: which thread launches graphs is known for as long as a program runs, however often it is
// watched; what is seen of its calls begins anew each time.
func TestLaunchersOfAProgram(t *testing.T) {
	p := paces{graphs: []uint16{1}, all: map[uint32]*pace{}}
	first := func(image string) (tid uint32) {
		p.begin(7, image)
		p.of(7, func(at *pace) {
			if tid = at.launchers.first; at.began != 0 {
				t.Errorf("%s: calls were seen before it was watched", image)
			}
		})
		return tid
	}
	p.begin(7, "one")
	p.note([]event.Event{graphCall(7, 8, 1e9)})
	if got := first("one"); got != 8 {
		t.Errorf("watched again, thread %d launches graphs, want 8", got)
	}
	if got := first("another"); got != 0 {
		t.Errorf("of another program, thread %d launches graphs; none was seen", got)
	}
	p.note([]event.Event{graphCall(7, 8, 1e9)})
	p.end(7)
	if got := first("another"); got != 0 {
		t.Errorf("of another process, thread %d launches graphs; none was seen", got)
	}
}

// TestFirstWindowWaits: the first window opens when calls have been seen for long enough, and, where none is made that
// is watched, after twice that.
func TestFirstWindowWaits(t *testing.T) {
	s := newTestSource(t, Options{Index: graphIndex, Watch: time.Second})
	s.paces.begin(7, "")
	p := newSession(&proc.Process{PID: 7}, "", nil)
	p.entry.joined = 1e9
	for _, c := range []struct {
		at, call uint64
		want     bool
	}{{at: 2e9}, {at: 29e8}, {at: 3e9, want: true}, {at: 2e9, call: 15e8}, {at: 24e8}, {at: 25e8, want: true}} {
		if c.call != 0 {
			e := graphCall(7, 7, c.call)
			e.Func++ // any other call
			s.Observe([]event.Event{e})
		}
		if got := s.watched(p, c.at); got != c.want {
			t.Errorf("at %d ms it is %v, want %v", c.at/1e6, got, c.want)
		}
	}
	if p.orders.begun = true; !s.watched(p, 1e9) {
		t.Error("what has begun waits again")
	}
}

// TestPacesOfTheDead: what is known of a process that was released stays while it lives, for when it is watched again.
func TestPacesOfTheDead(t *testing.T) {
	p := paces{all: map[uint32]*pace{}}
	own := uint32(os.Getpid())
	p.begin(own, "program")
	p.all[own].launchers.first = 5
	p.begin(1<<30, "of a process that has ended")
	p.begin(own, "program")
	if len(p.all) != 1 || p.all[own].launchers.first != 5 {
		t.Errorf("%d are known, want that of the process that lives, with its thread", len(p.all))
	}
	if p.begin(own, "another program"); p.all[own].launchers.first != 0 {
		t.Error("another program has the threads of the one before it")
	}
}
