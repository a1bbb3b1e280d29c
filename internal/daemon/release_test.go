package daemon

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestRelease: a released target is forgotten by all sources with its children, and what it does then is not
// followed; another target is, and it again when it is asked for again.
func TestRelease(t *testing.T) {
	w := newWorld(t)
	p, child, other := process(30, 0, second), process(31, 30, 2*second), process(40, 0, second)
	d, _ := w.start(Options{}, p, child, other)
	source := w.source
	seen := func() (followed, forgotten []uint32) {
		source.mu.Lock()
		defer source.mu.Unlock()
		return slices.Clone(source.followed), slices.Clone(source.forgotten)
	}
	state := func() api.TargetState {
		for _, s := range d.Status().Targets {
			if s.PID == 30 {
				return s.State
			}
		}
		return ""
	}
	must.NoError(t, d.Release(t.Context(), api.WatchRequest{PID: 30, AnyOwner: true}))
	before, forgotten := seen()
	slices.Sort(forgotten)
	if !slices.Equal(forgotten, []uint32{30, 31}) || state() != api.Released {
		t.Errorf("%v are forgotten, and the target is %s; want 30 and 31, released", forgotten, state())
	}
	w.watcher.emit(proc.Mapped, p, 3*second)
	w.watcher.emit(proc.Mapped, other, 3*second)
	for now, _ := seen(); len(now) == len(before); now, _ = seen() {
		time.Sleep(time.Millisecond) // the test's own time limit ends it
	}
	if now, _ := seen(); now[len(now)-1] != 40 {
		t.Errorf("%v are followed, want only 40 after the release", now[len(before):])
	}
	must.NoError(t, d.Watch(t.Context(), api.WatchRequest{PID: 30, AnyOwner: true}))
	now, _ := seen()
	again := slices.Clone(now[len(before)+1:])
	slices.Sort(again)
	if !slices.Equal(slices.Compact(again), []uint32{30, 31}) ||
		state() == api.Released { // the fake watcher tells of both anew
		t.Errorf("%v are followed again, and the target is %s; want 30 and 31", again, state())
	}
}

// TestReleaseIsRefused: for what is no target, and for a user who has not asked for it to be watched.
func TestReleaseIsRefused(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(30, 0, second))
	if err := d.Release(t.Context(), api.WatchRequest{PID: 31, AnyOwner: true}); clierror.CodeOf(
		err,
	) != clierror.NoProcess {
		t.Errorf("what is no target: %v", err)
	}
	if err := d.Release(t.Context(), api.WatchRequest{PID: 30, Owner: 7}); clierror.CodeOf(err) != clierror.Permission {
		t.Errorf("a user who has not asked for it: %v", err)
	}
}

// TestReleaseAwaitsAgents: it is over when the agents of the target and its children have left, and says so where they
// have not.
func TestReleaseAwaitsAgents(t *testing.T) {
	w := newWorld(t)
	a := &fakeActivity{fakeSource: fakeSource{name: "gpu"}}
	w.parts.Sources = append(w.parts.Sources, a)
	d, _ := w.start(Options{}, process(30, 0, second), process(31, 30, 2*second), process(40, 0, second))
	ask := api.WatchRequest{PID: 30, AnyOwner: true}
	must.NoError(t, d.Release(t.Context(), ask))
	a.amu.Lock()
	awaited := a.awaited
	a.stays = true
	a.amu.Unlock()
	if !slices.Equal(awaited, []uint32{30, 31}) {
		t.Errorf("the agents of %v are awaited, want 30 and 31", awaited)
	}
	if err := d.Release(t.Context(), ask); clierror.CodeOf(err) != clierror.General ||
		!strings.Contains(clierror.HintOf(err), "leaves by itself") {
		t.Errorf("of an agent that stays it is said %v, with advice %q", err, clierror.HintOf(err))
	}
}
