package timeline

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
)

// gpuBuilder puts the GPU's side on a timeline whose calls are done.
type gpuBuilder struct {
	t       *Timeline
	a       *assigner
	classes []class
	tables  idTables
	keys    streamCache
	devices map[deviceKey]int32
	uuids   map[string]int32
	causes  causality
	syncs   []int32           // events
	waits   map[int32][]int32 // by process: its calls that can wait, by Start; nil: not made yet
	// byStream holds the indices of the activities of stream i, in the order of their
	// beginnings, in byStream[first[i]:first[i+1]].
	byStream []int32
	first    []int32
}

type deviceKey struct {
	process int32
	id      uint8
}

func (t *Timeline) buildGPU(a *assigner, classes []class) {
	if t.Rec.Meta.GPU == nil && len(a.gpu) == 0 {
		return
	}
	b := &gpuBuilder{t: t, a: a, classes: classes, devices: map[deviceKey]int32{}, uuids: map[string]int32{}}
	b.see()
	b.tables = b.newTables()
	b.collect()
	b.arrange()
	b.linkByOrder()
	b.doubtEdges()
	b.sync()
	t.Clock = b.causes.clock()
	for len(t.Seen) < len(t.Processes) {
		t.Seen = append(t.Seen, Seen{})
	}
}

// meta returns what the agents said; never nil.
func (b *gpuBuilder) meta() *record.GPU {
	if b.t.Rec.Meta.GPU == nil {
		return &record.GPU{}
	}
	return b.t.Rec.Meta.GPU
}

// see makes t.Seen of the recording's windows.
func (b *gpuBuilder) see() {
	type lists struct{ activity, calls, lossy []Span }
	all := map[int32]*lists{}
	for _, w := range b.meta().Windows {
		p, _, _ := b.a.process(w.PID, w.From)
		l := all[p]
		if l == nil {
			l = &lists{}
			all[p] = l
		}
		s := Span{max(w.From, b.t.From), min(w.To, b.t.To)}
		if w.Activity {
			l.activity = append(l.activity, s)
		}
		if w.Activity && w.Dropped > 0 {
			l.lossy = append(l.lossy, s)
		}
		if w.Calls {
			l.calls = append(l.calls, s)
		}
	}
	b.t.Seen = make([]Seen, len(b.t.Processes))
	for p, l := range all {
		b.t.Seen[p] = Seen{Activity: Join(l.activity), Calls: Join(l.calls), Lossy: Join(l.lossy)}
	}
	for _, w := range b.meta().Windows {
		if p, _, _ := b.a.process(w.PID, w.From); w.Activity {
			b.t.Seen[p].Dropped += w.Dropped
		}
	}
}

// seen returns what was seen of process p, which may be one that the recording does not list.
func (b *gpuBuilder) seen(p int32) *Seen {
	for int(p) >= len(b.t.Seen) {
		b.t.Seen = append(b.t.Seen, Seen{})
	}
	return &b.t.Seen[p]
}

// collect makes the activities, in the order of their events.
func (b *gpuBuilder) collect() {
	t := b.t
	t.Activities = make([]Activity, 0, len(b.a.gpu))
	for _, i := range b.a.gpu {
		e := &t.Rec.Events[i]
		end := clampedEnd(e)
		if e.TS > t.To || end < t.From {
			continue
		}
		if e.Kind > event.Set {
			b.other(i, e)
			continue
		}
		k := b.key(e)
		from, to, ok := k.clip(max(e.TS, t.From), min(end, t.To))
		if !ok {
			t.Doubts.Outside++
			continue
		}
		act := Activity{
			Start: from, End: to, Event: i, Op: None, Stream: k.stream,
			Kind: Kind(e.Kind - event.Kernel), Graph: e.Args[0]>>32 != 0,
		}
		b.linkByID(&act, e, k)
		t.Activities = append(t.Activities, act)
	}
}

// other sorts out what is no activity.
func (b *gpuBuilder) other(i int32, e *event.Event) {
	switch e.Kind {
	case event.Sync:
		b.syncs = append(b.syncs, i)
	case event.Overhead:
		b.t.Overheads = append(b.t.Overheads, i)
	case event.Range:
		b.t.Ranges = append(b.t.Ranges, i)
	}
}

