package timeline

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Bounds of searches, so that a damaged recording costs no more than a sound one.
const (
	maxStreams = 256 // of one context that a synchronization is compared with
	maxSteps   = 256 // back from the place where the search landed
)

// sync makes the synchronizations, and compares their ends with what they waited for.
func (b *builder) sync() {
	t := b.t
	t.Syncs = make([]Sync, 0, len(b.syncs))
	for _, i := range b.syncs {
		e := &t.Rec.Events[i]
		p := b.processes.process(e.PID, e.TS)
		s := Sync{Start: e.TS, End: clampedEnd(e), Process: p, Op: None, Activity: None, Stream: None}
		if e.Ret > 0 && e.Ret <= int32(contextSync) {
			s.Type = SyncType(e.Ret)
		}
		if s.Type != StreamWait {
			s.Op = b.waiter(&s, uint32(e.Args[0]))
		}
		b.awaited(&s, e)
		t.Syncs = append(t.Syncs, s)
	}
}

func (t *Timeline) sortSyncs() {
	if !slices.IsSortedFunc(t.Syncs, syncOrder) {
		slices.SortStableFunc(t.Syncs, syncOrder)
	}
}

func syncOrder(x, y Sync) int { return cmp.Compare(x.Start, y.Start) }

// waiter finds the call that a synchronization was made by: the tightest timed call around it.
func (b *builder) waiter(s *Sync, id uint32) int32 {
	if op := b.tables.find(b.tables.table(s.Process, s.Start), id, s.Start, b.t.Ops); op != None {
		return op
	}
	list := b.waiting(s.Process).ops
	i, _ := slices.BinarySearchFunc(list, s.Start, func(op int32, at uint64) int {
		if b.t.Ops[op].Start <= at {
			return -1
		}
		return 1
	})
	best, slack := None, ^uint64(0)
	for steps := 0; i > 0 && steps < maxSteps; steps++ {
		i--
		o := &b.t.Ops[list[i]]
		if s.Start-o.Start >= slack {
			break
		}
		if room := s.Start - o.Start + o.End() - s.End; o.End() >= s.End && room < slack {
			best, slack = list[i], room
		}
	}
	return best
}

// awaited finds what a synchronization waited for.
func (b *builder) awaited(s *Sync, e *event.Event) {
	if s.Type == StreamWait {
		return
	}
	looked, last := 0, uint64(0)
	for i := range b.t.Streams {
		st := &b.t.Streams[i]
		if st.Process != s.Process || st.Context != uint8(e.Func>>8) || s.Type == StreamSync && st.ID != e.TID {
			continue
		}
		if looked++; looked > maxStreams {
			return
		}
		act, end := b.lastBefore(int32(i), s)
		if s.Type == StreamSync {
			s.Stream = int32(i)
		}
		if act != None && end > s.Start && end >= last && (s.Type != EventSync || end <= s.End) {
			s.Activity, s.Done, last = act, end, end
		}
	}
}

// lastBefore finds the last activity of a stream that was launched before a synchronization
// began, and when it ended. Both orders are the same in a stream, so that the search needs no clock.
func (b *builder) lastBefore(stream int32, s *Sync) (act int32, end uint64) {
	list := b.of(stream)
	i := list.search(func(activity int32) bool { return b.asked(activity) < s.Start })
	act = None
	for steps := 0; i > 0 && steps < maxSteps; steps++ {
		i--
		a := &b.t.Activities[list.at(i)]
		if act != None && a.Op != b.t.Activities[act].Op {
			break
		}
		if e := clampedEnd(&b.t.Rec.Events[a.Event]); act == None || e > end {
			act, end = list.at(i), e
		}
		if a.Op == None {
			break
		}
	}
	b.compare(act, end, s)
	return act, end
}

// compare takes what a synchronization proves about the clocks.
func (b *builder) compare(act int32, end uint64, s *Sync) {
	if act != None {
		b.proveEnd(act, end, s)
	}
}

// proveEnd takes what the end of an activity proves about the clocks: a synchronization of a stream or a
// context returns after what was launched before it has ended.
func (b *builder) proveEnd(act int32, end uint64, s *Sync) {
	a := &b.t.Activities[act]
	if s.Type != StreamSync && s.Type != contextSync || a.Link != ByID && a.Link != ByGraph ||
		b.t.Confidence(act) < 1 ||
		b.t.Ops[a.Op].End() > s.Start {
		return
	}
	b.causes.awaited(end, s.End)
}
