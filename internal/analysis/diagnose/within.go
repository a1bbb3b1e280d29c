package diagnose

import (
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// wholes are intervals that each lie within one step of the program: what repeats inside of one is a part of a step,
// such as a layer or one of its kernels. Traces of other tools have them.
type wholes struct {
	steps timeline.Spans            // steps that the program named, too few for a latency
	calls map[uint64]timeline.Spans // outermost calls of a torch.nn.Module, by threadKey
	first map[uint64]uint64         // number of the first of these calls of each thread
}

// The kinds of wholes, so that no two have one number.
const (
	inStep = uint64(iota+1) << 32
	inCall
	inLaunch
)

// wholesOf returns the wholes of a process.
func (a *analysis) wholesOf(pid uint32) *wholes {
	if w := a.wholes[pid]; w != nil {
		return w
	}
	if a.wholes == nil {
		a.wholes = map[uint32]*wholes{}
	}
	w := &wholes{calls: a.moduleCalls(pid), first: map[uint64]uint64{}}
	next := inCall
	for k, calls := range w.calls {
		w.first[k] = next
		next += uint64(len(calls))
	}
	a.wholes[pid] = w
	if a.t.Rec.Meta.GPU == nil {
		return w
	}
	for _, r := range a.ranges() {
		if r.pid == pid && r.name == profilerStep && len(r.starts) < leastRepetitions {
			w.steps = r.spans()
		}
	}
	return w
}

// moduleCalls returns when threads of a process were in a call of a torch.nn.Module. Two calls of one module with
// nothing of the thread in between are one.
func (a *analysis) moduleCalls(pid uint32) map[uint64]timeline.Spans {
	outermost := a.outermostModules()
	type call struct {
		from   uint64
		module int32
	}
	open := map[uint64]call{}
	out := map[uint64]timeline.Spans{}
	for i := range a.t.Index.Traced {
		s := &a.t.Index.Traced[i]
		if s.PID != pid {
			continue
		}
		module := int32(0)
		if n := int(s.Stack); n > 0 && n <= len(outermost) {
			module = outermost[n-1]
		}
		k := threadKey(pid, s.TID)
		was := open[k]
		if was.module == module {
			continue
		}
		if was.module != 0 {
			out[k] = append(out[k], timeline.Span{From: was.from, To: s.TS})
		}
		open[k] = call{s.TS, module}
	}
	for k, c := range open {
		if c.module != 0 {
			out[k] = append(out[k], timeline.Span{From: c.from, To: a.t.To})
		}
	}
	return out
}

// outermostModules returns for each stack which of its nodes is the outermost call of a module, index + 1; 0: none.
func (a *analysis) outermostModules() []int32 {
	meta := &a.t.Rec.Meta
	out := make([]int32, len(meta.Stacks))
	for i, n := range meta.Stacks {
		if n.Parent >= 0 && int(n.Parent) < i && out[n.Parent] != 0 {
			out[i] = out[n.Parent]
		} else if int(n.Frame) < len(meta.Frames) && isModule(&meta.Frames[n.Frame]) {
			out[i] = int32(i) + 1
		}
	}
	return out
}

// isModule reports whether a frame is the row of a module, as torch.profiler writes it: it has no line.
func isModule(f *recording.Frame) bool {
	return f.Kind == recording.PythonFrame && f.Line == 0 && strings.HasSuffix(f.File, "torch/nn/modules/module.py")
}

// at returns the number of what a thread is in at a time; 0: nothing that is known.
func (w *wholes) at(pid, tid uint32, ts uint64) uint64 {
	if i := w.steps.At(ts); i < len(w.steps) && w.steps[i].From <= ts {
		return inStep + uint64(i)
	}
	k := threadKey(pid, tid)
	calls := w.calls[k]
	if i := calls.At(ts); i < len(calls) && calls[i].From <= ts {
		return w.first[k] + uint64(i)
	}
	return 0
}

// isPart reports whether most repetitions lie within one of wholes.
func (f *found) isPart(list []token) bool {
	parts := 0
	for i := 1; i < len(f.at); i++ {
		if x, y := &list[f.at[i-1]], &list[f.at[i]]; x.within != 0 && x.within == y.within {
			parts++
		}
	}
	return 2*parts > len(f.at)-1
}
