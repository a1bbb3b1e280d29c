package ring

import (
	"fmt"
	"math/bits"
)

// Bounds of a ring and of the budget for all of them, in bytes. The daemon's mapping
// of the rings counts in its resident memory; when both of their views did, with
// 64 MiB on 16 CPUs it was 155 MB before the recorder had filled, of 200 promised.
const (
	DefaultBytes = 16 << 20  // budget for all rings where Options names none: goodRing for each of 16 CPUs
	minBytes     = 256 << 10 // smallest budget, and smallest ring
	maxRing      = 4 << 20   // 58,254 events: 116 ms at 500,000 events/s
	goodRing     = 1 << 20   // 14,563 events: 83 ms at 175,000 events/s, the most seen from one thread
)

// maxCPUs bounds what sysfs can make us allocate; Linux supports 8,192.
const maxCPUs = 1 << 13

// plan describes how many rings of which size there are and which one each CPU uses.
type plan struct {
	rings  int
	size   int64 // bytes, a power of two
	ringOf []int // by possible CPU
}

// layout divides budget over the CPUs that are online. Where that leaves less than
// goodRing for each, CPUs share: two busy CPUs on one ring pay 0.2 us more per
// event (739 against 531 ns), but a ring that is too small loses events, and on a
// machine with hundreds of CPUs few are busy with launches. CPUs that are possible
// but offline share with the online ones.
func layout(budget int64, possible int, online []int) (plan, error) {
	if budget == 0 {
		budget = DefaultBytes
	}
	if budget < minBytes {
		return plan{}, fmt.Errorf("ring buffers of %d bytes in all are too small: give at least %d KiB",
			budget, minBytes>>10)
	}
	if len(online) == 0 || possible < 1 || possible > maxCPUs {
		return plan{}, fmt.Errorf("cannot place ring buffers on %d possible and %d online CPUs", possible, len(online))
	}
	want := min(max(budget/int64(len(online)), goodRing), maxRing)
	size := floorPow2(min(want, budget))
	p := plan{size: size, rings: int(min(budget/size, int64(len(online))))}
	p.ringOf = make([]int, possible)
	for cpu := range p.ringOf {
		p.ringOf[cpu] = cpu % p.rings
	}
	// Number the online CPUs on their own, so that a gap in their numbers leaves
	// no ring unused while two of them share another.
	for i, cpu := range online {
		if cpu < possible {
			p.ringOf[cpu] = i % p.rings
		}
	}
	return p, nil
}

func floorPow2(n int64) int64 { return 1 << (bits.Len64(uint64(n)) - 1) }
