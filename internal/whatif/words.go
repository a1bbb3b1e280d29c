package whatif

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/human"
	"github.com/inferscope/inferscope/internal/page"
)

// worth is the speed-up from which on a line is shown to people: below it, it cannot be told from what the product costs.
const worth = 1.01

// Document is an answer in words; rows bounds its tables.
func (a *Answer) Document(rows int) *page.Document {
	d := &page.Document{Title: fmt.Sprintf("What if: process %d", a.PID)}
	if a.Basis.Observed == 0 {
		d.Add(page.Paragraph("There is nothing to replay: no stretch of time in which what the GPU did was recorded whole."))
		return d
	}
	d.Add(page.Banner{Text: a.headline()}, a.facts())
	d.AddTable("Causes, each with its remedy", a.remedies(rows))
	d.AddTable("Functions, calls, copies and kernels, each by itself", a.marginals(rows))
	d.Add(page.Paragraph("Gains do not add up: what is the critical path after a change decides. A remedy that takes work off the path raises the throughput; a single request still takes that work's time."))
	return d
}

func (a *Answer) headline() string {
	if a.Asked == nil {
		if len(a.Remedies) == 0 || a.Remedies[0].Speedup < worth {
			return "Nothing that is known here would make it faster."
		}
		return "Most would come of: " + a.Remedies[0].words()
	}
	return a.Asked.words()
}

func (p *Prediction) words() string {
	return fmt.Sprintf("%s: %s", human.Clean(p.Plan), p.Text())
}

// Text says how much faster: "1.8 times as fast (1.6 to 2.0)".
func (p *Prediction) Text() string {
	switch {
	case p.Speedup < worth && p.High < 1+2*(worth-1):
		return "no faster"
	case p.Low < 1 && p.High >= most: // it may do anything
		return "nothing certain, for the program's pace varied too much"
	}
	return fmt.Sprintf("%s times as fast (%s to %s)", times(p.Speedup), times(p.Low), times(p.High))
}

// Remedy says what is foretold for a cause, where it is not that its time is gone: advice may be about something else.
func Remedy(id cause.ID) string {
	switch id {
	case cause.PythonWork, cause.NativeWork, cause.Preprocessing, cause.Serialization, cause.Disk, cause.Network:
		return "done beside the rest"
	case cause.LaunchOverhead:
		return "launched as a CUDA graph"
	case cause.SyncCopy:
		return "pinned and asynchronous"
	case cause.CopyNotOverlapped, cause.CopyBound:
		return "behind kernels"
	case cause.Worker:
		return "ready when it is needed"
	}
	return ""
}

// times writes a speed-up with as many digits as it deserves.
func times(f float64) string {
	switch {
	case f >= most:
		return fmt.Sprintf("over %d", most)
	case f >= 20:
		return fmt.Sprintf("%.0f", f)
	case f >= 5:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

func (a *Answer) facts() page.Facts {
	var f page.Facts
	if a.Pace != nil {
		f.Add("Now", a.Pace.text())
	}
	if a.After != nil {
		f.Add("Then", a.After.text()+fmt.Sprintf(", %s to %s", human.Span(a.After.Low), human.Span(a.After.High)))
	}
	f.Add("Replay", fmt.Sprintf("%s of work in %d steps; without changes it is off by %s", human.Span(a.Basis.Observed), a.Basis.Nodes, human.Percent(max(a.Basis.Error, -a.Basis.Error))))
	f.Add("Cross-check", fmt.Sprintf("with times learned from the other half of the recording it is off by %s", human.Percent(max(a.Basis.Learned, -a.Basis.Learned))))
	f.Add("Not explained", fmt.Sprintf("%s of the time are delays that nothing recorded explains", human.Percent(a.Basis.Unexplained)))
	f.Add("Recording", fmt.Sprintf("cost the program %s of that time, as far as it shows; that is left out before a change and after it", human.Percent(a.Basis.Recording)))
	f.Add("Pace", fmt.Sprintf("varied by %s within the recording", human.Percent(a.Basis.Varies)))
	return f
}

func (p *Pace) text() string {
	return fmt.Sprintf("%s each, %.4g a second (%s)", human.Span(p.Latency), p.PerSec, human.Clean(p.Of))
}

func (a *Answer) remedies(rows int) *page.Table {
	t := &page.Table{Columns: []page.Column{page.Left("change", 0), page.Right("faster", 0), page.Right("interval", 2), page.Right("time it touches", 1)}}
	for i := range a.Remedies {
		p := &a.Remedies[i]
		if len(t.Rows) == rows || p.Speedup < worth {
			break
		}
		t.Row(human.Clean(p.Plan), times(p.Speedup), times(p.Low)+" to "+times(p.High), human.Span(p.Touched))
	}
	return t
}

func (a *Answer) marginals(rows int) *page.Table {
	t := &page.Table{Columns: []page.Column{page.Left("name", 0), page.Left("what", 3), page.Right("twice as fast", 0), page.Right("for nothing", 1), page.Right("its time", 2)}}
	for i := range a.Marginals {
		m := &a.Marginals[i]
		if len(t.Rows) == rows || m.Gone < worth {
			break
		}
		t.Row(human.Clean(m.Name), m.Kind, times(m.Twice), times(m.Gone), human.Span(m.Time))
	}
	return t
}
