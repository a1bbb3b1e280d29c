package diagnose

import (
	"sync"

	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Work is a diagnosis in the making, which measures what the devices of a timeline did. Whoever goes over all
// activities anyway can show them to it: the most that a diagnosis of millions of them takes is to fetch their events.
type Work struct {
	a       *analysis
	d       *Diagnosis
	devices []deviceWork
}

// deviceWork is one device in the making.
type deviceWork struct {
	covered timeline.Spans
	kinds   *kinds
	sweep   sweep
}

// newDevices has measured nothing yet.
func (a *analysis) newDevices() []deviceWork {
	out, memory, talks := make([]deviceWork, len(a.t.Devices)), memoryKernels(a.t), a.t.Communicates()
	for i := range out {
		d := &out[i]
		if i < len(a.w.Covered) {
			d.covered = a.w.Covered[i].Both(timeline.Spans{a.within})
		}
		d.kinds = newKinds(a.t, memory, talks, &a.t.Devices[i])
		d.sweep = sweep{
			inside: cutter{spans: d.covered},
			both:   cutter{spans: d.covered},
			third:  cutter{spans: d.covered},
		}
	}
	return out
}

// Take measures the activities [first, last) of a device. Each must be taken once, those of a device in their order.
func (w *Work) Take(device int, first, last int32) {
	d, list := &w.devices[device], w.a.t.Activities[first:last]
	for i := range list {
		d.sweep.add(d.kinds.of(&list[i]), list[i].Start, list[i].End)
	}
}

// batch is some activities of a device that follow each other.
type batch struct {
	device      int
	first, last int32
}

// waitingBatches is how many batches may wait to be taken: enough that who shows them does not wait, and few enough
// that their events are still in a cache of the CPU.
const waitingBatches = 16

// Beside returns what Take is, but done by a goroutine of its own, and what waits until that has taken all.
func (w *Work) Beside() (take func(device int, first, last int32), wait func()) {
	batches := make(chan batch, waitingBatches)
	var taken sync.WaitGroup
	taken.Go(func() {
		for b := range batches {
			w.Take(b.device, b.first, b.last)
		}
	})
	take = func(device int, first, last int32) { batches <- batch{device, first, last} }
	return take, func() { close(batches); taken.Wait() }
}

// all takes all activities.
func (w *Work) all() {
	for i := range w.devices {
		w.Take(i, w.a.t.Devices[i].First, w.a.t.Devices[i].Last)
	}
}

// measured returns what a device did; nothing of its idle time.
func (d *deviceWork) measured(window uint64) measured {
	k, s := d.kinds, &d.sweep
	s.finish()
	k.heldBy.flush()
	k.freeBy.flush()
	return measured{
		Window: window, Time: d.covered.Total(), Did: s.Time, copied: s.copied,
		talked: s.talked, heldBy: k.heldBy, freeBy: k.freeBy,
		kernels: k.kernels, kernelTime: k.time, small: k.small, smallBlocks: k.smallest, sms: k.sms, poor: k.poor,
	}
}

// New makes the diagnosis of a timeline from its gaps and the summaries of both sides. w is made to sum up the gaps of
// what is broken down, nothing else is changed; g is nil where the recording has nothing about GPUs, predict where no
// gain is asked for: findings are then in the order of their cost.
func New(t *timeline.Timeline, w *gap.Walk, g *gpu.Summary, c *cpu.Summary, predict Predictor) *Diagnosis {
	did := Begin(t, w)
	w.Find(did.Within())
	did.all()
	return did.Diagnose(g, c, Beside{}, predict)
}
