package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analyze"
	"github.com/inferscope/inferscope/internal/human"
	"github.com/inferscope/inferscope/internal/page"
)

// slowAsync is the share of time from which on async copies are worth a line: below it they do as they should.
const slowAsync = 0.01

// inShort is what a person wants to know first.
func inShort(m *Model) page.Facts {
	s := &m.Summary
	f := gpuShort(m)
	f.Add("Operations", operationText(s))
	f.Add("Launches", launchText(&s.Launches)+windowedText(s.Windows))
	f.Add("Sync calls", waitText(&s.Waiting.Sync))
	if s.Waiting.Copies.Time > 0 {
		f.Add("Sync copies", blockedText(&s.Waiting.Copies, "copies that are not async"))
	}
	if s.Waiting.AsyncCopies.Share >= slowAsync {
		f.Add("Async copies", blockedText(&s.Waiting.AsyncCopies, "copies that are async")+
			". Such a call should return at once; from or to pageable host memory it waits")
	}
	if len(s.Copies) > 0 {
		f.Add("Copied", copiedText(s.Copies))
	}
	if text := memoryText(&s.Memory); text != "" {
		f.Add("Memory", text)
	}
	f.Add("Time in calls", fmt.Sprintf("%s in timed calls, %s of one thread's time", human.Span(s.CallTime), human.Percent(s.CallShare)))
	f.Add("Errors", errorText(s.Errors))
	return f
}

// operationText counts operations, and says which of them were recorded in windows only.
func operationText(s *analyze.Summary) string {
	if !inWindows(s.Windows) {
		return fmt.Sprintf("%s (%s)", human.Count(s.Operations), human.Rate(s.PerSecond))
	}
	w := s.Windows
	return fmt.Sprintf("%s: %s all the time, and %s in %s of windows",
		human.Count(s.Operations), human.Count(s.Operations-w.Launches), human.Plural(w.Launches, "launch", "launches"), human.Span(w.Time))
}

// always is the share of time from which on launches count as recorded all the time.
const always = 0.999

// inWindows says whether launches were recorded for a part of the time only.
func inWindows(w *analyze.Windows) bool { return w != nil && w.Share < always }

// windowedText says what launches rest on.
func windowedText(w *analyze.Windows) string {
	switch {
	case !inWindows(w):
		return ""
	case w.Time == 0:
		return "; kernel launches were not recorded"
	}
	return fmt.Sprintf("; kernel launches were recorded in %s (%s, %s of the time)",
		human.Plural(w.Count, "window", "windows"), human.Span(w.Time), human.Percent(w.Share))
}

func launchText(l *analyze.Launches) string {
	if l.Kernels+l.Graphs == 0 {
		return "none"
	}
	var parts []string
	if l.Kernels > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s", human.Plural(l.Kernels, "launch", "launches"), human.Plural(l.Handles, "kernel", "different kernels")))
	}
	if l.Graphs > 0 {
		parts = append(parts, human.Plural(l.Graphs, "graph launch", "graph launches"))
	}
	return fmt.Sprintf("%s (%s)", strings.Join(parts, ", "), human.Rate(l.PerSecond))
}

// waitText says the same of synchronisation, also where there was none.
func waitText(b *analyze.Blocked) string {
	if b.Calls == 0 && b.Time == 0 {
		return "no synchronisation calls"
	}
	return blockedText(b, "synchronisation calls")
}

// blockedText says for how long a thread was in calls of one kind.
func blockedText(b *analyze.Blocked, in string) string {
	return fmt.Sprintf("%s: a thread was in %s for %s (%s; longest %s)",
		human.Percent(b.Share), in, human.Span(b.Any), human.Plural(b.Calls, "call", "calls"), human.Span(b.Longest))
}

// copiedText gives the bytes of each direction.
func copiedText(copies []analyze.Copy) string {
	bytes, calls := map[string]uint64{}, uint64(0)
	var order []string
	for _, c := range copies {
		d := directionName(c.Direction)
		if _, ok := bytes[d]; !ok {
			order = append(order, d)
		}
		bytes[d] += c.Bytes
		calls += c.Count
	}
	var parts []string
	for _, d := range order {
		parts = append(parts, d+" "+human.Size(bytes[d]))
	}
	return fmt.Sprintf("%s (%s)", strings.Join(parts, ", "), human.Plural(calls, "copy", "copies"))
}

func memoryText(m *analyze.Memory) string {
	var parts []string
	total := uint64(0)
	for _, k := range m.Kinds {
		total += k.Count
		parts = append(parts, fmt.Sprintf("%s of %s memory", human.Size(k.Bytes), k.Kind))
	}
	if total == 0 && m.Frees == 0 {
		return ""
	}
	text := "nothing allocated"
	if total > 0 {
		text = fmt.Sprintf("%s in %s", strings.Join(parts, " and "), human.Plural(total, "allocation", "allocations"))
	}
	return fmt.Sprintf("%s; %s", text, human.Plural(m.Frees, "free", "frees"))
}

func errorText(list []analyze.ErrorCode) string {
	total := uint64(0)
	for _, e := range list {
		total += e.Count
	}
	if total == 0 {
		return "none among the timed calls"
	}
	return human.Plural(total, "timed call", "timed calls") + " returned an error"
}
