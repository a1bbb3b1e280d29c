package report

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/report/document"
)

// newDocument puts the model into words: the answer first, then what it was made of. rows bounds the rows
// of each table; ascii draws bars with characters that every terminal has.
func newDocument(m *Model, rows int, much detail, ascii bool) *document.Document {
	d := &document.Document{Title: "InferScope report"}
	addAnswer(d, m, ascii)
	addDoubts(d, m)
	addFindings(d, m, much)
	addBreakdown(d, m)
	addRequests(d, m, rows)
	d.Add(document.Heading("What was watched"), head(m))
	if m.GPU != nil && m.GPU.Recorded {
		d.Add(document.Paragraph(gpuScope(m)))
	}
	if m.State == stateCalls {
		d.Add(document.Heading("In short"), inShort(m))
	} else if f := gpuShort(m); len(f) > 0 {
		d.Add(document.Heading("In short"), f)
	}
	addGPU(d, m, rows)
	addCPU(d, m, rows, ascii)
	if m.State == stateCalls {
		addTables(d, m, rows)
	}
	addMemory(d, m, rows)
	addSensors(d, m)
	addCollectives(d, m)
	addOverhead(d, m)
	d.AddTable("Processes", processTable(m))
	d.AddTable("Probes", Probes(m.Summary.Libraries))
	if m.State == stateCalls {
		d.Add(document.Heading("How to read this"), reading(m))
	}
	return d
}

// shortDocument is the answer, and where the rest is.
func shortDocument(m *Model, ascii bool) *document.Document {
	d := &document.Document{Title: "InferScope report"}
	addAnswer(d, m, ascii)
	d.Add(
		document.Paragraph(
			"--full has the rest: evidence and stacks, losses, threads, calls, kernels. --open shows it in a browser.",
		),
	)
	return d
}

// head is the target, the window and what was seen in it.
func head(m *Model) document.Facts {
	var f document.Facts
	f.Add("Target", m.Target.name())
	if m.Target.Cmdline != "" {
		f.Add("Command", format.Clean(m.Target.Cmdline))
	}
	f.Add("State", targetState(&m.Target, m.Summary.Window.From))
	f.Add("Window", windowText(&m.Summary.Window))
	f.Add("Seen", seen(m))
	if m.Overhead != nil {
		f.Add("Watching cost", OverheadFact(m.Overhead))
	}
	return f
}

func (t *targetModel) name() string {
	if t.Comm == "" {
		return fmt.Sprintf("pid %d", t.PID)
	}
	own := ""
	if t.NSPID != 0 && t.NSPID != t.PID {
		own = fmt.Sprintf(", %d in its own namespace", t.NSPID)
	}
	return fmt.Sprintf("%s (pid %d%s)", format.Clean(t.Comm), t.PID, own)
}

func windowText(w *summary.Window) string {
	s := format.Span(w.Length)
	if w.WallFrom != 0 {
		s += " from " + format.Moment(w.WallFrom)
	}
	switch gap := w.Length - w.Observed; {
	case w.Observed == 0:
		s += "; no call could be seen in it"
	case gap > w.Length/1000:
		s += fmt.Sprintf("; calls could be seen in %s of it", format.Span(w.Observed))
	}
	return s
}

// targetState reports whether the target runs, and how it ended.
func targetState(t *targetModel, from uint64) string {
	s, until := "running at the end of the window", "this is what was recorded until then"
	if t.goneBefore(from) {
		until = "that was before this window"
	}
	switch {
	case t.Comm == "" && t.Cmdline == "" && !t.Exited:
		s = "not known"
	case t.Exited:
		s = fmt.Sprintf("exited %s ago %s; %s", format.Span(t.Ending.Ago), t.Ending.words(), until)
	}
	switch {
	case t.Children == 0:
	case t.Living == 0:
		s += fmt.Sprintf("; %s exited", format.Plural(t.Children, "child process", "child processes"))
	default:
		s += fmt.Sprintf("; %d of %s running", t.Living, format.Plural(t.Children, "child process", "child processes"))
	}
	return s
}

// words reports how it ended, as in "exited with code 1".
func (e *exitModel) words() string {
	if e.OutOfMemory {
		return format.Ending(e.Status) + ", while the kernel killed for want of memory"
	}
	return format.Ending(e.Status)
}

// goneBefore reports whether the target had exited at that time.
func (t *targetModel) goneBefore(at uint64) bool { return t.Exited && t.Ending.At <= at }

func seen(m *Model) string {
	s := &m.Summary
	probed := 0
	for _, l := range s.Libraries {
		if l.Points > 0 {
			probed++
		}
	}
	active := 0
	for _, p := range s.Processes {
		if p.Count > 0 {
			active++
		}
	}
	text := format.Plural(s.Operations, "CUDA operation", "CUDA operations")
	if s.Operations > 0 {
		text += fmt.Sprintf(" by %s of %s",
			format.Plural(len(s.Threads), "thread", "threads"), format.Plural(active, "process", "processes"))
	}
	if imported(m) != "" { // by a tool that probes nothing
		return text
	}
	return text + "; " + format.Plural(probed, "CUDA library", "CUDA libraries") + " probed"
}

