package memory

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"path"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// window is the time in which a device was looked at.
type window struct {
	rec      *recording.Recording
	from, to uint64 // ns
	// segments is for GPU memory of the driver's own calls: frameworks' allocators hand out blocks of it.
	segments  bool
	framework bool // a framework has GPU memory in the process
}

func windowOf(rec *recording.Recording, key deviceKey, framework bool) window {
	return window{
		rec: rec, from: rec.Meta.From, to: rec.Meta.To,
		segments: key.device.Type() == event.DriverMemory, framework: framework,
	}
}

// retried reports whether an allocation that failed is not the program's failure: PyTorch's allocator frees what it has
// cached and asks the driver again, and says itself if that fails too.
func (w *window) retried(e *event.Event) bool {
	return w.segments && placeOf(w, e.Args[0]).kind == kindSegment || w.doubtful(e.Args[0])
}

// ofSegments returns what reports whether a stack is of a segment.
func (w *window) ofSegments() func(stack uint64) bool {
	known := map[uint64]bool{}
	return func(stack uint64) bool {
		segment, ok := known[stack]
		if !ok && w.segments {
			segment = placeOf(w, stack).kind == kindSegment
			known[stack] = segment
		}
		return segment
	}
}

// doubtful reports whether a stack does not tell if it is of a framework's segment or of the program's own.
func (w *window) doubtful(stack uint64) bool {
	if !w.segments || !w.framework {
		return false
	}
	m := &w.rec.Meta
	n := siteNode(m, stack)
	if n < 0 {
		return true
	}
	f := frame(m, n)
	return f.Kind == recording.ErrorFrame || f.Kind == recording.NativeFrame && allocator(f.Name)
}

// sites are the places that allocate.
type sites struct {
	list    []site
	samples [][]sample // of each
}

// maxStack bounds the frames of a site's stack.
const maxStack = 64

// sitesOf sorts samples by where they were allocated.
func sitesOf(w *window, samples []sample, peakAt uint64) *sites {
	at := map[place]int{}
	places := map[uint64]place{}
	out := &sites{list: []site{}}
	for i := range samples {
		s := &samples[i]
		p, ok := places[s.stack]
		if !ok {
			p = placeOf(w, s.stack)
			places[s.stack] = p
		}
		k, ok := at[p]
		if !ok {
			k = len(out.list)
			at[p] = k
			stack := stackOf(&w.rec.Meta, p.node)
			out.list = append(out.list, site{Name: siteName(stack), Stack: stack, Kind: p.kind})
			out.samples = append(out.samples, nil)
		}
		out.samples[k] = append(out.samples[k], *s)
	}
	var means [64]float64 // the highest by which samples of a class were chosen
	for i := range samples {
		c := &means[classOf(samples[i].bytes)]
		*c = max(*c, samples[i].mean)
	}
	for k := range out.list {
		out.list[k].fill(w, out.samples[k], &means, peakAt)
	}
	out.sort()
	return out
}

func (s *sites) sort() {
	order := make([]int, len(s.list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &s.list[a], &s.list[b]
		return cmp.Or(cmp.Compare(y.Live, x.Live), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name))
	})
	list, samples := make([]site, len(order)), make([][]sample, len(order))
	for to, from := range order {
		list[to], samples[to] = s.list[from], s.samples[from]
	}
	s.list, s.samples = list, samples
}

// classOf returns the class of a size. Each has a mean of its own (memory_class in bpf/memory.bpf.c).
func classOf(size float64) int { return bits.Len64(uint64(size)>>9|1) - 1 }

// keptFor is from what part of the window on a live block counts as kept, where none of its site was freed.
const keptFor = 0.25

// fill adds the samples of a site up.
func (s *site) fill(w *window, samples []sample, means *[64]float64, peakAt uint64) {
	var live, blocks, variance, peak, peakVariance, bytes, count float64
	var hidden unchosen
	var lives []uint64
	var freed float64
	for i := range samples {
		x := &samples[i]
		if x.from >= w.from {
			bytes, count = bytes+x.weight, count+x.count
		}
		if x.liveAt(w.to) {
			live, blocks, variance = live+x.weight, blocks+x.count, variance+x.variance
			hidden.add(x)
			if mean := means[classOf(x.bytes)]; mean > 0 {
				hidden.could(x.bytes, mean)
			}
			s.Age = max(s.Age, less(w.to, x.from))
		} else {
			lives = append(lives, x.to-x.from)
			freed += x.weight
		}
		if peakAt != 0 && x.liveAt(peakAt) {
			peak, peakVariance = peak+x.weight, peakVariance+x.variance
		}
	}
	if math.Sqrt(peakVariance) > peak/2 { // so few samples tell nothing
		peak = 0
	}
	s.Live, s.Blocks, s.Error, s.AtPeak = uint64(live),
		uint64(math.Round(blocks)), uint64(math.Sqrt(variance)), uint64(peak)
	s.Low, s.High = hidden.limits()
	s.Bytes, s.Count, s.Samples = uint64(bytes), uint64(math.Round(count)), len(samples)
	s.Life = quantile.Upper(lives)
	switch {
	case s.Kind != "": // its functions tell
	case freed > live && s.Age < 10*s.Life || len(lives) == 0 && float64(s.Age) < keptFor*float64(w.to-w.from):
		s.Kind = KindTransient
	default:
		s.Kind = KindKept
	}
}

