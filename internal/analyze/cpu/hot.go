package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/threads"
)

// hot gathers the samples of running threads.
type hot struct {
	a        *analysis
	origins  Origins
	stacks   map[uint64]uint64     // samples by stack
	order    []uint64              // the stacks, in the order in which they came
	byThread map[key]*tally        // samples by place
	samples  map[key][]int32       // indexes into rec.Events, by TS
	places   map[functionKey]*spot // functions
}

// functionKey tells functions apart. Line is no part of it: a Python frame's is the line being executed.
type functionKey struct {
	kind       record.FrameKind
	name, file string
}

type spot struct {
	Function
	lines map[uint32]uint64
}

func newHot(a *analysis) *hot {
	h := &hot{a: a, stacks: map[uint64]uint64{}, byThread: map[key]*tally{}, samples: map[key][]int32{}, places: map[functionKey]*spot{}}
	for i := range a.rec.Events {
		e := &a.rec.Events[i]
		if e.Kind != event.Sample || e.Func != uint16(event.Clock) || e.TS < a.rec.Meta.From || e.TS > a.rec.Meta.To {
			continue
		}
		h.add(int32(i), e)
	}
	for _, stack := range h.order {
		h.count(threads.Frames(a.rec, stack), h.stacks[stack])
	}
	return h
}

func (h *hot) add(i int32, e *event.Event) {
	h.origins.Samples++
	switch event.StackOrigin(e.Args[1]) {
	case event.Whole:
		h.origins.Whole++
	case event.Spliced:
		h.origins.Spliced++
	case event.Python:
		h.origins.Python++
	default:
		h.origins.Leaf++
	}
	stack := e.Args[0]
	if h.stacks[stack] == 0 {
		h.order = append(h.order, stack)
	}
	h.stacks[stack]++
	k := key{e.PID, e.TID}
	if h.byThread[k] == nil {
		h.byThread[k] = &tally{}
	}
	h.byThread[k].add(h.a.place(stack), 1)
	h.samples[k] = append(h.samples[k], i)
}

// count counts n samples of one stack: each function once, however often it stands there.
func (h *hot) count(frames []record.Frame, n uint64) {
	seen := map[functionKey]bool{}
	python := false
	for i := range frames {
		f := &frames[i]
		if f.Kind == record.ErrorFrame {
			continue
		}
		s, k := h.spot(f), functionKey{f.Kind, f.Name, f.File}
		if !seen[k] {
			seen[k] = true
			s.Total += n
		}
		switch {
		case f.Kind == record.PythonFrame && !python:
			python = true
			h.origins.WithPython += n
			s.Self += n
			s.lines[f.Line] += n
		case f.Kind != record.PythonFrame && i == 0:
			s.Self += n
		}
	}
}

func (h *hot) spot(f *record.Frame) *spot {
	k := functionKey{f.Kind, f.Name, f.File}
	s := h.places[k]
	if s == nil {
		s = &spot{Function: Function{Kind: f.Kind, Name: f.Name, File: f.File, Line: f.Line}, lines: map[uint32]uint64{}}
		h.places[k] = s
	}
	return s
}

// line returns the line that most samples were at; where it was never on top, the first that was met.
func (s *spot) line() uint32 {
	best, found := s.Line, false
	for line, n := range s.lines {
		if !found || n > s.lines[best] || n == s.lines[best] && line < best {
			best, found = line, true
		}
	}
	return best
}

func (h *hot) summarize(s *Summary) {
	s.Origins, s.Sampled = h.origins, h.origins.Samples > 0
	s.Python, s.Functions = []Function{}, []Function{}
	for _, p := range h.places {
		f := p.Function
		f.Line = p.line()
		f.SelfShare, f.TotalShare = share(f.Self, h.origins.Samples), share(f.Total, h.origins.Samples)
		if f.Kind == record.PythonFrame {
			s.Python = append(s.Python, f)
		} else {
			s.Functions = append(s.Functions, f)
		}
	}
	s.Python, s.Functions = hottest(s.Python), hottest(s.Functions)
}

func hottest(list []Function) []Function {
	slices.SortFunc(list, func(x, y Function) int {
		return cmp.Or(cmp.Compare(y.Self, x.Self), cmp.Compare(y.Total, x.Total), cmp.Compare(x.Name, y.Name),
			cmp.Compare(x.File, y.File), cmp.Compare(x.Kind, y.Kind))
	})
	return list[:min(len(list), maxFunctions)]
}
