package requests

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// crowd knows how many requests were in progress at any time.
type crowd struct{ begins, ends []uint64 } // each sorted

func newCrowd(all []recording.Request) crowd {
	var c crowd
	for i := range all {
		c.begins = append(c.begins, all[i].Received)
		if all[i].End > 0 {
			c.ends = append(c.ends, all[i].End)
		}
	}
	slices.Sort(c.begins)
	slices.Sort(c.ends)
	return c
}

// before returns how many others were in progress when a request arrived.
func (c crowd) before(r *recording.Request) int {
	begun, _ := slices.BinarySearch(c.begins, r.Received)
	over, _ := slices.BinarySearch(c.ends, r.Received)
	return max(0, begun-over)
}

// concurrency returns the mean and the largest number of requests at a time in [from, to].
func (c crowd) concurrency(from, to uint64) (mean float64, most int) {
	sum, n, last := 0.0, 0, from
	i, j := 0, 0
	for i < len(c.begins) || j < len(c.ends) {
		begin := j >= len(c.ends) || i < len(c.begins) && c.begins[i] < c.ends[j]
		var at uint64
		if begin {
			at = c.begins[i]
		} else {
			at = c.ends[j]
		}
		if at > to {
			break
		}
		if at > last {
			sum += float64(n) * float64(at-last)
			last = at
		}
		if begin {
			n, i = n+1, i+1
		} else {
			n, j = n-1, j+1
		}
		if at >= from {
			most = max(most, n)
		}
	}
	sum += float64(max(0, n)) * float64(to-min(to, last))
	if to <= from {
		return 0, most
	}
	return sum / float64(to-from), most
}

// work knows when the GPUs of the target ran something.
type work struct {
	from, to []uint64 // intervals in which one ran, in order, apart from each other
	sum      []uint64 // ns before each
	seen     []recording.GPUWindow
}

func newWork(rec *recording.Recording) work {
	var w work
	if rec.Meta.GPU == nil {
		return w
	}
	for _, window := range rec.Meta.GPU.Windows {
		if window.Activity && window.Dropped == 0 {
			w.seen = append(w.seen, window)
		}
	}
	total := uint64(0)
	for i := range rec.Events {
		e := &rec.Events[i]
		switch e.Kind {
		case event.Kernel, event.Copy, event.Set:
		default:
			continue
		}
		n := len(w.to)
		if n > 0 && e.TS <= w.to[n-1] {
			if end := e.End(); end > w.to[n-1] {
				total += end - w.to[n-1]
				w.to[n-1] = end
			}
			continue
		}
		w.from, w.to, w.sum = append(w.from, e.TS), append(w.to, e.End()), append(w.sum, total)
		total += e.Dur
	}
	return w
}

// within returns for how long a GPU worked in [from, to], nil where that was not recorded throughout. The process that
// serves requests may be another than the one that uses the GPU: then all of those that do must have been recorded.
func (w work) within(pid uint32, from, to uint64) *uint64 {
	covered, own, others, all := false, false, map[uint32]bool{}, map[uint32]bool{}
	for _, s := range w.seen {
		all[s.PID] = true
		if s.From <= from && s.To >= to {
			others[s.PID] = true
			covered = true
		}
		own = own || s.PID == pid
	}
	if own && !others[pid] || !covered || !own && len(others) < len(all) {
		return nil
	}
	n := w.until(to) - w.until(from)
	return &n
}

// after returns when GPUs had worked for n ns more than at a time.
func (w work) after(at, n uint64) uint64 {
	n += w.until(at)
	i, _ := slices.BinarySearch(w.sum, n)
	if i == 0 {
		return at
	}
	return max(at, min(w.from[i-1]+n-w.sum[i-1], w.to[i-1]))
}

// until returns for how long a GPU had worked at a time.
func (w work) until(at uint64) uint64 {
	i, _ := slices.BinarySearch(w.from, at)
	if i == 0 {
		return 0
	}
	return w.sum[i-1] + min(at, w.to[i-1]) - w.from[i-1]
}
