package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analyze"
	"github.com/inferscope/inferscope/internal/cuda"
)

func addTables(d *document, m *Model, rows int) {
	s := &m.Summary
	d.addTable("Functions", functionTable(s, rows))
	d.addTable("Errors returned by CUDA", errorTable(s.Errors, rows))
	d.addTable("Copies", copyTable(s.Copies))
	d.addTable("Memory", memoryTable(&s.Memory))
	d.addTable("Threads", threadTable(m, rows))
	d.addTable("Streams", streamTable(m, rows))
	d.addTable("Launch sizes", shapeTable(&s.Launches))
}

func functionTable(s *analyze.Summary, rows int) *table {
	t := &table{columns: []column{
		{"Function", true, 0}, {"Calls", false, 0}, {"Total", false, 0}, {"p50", false, 0}, {"p99", false, 5},
		{"Max", false, 2}, {"Bytes", false, 3}, {"Errors", false, 1}, {"Of wall", false, 0},
	}}
	errors := false
	for _, f := range s.Functions {
		errors = errors || f.Errors > 0
	}
	for _, f := range s.Functions[:min(len(s.Functions), rows)] {
		t.row(functionRow(&f)...)
	}
	t.note = joinNotes(moreFunctions(s.Functions, rows), insideNote(s, 4))
	if !errors {
		t.drop("Errors")
	}
	return t
}

func functionRow(f *analyze.Function) []string {
	cells := []string{clean(f.Name), count(f.Count), nothing, nothing, nothing, nothing, nothing, nothing, nothing}
	if f.Timed {
		cells[2], cells[7], cells[8] = span(f.Time), count(f.Errors), percent(f.Share)
	}
	if f.Timed && f.Count > f.Untimed {
		cells[3], cells[4], cells[5] = span(f.P50), span(f.P99), span(f.Max)
	}
	if f.Bytes > 0 {
		cells[6] = size(f.Bytes)
	}
	return cells
}

func moreFunctions(list []analyze.Function, rows int) string {
	if len(list) <= rows {
		return ""
	}
	calls, time := uint64(0), uint64(0)
	for _, f := range list[rows:] {
		calls += f.Count
		time += f.Time
	}
	return fmt.Sprintf("%s more, with %s and %s in them, are left out here; --format json has all.",
		plural(len(list)-rows, "function", "functions"), plural(calls, "call", "calls"), span(time))
}

// insideNote says which calls are part of others, so that nobody misses them in the table.
func insideNote(s *analyze.Summary, named int) string {
	if len(s.Inside) == 0 {
		return ""
	}
	var parts []string
	for _, in := range s.Inside[:min(len(s.Inside), named)] {
		parts = append(parts, fmt.Sprintf("%s %s in %s", count(in.Count), clean(in.Name), clean(in.In)))
	}
	if len(s.Inside) > named {
		parts = append(parts, plural(len(s.Inside)-named, "other function", "other functions"))
	}
	return "Not counted again, because they are part of a call above: " + strings.Join(parts, ", ") + "."
}

func joinNotes(notes ...string) string {
	var kept []string
	for _, n := range notes {
		if n != "" {
			kept = append(kept, n)
		}
	}
	return strings.Join(kept, " ")
}

func errorTable(list []analyze.ErrorCode, rows int) *table {
	t := &table{columns: []column{{"Function", true, 0}, {"Error", true, 0}, {"Code", false, 1}, {"Calls", false, 0}}}
	for _, e := range list[:min(len(list), rows)] {
		t.row(clean(e.Function), e.Name, fmt.Sprint(e.Code), count(e.Count))
	}
	t.note = more(len(list), rows, "kind of error", "kinds of error")
	return t
}

func more(n, rows int, one, many string) string {
	if n <= rows {
		return ""
	}
	return plural(n-rows, one, many) + " more; --format json has all."
}

func copyTable(list []analyze.Copy) *table {
	t := &table{columns: []column{
		{"Direction", true, 0}, {"Call", true, 0}, {"Copies", false, 0}, {"Bytes", false, 0},
		{"Average", false, 1}, {"Time in calls", false, 0}, {"Longest", false, 2}, {"Bandwidth", false, 0},
	}}
	for _, c := range list {
		call, bandwidth, average := "sync", nothing, nothing
		if c.Async {
			call = "async"
		}
		if c.Bandwidth > 0 {
			bandwidth = size(uint64(c.Bandwidth)) + "/s"
		}
		if sized := c.Count - c.Failed - c.Unsized; sized > 0 {
			average = size(c.Bytes / sized)
		}
		t.row(directionName(c.Direction), call, count(c.Count), size(c.Bytes), average, span(c.Time), span(c.Longest), bandwidth)
		if c.Unsized > 0 {
			t.note = "The size of some copies (batches, or arguments that could not be read) is not known: bytes are a lower bound."
		}
	}
	return t
}

func directionName(d cuda.Direction) string {
	switch d {
	case cuda.Unknown, cuda.NoDirection:
		return "by pointer"
	}
	return clean(string(d))
}

func memoryTable(m *analyze.Memory) *table {
	t := &table{columns: []column{
		{"Memory", true, 0}, {"Allocations", false, 0}, {"Failed", false, 1}, {"Bytes", false, 0}, {"Kept", false, 0}, {"Time", false, 0},
	}}
	for _, k := range m.Kinds {
		t.row(k.Kind, count(k.Count), count(k.Failed), size(k.Bytes), size(k.Kept), span(k.Time))
	}
	if len(t.rows) == 0 {
		return t
	}
	t.note = fmt.Sprintf("%s took %s and gave back %s of this; net %s in the window.", plural(m.Frees, "free", "frees"), span(m.FreeTime), size(m.Freed), signedSize(m.Net))
	if m.Unmatched > 0 {
		t.note += fmt.Sprintf(" %s of memory whose allocation was not seen, so that the net is an upper bound.", plural(m.Unmatched, "free was", "frees were"))
	}
	return t
}

func shapeTable(l *analyze.Launches) *table {
	t := &table{columns: []column{
		{"Grid", true, 0}, {"Block", true, 0}, {"Dynamic shared", false, 1}, {"Kernels", false, 0}, {"Launches", false, 0}, {"Of launches", false, 0},
	}}
	for _, s := range l.Shapes {
		t.row(dimensions(s.Grid), dimensions(s.Block), size(uint64(s.Shared)), count(s.Handles), count(s.Count), percent(s.Share))
	}
	if l.AllShapes > len(l.Shapes) {
		t.note = fmt.Sprintf("The %d most frequent of %s sizes.", len(l.Shapes), count(l.AllShapes))
	}
	return t
}

// dimensions writes a grid or block; 0 x 0 x 0 is one that could not be read.
func dimensions(d [3]uint32) string {
	if d == [3]uint32{} {
		return "not known"
	}
	return fmt.Sprintf("%d x %d x %d", d[0], d[1], d[2])
}
