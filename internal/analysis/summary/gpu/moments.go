package gpu

import "github.com/inferscope/inferscope/internal/analysis/timeline"

// moments yields times in their order, ns; false: there are no more. The activities of most programs end in the order
// in which they began, and were asked for in it, so that no list of these times must be made and sorted.
type moments func() (uint64, bool)

// starts are when the calls with activities began.
func (q *asked) starts() moments {
	if q.order.startsApart {
		list := make([]uint64, 0, q.ops)
		for i, last := range q.last {
			if last != 0 {
				list = append(list, q.t.Ops[i].Start)
			}
		}
		return inOrder(list)
	}
	acts, at := q.t.Activities, 0
	return func() (uint64, bool) {
		for ; at < len(acts); at++ {
			op := acts[at].Op
			if op != timeline.None && q.last[op] > 0 {
				q.last[op] = -q.last[op] // it is not another call's when its next activity comes
				return q.t.Ops[op].Start, true
			}
		}
		return 0, false
	}
}

// ends are when the last activity of each of these calls ended.
func (q *asked) ends() moments {
	acts, at := q.t.Activities, 0
	next := func() (uint64, bool) {
		for at < len(acts) {
			a := &acts[at]
			at++
			if a.Op != timeline.None && (q.last[a.Op] == int32(at) || q.last[a.Op] == -int32(at)) {
				return max(
					a.End,
					q.t.Ops[a.Op].Start,
					1,
				), true // where the clocks differ it may seem to end before it was asked for
			}
		}
		return 0, false
	}
	if !q.order.endsApart {
		return next
	}
	list := make([]uint64, 0, q.ops)
	for end, ok := next(); ok; end, ok = next() {
		list = append(list, end)
	}
	return inOrder(list)
}

// inOrder sorts times, and yields them.
func inOrder(list []uint64) moments {
	sortTimes(list)
	at := 0
	return func() (uint64, bool) {
		if at == len(list) {
			return 0, false
		}
		at++
		return list[at-1], true
	}
}
