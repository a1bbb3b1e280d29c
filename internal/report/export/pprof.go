package export

import (
	"bufio"
	"cmp"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// The sample types of the profile, in the order of its values.
const (
	cpuSamples = iota // samples of running threads
	cpuTime           // ns: the same, by what a sample stands for
	idleTime          // ns: of cpuTime what was sampled while a GPU ran nothing
	offCount          // waits
	offTime           // ns: blocked or waiting for a CPU
	gpuCount          // kernels
	gpuTime           // ns of kernels, by the stack from which they were launched
	sampleTypes
)

// launchReach is how far, in ns, a sample of the launching thread may lie from a launch to lend it its
// stack: a period of the slowest usual sampling, 99 Hz, and a half.
const launchReach = 15_000_000

// profiler creates a pprof profile.
type profiler struct {
	v         *view
	p         *profile.Profile
	functions map[recording.Frame]*profile.Location
	extra     map[string]*profile.Location // of what is no frame: kernels, calls
	samples   map[sampleKey]*profile.Sample
	stacks    map[uint64][]*profile.Location
	period    int64
}

// sampleKey identifies a sample of the profile.
type sampleKey struct {
	thread uint64
	stack  uint64
	leaf   string // of what is no frame
	how    string // of a launch's stack
}

func writePprof(v *view, out *bufio.Writer) error {
	return newProfiler(v).build().Write(out)
}

func newProfiler(v *view) *profiler {
	types := []*profile.ValueType{
		{Type: "samples", Unit: "count"},
		{Type: "cpu", Unit: "nanoseconds"},
		{Type: "cpu_gpu_idle", Unit: "nanoseconds"},
		{Type: "waits", Unit: "count"},
		{Type: "off_cpu", Unit: "nanoseconds"},
		{Type: "kernels", Unit: "count"},
		{Type: "gpu", Unit: "nanoseconds"},
	}
	m := &v.rec.Meta
	x := &profiler{
		v: v, functions: map[recording.Frame]*profile.Location{}, extra: map[string]*profile.Location{},
		samples: map[sampleKey]*profile.Sample{}, stacks: map[uint64][]*profile.Location{},
		p: &profile.Profile{
			SampleType: types, DefaultSampleType: "cpu", PeriodType: types[cpuTime],
			TimeNanos: m.WallFrom, DurationNanos: int64(v.T.To - v.T.From),
		},
	}
	x.period = x.periodOf()
	x.p.Period = x.period
	return x
}

func (x *profiler) build() *profile.Profile {
	x.cpu()
	x.offCPU()
	x.gpu()
	x.p.Comments = []string{
		"gpu and kernels: by the stack of a sample of the launching thread, as label launch says",
		"cpu_gpu_idle: what of cpu was sampled while a GPU that was recorded ran nothing",
	}
	keys := make([]sampleKey, 0, len(x.samples))
	for k := range x.samples {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b sampleKey) int {
		return cmp.Or(
			cmp.Compare(a.thread, b.thread),
			cmp.Compare(a.stack, b.stack),
			cmp.Compare(a.leaf, b.leaf),
			cmp.Compare(a.how, b.how),
		)
	})
	for _, k := range keys {
		x.p.Sample = append(x.p.Sample, x.samples[k])
	}
	return x.p
}

// periodOf returns for how much running time a sample stands, ns: that of all threads by their samples.
func (x *profiler) periodOf() int64 {
	ran := uint64(0)
	for i := range x.v.threads() {
		ran += x.v.threads()[i].Totals[threads.Running]
	}
	if n := uint64(len(x.v.T.Index.Samples)); n > 0 && ran > 0 {
		return int64(ran / n)
	}
	return 1_000_000_000 / 99 // nobody knows: the default of cpu_sampling_frequency_hz
}

// sample returns the values of a stack of a thread.
func (x *profiler) sample(k sampleKey) []int64 {
	s := x.samples[k]
	if s == nil {
		pid, tid := uint32(k.thread>>32), uint32(k.thread)
		s = &profile.Sample{
			Value:    make([]int64, sampleTypes),
			Label:    map[string][]string{"thread": {x.v.threadName(pid, tid)}},
			NumLabel: map[string][]int64{"pid": {int64(pid)}, "tid": {int64(tid)}},
			Location: x.locations(k),
		}
		if k.how != "" {
			s.Label["launch"] = []string{k.how}
		}
		x.samples[k] = s
	}
	return s.Value
}

