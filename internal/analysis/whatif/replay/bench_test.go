package replay

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// loop is a graph of n launches as an eager framework makes them: a call and some code each, a kernel, a
// synchronization each 50.
func loop(n int) *Graph {
	g := &Graph{
		Whats: []What{
			{Kind: Run, Cause: cause.LaunchOverhead},
			{Kind: Call, Cause: cause.LaunchOverhead},
			{Kind: Kernel},
			{Kind: Sync, Cause: cause.HostSync},
		},
		Times: make([]Time, 4),
	}
	at, thread, stream := uint64(0), noNode, noNode
	add := func(x node) int32 {
		g.nodes = append(g.nodes, x)
		return int32(len(g.nodes) - 1)
	}
	for i := range n {
		thread = add(node{at: at + 5000, own: 5000, prev: thread, dep: noNode})
		launch := thread
		thread = add(node{at: at + 8000, own: 3000, prev: thread, dep: noNode, what: 1})
		stream = add(node{at: at + 15000, own: 2000, prev: stream, lagPrev: 1000, dep: launch, lagDep: 8000, what: 2})
		if i%50 == 49 {
			thread = add(node{at: at + 20000, prev: thread, dep: stream, lagDep: 5000, what: 3})
			at += 12000
		}
		at += 8000
	}
	g.criticalResources = []criticalResource{{nodes: []int32{thread, stream}, at: at, weight: 1}}
	return g
}

// BenchmarkMillionLaunches replays a million launches with a change.
func BenchmarkMillionLaunches(b *testing.B) {
	g := loop(1_000_000)
	p := g.Unchanged()
	p.Changes[3].Detach = true
	var scratch []uint64
	b.ResetTimer()
	b.ReportAllocs()
	for range b.N {
		_, scratch = g.Replay(p, scratch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(g.Nodes()), "ns/node")
}

// TestChange: a chain of a thread, a stream and a synchronization, and what each change makes of it.
func TestChange(t *testing.T) {
	g := loop(50)
	observed := g.Observed()
	for name, c := range map[string]struct {
		change func(p *Plan)
		want   uint64
	}{
		"nothing":            {func(*Plan) {}, observed},
		"no synchronization": {func(p *Plan) { p.Changes[3].Detach = true }, 49*8000 + 15000},
		"code twice as fast": {func(p *Plan) { p.Changes[0].Scale = 0.5 }, observed - 50*2500},
		"calls for nothing":  {func(p *Plan) { p.Changes[1].Scale = 0 }, observed - 49*3000},
		"code beside":        {func(p *Plan) { p.Changes[0].Apart = 1 }, 50 * 5000},
		"kernels dominate":   {func(p *Plan) { p.Changes[2].Scale = 5 }, 5000 + 8000 + 50*10000 + 49*1000 + 5000},
		"no delays whatever": {func(p *Plan) {
			p.Changes[2].Lag, p.Changes[3].Lag, p.Changes[2].Gap = 0, 0, 0
		}, 50*8000 - 3000 + 3000},
		"all for nothing now": {func(p *Plan) {
			p.Changes[0].Scale, p.Changes[1].Scale, p.Changes[2].Scale = 0, 0, 0
		}, 8000 + 49*1000 + 5000},
	} {
		p := g.Unchanged()
		c.change(p)
		if got, _ := g.Replay(p, nil); got != c.want {
			t.Errorf("%s: %d ns, want %d", name, got, c.want)
		}
	}
}
