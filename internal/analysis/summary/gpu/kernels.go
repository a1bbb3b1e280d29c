package gpu

import (
	"cmp"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// kernels makes the table of kernels. A row is found by the kernel's index, the last one is
// of kernels whose names were lost.
type kernels struct {
	a      *analysis
	rows   []kernelRow
	all    Kernels
	graphs graphs
	inside uint64 // time of kernels out of graphs, ns
}

// kernelRow counts the runs of one kernel.
type kernelRow struct {
	count, time, least, most uint64
	graphs                   uint64
	shape                    vote[[2]uint64]
	by                       vote[caller]
}

// caller is a thread and the function by which it launched.
type caller struct {
	thread int32
	fn     uint16
}

// maxVoteValues bounds the distinct values of a vote.
const maxVoteValues = 4

// vote counts the first few values of a sequence, so that it needs no memory that grows: counts are
// exact for these, and what comes later is not among them.
type vote[T comparable] struct {
	values [maxVoteValues]T
	counts [maxVoteValues]uint64
}

func (v *vote[T]) add(x T) {
	for i := range v.counts {
		if v.counts[i] == 0 {
			v.values[i] = x
		}
		if v.values[i] == x {
			v.counts[i]++
			return
		}
	}
}

// most returns the value that came most often, and how often.
func (v *vote[T]) most() (T, uint64) {
	best := 0
	for i := range v.counts {
		if v.counts[i] > v.counts[best] {
			best = i
		}
	}
	return v.values[best], v.counts[best]
}

func newKernels(a *analysis) *kernels {
	return &kernels{a: a, rows: make([]kernelRow, len(a.t.Rec.Meta.GPU.Kernels)+1)}
}

func (k *kernels) add(act *timeline.Activity) {
	t := k.a.t
	e := &t.Rec.Events[act.Event]
	i := t.KernelIndex(act)
	if i == timeline.None {
		i = int32(len(k.rows) - 1)
	}
	r := &k.rows[i]
	if r.count == 0 || e.Dur < r.least {
		r.least = e.Dur
	}
	r.count++
	r.time += e.Dur
	r.most = max(r.most, e.Dur)
	r.shape.add([2]uint64{e.Args[2], e.Args[3] & 0xffffffff})
	if act.Op != timeline.None {
		r.by.add(caller{k.a.known.thread(t, act.Op), t.Ops[t.Outermost(act.Op)].Func})
	}
	k.all.Count++
	k.all.Time += e.Dur
	if e.Dur < TinyBelow {
		k.all.Tiny++
		k.all.TinyTime += e.Dur
	}
	if act.Graph {
		r.graphs++
		k.graphs.Kernels++
		k.inside += e.Dur
	}
}

// knownOps finds threads of ops; neighbouring activities are of few threads.
type knownOps struct {
	last int32
}

func (k *knownOps) thread(t *timeline.Timeline, op int32) int32 {
	if th := &t.Threads[k.last]; op >= th.First && op < th.Last {
		return k.last
	}
	k.last = t.ThreadOf(op)
	return k.last
}

func (k *kernels) result(c Coverage) (Kernels, graphs) {
	out := k.all
	out.Coverage = c
	rows := []Kernel{}
	order := []int32{}
	for i := range k.rows {
		if k.rows[i].count > 0 {
			order = append(order, int32(i))
		}
	}
	out.Names = len(order)
	order = top(order, maxKernels, func(x, y *int32) int {
		return cmp.Or(
			cmp.Compare(k.rows[*y].time, k.rows[*x].time),
			cmp.Compare(k.rows[*y].count, k.rows[*x].count),
			cmp.Compare(*x, *y),
		)
	})
	for _, i := range order {
		rows = append(rows, k.row(int(i)))
	}
	out.Rows = rows
	g := k.graphs
	g.Coverage = c
	g.Share, g.TimeShare = share(g.Kernels, out.Count), share(k.inside, out.Time)
	return out, g
}

func (k *kernels) row(i int) Kernel {
	r := &k.rows[i]
	size, same := r.shape.most()
	grid, block := shape(size)
	out := Kernel{
		Count: r.count, Time: r.time, Mean: r.time / r.count, Min: r.least, Max: r.most, Share: share(r.time, k.a.busy),
		InGraphs: r.graphs,
		Grid:     grid, Block: block, ShapeShare: share(same, r.count),
	}
	if i < len(k.rows)-1 {
		kernel := &k.a.t.Rec.Meta.GPU.Kernels[i]
		out.Name, out.Full, out.Registers, out.StaticShared = k.a.short(int32(i)),
			kernel.Name,
			kernel.Registers,
			kernel.StaticShared
	}
	if by, n := r.by.most(); n > 0 {
		th := &k.a.t.Threads[by.thread]
		out.PID, out.TID, out.Thread = k.a.t.Processes[th.Process].PID, th.TID, th.Name
		out.Call, out.ThreadShare = k.a.function(by.fn), share(n, r.count)
	}
	return out
}

// function names the function of an op for people: without version suffixes.
func (a *analysis) function(fn uint16) string {
	f := &a.t.Rec.Meta.Functions[fn]
	return cmp.Or(f.Base, f.Name)
}

// shape unpacks grid and block as launches pack them: bpf/event.h.
func shape(v [2]uint64) (grid, block [3]uint32) {
	b := uint32(v[1])
	return [3]uint32{
		uint32(v[0]),
		uint32(v[0] >> 32 & 0xffff),
		uint32(v[0] >> 48),
	}, [3]uint32{
		b & 0x7ff,
		b >> 11 & 0x7ff,
		b >> 22,
	}
}
