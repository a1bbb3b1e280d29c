package summary

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/cuda"
)

// copies makes the table of copies by direction.
type copies struct {
	rows map[copyKey]*copyRow
}

type copyKey struct {
	direction cuda.Direction
	async     bool
}

// copyRow keeps the bytes and time that bandwidth is made of apart: failed and unsized copies have none.
type copyRow struct {
	Copy
	sizedBytes, sizedTime uint64
}

func newCopies() *copies { return &copies{rows: map[copyKey]*copyRow{}} }

func (c *copies) count(o *op) {
	key := copyKey{o.call.Direction, isAsync(o.row.Name)}
	if key.direction == cuda.NoDirection {
		key.direction = cuda.Unknown
	}
	r := c.rows[key]
	if r == nil {
		r = &copyRow{Copy: Copy{Direction: key.direction, Async: key.async}}
		c.rows[key] = r
	}
	r.Count++
	r.Time += o.Dur
	r.Longest = max(r.Longest, o.Dur)
	switch {
	case o.failed():
		r.Failed++
	case !o.call.HasBytes:
		r.Unsized++
	default:
		r.Bytes += o.call.Bytes
		if o.Timed {
			r.sizedBytes += o.call.Bytes
			r.sizedTime += o.Dur
		}
	}
}

// bandwidth is known where the call returns when the copy is done. By CUDA's
// documentation (API synchronization behavior) that holds for copies from and to
// host memory without Async in their name; copies inside the device and between
// devices only enqueue, whatever they are called.
func (r *copyRow) bandwidth() float64 {
	if r.Async || r.sizedTime == 0 {
		return 0
	}
	switch r.Direction {
	case cuda.H2D, cuda.D2H, cuda.H2H:
		return perSecond(r.sizedBytes, r.sizedTime)
	}
	return 0
}

func (c *copies) result() []Copy {
	out := []Copy{}
	for _, r := range c.rows {
		r.Bandwidth = r.bandwidth()
		out = append(out, r.Copy)
	}
	slices.SortFunc(out, func(x, y Copy) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Count, x.Count),
			cmp.Compare(x.Direction, y.Direction), compareBool(x.Async, y.Async))
	})
	return out
}

func compareBool(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}