// linkByID finds the call with the correlation id of an activity, and compares their times.
func (b *gpuBuilder) linkByID(act *Activity, e *event.Event, k *streamEntry) {
	op := b.tables.find(k.process, uint32(e.Args[0]), e.TS, b.t.Ops)
	if op == None {
		return
	}
	act.Op, act.Link, act.Confidence = op, ByID, 1
	if act.Graph {
		act.Link = ByGraph
	}
	b.causes.launched(b.t.Ops[op].Start, e.TS)
}

// arrange brings devices, streams and activities into their order.
func (b *gpuBuilder) arrange() {
	t := b.t
	devices, streams := b.sortDevices(), b.sortStreams()
	for i := range t.Streams {
		t.Streams[i].Device = devices[t.Streams[i].Device]
	}
	count := make([]int32, len(t.Devices)+1)
	for i := range t.Activities {
		act := &t.Activities[i]
		act.Stream = streams[act.Stream]
		count[t.Streams[act.Stream].Device+1]++
	}
	for i := range t.Devices {
		count[i+1] += count[i]
		t.Devices[i].First, t.Devices[i].Last = count[i], count[i+1]
	}
	if len(t.Devices) > 1 {
		sorted := make([]Activity, len(t.Activities))
		for i := range t.Activities {
			next := &count[t.Streams[t.Activities[i].Stream].Device]
			sorted[*next] = t.Activities[i]
			*next++
		}
		t.Activities = sorted
	}
	for i := range t.Devices {
		list := t.Activities[t.Devices[i].First:t.Devices[i].Last]
		before := func(x, y Activity) int { return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.Event, y.Event)) }
		if !slices.IsSortedFunc(list, before) {
			slices.SortFunc(list, before)
		}
	}
	b.perStream()
	b.users()
}

// sortDevices orders the devices and returns the new place of each.
func (b *gpuBuilder) sortDevices() []int32 {
	return permute(b.t.Devices, func(x, y *Device) int {
		return cmp.Or(cmp.Compare(x.Process, y.Process), cmp.Compare(x.ID, y.ID))
	})
}

func (b *gpuBuilder) sortStreams() []int32 {
	return permute(b.t.Streams, func(x, y *Stream) int {
		return cmp.Or(cmp.Compare(x.Process, y.Process), cmp.Compare(x.Context, y.Context), cmp.Compare(x.ID, y.ID), cmp.Compare(x.Device, y.Device))
	})
}

// permute sorts list and returns the new place of each of its elements.
func permute[T any](list []T, compare func(x, y *T) int) []int32 {
	order := make([]int32, len(list))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(x, y int32) int { return compare(&list[x], &list[y]) })
	sorted, place := make([]T, len(list)), make([]int32, len(list))
	for i, old := range order {
		sorted[i], place[old] = list[old], int32(i)
	}
	copy(list, sorted)
	return place
}

// perStream makes the list of the activities of each stream.
func (b *gpuBuilder) perStream() {
	t := b.t
	b.first = make([]int32, len(t.Streams)+1)
	for i := range t.Activities {
		b.first[t.Activities[i].Stream+1]++
	}
	for i := range t.Streams {
		b.first[i+1] += b.first[i]
	}
	next := slices.Clone(b.first)
	b.byStream = make([]int32, len(t.Activities))
	for i := range t.Activities {
		s := t.Activities[i].Stream
		b.byStream[next[s]] = int32(i)
		next[s]++
	}
}

// of returns the indices of the activities of a stream, by Start.
func (b *gpuBuilder) of(stream int32) []int32 { return b.byStream[b.first[stream]:b.first[stream+1]] }

func (b *gpuBuilder) users() {
	for i := range b.t.Streams {
		s := &b.t.Streams[i]
		d := &b.t.Devices[s.Device]
		if !slices.Contains(d.Users, s.Process) {
			d.Users = append(d.Users, s.Process)
		}
	}
}
