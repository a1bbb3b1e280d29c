package sched_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestCallsOf32Bits: their numbers are of a table of their own, and are not taken for calls of the other one.
func TestCallsOf32Bits(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	if runtime.GOARCH != "amd64" {
		t.Skip("needs an x86-64 that runs 32-bit programs")
	}
	v := behave(t, "compat")
	d := serve(t, v.pid)
	time.Sleep(window)
	recording, err := d.Record(context.Background(), api.Asker{Any: true}, v.pid, 0, 0)
	must.NoError(t, err)
	defer recording.Release()
	rec := streamed(t, recording)
	s := &seen{t: t, rec: rec, threads: threads.Build(rec), waits: threads.NewWaits(rec)}
	waits := s.mostly(v.pid, threads.Call, 0.5)
	for _, w := range waits {
		if w.Text != "32-bit call 162" {
			t.Fatalf("a sleep is taken for %q", w.Text)
		}
	}
}
