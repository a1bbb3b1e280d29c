package daemon

import (
	"fmt"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestTargetsThatComeAndGo: a daemon that 5,000 targets came and went under, one each second of its clock, keeps no
// more of them than recordings show.
func TestTargetsThatComeAndGo(t *testing.T) {
	const keep, targets = 60, 5000 // s, and as many targets
	w := newWorld(t)
	d, _ := w.start(Options{Keep: keep * time.Second})
	for i := range uint64(targets) {
		p := process(uint32(100+i), 0, w.now.Load())
		w.comesAndGoes(d, p)
		now := w.now.Add(second)
		d.follower.expire(now, d.opts.Keep)
		if i%100 == 0 {
			_ = d.Status()
		}
		kept := retained(d)
		for what, n := range kept {
			if n > 3*keep {
				t.Fatalf("after %d targets %d %s are kept: %v", i+1, n, what, kept)
			}
		}
	}
	t.Log(retained(d))
}

// comesAndGoes has a target found, seen, and gone again.
func (w *world) comesAndGoes(d *Daemon, p proc.Process) {
	w.t.Helper()
	where := fmt.Sprintf("pid %d", p.PID)
	w.watcher.mu.Lock()
	w.watcher.onAdd = map[int][]proc.Process{int(p.PID): {p}}
	w.watcher.threads = map[uint32][]recording.Thread{p.PID: {{PID: p.PID, TID: p.PID, Name: "main"}}}
	w.watcher.losses = []loss.Loss{{Reason: loss.ProcessesSkipped, Count: 3, PID: p.PID, Where: where}}
	w.watcher.mu.Unlock()
	w.source.maps(p.PID, "/lib/libcuda.so.1", p.Born)
	w.other.mu.Lock()
	w.other.losses = []loss.Loss{{Reason: loss.AgentRefused, Count: 1, PID: p.PID, Where: where}}
	w.other.mu.Unlock()
	must.NoError(w.t, d.follower.include(api.WatchRequest{PID: p.PID, AnyOwner: true, Found: true}))
	until(func() bool { return d.follower.follows(p.PID) })
	w.rings.put(event.Event{TS: w.now.Load(), PID: p.PID, TID: p.PID, Kind: event.Call, Flags: event.Timed})
	must.NoError(w.t, d.drainer.now(w.t.Context()))
	d.history.tick(w.now.Load())
	p.Died = w.now.Load() + 1
	w.watcher.emit(proc.Exited, p, p.Died)
	until(func() bool { o, _ := d.Lookup(p.PID); return o.Exited })
	w.watcher.mu.Lock()
	delete(w.watcher.procs, p.ID())
	w.watcher.mu.Unlock()
}

// retained counts what a daemon knows of processes.
func retained(d *Daemon) map[string]int {
	n := map[string]int{}
	d.follower.mu.Lock()
	n["targets"] = len(d.follower.roots)
	for _, r := range d.follower.roots {
		n["processes"] += len(r.procs) + len(r.pending)
		n["libraries"] += len(r.libraries)
		n["unprobed"] += len(r.unprobed)
	}
	d.follower.mu.Unlock()
	d.history.mu.Lock()
	n["losses"], n["ended losses"] = len(d.history.changes), len(d.history.ended)
	n["counters"], n["states"], n["sums"] = len(d.history.counted), len(d.history.states), len(d.history.endedCounts)
	d.history.mu.Unlock()
	d.discovery.mu.Lock()
	n["device lists"] = len(d.discovery.devices)
	d.discovery.mu.Unlock()
	d.governing.mu.Lock()
	n["governed"] = len(d.governing.targets) + len(d.governing.of)
	d.governing.mu.Unlock()
	n["events"] = int(d.recorder.Stats().Events)
	return n
}
