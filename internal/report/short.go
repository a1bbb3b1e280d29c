package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analyze"
)

// inShort is what a person wants to know first.
func inShort(m *Model) facts {
	s := &m.Summary
	f := facts{
		{"Operations", fmt.Sprintf("%s (%s)", count(s.Operations), rate(s.PerSecond))},
		{"Launches", launchText(&s.Launches)},
		{"Waiting", waitText(&s.Waiting)},
	}
	if s.Waiting.CopyCalls > 0 || s.Waiting.CopyTime > 0 {
		f = append(f, fact{"Blocking copies", copyWaitText(&s.Waiting)})
	}
	if len(s.Copies) > 0 {
		f = append(f, fact{"Copied", copiedText(s.Copies)})
	}
	if text := memoryText(&s.Memory); text != "" {
		f = append(f, fact{"Memory", text})
	}
	f = append(f, fact{"Time in calls", fmt.Sprintf("%s in timed calls, %s of one thread's time", span(s.CallTime), percent(s.CallShare))})
	return append(f, fact{"Errors", errorText(s.Errors)})
}

func launchText(l *analyze.Launches) string {
	if l.Kernels+l.Graphs == 0 {
		return "none"
	}
	var parts []string
	if l.Kernels > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s", plural(l.Kernels, "launch", "launches"), plural(l.Handles, "kernel", "different kernels")))
	}
	if l.Graphs > 0 {
		parts = append(parts, plural(l.Graphs, "graph launch", "graph launches"))
	}
	return fmt.Sprintf("%s (%s)", strings.Join(parts, ", "), rate(l.PerSecond))
}

func waitText(w *analyze.Waiting) string {
	if w.Calls == 0 && w.Time == 0 {
		return "no synchronisation calls"
	}
	return fmt.Sprintf("%s: a thread was in a synchronisation call for %s (%s; longest %s)",
		percent(w.Share), span(w.Any), plural(w.Calls, "call", "calls"), span(w.Longest))
}

func copyWaitText(w *analyze.Waiting) string {
	return fmt.Sprintf("%s: a thread was in a copy that is not async for %s (%s)", percent(w.CopyShare), span(w.CopyAny), plural(w.CopyCalls, "call", "calls"))
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
		parts = append(parts, d+" "+size(bytes[d]))
	}
	return fmt.Sprintf("%s (%s)", strings.Join(parts, ", "), plural(calls, "copy", "copies"))
}

func memoryText(m *analyze.Memory) string {
	var parts []string
	total := uint64(0)
	for _, k := range m.Kinds {
		total += k.Count
		parts = append(parts, fmt.Sprintf("%s of %s memory", size(k.Bytes), k.Kind))
	}
	if total == 0 && m.Frees == 0 {
		return ""
	}
	text := "nothing allocated"
	if total > 0 {
		text = fmt.Sprintf("%s in %s", strings.Join(parts, " and "), plural(total, "allocation", "allocations"))
	}
	return fmt.Sprintf("%s; %s", text, plural(m.Frees, "free", "frees"))
}

func errorText(list []analyze.ErrorCode) string {
	total := uint64(0)
	for _, e := range list {
		total += e.Count
	}
	if total == 0 {
		return "none among the timed calls"
	}
	return plural(total, "timed call", "timed calls") + " returned an error"
}
