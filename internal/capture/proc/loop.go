package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// loop does everything that the watcher does, one thing at a time.
func (w *Watcher) loop() {
	defer w.end()
	for {
		w.rest()
		out, next := w.head()
		select {
		case out <- next:
			w.queue.pop()
		case e, ok := <-w.kernel.events:
			w.receive(e, ok)
		case f := <-w.requests:
			f()
		case <-w.maps.signal():
			w.drainMaps()
		case <-w.sweeps.C:
			w.sweep()
		case <-w.later.C:
			w.catchUp()
		case <-w.quit:
			return
		}
	}
}

// rest looks at nothing while there is no living target.
func (w *Watcher) rest() {
	if !w.watching || len(w.table.live) > 0 {
		return
	}
	w.watching = false
	w.sweeps.Stop()
	if w.found == nil {
		_ = w.maps.watch(false) // noticing too much is no harm
	}
}

// wake looks again, before the first target is told of.
func (w *Watcher) wake() {
	if w.watching {
		return
	}
	w.watching = true
	w.sweeps.Reset(sweepInterval)
	if err := w.maps.watch(true); err != nil {
		w.failed = fmt.Sprintf("libraries loaded later go unseen: %v", err)
	}
}

// head returns the oldest change and where to send it; a nil channel where there is none.
func (w *Watcher) head() (chan<- Change, Change) {
	if len(w.queue.items) == 0 {
		return nil, Change{}
	}
	return w.changes, w.queue.items[0]
}

func (w *Watcher) end() {
	w.sweeps.Stop()
	w.later.Stop()
	w.closeErr = errors.Join(w.kernel.close(), w.maps.close())
	for _, e := range w.table.live {
		_ = e.p.Close()
	}
	close(w.ended)
	close(w.changes)
}

func (w *Watcher) receive(e event.Event, ok bool) {
	if !ok {
		w.failed = "reading the kernel's ring of process events has failed"
		w.kernel.events = nil
		return
	}
	switch e.Kind {
	case event.Fork:
		w.forked(e)
	case event.Exec:
		w.execed(e)
	case event.Exit:
		if x := w.table.live[e.PID]; x != nil {
			w.bury(x, e.TS, e.Ret)
		}
	}
}

// drainEvents takes all events that are at hand.
func (w *Watcher) drainEvents() {
	for w.kernel.events != nil {
		select {
		case e, ok := <-w.kernel.events:
			w.receive(e, ok)
		default:
			return
		}
	}
}

// drainMaps turns new mappings into one Mapped per process. Births come first,
// so that the mappings of a new process find it; the others are seen anyway by
// whoever looks at a process when it appears.
func (w *Watcher) drainMaps() {
	w.drainEvents()
	first := make(map[*entry]uint64)
	lost := w.maps.drain(w.table.live, func(e *entry, at uint64) {
		if known, ok := first[e]; !ok || at < known {
			first[e] = at
		}
	}, w.tellFound)
	for e, at := range first {
		w.noteMapped(e, at)
	}
	if lost {
		w.tellFound(0)
		// at the next sweep: whoever maps files in a loop, of a target or not, fills the rings all the time
		w.allDue = true
	}
}

// allMapped has every process looked at again.
func (w *Watcher) allMapped() {
	now := monotonic()
	for _, e := range w.table.live {
		w.noteMapped(e, now)
	}
}

func (w *Watcher) bury(e *entry, at uint64, code int32) {
	held := e.p
	delete(w.putOff, held.PID)
	if e.untold {
		w.table.drop(e)
		w.skipped[held.Root]++
	} else {
		w.table.bury(e, at, code)
		w.queue.push(Change{Exited, e.p, at})
	}
	_ = held.Close()
}

// comm turns the 16 bytes of a comm in two arguments of an event into a string.
func comm(args []uint64) string {
	raw := make([]byte, 0, 16)
	for _, word := range args {
		raw = binary.LittleEndian.AppendUint64(raw, word)
	}
	name, _, _ := strings.Cut(string(raw), "\x00")
	return strings.ToValidUTF8(name, "?")
}
