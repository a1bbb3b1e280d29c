package whatif

import (
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// pinnedGain is how many times faster copies are from pinned memory, where the recording has none to compare
// with: 25 GB/s against 6 on PCIe 4 x16 (CUDA C++ Best Practices Guide, "Pinned Memory": 12 against 3 on PCIe 3). A
// copy of 64 MB to an H200 became 2.2 times as fast, and hosts with slow memory gain more.
const (
	pinnedGain  = 4.0
	leastPinned = 2.0
	mostPinned  = 6.0
)

// measuredSpread is by how much the rate of copies of one size differs within a recording, as a share of it.
const measuredSpread = 0.1

// gain is how many times as fast copies become, and the range of it.
type gain struct {
	usual, least, most float64
	measured           bool // by the recording's own pinned copies
}

// linkSpeed is which end of that range is taken.
type linkSpeed uint8

const (
	expected linkSpeed = iota
	slowest
	fastest
)

func (g *gain) of(l linkSpeed) float64 {
	switch l {
	case slowest:
		return g.least
	case fastest:
		return g.most
	}
	return g.usual
}

// rate is what copies of one kind carried.
type rate struct{ bytes, ns, count float64 }

func (r *rate) each() float64  { return r.bytes / max(1, r.count) }
func (r *rate) speed() float64 { return r.bytes / max(1, r.ns) } // bytes per ns: GB/s

// similar is the share of the mean size of pageable copies from which on a pinned copy is compared with them: small
// copies are slower.
const similar = 0.25

// pinnedGains returns what pinned memory brings to the copies of each direction: as fast as the recording's own pinned
// copies of such a size are, else what is usual, but no more than the link carries.
func pinnedGains(t *timeline.Timeline, spans []timeline.Span) [replay.Engines]gain {
	var pageable [replay.Engines]rate
	each := func(f func(engine replay.Engine, ofPageable bool, bytes, ns float64)) {
		for _, i := range t.Copies {
			a := &t.Activities[i]
			e := &t.Rec.Events[a.Event]
			engine, ofPageable, ok := directionOf(e)
			if ok && spanAt(spans, a.Start) >= 0 {
				f(engine, ofPageable, float64(e.Args[2]), float64(a.End-a.Start))
			}
		}
	}
	each(func(engine replay.Engine, ofPageable bool, bytes, ns float64) {
		if ofPageable {
			pageable[engine].add(bytes, ns)
		}
	})
	var out [replay.Engines]gain
	for e := range out {
		var same, other rate // pinned copies of that direction, and of the other one
		each(func(engine replay.Engine, ofPageable bool, bytes, ns float64) {
			switch {
			case ofPageable || bytes < similar*pageable[e].each():
			case engine == replay.Engine(e):
				same.add(bytes, ns)
			default:
				other.add(bytes, ns)
			}
		})
		if same.count == 0 {
			same = other // a link is as fast in both directions
		}
		out[e] = gainOf(&pageable[e], &same, linkRate(t))
	}
	return out
}

func (r *rate) add(bytes, ns float64) { r.bytes, r.ns, r.count = r.bytes+bytes, r.ns+ns, r.count+1 }

// Shares of what a link carries that pinned copies reach where none were recorded: nearly all of it on most hosts, and
// 24 of 57 GB/s on one with an H200, whose virtual machine slowed them down. What is usual lies between.
const (
	usualOfLink = 0.6
	leastOfLink = 0.4
)

func gainOf(pageable, pinned *rate, link float64) gain {
	if pageable.count == 0 {
		return gain{usual: 1, least: 1, most: 1}
	}
	if pinned.count > 0 {
		by := max(1, pinned.speed()/pageable.speed())
		return gain{usual: by, least: max(1, by*(1-measuredSpread)), most: by * (1 + measuredSpread), measured: true}
	}
	by := func(gain, share float64) float64 { return min(gain, max(1, share*link/pageable.speed())) }
	return gain{usual: by(pinnedGain, usualOfLink), least: by(leastPinned, leastOfLink), most: by(mostPinned, 1)}
}

// linkRate is what the link between the host and a GPU carries in one direction, GB/s: of PCIe x16 what is left of
// 15.8, 31.5 and 63 GB/s (generations 3, 4 and 5) beside the headers of its packets, of NVLink-C2C 450. Without a known
// GPU it is no bound.
func linkRate(t *timeline.Timeline) float64 {
	most := 0.0
	for d := range t.Devices {
		info := t.Devices[d].Info
		switch {
		case info == nil || info.Major == 0:
			return math.Inf(1)
		case strings.Contains(info.Name, "GH200") || strings.Contains(info.Name, "GB200") ||
			strings.Contains(info.Name, "GB300"):
			most = max(most, 450)
		case info.Major >= 9:
			most = max(most, 57)
		case info.Major == 8:
			most = max(most, 28)
		default:
			most = max(most, 14)
		}
	}
	if most == 0 {
		return math.Inf(1)
	}
	return most
}

// directionOf says which engine does a copy between host and device, and whether the host's memory is pageable.
func directionOf(e *event.Event) (engine replay.Engine, pageable, ok bool) {
	switch cuda.CopyKind(e.Ret) {
	case cuda.HostToDevice, cuda.HostToArray:
		return replay.ToDevice, cuda.MemoryKind(e.Ret>>8) == cuda.Pageable, true
	case cuda.DeviceToHost, cuda.ArrayToHost:
		return replay.ToHost, cuda.MemoryKind(e.Ret>>16) == cuda.Pageable, true
	}
	return replay.Engines, false, false
}

// spanAt returns the index of the span that a time lies in, -1 where it lies in none.
func spanAt(spans []timeline.Span, at uint64) int {
	i := timeline.Spans(spans).At(at)
	if i < len(spans) && spans[i].From <= at {
		return i
	}
	return -1
}

// pinning is what pinned memory brings to a copy.
func (s *Study) pinning(w *replay.What) *gain {
	if e, ok := replay.EngineOf(w); ok {
		return &s.pins[e]
	}
	return &gain{usual: 1, least: 1, most: 1}
}

// linked is how long it takes with a slower or faster link, ns: as long as with the usual one where no copy is changed.
func (s *Study) linked(edits []Edit, h how, speed linkSpeed) float64 {
	h.link = speed
	return float64(s.with(edits, h))
}
