package gpu

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/proc"
)

// tracedFirst refuses for a tracer a few times, and lets the agent in when it has gone.
type tracedFirst struct {
	injector
	mu    sync.Mutex
	times int
}

func (f *tracedFirst) Inject(ctx context.Context, p *proc.Process, s start) (Entered, error) {
	f.mu.Lock()
	traced := f.times > 0
	f.times--
	f.mu.Unlock()
	if traced {
		return Entered{}, fmt.Errorf("%w: %w", errRefused, inject.ErrTraced)
	}
	return f.injector.Inject(ctx, p, s)
}

// TestTracerThatLeaves: an agent comes in when the debugger has gone.
func TestTracerThatLeaves(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: &tracedFirst{injector: pr, times: 5}, Slots: 1024})
	s.rests.refusal = time.Millisecond
	image, _ := proc.Image(pr.p)
	s.begin(pr.p, image)
	eventually(t, "the agent comes in", func() bool { return stateOf(s, pr.p.PID) == string(running) })
}

// TestAgentThatEndsOften: one that does not hear of the daemon, as often as that is, is injected again, and later
// each time, but not never.
func TestAgentThatEndsOften(t *testing.T) {
	pr := startProducer(t)
	none := &failing{err: errIdle}
	s := newTestSource(t, Options{Inject: none, Slots: 1024})
	s.rests.end = time.Millisecond
	image, _ := proc.Image(pr.p)
	s.begin(pr.p, image)
	session := func() *session {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.sessions[pr.p.ID()]
	}
	var rests []time.Duration
	for range attempts + 3 {
		q := session()
		q.entry.cancel()
		s.mu.Lock()
		q.phase, q.entry.came = phaseRecording, uint64(1)<<62 // just now
		s.ended(q)
		s.retired = nil // it never had a ring
		again := s.sessions[pr.p.ID()]
		rests = append(rests, again.entry.rest)
		if again == q || !again.entry.running {
			t.Errorf("after %d ends no agent is injected any more: %s", q.entry.restarts, again.detail)
		}
		s.mu.Unlock()
	}
	want := fmt.Sprint([]time.Duration{0, 0, 0, time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond})
	if got := fmt.Sprint(rests); got != want {
		t.Errorf("rests %s, want %s", got, want)
	}
	q := session()
	q.entry.cancel()
	s.mu.Lock()
	q.phase, q.entry.came = phaseRecording, 1 // long ago
	s.ended(q)
	s.retired = nil
	if again := s.sessions[pr.p.ID()]; again.entry.restarts != 1 || again.entry.rest != 0 {
		t.Errorf("one that was there for long counts as the %dth, and rests %s", again.entry.restarts, again.entry.rest)
	}
	s.mu.Unlock()
}
