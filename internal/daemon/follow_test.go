package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func newContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

func (s *fakeSource) sawFollow(pid uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.followed {
		if p == pid {
			n++
		}
	}
	return n
}

func (s *fakeSource) sawForget(pid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.forgotten, pid)
}

func TestReadyWhenEveryPresentProcessIsFollowed(t *testing.T) {
	w := newWorld(t)
	w.start(Options{}, process(10, 0, second), process(11, 10, 2*second), process(20, 0, 3*second))
	for _, pid := range []uint32{10, 11, 20} {
		if w.source.sawFollow(pid) != 1 || w.other.sawFollow(pid) != 1 {
			t.Errorf("ready before every source followed %d once", pid)
		}
	}
}

// A source takes its time to put probes on: the change is handled when Add
// returns, and the daemon is not ready before the source is through.
func TestReadyWaitsForASlowSource(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	var through atomic.Bool
	w.source.follow = func(*proc.Process) error {
		close(began)
		time.Sleep(20 * time.Millisecond)
		through.Store(true)
		return nil
	}
	w.watcher.added = func() { <-began }
	w.start(Options{}, process(10, 0, second))
	if !through.Load() {
		t.Error("ready while a source was still at work on the target")
	}
}

// TestChangesOfATargetThatWasWithdrawn: what comes late of it makes no target of it again.
func TestChangesOfATargetThatWasWithdrawn(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	late := process(99, 0, 500*second)
	born := process(98, 99, 600*second)
	w.watcher.emit(proc.Appeared, born, born.Born)
	for _, kind := range []proc.ChangeKind{proc.Mapped, proc.Execed, proc.Renewed, proc.Exited} {
		w.watcher.emit(kind, late, 1001*second)
	}
	until(func() bool { return w.source.sawForget(99) && w.other.sawForget(99) })
	child := process(11, 10, 1001*second)
	w.watcher.emit(proc.Appeared, child, child.Born)
	until(func() bool { return w.source.sawFollow(11) == 1 })
	if targets := d.Status().Targets; len(targets) != 1 || targets[0].PID != 10 {
		t.Errorf("targets are %+v", targets)
	}
	if w.source.sawFollow(99) != 0 {
		t.Error("a process of a target that was withdrawn is followed")
	}
}

// TestNothingBringsATargetBack: a target may be withdrawn while a change of it is handled.
func TestNothingBringsATargetBack(t *testing.T) {
	f := newFollower(zap.NewNop(), newFakeWatcher(), nil, nil, nil, func() uint64 { return second })
	recorder, err := recording.NewRecorder(64<<20, time.Minute)
	must.NoError(t, err)
	f.recorder = recorder
	p := process(10, 0, second)
	f.note(&p)
	f.assign(&p)
	f.follow(&p, second)
	f.newComplaint(&p, "source", nil)
	f.keepLibraries(&p)
	f.keepThreads(&p)
	if len(f.roots) != 0 {
		t.Errorf("pid %d is a target again", f.roots[0].pid)
	}
}

func TestChangesReachEverySource(t *testing.T) {
	w := newWorld(t)
	w.start(Options{}, process(10, 0, second))
	child := process(11, 10, 1001*second)
	w.watcher.emit(proc.Appeared, child, child.Born)
	w.watcher.emit(proc.Mapped, child, child.Born+1)
	w.watcher.emit(proc.Execed, child, child.Born+2)
	until(func() bool { return w.source.sawFollow(11) == 3 && w.other.sawFollow(11) == 3 })
	child.Died = child.Born + 3
	w.watcher.emit(proc.Exited, child, child.Died)
	until(func() bool { return w.source.sawForget(11) && w.other.sawForget(11) })
	if w.source.sawForget(10) {
		t.Error("the parent was forgotten with its child")
	}
}

func TestSourceThatFailsIsSaidOnceAndStopsNothing(t *testing.T) {
	w := newWorld(t)
	w.source.follow = func(*proc.Process) error { return errors.New("no such symbol") }
	w.start(Options{}, process(10, 0, second))
	for i := range uint64(3) {
		w.watcher.emit(proc.Mapped, process(10, 0, second), 1000*second+i)
	}
	until(func() bool { return w.other.sawFollow(10) == 4 })
	warnings := w.logs.FilterLevelExact(zapcore.WarnLevel).All()
	if len(warnings) != 1 || !strings.Contains(warnings[0].ContextMap()["error"].(string), "no such symbol") {
		t.Errorf("warnings = %+v, want one that says why", warnings)
	}
}

func TestTargetThatCannotBeWatchedEndsTheDaemonCleanly(t *testing.T) {
	w := newWorld(t)
	w.watcher.addErr = clierror.New(clierror.NoProcess, "look at ps", errors.New("pid 5 does not exist"))
	d, err := New(Options{PIDs: []int{5}}, w.parts)
	must.NoError(t, err)
	stopping := false
	err = d.Run(context.Background(), Hooks{Ready: func() { t.Error("ready") }, Stopping: func() { stopping = true }})
	if clierror.CodeOf(err) != clierror.NoProcess || clierror.HintOf(err) != "look at ps" {
		t.Errorf("error = %v, want the watcher's", err)
	}
	if !stopping || !w.source.closed || !w.other.closed || !w.watcher.closed || !w.rings.closed {
		t.Error("something is left open")
	}
}

