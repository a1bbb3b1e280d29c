package watch

import (
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Sample is one sample of a running thread.
type Sample struct {
	TS     uint64 // ns, CLOCK_MONOTONIC
	TID    uint32
	Origin event.StackOrigin
	Frames []recording.Frame // leaf first
}

// Samples returns the samples of running threads in rec, by time; of thread tid
// alone where that is not 0. Samples of one stack share its frames.
func Samples(rec *recording.Recording, tid int) []Sample {
	var out []Sample
	known := map[uint64][]recording.Frame{}
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind != event.Sample || e.Func != uint16(event.Clock) || tid != 0 && e.TID != uint32(tid) {
			continue
		}
		frames, ok := known[e.Args[0]]
		if !ok {
			frames = threads.Frames(rec, e.Args[0])
			known[e.Args[0]] = frames
		}
		out = append(out, Sample{TS: e.TS, TID: e.TID, Origin: event.StackOrigin(e.Args[1]), Frames: frames})
	}
	return out
}

// HasPython reports whether a Python frame is in the stack.
func (s *Sample) HasPython() bool { return s.In(recording.PythonFrame, "") }

// In reports whether a frame of kind is in the stack whose name contains part.
func (s *Sample) In(kind recording.FrameKind, part string) bool {
	for i := range s.Frames {
		if s.Frames[i].Kind == kind && strings.Contains(s.Frames[i].Name, part) {
			return true
		}
	}
	return false
}

// Leaf is the function on top; no frame at all is a frame without a name.
func (s *Sample) Leaf() recording.Frame {
	if len(s.Frames) == 0 {
		return recording.Frame{Kind: recording.ErrorFrame}
	}
	return s.Frames[0]
}

// Share counts the samples that ok is true of, and returns them as a fraction of all.
func Share(samples []Sample, ok func(*Sample) bool) float64 {
	n := 0
	for i := range samples {
		if ok(&samples[i]) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(samples)))
}

// Doubts returns the losses of rec that make a number doubtful: those that are more than an info.
func Doubts(rec *recording.Recording) []loss.Loss {
	return slices.DeleteFunc(slices.Clone(rec.Meta.Losses), func(l loss.Loss) bool {
		return loss.Describe(l.Reason).Severity == loss.Info
	})
}
