package whatif

import (
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// A GPU's clocks follow what it draws: at its limit they fall, and kernels take longer. Products of 4096 x 4096
// matrices took 176 to 180 µs on an H200 in 24 recordings of programs that kept it busy for 4% to 52% of the time;
// where a fix kept it busy, they took up to 15% longer.
const (
	// drawing is how much of the time kernels fill the GPU before that begins, at least.
	drawing = 0.5
	// clocks is by how much longer they may take where they fill it always, which depends on what they compute. The
	// middle is what is expected.
	clocks = 0.22
)

// limited reports whether a device is of a kind whose clocks are known to fall at its limit: the 700 W Hopper. Of
// others, that they may is part of the interval alone.
func limited(name string) bool {
	return strings.Contains(name, "H100") || strings.Contains(name, "H200")
}

// power is what kernels of a recording draw.
type power struct {
	filled float64 // ns of kernels, weighted by how much of the device's multiprocessors their blocks fill
	known  bool    // the device is limited
}

// powerOf sums up the kernels of stretches of a recording.
func powerOf(t *timeline.Timeline, spans []timeline.Span) power {
	var p power
	for d := range t.Devices {
		dev := &t.Devices[d]
		at, sms := 0, uint32(0)
		if dev.Info != nil {
			p.known, sms = p.known || limited(dev.Info.Name), dev.Info.SMs
		}
		for i := dev.First; i < dev.Last; i++ {
			a := &t.Activities[i]
			for at < len(spans) && spans[at].To <= a.Start {
				at++
			}
			if at == len(spans) {
				break
			}
			if a.Kind == timeline.Kernel && a.Start >= spans[at].From && a.End <= spans[at].To {
				p.filled += float64(a.End-a.Start) * filling(&t.Rec.Events[a.Event], sms)
			}
		}
	}
	return p
}

// filling is the share of the multiprocessors that a kernel's blocks fill: a block runs on one (CUDA C++ Programming
// Guide, "Hardware Implementation"). 1 where that is not known. Grids as bpf/event.h packs them.
func filling(e *event.Event, sms uint32) float64 {
	blocks := float64(e.Args[2]&math.MaxUint32) * float64(e.Args[2]>>32&math.MaxUint16) * float64(e.Args[2]>>48)
	if blocks == 0 || sms == 0 {
		return 1
	}
	return min(1, blocks/float64(sms))
}

// lengthening returns how many times as long kernels take where the work takes so long, ns, as is expected, and at
// most.
func (s *Study) lengthening(after uint64) (expected, most float64) {
	at := func(length uint64) float64 {
		return max(0, min(1, s.power.filled/float64(max(length, 1)))-drawing) / (1 - drawing)
	}
	more := max(0, at(after)-at(s.alone))
	most = 1 + clocks*more
	if !s.power.known {
		return 1, most
	}
	return 1 + clocks/2*more, most
}

// longer lets kernels take longer.
func longer(g *replay.Graph, plan *replay.Plan, by float64) {
	for i := range g.Whats {
		if g.Whats[i].Kind == replay.Kernel {
			plan.Changes[i].Scale *= by
		}
	}
}

// powered returns by how much longer or shorter it may take than what is predicted because of the GPU's clocks, ns.
func (s *Study) powered(after uint64, edits []Edit, h how) (slower, faster float64) {
	_, most := s.lengthening(after)
	if h.kernels > 1 {
		as := h
		as.kernels = 1
		faster = float64(after) - float64(s.with(edits, as))
	}
	if most > h.kernels {
		as := h
		as.kernels = most
		slower = float64(s.with(edits, as)) - float64(after)
	}
	return slower, faster
}
