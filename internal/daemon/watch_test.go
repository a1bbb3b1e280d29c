package daemon

import (
	"os"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestWatchAddsATarget: while the daemon runs, without any target at first, and again under the same
// pid once the first has ended.
func TestWatchAddsATarget(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{})
	if _, ok := d.Lookup(30); ok {
		t.Fatal("it is a target already")
	}
	p := process(30, 0, second)
	w.watcher.onAdd[30] = []proc.Process{p}
	must.NoError(t, d.Watch(t.Context(), api.WatchRequest{PID: 30, AnyOwner: true}))
	if o, ok := d.Lookup(30); !ok || o.UID != 7 || o.Exited {
		t.Errorf("the target is %+v, %v", o, ok)
	}
	if err := d.Watch(t.Context(), api.WatchRequest{PID: 30, AnyOwner: true}); err != nil {
		t.Errorf("watching it again: %v", err)
	}
	p.Died = 1001 * second
	w.watcher.emit(proc.Exited, p, p.Died)
	for o, _ := d.Lookup(30); !o.Exited; o, _ = d.Lookup(30) {
		time.Sleep(time.Millisecond) // the test's own time limit ends it
	}
	later := process(30, 0, 1002*second)
	later.UID, later.Owner = 8, 8
	w.watcher.mu.Lock()
	w.watcher.onAdd[30] = []proc.Process{later}
	w.watcher.mu.Unlock()
	must.NoError(t, d.Watch(t.Context(), api.WatchRequest{PID: 30, AnyOwner: true}))
	if o, ok := d.Lookup(30); !ok || o.UID != 8 || o.Exited {
		t.Errorf("the later target is %+v, %v", o, ok)
	}
}

// TestWatchForAUser: only a process that runs as that user.
func TestWatchForAUser(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{})
	err := d.Watch(t.Context(), api.WatchRequest{PID: uint32(os.Getpid()), Owner: uint32(os.Geteuid()) + 1})
	if clierror.CodeOf(err) != clierror.Permission {
		t.Errorf("another user's: %v", err)
	}
	err = d.Watch(t.Context(), api.WatchRequest{PID: 1 << 22, Owner: uint32(os.Geteuid())})
	if clierror.CodeOf(err) != clierror.Permission {
		t.Errorf("one that is not there: %v", err)
	}
}
