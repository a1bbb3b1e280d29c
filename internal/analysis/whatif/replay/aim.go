package replay

import "cmp"

// aim names the nodes whose ends are the ends of the work: of each thread that used the GPU its last call, and the last
// activity of each stream. Each of these threads weighs as much as it launched: threads that do not wait for each other
// are faster by themselves. Without a GPU it is the last time that the main thread ran.
func (b *builder) aim() {
	for i := range b.lanes {
		l := &b.lanes[i]
		for n := range l.refs {
			if p, ok := b.launched[l.refs[n].op]; !l.thread && ok {
				b.lanes[p.lane].asked++
			}
		}
	}
	criticalResources := map[int32]*criticalResource{}
	for i := range b.lanes {
		b.aimAt(int32(i), criticalResources)
	}
	for i := range b.lanes {
		if g := criticalResources[int32(i)]; g != nil {
			b.g.criticalResources = append(b.g.criticalResources, *g)
		}
	}
	if len(b.g.criticalResources) == 0 {
		b.aimAtMain()
	}
	if total := weights(b.g.criticalResources); total == 0 {
		for i := range b.g.criticalResources {
			b.g.criticalResources[i].weight = 1
		}
	}
}

func weights(list []criticalResource) float64 {
	sum := 0.0
	for i := range list {
		sum += list[i].weight
	}
	return sum
}

// aimAt adds the end of a lane to the goal of the thread that it belongs to.
func (b *builder) aimAt(lane int32, criticalResources map[int32]*criticalResource) {
	l := &b.lanes[lane]
	if len(l.nodes) == 0 || l.thread && !l.worker {
		return
	}
	n, owner := len(l.nodes)-1, lane
	if l.thread {
		for ; n > 0; n-- {
			if k := b.g.Whats[l.nodes[n].what].Kind; k == Sync || k == Call {
				break
			}
		}
	} else if p, ok := b.launched[l.refs[n].op]; ok {
		owner = p.lane
	}
	if criticalResources[owner] == nil {
		criticalResources[owner] = &criticalResource{weight: float64(b.lanes[owner].asked)}
		if !b.lanes[owner].thread {
			criticalResources[owner].weight = float64(len(l.nodes))
		}
	}
	g := criticalResources[owner]
	g.nodes = append(g.nodes, l.global[n])
	g.at = max(g.at, l.nodes[n].at-b.g.From)
}

// aimAtMain is for a target that uses no GPU.
func (b *builder) aimAtMain() {
	pid := b.t.Rec.Meta.Target
	l, ok := b.laneOf[tid{pid, pid}]
	if !ok {
		return
	}
	nodes := b.lanes[l].nodes
	for n := len(nodes) - 1; n >= 0; n-- {
		if b.g.Whats[nodes[n].what].Kind == Run {
			b.g.criticalResources = []criticalResource{
				{nodes: []int32{b.lanes[l].global[n]}, at: nodes[n].at - b.g.From, weight: 1},
			}
			return
		}
	}
}

// bound finds for how long each engine of a device was busy, and which of them did one thing at a time: what those did
// cannot be faster than all of it one after the other.
func (b *builder) bound() {
	for d, list := range b.devices {
		var names [copyNames]busy
		var parts [Engines + 1]busy
		for _, i := range list { // by their ends
			a := &b.t.Activities[i]
			name := b.engine(i)
			names[name].add(a.Start, a.End)
			parts[partOf(name)].add(a.Start, a.End)
		}
		for k, e := range names {
			// A thousandth: the clocks of neighbours overlap by some ns.
			if e.sum > 0 && cmp.Compare(e.sum-e.union, e.sum/1000) <= 0 {
				b.g.engines = append(b.g.engines, engineOf{device: int32(d), name: uint8(k)})
			}
		}
		for k, e := range parts[:Engines] {
			if e.sum > 0 {
				b.g.busy = append(b.g.busy, Busy{Device: int32(d), Engine: Engine(k), Time: e.union, sum: e.sum})
			}
		}
	}
}

// busy sums up intervals that come in the order of their ends, ns.
type busy struct{ sum, union, end uint64 }

func (e *busy) add(from, to uint64) {
	e.sum += to - from
	e.union += to - min(to, max(from, e.end))
	e.end = max(e.end, to)
}
