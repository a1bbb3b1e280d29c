package gap

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Sum is all plain gaps of a device that calls of one function ended in one thread. Each has one step, of cause
// LaunchOverhead, that is Seen.
type Sum struct {
	Device   int32
	PID, TID uint32
	Func     uint16 // of the outermost calls, index into Meta.Functions
	Certain  bool   // that it were these calls; else it is likely
	Count    uint64
	Time     uint64          // ns
	Longest  []timeline.Span // LongestSums of them at most: the longest first, of equals the earliest
}

// LongestSums is how many of its gaps a Sum keeps to look at.
const LongestSums = 3

// sums adds plain gaps up.
type sums struct {
	list []Sum
	at   map[sumKey]int32
	last []int32 // by index of the thread: one more than the place in list of its last gap's; 0: it had none
}

type sumKey struct {
	device  int32
	th      *thread
	fn      uint16
	certain bool
}

// plainly adds what lies in the stretch that is summed up of a plain gap, which a call of a thread ended.
func (w *walker) plainly(g *Gap, th *thread, op int32) {
	from, to := max(g.From, w.out.in.From), min(g.To, w.out.in.To)
	if from >= to {
		return
	}
	s := w.sums.of(sumKey{g.Device, th, w.t.Ops[op].Func, w.t.Confidence(g.Next) == 1})
	s.Count++
	s.Time += to - from
	if n := len(s.Longest); n < LongestSums || to-from > s.Longest[n-1].To-s.Longest[n-1].From {
		s.keep(timeline.Span{From: from, To: to})
	}
}

func newSums(threads int) sums { return sums{at: map[sumKey]int32{}, last: make([]int32, threads)} }

// of returns the sum of a key. Neighbouring gaps of a thread mostly have the same.
func (x *sums) of(k sumKey) *Sum {
	last := &x.last[k.th.index]
	if *last != 0 {
		if s := &x.list[*last-1]; s.Func == k.fn && s.Device == k.device && s.Certain == k.certain {
			return s
		}
	}
	at, ok := x.at[k]
	if !ok {
		at = int32(len(x.list))
		x.list = append(x.list, Sum{Device: k.device, PID: k.th.pid, TID: k.th.tid, Func: k.fn, Certain: k.certain})
		x.at[k] = at
	}
	*last = at + 1
	return &x.list[at]
}

// keep keeps one of the longest. Gaps of a device come in the order of time.
func (s *Sum) keep(span timeline.Span) {
	i := len(s.Longest)
	for i > 0 && span.To-span.From > s.Longest[i-1].To-s.Longest[i-1].From {
		i--
	}
	s.Longest = slices.Insert(s.Longest, i, span)
	s.Longest = s.Longest[:min(len(s.Longest), LongestSums)]
}
