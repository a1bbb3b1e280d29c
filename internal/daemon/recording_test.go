package daemon

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func call(pid uint32, ts uint64) event.Event {
	return event.Event{TS: ts, PID: pid, TID: pid, Kind: event.Call}
}

// fetch returns a recording as a client would get it.
func fetch(t *testing.T, d *Daemon, pid uint32, last time.Duration, from uint64) *recording.Recording {
	t.Helper()
	r, err := d.Record(context.Background(), api.Asker{Any: true}, pid, last, from)
	must.NoError(t, err)
	defer r.Release()
	var buf bytes.Buffer
	must.NoError(t, recording.WriteStream(&buf, r.Meta(), r.Events()))
	rec, err := recording.ReadStream(&buf, recording.DefaultLimits())
	must.NoError(t, err)
	return rec
}

func times(rec *recording.Recording) []uint64 {
	var out []uint64
	for _, e := range rec.Events {
		out = append(out, e.TS/second)
	}
	return out
}

func TestRecordingHoldsWhatHappenedUntilNow(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	w.now.Store(1010 * second)
	w.rings.put(call(10, 1009*second)) // still in the ring when it is asked for
	rec := fetch(t, d, 10, 0, 0)
	if got := times(rec); !slices.Equal(got, []uint64{1009}) {
		t.Errorf("events at %v, want the one that was in the ring", got)
	}
	m := rec.Meta
	if m.Target != 10 || m.From != 1000*second || m.To != 1010*second {
		t.Errorf("window [%d, %d] of %d", m.From, m.To, m.Target)
	}
	if len(m.Functions) != 1 || len(m.Sources) != 3 || m.Sources[2].Name != "processes" || m.Host.Kernel == "" ||
		m.Host.CPUs == 0 {
		t.Errorf("tables: %+v", m)
	}
	if wall := time.Unix(0, m.WallFrom); time.Since(wall) < 9*time.Second || time.Since(wall) > time.Hour {
		t.Errorf("the window began at %v on the wall clock, want ten seconds ago", wall)
	}
}

func TestWindows(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{Keep: 20 * time.Second}, process(10, 0, second))
	for ts := uint64(1001); ts <= 1030; ts++ {
		w.rings.put(call(10, ts*second))
	}
	w.now.Store(1030 * second)
	for _, c := range []struct {
		name       string
		last       time.Duration
		from       uint64
		begin, end uint64
	}{
		{"everything kept", 0, 0, 1010, 1030},
		{"the last", 5 * time.Second, 0, 1025, 1030},
		{"more than is kept", time.Hour, 0, 1010, 1030},
		{"from a time on", 0, 1028 * second, 1028, 1030},
		{"from before the attach on", 0, 1 * second, 1000, 1030},
	} {
		rec := fetch(t, d, 10, c.last, c.from)
		if rec.Meta.From != c.begin*second || rec.Meta.To != c.end*second {
			t.Errorf("%s: window [%d, %d] s, want [%d, %d]",
				c.name, rec.Meta.From/second, rec.Meta.To/second, c.begin, c.end)
		}
		if got := times(rec); got[0] < c.begin || got[len(got)-1] != c.end {
			t.Errorf("%s: events from %d to %d", c.name, got[0], got[len(got)-1])
		}
	}
}

func TestRecordingOfATargetThatExited(t *testing.T) {
	w := newWorld(t)
	p := process(10, 0, second)
	d, _ := w.start(Options{}, p)
	w.source.maps(10, "/libcuda.so.1", 1000*second)
	w.watcher.setThreads(10, recording.Thread{PID: 10, TID: 10, Name: "main"})
	w.rings.put(call(10, 1002*second), call(10, 1004*second))
	p.Died, p.ExitCode = 1005*second, 3<<8
	w.watcher.emit(proc.Exited, p, p.Died)
	until(func() bool { return w.source.sawForget(10) })
	w.watcher.setThreads(10) // the watcher forgets its dead
	w.now.Store(1050 * second)
	rec := fetch(t, d, 10, 2*time.Second, 0)
	if rec.Meta.From != 1003*second || rec.Meta.To != 1050*second {
		t.Errorf("window [%d, %d] s, want it to begin two before the target's end",
			rec.Meta.From/second, rec.Meta.To/second)
	}
	if got := times(rec); !slices.Equal(got, []uint64{1004}) {
		t.Errorf("events at %v", got)
	}
	first := rec.Meta.Processes[0]
	if first.Died != 1005*second || first.ExitCode != 3<<8 || first.Probed != 1000*second {
		t.Errorf("process = %+v", first)
	}
	if len(rec.Meta.Libraries) != 1 || len(rec.Meta.Threads) != 1 || rec.Meta.Threads[0].Name != "main" {
		t.Errorf("what is known of it was forgotten: %+v", rec.Meta)
	}
}