// limit bounds estimates by the exact totals of the device.
func (s *sites) limit(d *Device) {
	for k := range s.list {
		x := &s.list[k]
		if d.Peak > 0 {
			x.AtPeak = min(x.AtPeak, d.Peak)
		}
		if d.Allocations > 0 {
			x.Bytes, x.Count = min(x.Bytes, d.AllocatedBytes), min(x.Count, d.Allocations)
		}
	}
}

// place is where allocations are made: one line can make several kinds.
type place struct {
	node int32
	kind KindName // "": the functions do not tell
}

func placeOf(w *window, stack uint64) place {
	m := &w.rec.Meta
	p := place{node: siteNode(m, stack)}
	if stack == 0 || stack > uint64(len(m.Stacks)) {
		return p
	}
	frames := stackOf(m, int32(stack-1)) // with the allocator's own
	switch {
	case w.segments && slices.ContainsFunc(frames, isSegment):
		p.kind = kindSegment
	case slices.ContainsFunc(frames, isWorkspace):
		p.kind = kindWorkspace
	}
	return p
}

// isWorkspace reports whether a function gets memory for the libraries of matrix products and convolutions. PyTorch's
// handle of cuBLAS has its workspace from where the handle is first used.
func isWorkspace(f recording.Frame) bool {
	return f.Kind == recording.NativeFrame && (strings.Contains(strings.ToLower(f.Name), "workspace") ||
		strings.Contains(f.Name, "getCurrentCUDABlasHandle"))
}

// isSegment reports whether a function is of PyTorch's caching allocator of GPU memory. That of pinned memory reports no
// blocks.
func isSegment(f recording.Frame) bool {
	return f.Kind == recording.NativeFrame && (strings.Contains(f.Name, "CachingAllocator") ||
		strings.HasPrefix(f.Name, "libc10_cuda") || strings.HasPrefix(path.Base(f.File), "libc10_cuda"))
}

// siteNode returns the node of a stack at which a person would look for it: the Python line, else the first function
// that is not the allocator's. -1: there is none.
func siteNode(m *recording.Meta, stack uint64) int32 {
	if stack == 0 || stack > uint64(len(m.Stacks)) {
		return -1
	}
	first := int32(-1)
	n := int32(stack - 1)
	for range len(m.Stacks) {
		if n < 0 || int(n) >= len(m.Stacks) {
			break
		}
		f := frame(m, n)
		if f.Kind == recording.PythonFrame && !allocatorFile(f.File) {
			return n
		}
		if first < 0 && f.Kind == recording.NativeFrame && !allocator(f.Name) {
			first = n
		}
		n = m.Stacks[n].Parent
	}
	if first < 0 {
		return int32(stack - 1)
	}
	return first
}

func frame(m *recording.Meta, n int32) recording.Frame {
	if k := m.Stacks[n].Frame; int(k) < len(m.Frames) {
		return m.Frames[k]
	}
	return recording.Frame{Kind: recording.ErrorFrame, Name: "a frame that is not in the recording"}
}

