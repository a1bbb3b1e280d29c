package cpu

import (
	"strconv"

	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// nodeTimes returns how long a thread ran on each NUMA node, in ns; nil where the host has one.
func (a *analysis) nodeTimes(t *threads.Thread) map[int]uint64 {
	table := a.rec.Meta.Host.NodeOf
	if len(table) == 0 {
		return nil
	}
	out := map[int]uint64{}
	for cpu, ns := range t.CPUs {
		if int(cpu) < len(table) && table[cpu] >= 0 {
			out[table[cpu]] += ns
		}
	}
	return out
}

// home returns the node that a thread ran on for most of the time, and for which share of it.
func (a *analysis) home(t *threads.Thread) (node int, part float64) {
	node = -1
	times, all := a.nodeTimes(t), uint64(0)
	for n, ns := range times {
		all += ns
		if node < 0 || ns > times[node] || ns == times[node] && n < node {
			node = n
		}
	}
	if node < 0 {
		return -1, 0
	}
	return node, share(times[node], all)
}

// nodes returns the NUMA nodes on which threads ran, and how far they are from the GPU and from their memory. It is
// called after counters.
func (a *analysis) nodes(p *Pressure) {
	ran := map[string]uint64{}
	all := uint64(0)
	for i := range a.threads {
		for node, ns := range a.nodeTimes(&a.threads[i]) {
			ran[strconv.Itoa(node)] += ns
			all += ns
		}
	}
	if all == 0 {
		return
	}
	p.Nodes = ran
	if p.GPUNode >= 0 {
		p.RemoteRunning = share(all-ran[strconv.Itoa(p.GPUNode)], all)
	}
	pages := uint64(0)
	for _, n := range p.Pages {
		pages += n
	}
	if pages == 0 {
		return
	}
	near := 0.0
	for node, ns := range ran {
		near += share(ns, all) * share(p.Pages[node], pages)
	}
	p.RemoteAccess = max(0, 1-near)
}
