package sched_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/capture/sched/pressure"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// serve runs a daemon with this source for a process, and others, and returns it once it is ready.
func serve(t *testing.T, pid uint32, more ...daemon.Source) *daemon.Daemon {
	t.Helper()
	rings, err := ring.New(ring.Options{Bytes: 8 << 20})
	must.NoError(t, err)
	watcher, err := proc.New(proc.Options{})
	must.NoError(t, err)
	recorder, err := recording.NewRecorder(8_000_000, time.Minute)
	must.NoError(t, err)
	source, err := sched.New(rings, sched.Options{})
	must.NoError(t, err)
	d, err := daemon.New(daemon.Options{PIDs: []int{int(pid)}, Keep: time.Minute}, daemon.Parts{
		Log: zap.NewNop(), Clock: clock.Monotonic, Watcher: watcher, Rings: rings, Recorder: recorder,
		Sources: append([]daemon.Source{source, pressure.New(pressure.Options{})}, more...),
	})
	must.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.Run(ctx, daemon.Hooks{Ready: func() { close(ready) }, Stopping: func() {}}) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case <-time.After(20 * time.Second):
		t.Fatal("the daemon does not get ready")
	}
	return d
}

// streamed returns a recording as a client gets it.
func streamed(t *testing.T, from api.Recording) *recording.Recording {
	t.Helper()
	var stream bytes.Buffer
	must.NoError(t, recording.WriteStream(&stream, from.Meta(), from.Events()))
	rec, err := recording.ReadStream(&stream, recording.DefaultLimits())
	must.NoError(t, err)
	return rec
}

// Through the daemon and its stream: every thread of every process, whole and with names.
func TestThroughTheDaemon(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	v := behave(t, "child")
	d := serve(t, v.pid)
	time.Sleep(window)
	recording, err := d.Record(context.Background(), api.Asker{Any: true}, v.pid, 0, 0)
	must.NoError(t, err)
	defer recording.Release()
	rec := streamed(t, recording)
	s := &seen{t: t, rec: rec, threads: threads.Build(rec), waits: threads.NewWaits(rec)}
	if len(s.threads) != 2 {
		t.Fatalf("%d threads, want one of each process", len(s.threads))
	}
	for i := range s.threads {
		s.whole(&s.threads[i])
	}
	waits := s.mostly(v.pid, threads.Pipe, 0.5)
	for _, w := range waits {
		if w.By.PID == v.pid || w.By.OtherThread || w.By.Name != "waiter" || w.Text[:14] != "read of pipe:[" {
			t.Fatalf("the wait %+v, want one for the child, which is followed too", w)
		}
	}
	if p := rec.Meta.Pressure; len(p) == 0 {
		t.Error("no sample of the host's pressure")
	}
}