// allocator reports whether a native function belongs to the allocator, or to what every operator goes through.
func allocator(name string) bool {
	for _, prefix := range []string{
		"c10::", "at::", "torch::", "std::", "void c10::", "void at::", "libc10", "libtorch", "operator new", "_ZN3c10",
		"_ZN2at", "THP", "cuda::", "cudaMalloc", "cudaHost", "cuMem", "libcuda", "hipMalloc", "hipHost", "libamdhip64",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// allocatorFile reports whether Python code only hands a call on to the operator.
func allocatorFile(file string) bool {
	return strings.HasSuffix(file, "torch/_ops.py")
}

// stackOf returns the frames from a node to the thread's start.
func stackOf(m *recording.Meta, n int32) []recording.Frame {
	out := []recording.Frame{}
	for len(out) < maxStack && n >= 0 && int(n) < len(m.Stacks) {
		out = append(out, frame(m, n))
		n = m.Stacks[n].Parent
	}
	return out
}

func siteName(stack []recording.Frame) string {
	if len(stack) == 0 {
		return "stack not known"
	}
	f := stack[0]
	if f.Kind == recording.PythonFrame {
		return fmt.Sprintf("%s (%s:%d)", f.Name, path.Base(f.File), f.Line)
	}
	k := slices.IndexFunc(stack, func(f recording.Frame) bool { return !strings.Contains(f.Name, "+0x") })
	if k <= 0 || stack[k].Kind != recording.NativeFrame || startsThread(stack[k].Name) {
		k = 0
	}
	name := stack[k].Name
	if k+1 < len(stack) && stack[k+1].Kind == recording.NativeFrame && !startsThread(stack[k+1].Name) {
		name += " < " + stack[k+1].Name
	}
	if k > 0 {
		name += " (at " + f.Name + ")"
	}
	return name
}

// startsThread reports whether every thread begins in a function.
func startsThread(name string) bool {
	switch name {
	case "_start", "start_thread", "clone", "clone3", "__clone3":
		return true
	}
	return strings.HasPrefix(name, "__libc_start_")
}

// What a leak must show: so long a time, so many parts of it, in each of which something stays, that many samples in
// all, and bytes.
const (
	leakTime     = 3_000_000_000 // ns
	leakParts    = 4
	leakSamples  = 8
	leakBytes    = 1 << 20
	leakEvenness = 0.4 // of an even share, in the part with least
	leakSurvival = 0.9 // of what it allocated in the first half: what is freed after all is no leak
)

// leaks finds sites that hold more and more.
func (s *sites) leaks(w *window) []leakSite {
	out := []leakSite{}
	if w.to-w.from < leakTime {
		return out
	}
	for k := range s.list {
		if s.list[k].Kind == kindSegment || w.doubtful(s.samples[k][0].stack) { // the blocks in it tell
			continue
		}
		if l, ok := leak(w, s.samples[k]); ok {
			l.Site = k
			out = append(out, l)
		}
	}
	slices.SortStableFunc(out, func(a, b leakSite) int { return cmp.Compare(b.PerSec, a.PerSec) })
	return out
}

// leak reports whether a site's blocks stay, of whatever time they are. What fills up once (a cache, the weights) has
// no blocks in the later parts, what is held for a while none in the earlier ones.
func leak(w *window, samples []sample) (leakSite, bool) {
	var parts [leakParts]float64
	var kept, blocks, old, oldKept float64
	n := 0
	span := w.to - w.from
	for i := range samples {
		x := &samples[i]
		if x.from < w.from || x.from >= w.to {
			continue
		}
		if x.from < w.from+span/2 {
			old += x.weight
		}
		if !x.liveAt(w.to) {
			continue
		}
		if x.from < w.from+span/2 {
			oldKept += x.weight
		}
		parts[min(leakParts-1, (x.from-w.from)*leakParts/span)] += x.weight
		kept, blocks = kept+x.weight, blocks+x.count
		n++
	}
	if n < leakSamples || kept < leakBytes || old == 0 {
		return leakSite{}, false
	}
	l := leakSite{
		Bytes: uint64(kept), PerSec: kept / float64(span) * 1e9, Blocks: blocks / float64(span) * 1e9,
		Observed: span, Survival: oldKept / old, Samples: n, Evenness: slices.Min(parts[:]) / kept * leakParts,
	}
	return l, l.Evenness >= leakEvenness && l.Survival >= leakSurvival
}

// fullIn reports when leaks fill the device.
func (s *sites) fullIn(d *Device, memory uint64) {
	var all float64
	for i := range d.Leaks {
		all += d.Leaks[i].PerSec
	}
	used := d.Allocated + d.Driver // free parts of a framework's segments can still be handed out
	if all <= 0 || memory <= used {
		return
	}
	ns := float64(memory-used) / all * 1e9
	for i := range d.Leaks {
		if ns < math.MaxInt64 {
			d.Leaks[i].FullIn = uint64(ns)
		}
	}
}

// exhausted reports what was held when an allocation failed.
func (s *sites) exhausted(w *window, e *event.Event, d *Device) Exhausted {
	stack := stackOf(&w.rec.Meta, siteNode(&w.rec.Meta, e.Args[0]))
	out := Exhausted{
		At:        e.TS,
		Asked:     e.Args[1],
		Allocated: e.Args[2],
		Reserved:  e.Args[3],
		Stack:     stack,
		Name:      siteName(stack),
		Live:      []Holding{},
	}
	since := 0.0
	for k := range s.list {
		bytes := 0.0
		for i := range s.samples[k] {
			if s.samples[k][i].liveAt(e.TS) {
				bytes += s.samples[k][i].weight
			}
		}
		if bytes > 0 {
			out.Live = append(out.Live, Holding{k, uint64(bytes)})
			since += bytes
		}
	}
	if before := min(float64(d.Before), float64(e.Args[2])-since); before > 0 {
		out.Live = append(out.Live, Holding{-1, uint64(before)})
	}
	slices.SortStableFunc(out.Live, func(a, b Holding) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}