// addDoubts puts losses and doubts in front of everything that they touch.
func addDoubts(d *document.Document, m *Model) {
	if len(m.Doubts) == 0 {
		return // the answer says so
	}
	d.Add(document.Heading("Losses and doubts"))
	for i := range m.Doubts {
		d.Add(m.Doubts[i].Notice())
	}
	switch worst := gravity(m.Doubts[0].Severity); {
	case m.State != stateCalls:
	case worst == gravity(loss.Error):
		d.Add(document.Paragraph(
			"Because of the errors above, counts and times below can be too low by an unknown amount.",
		))
	case worst == gravity(loss.Warning):
		d.Add(document.Paragraph("Because of the warnings above, counts and times below are lower bounds."))
	}
}

// maxNamed bounds how many places or details of a doubt are printed; JSON has all.
const maxNamed = 3

// Notice reports what happened, how often, where, and what to do.
func (d *Doubt) Notice() document.Notice {
	s := upper(format.Clean(d.Means)) + " (" + format.Count(d.Count)
	if len(d.Where) > 0 {
		s += "; " + some(d.Where)
	}
	s += ")."
	if len(d.Details) > 0 {
		s += " " + upper(some(d.Details)) + "."
	}
	if d.Do != "" {
		s += " What to do: " + format.Clean(d.Do) + "."
	}
	return document.Notice{Mark: format.Clean(string(d.Severity)), Text: s}
}

func some(list []string) string {
	var out []string
	for _, s := range list[:min(len(list), maxNamed)] {
		out = append(out, format.Clean(s))
	}
	text := strings.Join(out, ", ")
	if more := len(list) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// upper begins a sentence.
func upper(s string) string {
	if s == "" {
		return s
	}
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[n:]
}

// imported names the tool whose file a report is about; "" where it is none.
func imported(m *Model) string {
	tool, _ := importedFrom(m.Version)
	return format.Clean(tool)
}

// empty reports why there is nothing to report, "" where there is.
func empty(m *Model) string {
	switch {
	case m.State == stateCalls:
		return ""
	case m.Target.goneBefore(m.Summary.Window.From):
		return "The target had exited before this window began. Ask for a longer one (--last) to see what it did."
	case m.State == stateNoLibrary &&
		slices.ContainsFunc(m.Sources, func(s recording.Source) bool {
			return s.Name == "cuda" && s.State == "unavailable"
		}):
		return "CUDA calls were not recorded: see Losses and doubts."
	case m.State == stateNoLibrary && m.Target.Exited:
		return "The target never mapped a CUDA library (libcuda or libcudart) while it was watched."
	case imported(m) != "" && m.State == stateNoLibrary:
		return "The file of " + imported(m) + " has no CUDA call and nothing of what a GPU did."
	case m.State == stateNoLibrary:
		return "The target has not mapped a CUDA library (libcuda or libcudart) yet. The daemon keeps watching, and " +
			"probes one as soon as it is loaded."
	case m.State == stateUnprobed:
		return "The target has mapped CUDA libraries, but none could be probed, so that nothing was seen: see Probes " +
			"below."
	}
	return "No CUDA call was made and finished in this window, although the libraries are probed. " +
		"A call that is still running is seen only once it returns: a thread can be waiting in one right now."
}

// untimedText reports which calls are only counted.
func untimedText(m *Model) string {
	if m.GPU != nil && m.GPU.Launches.Timed > 0 {
		return "Queries are counted, not timed, and neither they nor launches return a result here. Launches are " +
			"timed by the agent, while it records."
	}
	return "Launches and queries are counted, not timed, and return no result here: timing them would cost the " +
		"target more than it is worth."
}

// reading explains what a reader could get wrong.
func reading(m *Model) document.Bullets {
	b := document.Bullets{
		"An operation is a call that the program made. A driver call that a runtime call made is part of that " +
			"operation and is not counted again. A runtime launch is seen as the driver launch that it makes.",
	}
	probed := imported(m) == "" // other tools see each call, and probe none
	if probed {
		b = append(
			b,
			"Queries that programs make very often and that say little are not probed; the daemon's --all-calls adds "+
				"them.",
		)
	}
	b = append(
		b,
		fmt.Sprintf(
			"Shares (of wall) are time inside the calls, summed over threads, divided by the %s in which calls could "+
				"be seen: several threads together can exceed 100%%.",
			format.Span(m.Summary.Window.Observed),
		),

		"Shares of sync calls and copies under In short are different: of that time, the part in which at least one "+
			"thread was in such a call.",
	)
	if probed {
		b = append(b, untimedText(m))
	}
	b = append(
		b,
		"p50, p99 and max are of the calls that began in the window, with their whole duration. Calls that had not "+
			"returned at its end are not seen.",
	)
	b = append(b, gpuReading(m)...)
	if len(m.Summary.Copies) > 0 {
		b = append(
			b,
			"The time of an async copy's call is not the time of its transfer, so bandwidth is given only for copies "+
				"from or to host memory that return when they are done. Sizes are in powers of 1,000.",
		)
	}
	return b
}