func TestRecordingsOfSeveralTargetsDoNotMix(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second), process(20, 0, second))
	// Process 11 is first a child of 10; when it is gone, its number is used again by a child of 20.
	first, again := process(11, 10, 1001*second), process(11, 20, 1005*second)
	w.watcher.emit(proc.Appeared, first, first.Born)
	until(func() bool { return w.source.sawFollow(11) == 1 })
	first.Died = 1003 * second
	w.watcher.emit(proc.Exited, first, first.Died)
	w.watcher.emit(proc.Appeared, again, again.Born)
	until(func() bool { return w.source.sawFollow(11) == 2 })
	w.source.tmu.Lock()
	w.source.libraries = []recording.Library{{PID: 10, Path: "/a"}, {PID: 20, Path: "/b"}}
	w.source.tmu.Unlock()
	w.source.mu.Lock()
	w.source.losses = []loss.Loss{
		{Reason: loss.LibraryRefused, Count: 1, PID: 20, Where: "pid 20 /b"},
		{Reason: loss.ProbeFailed, Count: 1, PID: 10, Where: "pid 10"},
	}
	w.source.mu.Unlock()
	w.rings.put(
		call(10, 1002*second),
		call(11, 1002*second),
		call(20, 1002*second),
		call(11, 1006*second),
		call(10, 1007*second),
	)
	w.now.Store(1010 * second)
	for pid, want := range map[uint32][]event.Event{
		10: {call(10, 1002*second), call(11, 1002*second), call(10, 1007*second)},
		20: {call(20, 1002*second), call(11, 1006*second)},
	} {
		rec := fetch(t, d, pid, 0, 0)
		if diff := cmp.Diff(want, rec.Events); diff != "" {
			t.Errorf("events of %d (-want +got):\n%s", pid, diff)
		}
		if len(rec.Meta.Processes) != 2 || len(rec.Meta.Libraries) != 1 || rec.Meta.Libraries[0].PID != pid {
			t.Errorf("tables of %d: %+v %+v", pid, rec.Meta.Processes, rec.Meta.Libraries)
		}
		if len(rec.Meta.Losses) != 1 ||
			rec.Meta.Losses[0].Where[:6] != "pid "+map[uint32]string{10: "10", 20: "20"}[pid] {
			t.Errorf("losses of %d: %+v", pid, rec.Meta.Losses)
		}
	}
}

func TestRecordingOfWhatIsNotWatched(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second), process(11, 10, second))
	for _, pid := range []uint32{11, 99} {
		if _, err := d.Record(context.Background(), api.Asker{Any: true}, pid, 0, 0); clierror.CodeOf(
			err,
		) != clierror.NoProcess {
			t.Errorf("pid %d: %v, want no process", pid, err)
		}
	}
	if _, ok := d.Lookup(99); ok {
		t.Error("99 is watched")
	}
	if o, ok := d.Lookup(10); !ok || o.UID != 7 || o.Exited {
		t.Errorf("10 = %+v %v", o, ok)
	}
	if !d.Owns(7) || d.Owns(8) {
		t.Error("owner of a target not told from others")
	}
}

func TestRecordGivesUpWithItsCaller(t *testing.T) {
	w := newWorld(t)
	d, err := New(Options{}, w.parts) // nobody drains
	must.NoError(t, err)
	ctx, cancel := newContext()
	cancel()
	if _, err := d.Record(ctx, api.Asker{Any: true}, 10, 0, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}

func TestLibraryProbedLateIsALossOfThatTime(t *testing.T) {
	w := newWorld(t)
	p := process(10, 0, second)
	var probe bool
	w.source.follow = func(q *proc.Process) error {
		if probe {
			w.now.Add(30_000_000)
			w.source.maps(q.PID, "/libcuda.so.1", w.now.Load())
		}
		return nil
	}
	d, _ := w.start(Options{}, p)
	probe = true
	w.now.Store(1010*second + 10_000_000)
	w.watcher.emit(proc.Mapped, p, 1010*second)
	until(func() bool { return w.source.sawFollow(10) == 2 && d.Status().Targets[0].State == "watching" })
	until(func() bool { return len(d.Status().Losses) == 1 })
	w.now.Store(1020 * second)
	want := []loss.Loss{{Reason: loss.LateProbe, Count: 1, PID: 10, Where: "pid 10", Detail: "unprobed for 40.0 ms"}}
	if diff := cmp.Diff(want, fetch(t, d, 10, 0, 0).Meta.Losses); diff != "" {
		t.Errorf("losses (-want +got):\n%s", diff)
	}
	if got := fetch(t, d, 10, 5*time.Second, 0).Meta.Losses; len(got) != 0 {
		t.Errorf("a window after it has losses %+v", got)
	}
}

func TestOverwrittenEventsAreALossOfWindowsThatReachThem(t *testing.T) {
	w := newWorld(t)
	rec, err := recording.NewRecorder(recording.MinBudget, time.Hour)
	must.NoError(t, err)
	w.parts.Recorder = rec
	d, _ := w.start(Options{Keep: time.Hour}, process(10, 0, second))
	const n = 1_000_000 // more than the budget
	for i := range uint64(n) {
		w.rings.put(call(10, 1000*second+i*second/1000))
	}
	w.now.Store(1000*second + n*second/1000)
	whole := fetch(t, d, 10, 0, 0).Meta
	if len(whole.Losses) != 1 || whole.Losses[0].Reason != loss.Overwritten || whole.From <= 1000*second {
		t.Errorf("window from %d with losses %+v, want it to begin later and say so", whole.From, whole.Losses)
	}
	if last := fetch(t, d, 10, time.Second, 0).Meta; len(last.Losses) != 0 {
		t.Errorf("the last second has losses %+v", last.Losses)
	}
}
