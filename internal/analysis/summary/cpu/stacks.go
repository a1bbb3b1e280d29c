package cpu

import (
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
)

// stack is a number of a stack that the recording has, index + 1 into Meta.Stacks; 0 is none.
type stack uint32

// known is what one stack shows.
type known struct {
	place    word
	activity threads.Activity
	callers  bool // it has native frames beside the one on top
	read     bool
}

// stacks reads each stack of a recording once.
type stacks struct {
	rec        *recording.Recording
	words      *words
	classifier *threads.Classifier
	known      []known
	frames     []recording.Frame // of the stack that is being read
}

func newStacks(rec *recording.Recording) *stacks {
	return &stacks{
		rec:        rec,
		words:      newWords(),
		classifier: threads.NewClassifier(rec),
		known:      make([]known, len(rec.Meta.Stacks)+1),
	}
}

// number returns the stack with the number that an event has; 0 where there is none with it.
func (s *stacks) number(n uint64) stack {
	if n >= uint64(len(s.known)) {
		return 0
	}
	return stack(n)
}

func (s *stacks) of(n stack) known {
	k := &s.known[n]
	if !k.read {
		frames := s.read(n)
		*k = known{
			place:    s.words.number(placeOf(frames)),
			activity: s.classifier.Of(uint64(n)),
			callers:  hasCallers(frames),
			read:     true,
		}
	}
	return *k
}

func (s *stacks) place(n stack) word { return s.of(n).place }

// read returns the frames of a stack, until the next call.
func (s *stacks) read(n stack) []recording.Frame {
	s.frames = s.frames[:0]
	for f := range threads.Walk(s.rec, uint64(n)) {
		s.frames = append(s.frames, s.rec.Meta.Frames[f])
	}
	return s.frames
}

// hasCallers reports whether a stack has native frames beside the one on top.
func hasCallers(frames []recording.Frame) bool {
	n := 0
	for i := range frames {
		if frames[i].Kind == recording.NativeFrame {
			n++
		}
	}
	return n > 1
}
