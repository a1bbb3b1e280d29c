package daemon

import (
	"context"
	"sync"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// feed calls one feeder in a goroutine of its own: naming Python code and reading
// where files are mapped takes tens of milliseconds when it meets a new program
// (16 to 51 ms with PyTorch), in which neither the rings of a busy target nor
// another feeder's may run over.
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

// run makes passes until ctx is done, and then the last one: what Close found in rings of sources.
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

// ask wants a pass some time soon.
func (f *feed) ask() {
	select {
	case f.asked <- struct{}{}:
	default: // it is still busy with the last one
	}
}

// now returns after a pass that began after the call, or after the end of run.
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

// pass takes what the feeder has. Batches are copied: they are valid for a moment only.
func (f *feed) pass() {
	f.feeder.Feed(f.held(), func(batch []event.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, batch...)
	})
}

// take hands over what has come since the last call.
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
