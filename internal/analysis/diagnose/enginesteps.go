package diagnose

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/recording"
)

// longestStep is from when on a pause between two messages of an engine is none of its steps, ns.
const longestStep = uint64(1e9)

// bySteps takes the steps of an inference engine, which it tells its API server one by one, for iterations: of several
// engines those of the one that made most. A step is the time from one message with output to the next, where requests
// were left to go on with; nil where there are too few.
func (a *analysis) bySteps() *Iteration {
	type engine struct{ pid, index uint32 }
	type run struct {
		last              *recording.Step
		starts, durations []uint64
	}
	runs := map[engine]*run{}
	var best *run
	for i := range a.t.Rec.Meta.Steps {
		s := &a.t.Rec.Meta.Steps[i]
		if s.Requests == 0 || s.TS < a.t.From || s.TS > a.t.To {
			continue
		}
		of := engine{s.PID, s.Engine}
		r := runs[of]
		if r == nil {
			r = &run{}
			runs[of] = r
		}
		if x := r.last; x != nil && x.Finished < x.Requests && s.TS > x.TS && s.TS-x.TS < longestStep {
			r.starts, r.durations = append(r.starts, x.TS), append(r.durations, s.TS-x.TS)
		}
		if r.last = s; best == nil || len(r.starts) > len(best.starts) {
			best = r
		}
	}
	if best == nil || len(best.starts) < minIterations {
		return nil
	}
	pid := best.last.PID
	it := iteration(best.durations, fmt.Sprintf("steps of the engine in %s", a.who(threadKey(pid, pid))))
	it.Starts, it.Always, it.PID = best.starts, true, pid
	it.From, it.To = best.starts[0], best.starts[len(best.starts)-1]+best.durations[len(best.durations)-1]
	if th := a.launcher(); th >= 0 { // with several GPUs it is its workers that launch
		it.PID = a.t.Processes[a.t.Threads[th].Process].PID
	}
	return it
}
