package analyze

import (
	"strings"

	"github.com/inferscope/inferscope/internal/cuda"
)

// waits gathers the time in which threads are blocked until the device is done.
type waits struct {
	sync, copies []interval
	out          Waiting
}

// time adds a timed call, also one that began before the window. An operation
// counts as what its outermost call is: a synchronisation inside a copy is part of the copy.
func (w *waits) time(o *op) {
	switch {
	case o.call.Group == cuda.Sync:
		w.sync = append(w.sync, interval{o.from, o.to})
		w.out.Time += o.to - o.from
	case o.call.Group == cuda.Copy && !isAsync(o.row.Name):
		w.copies = append(w.copies, interval{o.from, o.to})
		w.out.CopyTime += o.to - o.from
	}
}

// count counts a call that began in the window.
func (w *waits) count(o *op) {
	switch {
	case o.call.Group == cuda.Sync:
		w.out.Calls++
		w.out.Longest = max(w.out.Longest, o.Dur)
	case o.call.Group == cuda.Copy && !isAsync(o.row.Name):
		w.out.CopyCalls++
	}
}

func (w *waits) result(win Window) Waiting {
	r := w.out
	r.Any, r.CopyAny = union(w.sync), union(w.copies)
	r.EitherAny = union(append(w.sync, w.copies...))
	r.Share, r.CopyShare, r.EitherPart = share(r.Any, win.Observed), share(r.CopyAny, win.Observed), share(r.EitherAny, win.Observed)
	return r
}

// isAsync says whether a function's name says that it does not wait.
func isAsync(name string) bool { return strings.Contains(name, "Async") }
