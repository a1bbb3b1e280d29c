package export

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
)

func protoNumber(n int) protowire.Number { return protowire.Number(n) }

// frames returns the frames of a stack, the leaf first.
func (v *view) frames(stack uint64) []recording.Frame { return threads.Frames(v.rec, stack) }

// series adds values up in stretches of time of one length.
type series struct {
	from, step uint64 // ns
	sums       []float64
}

func newSeries(from, to uint64) *series {
	step := max(shortestBucket, (to-from)/buckets+1)
	return &series{from: from, step: step, sums: make([]float64, (to-from)/step+1)}
}

// add spreads what goes on in [from, to) at a rate per ns.
func (s *series) add(from, to uint64, rate float64) {
	for from = max(from, s.from); from < to; {
		i := (from - s.from) / s.step
		if i >= uint64(len(s.sums)) {
			return
		}
		next := min(to, s.from+(i+1)*s.step)
		s.sums[i] += float64(next-from) * rate
		from = next
	}
}

// counters writes how busy a GPU was, and how many bytes a second were copied.
func (p *perfetto) counters(root uint64, d int32) {
	t := p.v.T
	busy := newSeries(t.From, t.To)
	h2d := newSeries(t.From, t.To)
	d2h := newSeries(t.From, t.To)
	seen := newSeries(t.From, t.To)
	end := uint64(0)
	dev := &t.Devices[d]
	for i := dev.First; i < dev.Last; i++ {
		a := &t.Activities[i]
		busy.add(max(a.Start, end), a.End, 1)
		end = max(end, a.End)
		if a.Kind != timeline.Copy {
			continue
		}
		w := p.v.work(i)
		rate := float64(w.bytes) / float64(max(1, w.dur))
		switch w.copyKind {
		case cuda.HostToDevice:
			h2d.add(w.start, w.start+w.dur, rate)
		case cuda.DeviceToHost:
			d2h.add(w.start, w.start+w.dur, rate)
		}
	}
	for _, u := range dev.Users {
		for _, s := range t.Seen[u].Activity {
			seen.add(s.From, s.To, 1/float64(len(dev.Users)))
		}
	}
	about := "0 also where it was not recorded: see the track above"
	p.series(p.counter(root, "busy", "%", about), busy,
		func(i int) float64 { return 100 * ratio(busy.sums[i], seen.sums[i]) })
	p.series(p.counter(root, "copies to the GPU", "B/s", about), h2d,
		func(i int) float64 { return 1e9 * ratio(h2d.sums[i], seen.sums[i]) })
	p.series(p.counter(root, "copies from the GPU", "B/s", about), d2h,
		func(i int) float64 { return 1e9 * ratio(d2h.sums[i], seen.sums[i]) })
}

func ratio(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

// series writes the values of a counter where they change.
func (p *perfetto) series(track uint64, s *series, value func(i int) float64) {
	last := -1.0
	for i := range s.sums {
		if f := value(i); f != last {
			p.value(track, s.from+uint64(i)*s.step, f)
			last = f
		}
	}
}
