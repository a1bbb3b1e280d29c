package diagnose

import (
	"github.com/inferscope/inferscope/internal/analyze/cpu"
	"github.com/inferscope/inferscope/internal/analyze/gpu"
	"github.com/inferscope/inferscope/internal/gap"
	"github.com/inferscope/inferscope/internal/timeline"
)

// Work measures what the devices of a timeline did. Whoever goes over all activities anyway can show them to it: the most that a diagnosis
// of millions of them takes is to fetch their events.
type Work struct {
	t       *timeline.Timeline
	devices []deviceWork
}

// deviceWork is one device in the making.
type deviceWork struct {
	covered timeline.Spans
	kinds   *kinds
	sweep   sweep
}

// NewWork has measured nothing yet. covered is, for each device, the time in which all that it did was seen: gap.Covered.
func NewWork(t *timeline.Timeline, covered []timeline.Spans) *Work {
	w, memory := &Work{t: t, devices: make([]deviceWork, len(t.Devices))}, memoryKernels(t)
	for i := range w.devices {
		d := &w.devices[i]
		if i < len(covered) {
			d.covered = covered[i]
		}
		d.kinds = newKinds(t, memory, &t.Devices[i])
		d.sweep = sweep{inside: cutter{spans: d.covered}, both: cutter{spans: d.covered}}
	}
	return w
}

// Take measures the activities [first, last) of a device. Each must be taken once, those of a device in their order.
func (w *Work) Take(device int, first, last int32) {
	d, list := &w.devices[device], w.t.Activities[first:last]
	for i := range list {
		d.sweep.add(d.kinds.of(&list[i]), list[i].Start, list[i].End)
	}
}

// all takes all activities.
func (w *Work) all() {
	for i := range w.t.Devices {
		w.Take(i, w.t.Devices[i].First, w.t.Devices[i].Last)
	}
}

// measured returns what a device did; nothing of its idle time.
func (d *deviceWork) measured(window uint64) measured {
	k, s := d.kinds, &d.sweep
	s.finish()
	k.heldBy.flush()
	k.freeBy.flush()
	return measured{
		Window: window, Time: d.covered.Total(), Did: s.Time, copied: s.copied, heldBy: k.heldBy, freeBy: k.freeBy,
		kernels: k.kernels, kernelTime: k.time, small: k.small, smallBlocks: k.smallest, sms: k.sms,
	}
}

// New makes the diagnosis of a timeline from its gaps and the summaries of both sides. It changes
// none of its arguments; g is nil where the recording has nothing about GPUs, foretell where no gain is asked for: findings are
// then in the order of their cost.
func New(t *timeline.Timeline, w *gap.Walk, g *gpu.Summary, c *cpu.Summary, foretell Foretell) *Diagnosis {
	did := NewWork(t, w.Covered)
	did.all()
	return did.Diagnose(w, g, c, foretell)
}