func (x *profiler) cpu() {
	var idle []timeline.Span
	for g := range x.v.walk().All() {
		idle = append(idle, timeline.Span{From: g.From, To: g.To})
	}
	spans := timeline.Join(idle)
	for _, s := range x.v.T.Index.Samples {
		values := x.sample(sampleKey{thread: threadKey(s.PID, s.TID), stack: uint64(s.Stack)})
		values[cpuSamples]++
		values[cpuTime] += x.period
		if spans.Holds(s.TS) {
			values[idleTime] += x.period
		}
	}
}

func (x *profiler) offCPU() {
	waits := x.v.waits()
	all := x.v.threads()
	for i := range all {
		t := &all[i]
		stacks, last := waits.Stacks(t.PID, t.TID), int32(-1)
		for _, iv := range t.Intervals {
			if iv.Wait < 0 || iv.State != threads.Blocked && iv.State != threads.Runnable {
				continue
			}
			why := "waits for a CPU"
			if iv.State == threads.Blocked {
				why = "blocked: " + iv.Reason.String()
			}
			values := x.sample(
				sampleKey{thread: threadKey(t.PID, t.TID), stack: stacks.Of(iv.Wait), leaf: "[" + why + "]"},
			)
			values[offTime] += int64(iv.Dur())
			if iv.Wait != last { // one wait is blocked, then waits for a CPU
				values[offCount]++
			}
			last = iv.Wait
		}
	}
}

// gpu gives each kernel the stack of the sample of its launching thread that is nearest to the launch.
func (x *profiler) gpu() {
	t := x.v.T
	near := newNearest(t)
	for i := range t.Activities {
		a := &t.Activities[i]
		if a.Kind != timeline.Kernel {
			continue
		}
		k := sampleKey{thread: threadKey(x.v.rec.Events[a.Event].PID, 0), leaf: x.v.kernelName(a), how: "not known"}
		if a.Op != timeline.None {
			op := &t.Ops[t.Outermost(a.Op)]
			e := t.RawEvent(op)
			k.thread = threadKey(e.PID, e.TID)
			k.leaf = t.Rec.Meta.Functions[op.Func].Name + "\x00" + k.leaf
			k.stack, k.how = near.of(k.thread, op)
		}
		values := x.sample(k)
		values[gpuCount]++
		values[gpuTime] += int64(a.End - a.Start)
	}
}

// nearest finds samples by time.
type nearest struct {
	byThread map[uint64][]threads.Sample
}

func newNearest(t *timeline.Timeline) *nearest {
	n := &nearest{byThread: map[uint64][]threads.Sample{}}
	t.Index.Stacks(func(s *threads.Sample) {
		if s.Stack != 0 {
			k := threadKey(s.PID, s.TID)
			n.byThread[k] = append(n.byThread[k], *s)
		}
	})
	for _, list := range n.byThread {
		slices.SortStableFunc(list, func(a, b threads.Sample) int { return cmp.Compare(a.TS, b.TS) })
	}
	return n
}

// of returns the stack for a launch, and how it was had.
func (n *nearest) of(thread uint64, op *timeline.Op) (stack uint64, how string) {
	list := n.byThread[thread]
	at, _ := slices.BinarySearchFunc(list, op.Start,
		func(s threads.Sample, ts uint64) int { return cmp.Compare(s.TS, ts) })
	best, distance := uint64(0), uint64(launchReach)
	for _, s := range list[max(0, at-1):min(len(list), at+1)] {
		ts := s.TS
		if ts >= op.Start && ts <= op.End() {
			return uint64(s.Stack), "in the call"
		}
		if d := max(ts, op.Start) - min(ts, op.Start); d <= distance {
			best, distance = uint64(s.Stack), d
		}
	}
	if best == 0 {
		return 0, "not known"
	}
	return best, "nearest sample"
}
