package diagnose

import (
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/sensors"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// gpuError is the finding about the first error of a GPU after which it did nothing more for the target, up to the end
// of the recording; false where there is none.
func (a *analysis) gpuError(d *Diagnosis) (Finding, bool) {
	if a.t.Rec.Meta.Driver == nil {
		return Finding{}, false
	}
	used := map[int]bool{}
	if s := sensors.Summarize(a.t.Rec, sensors.Rates{}); s != nil {
		for i := range s.GPUs {
			used[s.GPUs[i].Index] = s.GPUs[i].Used
		}
	}
	for i := range a.t.Rec.Meta.Driver.Xids {
		x := &a.t.Rec.Meta.Driver.Xids[i]
		if !sensors.Concerns(x, used) || x.TS < a.t.From || x.TS > a.t.To {
			continue
		}
		lost := a.t.To - x.TS
		if a.worked(x) && share(lost, a.t.To-a.t.From) >= leastShare {
			return a.gpuErrorFinding(d, x, lost), true
		}
	}
	return Finding{}, false
}

// worked reports whether the GPUs did something for the program before an error, and nothing that began after it. What
// was under way ends some time later.
func (a *analysis) worked(x *recording.Xid) bool {
	before := false
	for i := range a.t.Activities {
		at := &a.t.Activities[i]
		if x.PID != 0 && a.t.Rec.Events[at.Event].PID != x.PID {
			continue
		}
		if at.Start > x.TS {
			return false
		}
		before = true
	}
	return before
}

func (a *analysis) gpuErrorFinding(d *Diagnosis, x *recording.Xid, lost uint64) Finding {
	row := a.table[cause.GPUError]
	gpu := fmt.Sprintf("GPU %d", x.GPU)
	if x.GPU < 0 {
		gpu = "the GPU at PCI " + format.Clean(x.Bus)
	}
	title := fmt.Sprintf("%s stopped working for the program after an error (Xid %d)", gpu, x.Code)
	if meaning := sensors.XidMeaning(x.Code); meaning != "" {
		title = fmt.Sprintf("%s stopped working for the program: %s (Xid %d)", gpu, meaning, x.Code)
	}
	f := Finding{
		Cause: row.Key, Title: title, Cost: lost, Share: share(lost, a.t.To-a.t.From), Confidence: sureSeen,
		Because: []string{"the driver reported it in the kernel's log, and no work of the GPU began after it"},
		Evidence: []Evidence{{
			Text: fmt.Sprintf("the driver's message: %s", format.Clean(x.Text)), From: x.TS, To: a.t.To,
		}},
	}
	if x.PID != 0 {
		f.PID = x.PID
	}
	f.Changes = a.changes(d, row, facts{ownError: x.PID != 0 && sensors.OfProgram(x.Code)})
	return f
}

// stoppedHeadline says what stopped, and when.
func stoppedHeadline(d *Diagnosis) string {
	i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Cause == cause.GPUError.String() })
	f := &d.Findings[i]
	return fmt.Sprintf("%s, %s before the end of the recording.", f.Title, format.Span(f.Cost))
}
