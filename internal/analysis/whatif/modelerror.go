package whatif

import "github.com/inferscope/inferscope/internal/analysis/cause"

// residue is the share of the time that goes with a change which stays all the same, or goes beyond it, 9 times in 10:
// calls, waits and switches are told apart at their edges, and a function that is gone leaves the loop around it.
const residue = 0.01

// Model errors are shares of the remaining time by which 9 of 10 predictions are off even where every name is right,
// from the tables in docs/examples/simulator.md and docs/examples/h200.md: what changes does not change alone.
const (
	// A wait or a call goes, or a function takes less: all else stays as it was.
	modelPlain = 0.09
	// A graph takes the place of launches: the gaps between its nodes are known from one device.
	modelGraph = 0.10
	// Work is done by another thread or process: with caches, a CPU and perhaps a lock of its own.
	modelBeside = 0.13
	// Others have the CPU, the lock or the memory less often: what they do then is not seen.
	modelOthers = 0.13
)

// modelError returns the largest model error of changes.
func modelError(edits []Edit) float64 {
	most := 0.0
	for _, e := range edits {
		most = max(most, e.modelError())
	}
	return most
}

func (e Edit) modelError() float64 {
	switch e.Cause {
	case cause.NoCPU, cause.Throttled, cause.GIL, cause.GC, cause.PageFaults:
		return modelOthers
	}
	if e.Verb == Overlap {
		return modelBeside
	}
	if e.Verb != Without {
		return modelPlain
	}
	switch e.Cause {
	case cause.LaunchOverhead:
		return modelGraph
	case cause.PythonWork, cause.NativeWork, cause.Preprocessing, cause.Serialization, cause.Disk, cause.Network,
		cause.Worker:
		return modelBeside
	}
	return modelPlain
}
