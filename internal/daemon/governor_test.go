package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// levelSource is a source with levels whose cost a test makes up.
type levelSource struct {
	fakeSource
	mu    sync.Mutex
	level int
	err   error         // of SetLevel
	ns    func() uint64 // that its programs took so far, at the first level
}

func (s *levelSource) Levels() []overhead.Level {
	return []overhead.Level{
		{Name: "individual"},
		{Name: "aggregated, short", Loses: "short ones"},
		{Name: "off", Loses: "everything"},
	}
}

func (s *levelSource) Level() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.level
}

func (s *levelSource) SetLevel(level int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.level = level
	}
	return s.err
}

func (s *levelSource) Runs(uint32) overhead.Runs {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.level > 0 || s.ns == nil {
		return overhead.Runs{}
	}
	return overhead.Runs{NS: s.ns()}
}

// TestSwitchesOnSignal: with a fixed level and no budget, one signal turns all sources off, the next back to where they
// were.
func TestSwitchesOnSignal(t *testing.T) {
	w := newWorld(t)
	pinned := &levelSource{fakeSource: fakeSource{name: "requests"}}
	free := &levelSource{fakeSource: fakeSource{name: "scheduling"}}
	w.parts.Sources = append(w.parts.Sources, pinned, free)
	d, _ := w.start(Options{Overhead: Overhead{Pin: "requests=aggregated"}}, process(1, 0, second))
	signals := make(chan os.Signal)
	go d.governing.switchOn(t.Context(), signals)
	for _, want := range [][2]int{{2, 2}, {1, 0}, {2, 2}} {
		signals <- syscall.SIGUSR2
		until(func() bool { return pinned.Level() == want[0] && free.Level() == want[1] })
	}
	switched := func() int { return w.logs.FilterMessage("switched all sources").Len() }
	until(func() bool { return switched() == 3 })
	free.mu.Lock()
	free.err = errors.New("it cannot")
	free.mu.Unlock()
	signals <- syscall.SIGUSR2
	until(func() bool { return w.logs.FilterMessage("a source was not switched").Len() == 1 })
	free.mu.Lock()
	free.err = nil
	free.mu.Unlock()
	signals <- syscall.SIGUSR2
	until(func() bool { return free.Level() == 0 && switched() == 4 })
}

// TestGovernorReducesAndReports: a source that by its own account takes a fifth of the target's time is reduced, and
// status, the log and recordings say that.
func TestGovernorReducesAndReports(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	w.parts.Clock = func() uint64 { return 1000*second + uint64(time.Since(began)) }
	pid := uint32(child.Start(t, exec.Command("sh", "-c", "while :; do :; done")).PID)
	dear := &levelSource{fakeSource: fakeSource{name: "scheduling"}}
	dear.ns = func() uint64 { return uint64(time.Since(began)) / 5 }
	w.parts.Sources = append(w.parts.Sources, dear)
	d, _ := w.start(Options{Overhead: Overhead{Budget: 0.02}}, process(pid, 0, second))
	until(func() bool { return dear.Level() > 0 })
	o := d.Status().Overhead
	if len(o) != 1 || o[0].Target != pid || o[0].Sources[0].Level != "aggregated, short" ||
		o[0].Sources[0].Loses != "short ones" ||
		!strings.Contains(o[0].Sources[0].Reason, "budget is 2.0%") {
		t.Errorf("status says %+v", o)
	}
	if w.logs.FilterMessage("a source has another level").Len() == 0 {
		t.Error("the log does not tell of it")
	}
	m := fetch(t, d, pid, time.Minute, 0).Meta.Overhead
	if m == nil || m.Budget != 0.02 || len(m.Sources[0].Shares) != 2 {
		t.Errorf("the recording says %+v, want both levels with their shares", m)
	}
}

// TestNoBudgetNoGovernor: with a budget of 0 nothing is measured, reduced or told.
func TestNoBudgetNoGovernor(t *testing.T) {
	w := newWorld(t)
	dear := &levelSource{fakeSource: fakeSource{name: "scheduling"}, ns: w.now.Load}
	w.parts.Sources = append(w.parts.Sources, dear)
	d, _ := w.start(Options{}, process(10, 0, second))
	if d.governing.governor != nil || len(d.Status().Overhead) != 0 ||
		fetch(t, d, 10, time.Minute, 0).Meta.Overhead != nil {
		t.Error("something governs without a budget")
	}
	d.Steady()()
}

