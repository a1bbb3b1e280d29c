package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// How much of the CPU's side a text shows; JSON has all.
const (
	cpuRows    = 8
	waitRows   = 6
	idleBelow  = 0.005 // a thread that ran for less of the window did nothing but wait
	worthALine = 0.01  // of the window
)

// addCPU puts what threads did and waited for in front of the tables of calls.
func addCPU(d *document.Document, m *Model, rows int, ascii bool) {
	rows = min(rows, max(cpuRows, rows/4))
	if t := stateTable(m, rows, ascii); len(t.Rows) > 0 {
		d.AddTable("Threads", t)
	}
	if list := whyWaited(m); len(list) > 0 {
		d.Add(document.Heading("Why threads waited"), list)
	}
	addHottest(d, m, rows)
	if list := knownStates(&m.CPU); len(list) > 0 {
		d.Add(document.Heading("What the stacks show"), list)
	}
	if f := pressureFacts(&m.CPU); len(f) > 0 {
		d.Add(document.Heading("Host pressure"), f)
	}
}

func stateTable(m *Model, rows int, ascii bool) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Thread", 0),
		document.Right("tid", 1),
		document.Right("pid", 2),
		document.Left("State", 0),
		document.Right("Running", 5),
		document.Right("Ready", 3),
		document.Right("Blocked", 4),
		document.Left("Mostly", 0),
	}}
	if !m.CPU.Scheduled {
		return t
	}
	draw := newPen(ascii)
	polling, runnable, absent := false, false, false
	shown, idle, more := chosenThreads(m, rows)
	for _, th := range shown {
		bar := draw.draw(th.Running-th.Polling, th.Polling, th.Runnable, th.Blocked, th.Absent)
		polling = polling || strings.Contains(bar, draw.polling)
		runnable = runnable || strings.Contains(bar, draw.runnable)
		absent = absent || strings.Contains(bar, draw.absent)
		t.Row(threadName(th.Name, th.TID), id(th.TID), id(th.PID), bar, ofWindow(m, th.Running),
			ofWindow(m, th.Runnable), ofWindow(m, th.Blocked), mostly(&th))
	}
	if !severalProcesses(m) {
		t.Drop("pid")
	}
	t.Note = joinNotes(draw.legend(polling, runnable, absent), idleNote(idle, more), summedNote(&m.CPU))
	return t
}

// chosenThreads picks those that ran, and the first thread of each process, which
// people look for; the others did nothing but wait.
func chosenThreads(m *Model, rows int) (shown, idle []cpu.Thread, more int) {
	for _, th := range m.CPU.Threads {
		switch {
		case !works(m, &th) && th.TID != th.PID:
			idle = append(idle, th)
		case len(shown) < rows:
			shown = append(shown, th)
		default:
			more++
		}
	}
	return shown, idle, more
}

// works reports whether a thread did more than wait.
func works(m *Model, th *cpu.Thread) bool {
	return float64(th.Running+th.Runnable) >= idleBelow*float64(m.CPU.Length)
}

func idleNote(idle []cpu.Thread, more int) string {
	var notes []string
	if more > 0 {
		notes = append(notes, format.Plural(more, "thread", "threads")+" more ran; --format json has all.")
	}
	if len(idle) == 0 {
		return joinNotes(notes...)
	}
	count := map[string]int{}
	var order []string
	for _, th := range idle {
		if count[th.Reason] == 0 {
			order = append(order, th.Reason)
		}
		count[th.Reason]++
	}
	var parts []string
	for _, r := range order {
		if r != "" {
			parts = append(parts, fmt.Sprintf("%s %d", r, count[r]))
		}
	}
	s := format.Plural(len(idle), "other thread", "other threads") + " did nothing but wait"
	if len(parts) > 0 {
		s += " (" + strings.Join(parts, ", ") + ")"
	}
	return joinNotes(append(notes, s+".")...)
}

func summedNote(c *cpu.Summary) string {
	if c.Summed == 0 {
		return ""
	}
	return fmt.Sprintf("Of the waits, %s are only known in sum, because they were too many to list.",
		format.Span(c.Summed))
}

func threadName(name string, tid uint32) string {
	if name == "" {
		return fmt.Sprintf("thread %d", tid)
	}
	return format.Clean(name)
}

func ofWindow(m *Model, ns uint64) string {
	if m.CPU.Length == 0 {
		return format.Nothing
	}
	return format.Percent(float64(ns) / float64(m.CPU.Length))
}

// maxPlace bounds a place in a table, in characters.
const maxPlace = 60

// mostly reports what a thread did for most of the time.
func mostly(th *cpu.Thread) string {
	switch {
	case th.Blocked >= th.Running+th.Runnable && th.GIL > th.Blocked/2:
		return "blocked: the GIL"
	case th.Blocked >= th.Running+th.Runnable && th.Reason != "":
		return "blocked: " + th.Reason
	case th.Runnable > th.Running:
		return "ready, but without a CPU"
	case th.Hottest != "":
		return format.Shorten(format.Clean(th.Hottest), maxPlace)
	}
	return format.Nothing
}

