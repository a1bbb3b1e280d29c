package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// slowAsync is the share of time from which on async copies are worth a line: below it they do as they should.
const slowAsync = 0.01

// inShort is what a person wants to know first.
func inShort(m *Model) document.Facts {
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
	f.Add(
		"Time in calls",
		fmt.Sprintf("%s in timed calls, %s of one thread's time", format.Span(s.CallTime), format.Percent(s.CallShare)),
	)
	f.Add("Errors", errorText(s.Errors))
	return f
}

// operationText counts operations, and says which of them were recorded in windows only.
func operationText(s *summary.Summary) string {
	if !inWindows(s.Windows) {
		return fmt.Sprintf("%s (%s)", format.Count(s.Operations), format.Rate(s.PerSecond))
	}
	w := s.Windows
	return fmt.Sprintf("%s: %s all the time, and %s in %s of windows",
		format.Count(s.Operations), format.Count(s.Operations-w.Launches),
		format.Plural(w.Launches, "launch", "launches"), format.Span(w.Time))
}

// always is the share of time from which on launches count as recorded all the time.
const always = 0.999

// inWindows reports whether launches were recorded for a part of the time only.
func inWindows(w *summary.Windows) bool { return w != nil && w.Share < always }

// windowedText reports what launches rest on.
func windowedText(w *summary.Windows) string {
	switch {
	case !inWindows(w):
		return ""
	case w.Time == 0:
		return "; kernel launches were not recorded"
	}
	return fmt.Sprintf("; kernel launches were recorded in %s (%s, %s of the time)",
		format.Plural(w.Count, "window", "windows"), format.Span(w.Time), format.Percent(w.Share))
}

func launchText(l *summary.Launches) string {
	if l.Kernels+l.Graphs == 0 {
		return "none"
	}
	var parts []string
	if l.Kernels > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s",
			format.Plural(l.Kernels, "launch", "launches"),
			format.Plural(l.Handles, "kernel", "different kernels")))
	}
	if l.Graphs > 0 {
		parts = append(parts, format.Plural(l.Graphs, "graph launch", "graph launches"))
	}
	return fmt.Sprintf("%s (%s)", strings.Join(parts, ", "), format.Rate(l.PerSecond))
}

// waitText says the same of synchronisation, also where there was none.
func waitText(b *summary.Blocked) string {
	if b.Calls == 0 && b.Time == 0 {
		return "no synchronisation calls"
	}
	return blockedText(b, "synchronisation calls")
}

// blockedText reports for how long a thread was in calls of one kind.
func blockedText(b *summary.Blocked, in string) string {
	return fmt.Sprintf("%s: a thread was in %s for %s (%s; longest %s)",
		format.Percent(b.Share), in, format.Span(b.Any), format.Plural(b.Calls, "call", "calls"),
		format.Span(b.Longest))
}

// copiedText gives the bytes of each direction.
func copiedText(copies []summary.Copy) string {
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
		parts = append(parts, d+" "+format.Size(bytes[d]))
	}
	return fmt.Sprintf("%s (%s)", strings.Join(parts, ", "), format.Plural(calls, "copy", "copies"))
}

func memoryText(m *summary.Memory) string {
	var parts []string
	total := uint64(0)
	for _, k := range m.Kinds {
		total += k.Count
		parts = append(parts, fmt.Sprintf("%s of %s memory", format.Size(k.Bytes), k.Kind))
	}
	if total == 0 && m.Frees == 0 {
		return ""
	}
	text := "nothing allocated"
	if total > 0 {
		text = fmt.Sprintf("%s in %s", strings.Join(parts, " and "), format.Plural(total, "allocation", "allocations"))
	}
	return fmt.Sprintf("%s; %s", text, format.Plural(m.Frees, "free", "frees"))
}

func errorText(list []summary.ErrorCode) string {
	total := uint64(0)
	for _, e := range list {
		total += e.Count
	}
	if total == 0 {
		return "none among the timed calls"
	}
	return format.Plural(total, "timed call", "timed calls") + " returned an error"
}
