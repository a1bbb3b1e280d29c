package timeline

import "sort"

// lossy is a window in which records of the GPU's activity were lost.
type lossy struct {
	process, table int32
	span           Span
	dropped        uint64
}

// maxUnknownPart is the part of a window, one in so many, that may be unknown while the rest counts: what is left
// out may be all of one cause, and costs of causes are to be right to 5%.
const maxUnknownPart = 20

// narrow makes Seen.Lossy finer where calls show which records were lost. By ids, each call that the agent saw has an
// activity; if as many calls lack one as records were lost, those records are theirs. What such a call started ran in
// its stream after the work before it and before the work after it: only between these two may the GPU have been busy.
func (b *builder) narrow() {
	var has []bool // by op: it has an activity
	spans := map[int32][]Span{}
	for _, w := range b.meta().Windows {
		if !w.Activity || w.Dropped == 0 {
			continue
		}
		p := b.processes.process(w.PID, w.From)
		l := lossy{
			process: p,
			span:    Span{max(w.From, b.t.From), min(w.To, b.t.To)},
			dropped: w.Dropped,
			table:   b.tables.table(p, w.From),
		}
		if has == nil {
			has = b.withActivity()
		}
		if lost, ok := b.unknown(&l, has); ok {
			spans[p] = append(spans[p], lost...)
			continue
		}
		spans[p] = append(spans[p], l.span)
	}
	for p, list := range spans {
		b.t.Seen[p].Lossy = Join(list)
	}
}

func (b *builder) withActivity() []bool {
	out := make([]bool, len(b.t.Ops))
	for i := range b.t.Activities {
		if op := b.t.Activities[i].Op; op != None {
			out[op] = true
		}
	}
	return out
}

// unknown returns the stretches of a window in which what was lost can have run; false where that is not known.
func (b *builder) unknown(l *lossy, has []bool) ([]Span, bool) {
	if l.table == None || l.span.From >= l.span.To {
		return nil, false
	}
	calls, ok := b.unanswered(l, has)
	if !ok {
		return nil, false
	}
	var out []Span
	for _, op := range calls {
		s, ok := b.around(l, op)
		if !ok {
			return nil, false
		}
		out = append(out, s)
	}
	spans := Join(out)
	return spans, spans.Total() <= (l.span.To-l.span.From)/maxUnknownPart
}

// unanswered returns the calls of a window without an activity, and whether these and the activities without a call are
// all that was lost. Calls after the last one with an activity do not count: what they started may be still to come.
func (b *builder) unanswered(l *lossy, has []bool) ([]int32, bool) {
	from, to := b.tables.span(l.process, l.table)
	last := min(to, b.latest[l.table])
	var out []int32
	for i := range b.t.Threads {
		th := &b.t.Threads[i]
		if th.Process != l.process {
			continue
		}
		ops := b.t.Ops[th.First:th.Last]
		k := sort.Search(len(ops), func(k int) bool { return ops[k].Start >= from })
		for ; k < len(ops) && ops[k].Start <= last && uint64(len(out)) <= l.dropped; k++ {
			if o, op := &ops[k], th.First+int32(k); o.Via != Probe && b.classes[o.Func].starts != 0 && !has[op] {
				out = append(out, op)
			}
		}
	}
	return out, uint64(len(out))+b.unasked(l.process, from, to) == l.dropped
}

// unasked counts the activities of a process that began at [from, to] and have no call.
func (b *builder) unasked(p int32, from, to uint64) uint64 {
	n := uint64(0)
	first, last := b.streamsOf(p)
	for s := first; s < last; s++ {
		list := b.of(s)
		for i := list.search(func(activity int32) bool {
			return b.t.Activities[activity].Start < from
		}); i < list.n; i++ {
			a := &b.t.Activities[list.at(i)]
			if a.Start > to {
				break
			}
			if a.Op == None {
				n++
			}
		}
	}
	return n
}

// around returns the time between the neighbours in its stream of what a call started; false where its stream is not
// known.
func (b *builder) around(l *lossy, op int32) (Span, bool) {
	key, ok := b.handleOf(op, l.process)
	if streams := b.handles[key]; !ok || len(streams) != 1 {
		return Span{}, false
	}
	list, at := b.of(b.handles[key][0]), b.t.Ops[op].Start
	i := list.search(func(activity int32) bool { return b.asked(activity) <= at })
	s := Span{max(at, l.span.From), l.span.To}
	if i > 0 {
		s.From = max(s.From, b.t.Activities[list.at(i-1)].End)
	}
	if i < list.n {
		s.To = min(s.To, b.t.Activities[list.at(i)].Start)
	}
	return s, true
}
