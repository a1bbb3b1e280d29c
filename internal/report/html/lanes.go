package html

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// Which threads a timeline has: a person cannot read more than maxThreads. Beyond the first fewThreads, one that calls
// no CUDA is left out where it ran for less than leastRan of the time, such as the threads of a server that each serve
// one request. The tables have all.
const (
	maxThreads = 96
	fewThreads = 16
	leastRan   = 0.001
)

// candidate is a thread that may be shown.
type candidate struct {
	thread
	calls   int32
	running uint64 // ns
}

// chooseThreads selects the threads with the most CUDA calls, then those that ran most.
func (s *scene) chooseThreads() {
	all := s.candidates()
	list := slices.Collect(func(yield func(candidate) bool) {
		for _, c := range all {
			if (c.calls > 0 || c.running > 0) && !yield(c) {
				return
			}
		}
	})
	slices.SortStableFunc(list, func(x, y candidate) int {
		return cmp.Or(
			cmp.Compare(y.calls, x.calls),
			cmp.Compare(y.running, x.running),
			cmp.Compare(x.pid, y.pid),
			cmp.Compare(x.tid, y.tid),
		)
	})
	list = list[:min(len(list), maxThreads)]
	least := uint64(leastRan * float64(s.in.Timeline.To-s.in.Timeline.From))
	for n := len(list); n > fewThreads && list[n-1].calls == 0 && list[n-1].running < least; n-- {
		list = list[:n-1]
	}
	s.hidden = len(all) - len(list)
	for i, c := range list {
		s.who = append(s.who, c.thread)
		s.rank[c.thread] = int32(i)
	}
}

func (s *scene) candidates() []candidate {
	t := s.in.Timeline
	at := map[thread]int{}
	var all []candidate
	find := func(k thread) *candidate {
		i, ok := at[k]
		if !ok {
			i = len(all)
			at[k] = i
			all = append(all, candidate{thread: k})
		}
		return &all[i]
	}
	for i := range t.Threads {
		th := &t.Threads[i]
		find(thread{t.Processes[th.Process].PID, th.TID}).calls += th.Last - th.First
	}
	for i := range s.in.Threads {
		th := &s.in.Threads[i]
		find(thread{th.PID, th.TID}).running += th.Totals[threads.Running]
	}
	return all
}

// addThreads creates two tracks for each chosen thread: its states and its calls.
func (s *scene) addThreads() {
	t := s.in.Timeline
	states, calls := map[thread]*threads.Thread{}, map[thread][]*timeline.Thread{}
	for i := range s.in.Threads {
		th := &s.in.Threads[i]
		states[thread{th.PID, th.TID}] = th
	}
	for i := range t.Threads {
		th := &t.Threads[i]
		k := thread{t.Processes[th.Process].PID, th.TID}
		calls[k] = append(calls[k], th)
	}
	var waits *threads.Waits
	if t.Index != nil && len(s.in.Threads) > 0 {
		waits = t.Index.Waits()
	}
	ranges := s.ranges()
	for _, k := range s.who {
		head := trackHead{Group: s.threadName(k, states[k], calls[k]), PID: k.pid, TID: k.tid, Seen: -1}
		s.addRanges(head, ranges[k])
		if th := states[k]; th != nil {
			s.addStates(head, th, waits)
		}
		s.addCalls(head, calls[k])
	}
}

func (s *scene) threadName(k thread, st *threads.Thread, calls []*timeline.Thread) string {
	name := ""
	if st != nil {
		name = st.Name
	}
	if name == "" && len(calls) > 0 {
		name = calls[0].Name
	}
	if name == "" {
		name = "thread"
	}
	text := fmt.Sprintf("%s %d", format.Clean(name), k.tid)
	if len(s.in.Timeline.Processes) > 1 && k.pid != k.tid {
		text += fmt.Sprintf(" of %d", k.pid)
	}
	return text
}

func (s *scene) addStates(head trackHead, th *threads.Thread, waits *threads.Waits) {
	head.Kind, head.Name = stateTrack, "states"
	tr := track{head: head}
	for _, iv := range th.Intervals {
		from, to, ok := s.clip(iv.From, iv.To)
		if !ok || iv.State == threads.Absent {
			continue
		}
		it := item{start: from, end: to, ref: none, src: none}
		it.label, it.ref = s.stateLabel(iv, waits)
		it.wait = true
		tr.items = append(tr.items, it)
	}
	s.add(tr)
}

// stateLabel describes the state of a thread, and who ended it if known.
func (s *scene) stateLabel(iv threads.Interval, waits *threads.Waits) (text uint32, waker int32) {
	switch iv.State {
	case threads.Running:
		return s.labels.of("running", "running", "running"), none
	case threads.Runnable:
		return s.labels.of("waiting for a CPU", "runnable", "waiting for a CPU"), none
	}
	waker = none
	plain := "blocked: " + iv.Reason.String()
	words := plain
	if waits != nil {
		if w, ok := waits.Of(iv); ok {
			if w.Text != "" {
				words = "blocked: " + format.Clean(w.Text)
			}
			if r, ok := s.rank[thread{w.By.PID, w.By.TID}]; ok && !w.By.Interrupt {
				waker = r
			}
		}
	}
	return s.labels.of(words, "blocked", plain), waker
}

func (s *scene) addCalls(head trackHead, list []*timeline.Thread) {
	t := s.in.Timeline
	head.Kind, head.Name = callTrack, "CUDA calls"
	tr := track{head: head}
	for _, th := range list {
		for i := th.First; i < th.Last; i++ {
			o := &t.Ops[i]
			if !o.Outer() {
				continue
			}
			from, to, ok := s.clip(o.Start, o.End())
			if !ok {
				continue
			}
			f := &t.Rec.Meta.Functions[o.Func]
			tr.items = append(tr.items, item{
				start: from,
				end:   to,
				label: s.labels.of(format.Clean(f.Name), "call "+f.Group, "CUDA call"),
				ref:   none,
				src:   i,
			})
		}
	}
	if len(list) > 1 { // a pid that was used again
		slices.SortStableFunc(tr.items, func(x, y item) int { return cmp.Compare(x.start, y.start) })
	}
	s.add(tr)
}

// ranges returns the ranges that the program named, by thread.
func (s *scene) ranges() map[thread][]item {
	t := s.in.Timeline
	out := map[thread][]item{}
	if t.Rec.Meta.GPU == nil {
		return out
	}
	names := t.Rec.Meta.GPU.Ranges
	for _, i := range t.Ranges {
		e := &t.Rec.Events[i]
		from, to, ok := s.clip(e.TS, e.End())
		if !ok {
			continue
		}
		name := "(name lost)"
		if e.Ret > 0 && int(e.Ret) <= len(names) {
			name = format.Clean(names[e.Ret-1])
		}
		k := thread{e.PID, e.TID}
		out[k] = append(out[k],
			item{start: from, end: to, label: s.labels.of(name, "range", "range"), ref: none, src: none})
	}
	return out
}

func (s *scene) addRanges(head trackHead, items []item) {
	head.Kind, head.Name = rangeTrack, "named ranges"
	slices.SortStableFunc(items, func(x, y item) int { return cmp.Compare(x.start, y.start) })
	s.add(track{head: head, items: items})
}

// frameText writes a frame as people look for it.
func frameText(f *recording.Frame) string {
	return format.Shorten(format.Clean(frameName(f)), maxFrame)
}

// maxFrame bounds a frame's text, in characters.
const maxFrame = 140
