package gpu

import (
	"math"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// maxSteps is of how many windows the steps are remembered: status tells of the last ones, to see
// which step a pause of the process fell on.
const maxSteps = 64

// stepsOf reads an AGENT_STEPS: enum agent_step, two to an argument.
func stepsOf(e *event.Event) recording.WindowSteps {
	low := func(i int) uint64 { return uint64(uint32(e.Args[i])) }
	high := func(i int) uint64 { return e.Args[i] >> 32 }
	return recording.WindowSteps{
		Began: e.TS, Subscribe: low(0), SetUp: high(0), Callbacks: low(1), Kinds: high(1),
		Ending: uint64(e.TID), Disable: low(2), Flush: high(2), Leave: low(3), Finalize: high(3),
		LongestFlush: e.Dur, LongestFlushAt: uint64(max(0, e.Ret)) * 1000,
	}
}

// stepped notes the steps of the window that the next AGENT_WINDOW is about.
func (d *decoder) stepped(e *event.Event) bool {
	if !d.timely(e) {
		return false
	}
	d.steps = stepsOf(e)
	return true
}

// took keeps the steps of a window that lasted from opened to off (ns), if they are of it.
func (f *facts) took(s recording.WindowSteps, opened, off uint64) {
	if s.Began == 0 || s.Began > opened {
		return
	}
	s.Opened, s.Off = opened, off
	if s.Subscribe == math.MaxUint32 { // or more than that: it is what the other steps leave of the way in
		s.Subscribe = max(s.Subscribe, opened-s.Began-min(opened-s.Began, s.SetUp+s.Callbacks+s.Kinds))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.steps) >= maxSteps {
		f.steps = slices.Delete(f.steps, 0, 1)
	}
	f.steps = append(f.steps, s)
}

// lastSteps returns what the steps of the last windows took.
func (f *facts) lastSteps() []recording.WindowSteps {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.steps)
}

// lastWords says how many windows there were, and how and by whom the last one was ended.
func (f *facts) lastWords() []zap.Field {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.windows) == 0 || len(f.steps) == 0 {
		return []zap.Field{zap.Uint64("windows", f.counts.windows)}
	}
	last := f.steps[len(f.steps)-1]
	return []zap.Field{
		zap.Uint64("windows", f.counts.windows),
		zap.Uint64("kept", f.counts.kept),
		zap.Uint64("disabled", f.counts.disabled),
		zap.Uint64("starved", f.counts.starved),
		zap.String("end", f.windows[len(f.windows)-1].End), zap.Bool("own", last.Own),
		zap.Duration("way_out", time.Duration(last.Disable+last.Flush+last.Leave+last.Finalize)),
	}
}
