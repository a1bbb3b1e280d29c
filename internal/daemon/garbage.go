package daemon

import "runtime/debug"

// The heap is the recorder's chunks, which hold no pointers and are cheap to go through, and a rest of some
// 20 MB with sampling on. It may grow by a fixed amount between two collections, in bytes: a share of all of
// it, as Go has it, let it grow by half of the recorder too.
const (
	headroom = 10_000_000
	rest     = 20_000_000
)

// collector sets how early garbage is collected.
type collector struct{ percent int }

// follow lets the heap grow by headroom beside a recorder that has taken so many bytes.
func (c *collector) follow(recorder int64) {
	if p := int(100 * headroom / (rest + recorder)); p != c.percent {
		c.percent = p
		debug.SetGCPercent(p)
	}
}
