package cpu

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// hot gathers the samples of running threads, but for those of the recorder: they are none of the program's.
type hot struct {
	a         *analysis
	origins   Origins
	count     []uint64         // samples by stack
	order     []stack          // the stacks, in the order in which they came
	byThread  map[key]*sampled // threads that have samples
	functions map[functionKey]*spot
	byFrame   []*spot // by index into Meta.Frames, as far as they were met
}

// sampled is the samples of one thread.
type sampled struct {
	places  tally
	samples []int32 // indexes into Index.Samples, by TS
}

// functionKey tells functions apart. Line is no part of it: a Python frame's is the line being executed.
type functionKey struct {
	kind       recording.FrameKind
	name, file string
}

type spot struct {
	Function
	lines map[uint32]uint64
	seen  stack // the last stack that it was counted in
}

func newHot(a *analysis) *hot {
	h := &hot{
		a: a, count: make([]uint64, len(a.rec.Meta.Stacks)+1), byThread: map[key]*sampled{},
		functions: map[functionKey]*spot{}, byFrame: make([]*spot, len(a.rec.Meta.Frames)),
	}
	for i := range a.events.Samples {
		s := &a.events.Samples[i]
		if s.TS >= a.rec.Meta.From && s.TS <= a.rec.Meta.To && !threads.IsRecorder(a.names[key{s.PID, s.TID}]) {
			h.add(int32(i), s)
		}
	}
	for _, at := range h.order {
		h.read(at, h.count[at])
	}
	return h
}

func (h *hot) add(i int32, s *threads.Sample) {
	h.origins.Samples++
	switch s.Origin {
	case event.Whole:
		h.origins.Whole++
	case event.Spliced:
		h.origins.Spliced++
	case event.Python:
		h.origins.Python++
	default:
		h.origins.Leaf++
	}
	at := h.a.stacks.number(uint64(s.Stack))
	if h.count[at] == 0 {
		h.order = append(h.order, at)
	}
	h.count[at]++
	k := key{s.PID, s.TID}
	t := h.byThread[k]
	if t == nil {
		t = &sampled{}
		h.byThread[k] = t
	}
	t.places.add(h.a.stacks.place(at), 1)
	t.samples = append(t.samples, i)
}

// read counts n samples of one stack: each function once, however often it stands there.
func (h *hot) read(at stack, n uint64) {
	python, leaf := false, true
	for i := range threads.Walk(h.a.rec, uint64(at)) {
		f := &h.a.rec.Meta.Frames[i]
		top := leaf
		leaf = false
		if f.Kind == recording.ErrorFrame {
			continue
		}
		s := h.spot(i)
		if s.seen != at {
			s.seen = at
			s.Total += n
		}
		switch {
		case f.Kind == recording.PythonFrame && !python:
			python = true
			h.origins.WithPython += n
			s.Self += n
			s.lines[f.Line] += n
		case f.Kind != recording.PythonFrame && top:
			s.Self += n
		}
	}
}

func (h *hot) spot(frame uint32) *spot {
	if s := h.byFrame[frame]; s != nil {
		return s
	}
	f := &h.a.rec.Meta.Frames[frame]
	k := functionKey{f.Kind, f.Name, f.File}
	s := h.functions[k]
	if s == nil {
		s = &spot{
			Function: Function{Kind: f.Kind, Name: f.Name, File: f.File, Line: f.Line},
			lines:    map[uint32]uint64{},
		}
		h.functions[k] = s
	}
	h.byFrame[frame] = s
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
	for _, p := range h.functions {
		f := p.Function
		f.Line = p.line()
		f.SelfShare, f.TotalShare = share(f.Self, h.origins.Samples), share(f.Total, h.origins.Samples)
		if f.Kind == recording.PythonFrame {
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