func TestTwoSourcesWithTablesAreRefused(t *testing.T) {
	w := newWorld(t)
	w.parts.Sources = append(w.parts.Sources, &tableSource{fakeSource: fakeSource{name: "second"}})
	if _, err := New(Options{}, w.parts); err == nil || !strings.Contains(err.Error(), "second") {
		t.Errorf("error = %v, want one that names the second source", err)
	}
}

func TestDaemonStaysUpWhenItsTargetIsGone(t *testing.T) {
	w := newWorld(t)
	p := process(10, 0, second)
	d, stop := w.start(Options{}, p)
	p.Died, p.ExitCode = 1005*second, 9
	w.watcher.emit(proc.Exited, p, p.Died)
	until(func() bool { return w.logs.FilterMessageSnippet("still served").Len() == 1 })
	w.now.Store(1007 * second)
	st := d.Status().Targets[0]
	if st.State != api.Exited || st.Detail != "killed by SIGKILL 2s ago" || st.Watched != 5 {
		t.Errorf("target = %s %q watched %v s", st.State, st.Detail, st.Watched)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestDaemonEndsWithItsTargetsIfAsked(t *testing.T) {
	w := newWorld(t)
	p, child := process(10, 0, second), process(11, 10, 2*second)
	d, err := New(Options{PIDs: []int{10}, ExitWithTarget: true}, w.parts)
	must.NoError(t, err)
	w.watcher.onAdd[10] = []proc.Process{p, child}
	ended := make(chan error)
	go func() { ended <- d.Run(context.Background(), Hooks{Ready: func() {}, Stopping: func() {}}) }()
	until(func() bool { return w.source.sawFollow(11) == 1 })
	p.Died = 1001 * second
	w.watcher.emit(proc.Exited, p, p.Died)
	until(func() bool { return w.source.sawForget(10) })
	select {
	case err := <-ended:
		t.Fatalf("ended while a child still runs: %v", err)
	default:
	}
	child.Died = 1002 * second
	w.watcher.emit(proc.Exited, child, child.Died)
	if err := <-ended; err != nil { // a hang here is the failure
		t.Error(err)
	}
}

func TestStateOfATarget(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	state := func() (api.TargetState, string) { st := d.Status().Targets[0]; return st.State, st.Detail }
	if s, detail := state(); s != api.Waiting || detail != "no CUDA library is mapped yet" {
		t.Errorf("without a library: %s %q", s, detail)
	}
	w.source.tmu.Lock()
	w.source.libraries = []recording.Library{{PID: 10, Path: "/libcuda.so.1", Error: "truncated"}}
	w.source.tmu.Unlock()
	if s, detail := state(); s != api.Waiting || detail != "/libcuda.so.1: truncated" {
		t.Errorf("with a refused library: %s %q", s, detail)
	}
	w.source.maps(10, "/libcudart.so.12", 1000*second)
	if s, _ := state(); s != api.Watching {
		t.Errorf("with a probed library: %s", s)
	}
}

func TestForkBombIsBounded(t *testing.T) {
	r := newRoot(1)
	main := process(1, 0, 1)
	r.note(&main)
	for i := range uint32(maxProcesses + 2000) {
		p := process(i+2, 1, uint64(i+2)*second)
		p.Died = p.Born + 1
		r.note(&p)
		r.noteUnprobed(unprobedInterval{pid: p.PID, from: p.Born, until: p.Died})
		r.keepLibraries([]recording.Library{{PID: p.PID, Path: "/l"}})
	}
	if len(r.procs) > maxProcesses || len(r.procs) < maxProcesses/2 || len(r.unprobed) > maxLate ||
		len(r.libraries) > maxLibraries {
		t.Errorf("%d processes, %d late, %d libraries are remembered", len(r.procs), len(r.unprobed), len(r.libraries))
	}
	if r.main() == nil || r.living != 1 {
		t.Errorf("the root itself was forgotten, or %d are taken to live", r.living)
	}
	if _, ok := r.procs[proc.ID{PID: maxProcesses + 2001, StartTime: (maxProcesses + 2001) * 100}]; !ok {
		t.Error("the newest was forgotten")
	}
	if losses := r.unprobedLosses(0, 1<<62); len(losses) != 1 || losses[0].Where != "" {
		t.Errorf("losses of many processes = %+v, want one row", losses)
	}
}

// TestTargetsSettleOneByOne: a target that is followed does not wait for another one that is still being attached to.
func TestTargetsSettleOneByOne(t *testing.T) {
	f := newFollower(zap.NewNop(), newFakeWatcher(), nil, nil, nil, func() uint64 { return second })
	f.added = true
	followed, waiting := f.makeRoot(10), f.makeRoot(20)
	id := proc.ID{PID: 20, StartTime: 1}
	waiting.pending[id] = true
	f.settle()
	if followed.since == 0 || waiting.since != 0 {
		t.Errorf("since %d and %d, want the first target alone to be followed", followed.since, waiting.since)
	}
	select {
	case <-f.ready:
		t.Error("ready although a target is not followed")
	default:
	}
	delete(waiting.pending, id)
	f.settle()
	select {
	case <-f.ready:
	default:
		t.Error("not ready although all targets are followed")
	}
	if waiting.since == 0 {
		t.Error("the other target is not followed")
	}
}