// whyWaited says of the waits that matter what they were for, and who ended them.
func whyWaited(m *Model) document.Bullets {
	var out document.Bullets
	left := uint64(0)
	for _, row := range alike(relevantWaits(m)) {
		if len(out) == waitRows {
			left += row.time
			continue
		}
		s := waitSentence(row.first)
		if n := len(row.others); n > 0 {
			s += fmt.Sprintf(" %s of that name waited likewise, %s in all.",
				format.Plural(n, "other thread", "other threads"), format.Span(row.time-row.first.Time))
		}
		out = append(out, s)
	}
	if left > 0 {
		out = append(out, fmt.Sprintf("Other waits of these threads: %s; --format json has all.", format.Span(left)))
	}
	return out
}

// likewise are waits of several threads of a pool: one name, one reason, one place.
type likewise struct {
	first  *cpu.Wait
	others map[uint32]bool // threads
	time   uint64          // ns, of all
}

// alike puts waits together that differ by their thread only, in the order of the first ones.
func alike(waits []*cpu.Wait) []*likewise {
	type what struct{ thread, reason, activity, object, place string }
	var out []*likewise
	found := map[what]*likewise{}
	for _, w := range waits {
		k := what{w.Thread, w.Reason, w.Activity, object(w), w.Place}
		row := found[k]
		if row == nil {
			row = &likewise{first: w, others: map[uint32]bool{}}
			found[k] = row
			out = append(out, row)
		} else if w.TID != row.first.TID {
			row.others[w.TID] = true
		}
		row.time += w.Time
	}
	return out
}

// relevantWaits are those of threads that do something, the ones that call CUDA first.
func relevantWaits(m *Model) []*cpu.Wait {
	works, calls := workers(m), map[uint32]bool{}
	for _, th := range m.Summary.Threads {
		calls[th.TID] = th.Count > 0 || th.Time > 0
	}
	var first, then []*cpu.Wait
	for i := range m.CPU.Waits {
		w := &m.CPU.Waits[i]
		switch {
		case w.Share < worthALine:
		case calls[w.TID] || w.TID == m.Target.PID:
			first = append(first, w)
		case works[w.TID]:
			then = append(then, w)
		}
	}
	return append(first, then...)
}

func workers(m *Model) map[uint32]bool {
	out := map[uint32]bool{}
	for i := range m.CPU.Threads {
		out[m.CPU.Threads[i].TID] = works(m, &m.CPU.Threads[i])
	}
	return out
}

func waitSentence(w *cpu.Wait) string {
	s := fmt.Sprintf("%s waited %s (%s; %s, longest %s) for %s",
		who(w.Thread, w.TID), format.Span(w.Time), format.Percent(w.Share),
		format.Plural(w.Count, "time", "times"), format.Span(w.Longest), object(w))
	if w.Place != "" {
		at := ", at "
		if w.Activity == gil {
			at = ", mostly at "
		}
		s += at + format.Clean(w.Place)
	}
	return s + "." + endedBy(w)
}

// object reports what a wait was for.
func object(w *cpu.Wait) string {
	if w.Activity == gil {
		return "the GIL"
	}
	text := format.Clean(w.Text)
	switch {
	case strings.HasPrefix(text, "a lock or condition"):
		return "a lock or condition"
	case text == "" || text == w.Reason:
		return w.Reason
	case w.Reason == "sleep":
		return "time to pass (" + text + ")"
	}
	return fmt.Sprintf("%s (%s)", text, w.Reason)
}

const gil = "waiting for the GIL"

// endedBy reports who ended most of the waits, and what that one did meanwhile.
func endedBy(w *cpu.Wait) string {
	if len(w.By) == 0 {
		return ""
	}
	by, part := &w.By[0], ""
	switch {
	case w.Activity == gil: // CPython looks every 5 ms whether it may ask for it: those ends are no news
		i := slices.IndexFunc(w.By, func(by cpu.Waker) bool { return by.TID != 0 })
		if i < 0 {
			return ""
		}
		by = &w.By[i]
	case w.Enders > 1 && 2*by.Time < w.Time:
		part = fmt.Sprintf(" by %s, the longest ones", format.Plural(w.Enders, "thread or timer", "threads and timers"))
	case w.Enders > 1 || by.Count < w.Count:
		part = " mostly"
	}
	switch {
	case by.Nobody:
		return " Nobody had ended it by the end of the window."
	case by.Interrupt:
		return fmt.Sprintf(" Ended%s by an interrupt or timer.", part)
	}
	return endedByThread(w, by, part)
}

// endedByThread reports which thread ended waits, and what it did meanwhile.
func endedByThread(w *cpu.Wait, by *cpu.Waker, part string) string {
	verb := "Ended"
	if w.Activity == gil {
		verb = "Released"
	}
	name := who(by.Name, by.TID)
	if by.OtherThread {
		name += fmt.Sprintf(" of another process (%d)", by.PID)
	}
	s := fmt.Sprintf(" %s%s by %s", verb, part, name)
	switch {
	case by.OtherThread:
		return s + "."
	case by.AtDoing > 0:
		return s + fmt.Sprintf(", which ran %s of that time: %s of its samples in %s.", format.Percent(by.Running),
			format.Percent(float64(by.AtDoing)/float64(by.Samples)), format.Clean(by.Doing))
	case by.Doing != "":
		return s + ", which was " + format.Clean(by.Doing) + "."
	}
	return s + fmt.Sprintf(", which ran %s of that time.", format.Percent(by.Running))
}

func who(name string, tid uint32) string {
	if name == "" {
		return fmt.Sprintf("thread %d", tid)
	}
	return fmt.Sprintf("%s (%d)", format.Clean(name), tid)
}
