package memory

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Sample is an allocation that was chosen by chance.
type Sample struct {
	PID     uint32
	Device  event.MemoryDevice
	From    uint64 // ns
	To      uint64 // ns: when it was freed; Open: it was not
	Open    bool
	Pointer uint64
	Bytes   uint64
	Weight  float64 // bytes that it stands for
	Count   float64 // allocations that it stands for
	Stack   uint64  // index + 1 into the recording's stacks; 0: not known
	// Segment reports that the driver's own call made it for PyTorch's allocator, whose blocks are samples of their own.
	Segment bool
}

// Samples returns the sampled allocations of a recording, in the order of time.
func Samples(rec *recording.Recording) []Sample {
	var out []Sample
	g := gather(rec)
	for key, d := range g.devices {
		w := windowOf(rec, key, g.framework[key.pid])
		isSegment := w.ofSegments()
		for _, s := range d.samples {
			out = append(out, Sample{
				PID: key.pid, Device: key.device, From: s.from, To: s.to, Open: s.open, Pointer: s.pointer,
				Bytes:  uint64(s.bytes),
				Weight: s.weight, Count: s.count, Stack: s.stack, Segment: isSegment(s.stack),
			})
		}
	}
	slices.SortFunc(out, func(a, b Sample) int {
		return cmp.Or(
			cmp.Compare(a.From, b.From),
			cmp.Compare(a.PID, b.PID),
			cmp.Compare(a.Device, b.Device),
			cmp.Compare(a.Pointer, b.Pointer),
		)
	})
	return out
}

// SiteStack returns the frames of a sample's stack, leaf first, without the allocator's own.
func SiteStack(rec *recording.Recording, stack uint64) []recording.Frame {
	return stackOf(&rec.Meta, siteNode(&rec.Meta, stack))
}
