package daemon

import (
	"context"
	"sync"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// feed calls one feeder in its own goroutine: naming Python code and reading where files are mapped takes tens of
// milliseconds for a new program (16 to 51 ms with PyTorch), in which no ring, and no ring of another feeder, may
// overflow.
type feed struct {
	feeder feeder
	held   func() uint64 // ns since which the recorder holds every event

	asked chan struct{}      // has one in it where a pass is wanted
	wait  chan chan struct{} // passes that somebody waits for
	done  chan struct{}      // closed when run has returned

	mu     sync.Mutex
	events []event.Event // that the drain goroutine has not taken yet
	spare  []event.Event // the one that it took before, empty
}

func newFeed(feeder feeder, held func() uint64) *feed {
	return &feed{
		feeder: feeder,
		held:   held,
		asked:  make(chan struct{}, 1),
		wait:   make(chan chan struct{}),
		done:   make(chan struct{}),
	}
}

// run makes passes until ctx is done, and then a last one for what Close found in the rings of sources.
func (f *feed) run(ctx context.Context) {
	defer close(f.done)
	for {
		select {
		case <-ctx.Done():
			f.pass()
			return
		case <-f.asked:
			f.pass()
		case reply := <-f.wait:
			f.pass()
			close(reply)
		}
	}
}

// ask requests a pass.
func (f *feed) ask() {
	select {
	case f.asked <- struct{}{}:
	default: // it is still busy with the last one
	}
}

// now returns after a pass that began after the call, or after run has ended.
func (f *feed) now(ctx context.Context) error {
	reply := make(chan struct{})
	select {
	case f.wait <- reply:
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	<-reply
	return nil
}

// pass collects the feeder's events. Batches are copied because they are valid only during the call.
func (f *feed) pass() {
	f.feeder.Feed(f.held(), func(batch []event.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, batch...)
	})
}

// take returns the events since the last call.
func (f *feed) take(to func([]event.Event)) {
	f.mu.Lock()
	events := f.events
	f.events, f.spare = f.spare, nil
	f.mu.Unlock()
	to(events)
	f.mu.Lock()
	f.spare = events[:0] // the target's bursts are of one size: nothing is allocated for the next
	f.mu.Unlock()
}
