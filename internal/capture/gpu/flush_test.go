package gpu

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestFlushOfASlowAgent: an agent whose thread gets no CPU for longer than lateTime when it is asked to flush. What it
// hands over then is part of the recording.
func TestFlushOfASlowAgent(t *testing.T) {
	opts := simOptions(t, Continuous)
	opts.Gate = gates(t)
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, "until { launch 3 kernel=k_us5; sync; sleep 2ms }")
	s := newTestSource(t, opts)
	p := watch(t, s, v)
	var got collector
	drain(t, s, &got, "a window with a kernel", func() bool {
		r := ringOf(s, p)
		return r != nil && r.load32(ringState) == stateOpen && len(got.of(event.Kernel)) > 0
	})
	s.mu.Lock()
	tid := int(s.sessions[p.ID()].agentThread())
	s.mu.Unlock()
	stopped, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	go func() { ended <- stopAt(tid, func() bool { return true }, stopped, goOn) }()
	<-stopped
	asked, flushed := time.Now(), make(chan struct{})
	go func() {
		s.Flush(context.Background(), []uint32{p.PID})
		close(flushed)
	}()
	r := ringOf(s, p)
	number := uint32(0)
	drain(t, s, &got, "a question that is late to be answered", func() bool {
		number = uint32(r.load64(ringFlush))
		return number > 0 && time.Since(asked) > 2*lateTime
	})
	if r.answered(number) {
		t.Error("an agent that is stopped has answered")
	}
	release()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	drain(t, s, &got, "the end of the flush", func() bool {
		select {
		case <-flushed:
			return true
		default:
			return false
		}
	})
	if !r.answered(number) {
		t.Error("the flush is over, and the agent has not answered")
	}
	s.Feed(0, got.emit)
	s.mu.Lock()
	at := s.sessions[p.ID()].flushes.asked.at
	s.mu.Unlock()
	last := uint64(0)
	for _, k := range got.of(event.Kernel) {
		if k.End() <= at {
			last = max(last, k.End())
		}
	}
	g, _, _ := s.GPU(p.Root, []uint32{p.PID}, p.Born, clock.Monotonic(), nil, nil)
	i := slices.IndexFunc(g.Windows, func(w recording.GPUWindow) bool { return w.Activity })
	if last == 0 || i < 0 || g.Windows[i].To < last {
		t.Errorf("the windows are %+v, the last kernel before the question ended at %d", g.Windows, last)
	}
}
