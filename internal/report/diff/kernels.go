package diff

import (
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/format/symname"
)

// maxRuns bounds the durations of a kernel that are compared: more make no test surer, but slower.
const maxRuns = 4096

// runs is all runs of one kernel.
type runs struct {
	time float64   // ns
	some []float64 // durations, ns
}

// kernelRuns gathers the runs of each kernel by its short name: those within the time of each device that the breakdown
// is about, of which they are a share.
func kernelRuns(t *timeline.Timeline, within []timeline.Spans) map[string]*runs {
	out := map[string]*runs{}
	byIndex := map[int32]*runs{}
	for d := range within {
		dev := &t.Devices[d]
		for i := dev.First; i < dev.Last; i++ {
			a := &t.Activities[i]
			if a.Kind != timeline.Kernel || !within[d].Holds(a.Start) {
				continue
			}
			k := t.KernelIndex(a)
			if k == timeline.None {
				continue
			}
			r := byIndex[k]
			if r == nil {
				name := symname.Shorten(t.Rec.Meta.GPU.Kernels[k].Name)
				if r = out[name]; r == nil {
					r = &runs{}
					out[name] = r
				}
				byIndex[k] = r
			}
			r.time += float64(a.End - a.Start)
			if len(r.some) < maxRuns {
				r.some = append(r.some, float64(t.Duration(a)))
			}
		}
	}
	return out
}

// kernels compares the time of each kernel in an iteration, and by the durations of its runs whether the
// kernel itself became slower; how often it runs is part of the time, and no matter of chance.
func (c *Comparison) kernels(x, y *side) {
	a, b := kernelRuns(x.time, x.result.Walk.Covered), kernelRuns(y.time, y.result.Walk.Covered)
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	for name := range names {
		p, q := a[name], b[name]
		if p == nil {
			p = &runs{}
		}
		if q == nil {
			q = &runs{}
		}
		c.Kernels = append(c.Kernels, change(name, x.scaled(p), y.scaled(q), rankSum(p.some, q.some)))
	}
	c.Kernels = byChange(c.Kernels)
}

// scaled is the time of a kernel in an iteration, ns, or its share of the time that was seen.
func (s *side) scaled(r *runs) float64 {
	if s.GPUTime == 0 {
		return 0
	}
	return r.time / float64(s.GPUTime) * s.perIt
}

// blockCount is into how many blocks the time that was seen is cut: their spread is what a change is held against.
// Iterations would be finer, but where the time of a gap goes is not known by iteration.
const blockCount = 24

// blocks has the share of the time of each block that a GPU was busy, or idle for a cause.
type blocks struct {
	busy   []float64
	causes map[string][]float64 // by the cause's key
}

// of returns the shares of a cause; a cause that is not there was none of the time.
func (b blocks) of(key string) []float64 {
	if list := b.causes[key]; list != nil {
		return list
	}
	return make([]float64, len(b.busy))
}

// newBlocks cuts the time in which devices were seen, one device after the other, into blocks.
func newBlocks(t *timeline.Timeline) blocks {
	w := gap.Build(t)
	b := blocks{causes: map[string][]float64{}}
	total := uint64(0)
	starts := make([]uint64, len(w.Covered)) // of each device: covered time before it
	for d, spans := range w.Covered {
		starts[d] = total
		total += spans.Total()
	}
	if total < blockCount {
		return b
	}
	size := float64(total) / blockCount
	b.busy = make([]float64, blockCount)
	for i := range b.busy {
		b.busy[i] = 1
	}
	table := cause.All()
	for g, steps := range w.All() {
		for j := range steps {
			s := &steps[j]
			key := table[s.Cause].Key
			if b.causes[key] == nil {
				b.causes[key] = make([]float64, blockCount)
			}
			at := starts[g.Device] + coveredBefore(w.Covered[g.Device], s.From)
			spread(float64(at), float64(at+s.To-s.From), size, func(block int, part float64) {
				b.busy[block] -= part
				b.causes[key][block] += part
			})
		}
	}
	return b
}

// coveredBefore returns how much of spans lies before a time, ns.
func coveredBefore(spans timeline.Spans, ts uint64) uint64 {
	n := uint64(0)
	for _, s := range spans {
		if s.From >= ts {
			break
		}
		n += min(s.To, ts) - s.From
	}
	return n
}

// spread deals [from, to) to blocks of one size, as shares of a block.
func spread(from, to, size float64, add func(block int, part float64)) {
	for from < to {
		block := min(int(from/size), blockCount-1)
		next := min(to, float64(block+1)*size)
		if block == blockCount-1 || next <= from {
			next = to
		}
		add(block, (next-from)/size)
		from = next
	}
}
