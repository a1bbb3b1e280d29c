package diagnose

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/format"
)

// leastActivities is how much a GPU must have done in another tool's trace for a verdict. Such a trace is all that
// there is, and no window of something longer: a length of time says nothing of it.
const leastActivities = 5

// imported reports whether the recording was made from another tool's file, so that no more can be recorded.
func (a *analysis) imported() bool {
	_, ok := a.t.Rec.Meta.ImportedFrom()
	return ok
}

// tooShort returns why the GPU activity is too little for a verdict; "" if it is enough.
func (a *analysis) tooShort() string {
	n := a.total.Time
	switch {
	case !a.imported() && n < leastTime:
		return fmt.Sprintf(
			"the GPU was watched whole for %s only: record for longer, or all the time (--gpu continuous)",
			format.Span(n),
		)
	case a.imported() && len(a.t.Activities) < leastActivities:
		return fmt.Sprintf(
			"the trace has %s of what the GPU did, too few to tell anything from",
			format.Plural(len(a.t.Activities), "row", "rows"),
		)
	}
	return ""
}

// Why there is no evidence, of a recording and of another tool's trace.
const (
	noWaits         = "when threads ran and waited was not recorded (--scheduling)"
	noWaitsImported = "the trace does not say when threads ran and when they waited"
	noCode          = "what threads ran was not sampled (--cpu-sampling-frequency-hz)"
	noCodeImported  = "the trace does not say what threads ran: torch.profiler records it with ProfilerActivity.CPU, and with stacks with with_stack=True; nsys with --sample=process-tree"
	noGPUImported   = "the trace has calls of CUDA and nothing of what the GPU did: torch.profiler records that with ProfilerActivity.CUDA, nsys with --trace=cuda"
)

// either returns the first text for a recording, the second for another tool's trace.
func (a *analysis) either(recorded, imported string) string {
	if a.imported() {
		return imported
	}
	return recorded
}