// TestPinLevels: levels are fixed by the beginning of their names, and what is not understood is an error that names
// what there is.
func TestPinLevels(t *testing.T) {
	for _, c := range []struct {
		pin   string
		level int
		says  string
	}{
		{pin: "", level: 0},
		{pin: "sched=aggregated", level: 1},
		{pin: "scheduling=off", level: 2},
		{pin: "sched=agg", level: 1},
		{pin: "sched=nonsense", says: "\n  scheduling=aggregated, short\n  scheduling=off"},
		{pin: "nonsense=off", says: "\n  scheduling=individual\n"},
		{pin: "sched", says: "write one of"},
		{pin: "=off", says: "write one of"},
		{pin: "sched=", says: "write one of"},
	} {
		t.Run(c.pin, func(t *testing.T) {
			w := newWorld(t)
			s := &levelSource{fakeSource: fakeSource{name: "scheduling"}}
			w.parts.Sources = append(w.parts.Sources, s)
			d, err := New(Options{Overhead: Overhead{Budget: 0.02, Pin: c.pin}, Keep: time.Minute}, w.parts)
			switch {
			case c.says != "":
				if clierror.CodeOf(err) != clierror.Usage || !strings.Contains(clierror.HintOf(err), c.says) {
					t.Errorf("error %v with hint %q, want one that says %q", err, clierror.HintOf(err), c.says)
				}
			case err != nil || s.Level() != c.level:
				t.Errorf("level %d, error %v, want level %d", s.Level(), err, c.level)
			case c.pin != "" && len(d.governing.pinned) != 1:
				t.Error("the governor may change a level that is fixed")
			}
		})
	}
}

// TestPinsAreListed: what is listed are all levels of all sources that the governor has, each of them understood up to
// its comma, as scripts/bench-levels.sh hands them over.
func TestPinsAreListed(t *testing.T) {
	sources := []overhead.Source{
		&levelSource{fakeSource: fakeSource{name: "scheduling"}},
		newWindowSource(&fakeWindows{}, func(uint32) []uint32 { return nil }),
	}
	listed := map[string]bool{}
	hint := clierror.HintOf((&governing{sources: sources}).pin("?"))
	for _, line := range strings.Split(hint, "\n  ")[1:] {
		listed[line] = true
		pin, _, _ := strings.Cut(line, ",")
		if err := (&governing{sources: sources}).pin(pin); err != nil {
			t.Errorf("%q is listed: %v", line, err)
		}
		if !slices.ContainsFunc(sources, func(s overhead.Source) bool {
			return s.Name()+"="+s.Levels()[s.Level()].Name == line
		}) {
			t.Errorf("%q set another level", line)
		}
	}
	for _, s := range sources {
		for _, l := range s.Levels() {
			if !listed[s.Name()+"="+l.Name] {
				t.Errorf("%s=%s is not listed", s.Name(), l.Name)
			}
		}
	}
}

// TestGovernedReadsTheKernel: CPU time, threads and their switches of a program that is known to wait often.
func TestGovernedReadsTheKernel(t *testing.T) {
	g := newGoverned(uint32(os.Getpid()), nil)
	g.setProcesses([]uint32{uint32(os.Getpid())})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sum := func() (switches uint64) {
		for _, x := range g.Threads() {
			switches += x.Switches
		}
		return switches
	}
	before, cpu := sum(), g.CPU()
	for range 2000 {
		time.Sleep(10 * time.Microsecond)
	}
	if after := sum(); after < before+1000 {
		t.Errorf("switches went from %d to %d in 2,000 sleeps", before, after)
	}
	if g.CPU() <= cpu {
		t.Error("no CPU time was used")
	}
	last := g.CPU()
	g.setProcesses(nil)
	if g.CPU() < last {
		t.Error("the CPU time of a process that has ended is gone")
	}
}

