package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Limits and goal of the drain timer. A timer costs 0.3% of a core at 100,000 events/s; wake-ups by the kernel cost 23
// to 45%. The cost is that of its wake-ups, so it is as slow as the rings allow: in 100 ms the fastest launching thread
// seen makes 17,500 events, and a ring holds 14,500 to 58,000. Below 10 ms the timer itself becomes visible.
const (
	slowest  = 100 * time.Millisecond
	fastest  = 10 * time.Millisecond
	goalFill = 0.1 // leaves room for a program that catches up, at twice its rate, while the drain waits for a CPU
)

// drainer moves events from the rings to the recorder and is the recorder's only writer.
type drainer struct {
	rings    rings
	feeds    []*feed
	settlers []settlingFeeder
	observe  func(batch []event.Event)
	recorder *recording.Recorder
	counter  counter
	history  *lossHistory
	clock    clockFunc
	ticker   *ticker

	requests chan chan struct{}
	done     chan struct{} // closed when run has returned
	events   atomic.Uint64
	calls    atomic.Uint64 // of events
	faults   atomic.Uint64 // events with an argument that could not be read
}

func newDrainer(
	rings rings,
	recorder *recording.Recorder,
	counter counter,
	history *lossHistory,
	clock clockFunc,
) *drainer {
	return &drainer{
		rings: rings, recorder: recorder, counter: counter,
		history: history, clock: clock, observe: func([]event.Event) {},
		requests: make(chan chan struct{}), done: make(chan struct{}),
	}
}

// run drains until ctx is done, and then once more for the last events.
func (d *drainer) run(ctx context.Context) {
	defer close(d.done)
	for _, f := range d.feeds {
		go f.run(ctx)
	}
	d.ticker.start(ctx)
	interval := slowest
	for {
		select {
		case <-ctx.Done():
			for _, f := range d.feeds {
				<-f.done
			}
			d.pass()
			return
		case reply := <-d.requests:
			d.pass()
			close(reply)
		case <-d.ticker.C:
			d.pass()
			for _, f := range d.feeds {
				f.ask()
			}
			interval = next(interval, d.fill())
			d.ticker.reset(interval)
		}
	}
}

// fill returns how full the fullest buffer was.
func (d *drainer) fill() float64 {
	fullest := d.rings.Fill()
	for _, f := range d.feeds {
		if f, ok := f.feeder.(filler); ok {
			fullest = max(fullest, f.Fill())
		}
	}
	return fullest
}

// now drains immediately, so that a recording contains everything up to the call. After run has ended it does nothing:
// run drained last.
func (d *drainer) now(ctx context.Context) error {
	reply := make(chan struct{})
	select {
	case d.requests <- reply:
	case <-d.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	<-reply
	return nil
}

// Polling interval and limit for events that sources hold back. The sampler waits up to 300 ms for the native half of a
// stack, and usually has it after 100 to 200 ms.
const (
	settleBound = 400 * time.Millisecond
	settleEvery = 10 * time.Millisecond
)

// upTo drains until everything before the time to (ns) has arrived, or a time-out.
func (d *drainer) upTo(ctx context.Context, to uint64) error {
	for end := to + uint64(settleBound); ; {
		for _, f := range d.feeds {
			if err := f.now(ctx); err != nil {
				return err
			}
		}
		settled := d.settled(to)
		if err := d.now(ctx); err != nil { // takes what was fed before
			return err
		}
		if settled || d.clock() >= end {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settleEvery):
		}
	}
}

func (d *drainer) settled(to uint64) bool {
	for _, s := range d.settlers {
		if !s.Settled(to) {
			return false
		}
	}
	return true
}

func (d *drainer) pass() {
	d.recorder.Pass(d.clock())
	n := d.rings.Drain(d.takeFresh)
	if n > 0 {
		d.events.Add(uint64(n))
	}
	for _, f := range d.feeds {
		f.take(d.feed)
	}
	d.history.tick(d.clock())
}

func (d *drainer) feed(batch []event.Event) {
	d.take(batch)
	d.events.Add(uint64(len(batch)))
}

// takeFresh accepts events directly from the kernel.
func (d *drainer) takeFresh(batch []event.Event) {
	d.observe(batch)
	d.take(batch)
}

func (d *drainer) take(batch []event.Event) {
	d.recorder.Append(batch...)
	if d.counter != nil {
		d.counter.Add(batch)
	}
	var calls, faults uint64
	for i := range batch {
		faults += uint64(batch[i].Flags & event.Fault >> 1)
		if batch[i].Kind == event.Call {
			calls++
		}
	}
	d.calls.Add(calls)
	if faults > 0 {
		d.faults.Add(faults)
	}
}

// next returns the interval after which the fullest ring would reach the goal at
// the rate at which it filled during the last one.
func next(last time.Duration, fill float64) time.Duration {
	if fill <= 0 {
		return slowest
	}
	return max(fastest, min(slowest, time.Duration(float64(last)*goalFill/fill)))
}
