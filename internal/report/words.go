package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/loss"
)

// newDocument puts the model into words. rows bounds the rows of each table.
func newDocument(m *Model, rows int) *document {
	d := &document{title: "InferScope report"}
	d.add(head(m))
	addDoubts(d, m)
	if why := empty(m); why != "" {
		d.add(paragraph(why))
	} else {
		d.add(paragraph(scopeOfReport))
		d.add(heading("In short"), inShort(m))
		addTables(d, m, rows)
	}
	d.addTable("Processes", processTable(m))
	d.addTable("Probes", probeTable(m))
	if m.State == Calls {
		d.add(heading("How to read this"), reading(m))
	}
	return d
}

const scopeOfReport = "This is the CPU's side of the CUDA calls: how often they were made and how long they took. It says nothing about how busy the GPU was."

// head is the target, the window and what was seen in it.
func head(m *Model) facts {
	t, w := &m.Target, &m.Summary.Window
	who := fmt.Sprintf("pid %d", t.PID)
	if t.Comm != "" {
		who = fmt.Sprintf("%s (pid %d", clean(t.Comm), t.PID)
		if t.NSPID != 0 && t.NSPID != t.PID {
			who += fmt.Sprintf(", %d in its own namespace", t.NSPID)
		}
		who += ")"
	}
	f := facts{{"Target", who}}
	if t.Cmdline != "" {
		f = append(f, fact{"Command", clean(t.Cmdline)})
	}
	f = append(f, fact{"State", targetState(t)})
	window := span(w.Length)
	if w.WallFrom != 0 {
		window += " from " + moment(w.WallFrom)
	}
	if gap := w.Length - w.Observed; gap > w.Length/1000 {
		window += fmt.Sprintf("; calls could be seen in %s of it", span(w.Observed))
	}
	return append(f, fact{"Window", window}, fact{"Seen", seen(m)})
}

// targetState says whether the target runs, and how it ended.
func targetState(t *Target) string {
	s := "running at the end of the window"
	switch {
	case t.Comm == "" && t.Cmdline == "" && !t.Exited:
		s = "not known"
	case t.Exited:
		s = fmt.Sprintf("exited %s ago %s; this is what was recorded until then", span(t.Ending.Ago), t.Ending.how())
	}
	switch {
	case t.Children == 0:
	case t.Living == 0:
		s += fmt.Sprintf("; %s exited", plural(t.Children, "child process", "child processes"))
	default:
		s += fmt.Sprintf("; %d of %s running", t.Living, plural(t.Children, "child process", "child processes"))
	}
	return s
}

// how says in which way a process ended.
func (e *Ending) how() string {
	if e.Signal == 0 {
		return fmt.Sprintf("with code %d", e.Code)
	}
	s := "by " + signalName(e.Signal)
	if e.Core {
		s += ", with a core dump"
	}
	return s
}

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
	text := plural(s.Operations, "CUDA operation", "CUDA operations")
	if s.Operations > 0 {
		text += fmt.Sprintf(" by %s of %s", plural(len(s.Threads), "thread", "threads"), plural(active, "process", "processes"))
	}
	return text + "; " + plural(probed, "CUDA library", "CUDA libraries") + " probed"
}

// addDoubts puts losses and doubts in front of everything that they touch.
func addDoubts(d *document, m *Model) {
	if len(m.Doubts) == 0 {
		d.add(paragraph("Nothing was lost that InferScope knows of."))
		return
	}
	d.add(heading("Losses and doubts"))
	for i := range m.Doubts {
		d.add(notice{mark: string(m.Doubts[i].Severity), text: m.Doubts[i].sentence()})
	}
	switch gravity(m.Doubts[0].Severity) {
	case gravity(loss.Error):
		d.add(paragraph("Because of the errors above, counts and times below can be too low by an unknown amount."))
	case gravity(loss.Warning):
		d.add(paragraph("Because of the warnings above, counts and times below are lower bounds."))
	}
}

// maxNamed bounds how many places or details of a doubt are printed; JSON has all.
const maxNamed = 3

// sentence says what happened, how often, where, and what to do.
func (d *Doubt) sentence() string {
	s := upper(clean(d.Means)) + " (" + count(d.Count)
	if len(d.Where) > 0 {
		s += ": " + some(d.Where)
	}
	s += ")."
	if len(d.Details) > 0 {
		s += " " + upper(some(d.Details)) + "."
	}
	if d.Do != "" {
		s += " What to do: " + clean(d.Do) + "."
	}
	return s
}

func some(list []string) string {
	var out []string
	for _, s := range list[:min(len(list), maxNamed)] {
		out = append(out, clean(s))
	}
	if more := len(list) - maxNamed; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

// upper begins a sentence.
func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// empty says why there is nothing to report, "" where there is.
func empty(m *Model) string {
	w := &m.Summary.Window
	gone := m.Target.Exited && m.Target.Ending.At <= w.From
	switch {
	case m.State == Calls:
		return ""
	case gone:
		return "The target had exited before this window began. Ask for a longer one (--last) to see what it did."
	case m.State == NoLibrary && m.Target.Exited:
		return "The target never mapped a CUDA library (libcuda or libcudart) while it was watched."
	case m.State == NoLibrary:
		return "The target has not mapped a CUDA library (libcuda or libcudart) yet. The daemon keeps watching, and probes one as soon as it is loaded."
	case m.State == Unprobed:
		return "The target has mapped CUDA libraries, but none could be probed, so that nothing was seen: see Probes below."
	}
	return "No CUDA call was made and finished in this window, although the libraries are probed. " +
		"A call that is still running is seen only once it returns: a thread can be waiting in one right now."
}

// reading explains what a reader could get wrong.
func reading(m *Model) bullets {
	b := bullets{
		"An operation is a call that the program made. A driver call that a runtime call made is part of that operation and is not counted again.",
		fmt.Sprintf("Shares (of wall) are time inside the calls, summed over threads, divided by the %s in which calls could be seen: several threads together can exceed 100%%.", span(m.Summary.Window.Observed)),
		"Waiting is different: it is the share of that time in which at least one thread was in such a call.",
		"Launches and queries are counted, not timed, and return no result here: timing them would cost the target more than it tells.",
		"p50, p99 and max are of the calls that began in the window, with their whole duration. Calls that had not returned at its end are not seen.",
	}
	if len(m.Summary.Copies) > 0 {
		b = append(b, "The time of an async copy's call is not the time of its transfer, so bandwidth is given only for copies from or to host memory that return when they are done. Sizes are in powers of 1,000.")
	}
	return b
}
