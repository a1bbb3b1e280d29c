// Package demand lets a source work only while a process that it follows maps a library.
package demand

import (
	"sync"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// Options are the settings of New.
type Options struct {
	// Uses reports whether a file of this name is the library.
	Uses func(base string) bool
	// Start begins to work, with run for each goroutine. It must not call the Worker.
	Start func(stop <-chan struct{}, run func(work func()))
	// Stopping wakes up goroutines that wait for something else than stop, which is closed by then; nil: none does.
	Stopping func()
}

// Worker starts the goroutines of a source with the first process that maps the library, and ends them with the last.
// It is safe for concurrent use.
type Worker struct {
	opts Options

	mu     sync.Mutex
	users  map[proc.ID]bool
	shift  *shift // nil: nothing runs
	closed bool
}

// shift is the work from a first process to a last one.
type shift struct {
	stop    chan struct{}
	running sync.WaitGroup
}

// New returns a Worker that does nothing yet.
func New(opts Options) *Worker { return &Worker{opts: opts, users: map[proc.ID]bool{}} }

// Follow starts the work if p maps the library. Maps that cannot be read are those of a process without it: whoever
// probes libraries reports why.
func (w *Worker) Follow(p *proc.Process) {
	w.mu.Lock()
	known := w.users[p.ID()] || w.closed
	w.mu.Unlock()
	if known {
		return
	}
	if found, err := proc.Libraries(p, w.opts.Uses); err != nil || len(found) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.users[p.ID()] = true
	if w.shift == nil {
		w.shift = &shift{stop: make(chan struct{})}
		w.opts.Start(w.shift.stop, w.shift.running.Go)
	}
}

// Forget ends the work if p was the last process that maps the library, and waits for its end.
func (w *Worker) Forget(p *proc.Process) {
	w.mu.Lock()
	delete(w.users, p.ID())
	var over *shift
	if len(w.users) == 0 {
		over = w.take()
	}
	w.mu.Unlock()
	w.end(over)
}

// Close ends the work for good, and waits for its end.
func (w *Worker) Close() {
	w.mu.Lock()
	w.closed = true
	over := w.take()
	w.mu.Unlock()
	w.end(over)
}

// Works reports whether the goroutines run.
func (w *Worker) Works() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shift != nil
}

// take returns the shift that is to end, so that the next process begins another one. The caller holds mu.
func (w *Worker) take() *shift {
	over := w.shift
	w.shift = nil
	return over
}

func (w *Worker) end(over *shift) {
	if over == nil {
		return
	}
	close(over.stop)
	if w.opts.Stopping != nil {
		w.opts.Stopping()
	}
	over.running.Wait()
}
