package export

import (
	"bufio"
	"math"

	"github.com/google/pprof/profile"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/recording"
)

// The sample types of a heap profile, in the order of Go's.
const (
	allocObjects = iota
	allocSpace
	inuseObjects
	inuseSpace
	heapTypes
)

// writeHeap writes what frameworks and calls of the driver allocated as a heap profile: samples are scaled to what they
// stand for.
func writeHeap(v *view, out *bufio.Writer) error {
	types := []*profile.ValueType{
		{Type: "alloc_objects", Unit: "count"},
		{Type: "alloc_space", Unit: "bytes"},
		{Type: "inuse_objects", Unit: "count"},
		{Type: "inuse_space", Unit: "bytes"},
	}
	x := &profiler{
		v: v, functions: map[recording.Frame]*profile.Location{}, extra: map[string]*profile.Location{},
		stacks: map[uint64][]*profile.Location{},
		p: &profile.Profile{
			SampleType: types, DefaultSampleType: "inuse_space",
			PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"},
			TimeNanos:  v.rec.Meta.WallFrom, DurationNanos: int64(v.T.To - v.T.From),
			Comments: []string{
				"memory that PyTorch's allocators and other callers of the CUDA driver allocated, estimated from sampled " +
					"allocations; blocks of before the attach have no stack",
			},
		},
	}
	type key struct {
		pid    uint32
		device uint16
		stack  uint64
	}
	known := map[key]*profile.Sample{}
	sums := map[*profile.Sample]*[heapTypes]float64{}
	for _, s := range memory.Samples(v.rec) {
		if s.Segment { // its blocks count
			continue
		}
		k := key{s.PID, uint16(s.Device), s.Stack}
		p := known[k]
		if p == nil {
			p = &profile.Sample{
				Location: x.locations(sampleKey{stack: s.Stack}),
				NumLabel: map[string][]int64{"pid": {int64(s.PID)}, "device": {int64(s.Device.Index())}},
				Label:    map[string][]string{"memory": {memory.TypeName(s.Device)}},
			}
			known[k] = p
			sums[p] = &[heapTypes]float64{}
			x.p.Sample = append(x.p.Sample, p)
		}
		sum := sums[p]
		if s.From >= v.rec.Meta.From {
			sum[allocObjects], sum[allocSpace] = sum[allocObjects]+s.Count, sum[allocSpace]+s.Weight
		}
		if s.Open {
			sum[inuseObjects], sum[inuseSpace] = sum[inuseObjects]+s.Count, sum[inuseSpace]+s.Weight
		}
	}
	for p, sum := range sums {
		p.Value = make([]int64, heapTypes)
		for i, f := range sum {
			p.Value[i] = int64(math.Round(min(f, math.MaxInt64/2)))
		}
	}
	if s := memory.Summarize(v.rec); s != nil {
		for i := range s.Devices {
			d := &s.Devices[i]
			if d.BeforeLeft > 0 {
				x.p.Sample = append(x.p.Sample, &profile.Sample{
					Location: []*profile.Location{
						x.named("[before the attach]"),
					}, Value: []int64{0, 0, 0, int64(min(d.BeforeLeft, math.MaxInt64))},
					NumLabel: map[string][]int64{"pid": {int64(d.PID)}, "device": {int64(d.Index)}},
					Label:    map[string][]string{"memory": {d.Type}},
				})
			}
		}
	}
	return x.p.Write(out)
}
