package daemon

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestNextInterval(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		last time.Duration
		fill float64
		want time.Duration
	}{
		{50 * ms, 0, slowest},
		{50 * ms, 0.01, slowest},
		{50 * ms, 0.1, 50 * ms},
		{50 * ms, 0.2, 25 * ms},
		{50 * ms, 0.4, 12500 * time.Microsecond},
		{10 * ms, 1, 10 * ms},
		{10 * ms, 0.04, 25 * ms},
		{10 * ms, 0.001, slowest},
	} {
		if got := next(c.last, c.fill); got != c.want {
			t.Errorf("after %v at %v full: %v, want %v", c.last, c.fill, got, c.want)
		}
	}
}

func TestWhatTheLastProbesSawIsDrained(t *testing.T) {
	w := newWorld(t)
	// An event that is submitted while the probes are being taken off.
	w.other.onClose = func() { w.rings.put(call(10, 1001*second)) }
	d, stop := w.start(Options{}, process(10, 0, second))
	must.NoError(t, stop())
	if d.Events() != 1 || w.parts.Recorder.Stats().Events != 1 {
		t.Errorf("%d events were drained, want the last one too", d.Events())
	}
	if !w.rings.closed || !w.watcher.closed || !w.source.closed {
		t.Error("something is left open")
	}
}

func TestDrainingGoesOnWithoutRequests(t *testing.T) {
	w := newWorld(t)
	w.start(Options{}, process(10, 0, second))
	before := w.rings.drains.Load()
	until(func() bool { return w.rings.drains.Load() > before+2 })
}

func TestDrainAfterTheEndDoesNotHang(t *testing.T) {
	w := newWorld(t)
	d, stop := w.start(Options{}, process(10, 0, second))
	must.NoError(t, stop())
	if err := d.drainer.now(context.Background()); err != nil {
		t.Error(err)
	}
}

// settler holds its events back for a number of passes.
type settler struct {
	passes atomic.Int64 // so far
	after  int64        // passes after which it has settled
}

func (s *settler) Feed(uint64, func([]event.Event)) { s.passes.Add(1) }

func (s *settler) Settled(uint64) bool { return s.passes.Load() >= s.after }

func TestARecordingWaitsForWhatIsHeldBack(t *testing.T) {
	for _, c := range []struct {
		what  string
		after int64
		clock uint64 // ns added at each look
		most  int64  // passes
	}{
		{"settled at once", 0, 0, 1},
		{"settled later", 5, 0, 5},
		{"never", math.MaxInt64, uint64(settleBound) / 4, 4},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := &settler{after: c.after}
			rec, err := recording.NewRecorder(recording.MinBudget, time.Minute)
			must.NoError(t, err)
			var now uint64
			d := newDrainer(&fakeRings{}, rec, nil,
				newLossHistory(always, func() ([]loss.Loss, error) { return nil, nil }), clock.Monotonic)
			d.feeds, d.settlers = []*feed{newFeed(s, d.recorder.Since)}, []settlingFeeder{s}
			d.clock = func() uint64 { now += c.clock; return now }
			go func() { // in place of run, whose timer would make passes of its own
				for reply := range d.requests {
					close(reply)
				}
			}()
			defer close(d.requests)
			go d.feeds[0].run(t.Context())
			must.NoError(t, d.upTo(t.Context(), 0))
			if n := s.passes.Load(); n < 1 || n < min(c.after, c.most) || n > c.most {
				t.Errorf("%d passes, want %d", n, c.most)
			}
		})
	}
}

// countingCounter notes what it is told, and in which order.
type countingCounter struct {
	known  map[uint32]bool
	events int
	early  int // events of processes that were not known
}

func (c *countingCounter) Target(pid, _ uint32) { c.known[pid] = true }

func (c *countingCounter) Forget(uint32) {}

func (c *countingCounter) Add(batch []event.Event) {
	for _, e := range batch {
		c.events++
		if !c.known[e.PID] {
			c.early++
		}
	}
}

func TestCounterSeesEveryEventOfKnownProcesses(t *testing.T) {
	w := newWorld(t)
	c := &countingCounter{known: map[uint32]bool{}}
	w.parts.Counter = c
	_, stop := w.start(Options{}, process(10, 0, second), process(11, 10, second))
	w.rings.put(call(10, 1001*second), call(11, 1001*second))
	must.NoError(t, stop())
	if c.events != 2 || c.early != 0 {
		t.Errorf("%d events, %d of them of unknown processes", c.events, c.early)
	}
}

func TestArgumentFaultsAreCounted(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	bad, good := call(10, 1001*second), call(10, 1002*second)
	bad.Flags = event.Fault | event.Timed
	good.Flags = event.Timed | event.Deref
	w.rings.put(bad, good, bad)
	w.now.Store(1010 * second)
	got := fetch(t, d, 10, 0, 0).Meta.Losses
	if len(got) != 1 || got[0].Reason != loss.ArgumentFault || got[0].Count != 2 {
		t.Errorf("losses = %+v, want two argument faults", got)
	}
}

// BenchmarkTake is what an event costs between the ring and the recorder.
func BenchmarkTake(b *testing.B) {
	rec, err := recording.NewRecorder(100_000_000, time.Minute)
	must.NoError(b, err)
	history := newLossHistory(always, func() ([]loss.Loss, error) { return nil, nil })
	d := newDrainer(&fakeRings{}, rec, nil, history, clock.Monotonic)
	batch := make([]event.Event, 512)
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch {
			batch[i].TS += 1000
			batch[i].Kind = event.Call
		}
		d.take(batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(batch)), "ns/event")
}