// TestGovernedBoundsThreads: a program with thousands of threads is looked at in parts.
func TestGovernedBoundsThreads(t *testing.T) {
	needs.Long(t)
	stop := make(chan struct{})
	var ready, all sync.WaitGroup
	for range 600 {
		ready.Add(1)
		all.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-stop
		})
	}
	ready.Wait()
	g := newGoverned(uint32(os.Getpid()), nil)
	g.setProcesses([]uint32{uint32(os.Getpid())})
	if n := len(g.Threads()); n < 100 || n > maxLooked {
		t.Errorf("%d threads are looked at, want up to %d", n, maxLooked)
	}
	close(stop)
	all.Wait()
}

// TestProgressIsOfTheTarget: calls of each process count for its own target, and those that do not wait, or come from
// elsewhere, for none.
func TestProgressIsOfTheTarget(t *testing.T) {
	w := newWorld(t)
	w.parts.Sources = append(w.parts.Sources, &levelSource{fakeSource: fakeSource{name: "scheduling"}})
	d, _ := w.start(Options{}, process(10, 0, second), process(11, 10, second), process(20, 0, second))
	targets := d.governing.present()
	if len(targets) != 2 {
		t.Fatalf("%d targets, want 2", len(targets))
	}
	timed := func(pid uint32) event.Event {
		e := call(pid, w.now.Load())
		e.Flags, e.Dur = event.Timed, 5
		return e
	}
	d.governing.Observe([]event.Event{timed(10), timed(11), call(10, w.now.Load()), timed(20), timed(99)})
	got := map[uint32]uint64{}
	for _, x := range targets {
		got[x.PID()] = x.Progress().Total()
	}
	if want := map[uint32]uint64{10: 2, 20: 1}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("calls by target %v, want %v", got, want)
	}
}

// fakeWindows notes how rare windows are to be.
type fakeWindows struct{ least []time.Duration }

func (*fakeWindows) WindowPeriod() time.Duration             { return 2 * time.Second }
func (w *fakeWindows) SetWindowPeriod(d time.Duration)       { w.least = append(w.least, d) }
func (*fakeWindows) WindowNear([]uint32, time.Duration) bool { return false }
func (*fakeWindows) WindowCost([]uint32) recording.Cost {
	return recording.Cost{Share: 0.01, Basis: recording.CostMeasured}
}

// TestWindowLevels: each level makes windows rarer, the last one ends them.
func TestWindowLevels(t *testing.T) {
	w := &fakeWindows{}
	s := newWindowSource(w, func(uint32) []uint32 { return nil })
	for i := range s.Levels() {
		must.NoError(t, s.SetLevel(i))
	}
	for i := 2; i < len(w.least); i++ {
		if w.least[i] <= w.least[i-1] {
			t.Errorf("periods %v: not each is longer", w.least)
		}
	}
	if s.SetLevel(len(s.Levels())) == nil || s.SetLevel(-1) == nil {
		t.Error("a level that is none was set")
	}
	if c := s.Cost(1); c.Share != 0.01 || c.Basis != recording.CostMeasured {
		t.Error("what windows cost is not handed on")
	}
}

// TestDisturbed: a pair of slices is not compared where a window came or went, and is where one was open all the time.
func TestDisturbed(t *testing.T) {
	a := &windowActivity{}
	g := newGoverned(10, a)
	for _, c := range []struct {
		windows []recording.GPUWindow
		want    bool
	}{
		{nil, false},
		{[]recording.GPUWindow{{From: 2 * second, To: 3 * second, End: "finalized"}}, true},
		{[]recording.GPUWindow{{From: second / 2, To: 9 * second, End: "finalized"}}, false},
		{[]recording.GPUWindow{{From: second / 2, To: 3 * second, End: "open"}}, false},
		{[]recording.GPUWindow{{From: second / 2, To: 3 * second, End: "disabled"}}, true},
	} {
		a.windows = c.windows
		if got := g.Disturbed(second, 4*second); got != c.want {
			t.Errorf("windows %+v: disturbed is %v", c.windows, got)
		}
	}
}

type windowActivity struct {
	activity
	windows []recording.GPUWindow
}

func (a *windowActivity) GPU(
	uint32,
	[]uint32,
	uint64,
	uint64,
	[]int32,
	[]int32,
) (*recording.GPU, map[int32]int32, map[int32]int32) {
	return &recording.GPU{Windows: a.windows}, nil, nil
}
