package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

func addTables(d *document.Document, m *Model, rows int) {
	s := &m.Summary
	d.AddTable("Functions", functionTable(s, rows))
	d.AddTable("Errors returned by CUDA", errorTable(s.Errors, rows))
	d.AddTable("Copies", copyTable(s.Copies))
	d.AddTable("Memory", memoryTable(&s.Memory))
	d.AddTable("CUDA calls by thread", threadTable(m, rows))
	d.AddTable("Streams", streamTable(m, rows))
	d.AddTable("Launch sizes", shapeTable(&s.Launches))
}

func functionTable(s *summary.Summary, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Function", 0),
		document.Right("Calls", 0),
		document.Right("Total", 0),
		document.Right("p50", 0),
		document.Right("p99", 5),
		document.Right("Max", 2), document.Right("Bytes", 3), document.Right("Errors", 1), document.Right("Of wall", 0),
	}}
	errors := false
	for _, f := range s.Functions {
		errors = errors || f.Errors > 0
	}
	shown, left := chosenFunctions(s.Functions, rows)
	for _, f := range shown {
		t.Row(functionRow(&f)...)
	}
	t.Note = joinNotes(leftOut(left), insideNote(s, 4))
	if !errors {
		t.Drop("Errors")
	}
	return t
}

func functionRow(f *summary.Function) []string {
	cells := []string{
		format.Clean(f.Name),
		format.Count(f.Count),
		format.Nothing,
		format.Nothing,
		format.Nothing,
		format.Nothing,
		format.Nothing,
		format.Nothing,
		format.Nothing,
	}
	if f.Timed {
		cells[2], cells[7], cells[8] = format.Span(f.Time), format.Count(f.Errors), format.Percent(f.Share)
	}
	if f.Timed && f.Count > f.Untimed {
		cells[3], cells[4], cells[5] = format.Span(f.P50), format.Span(f.P99), format.Span(f.Max)
	}
	if f.Bytes > 0 {
		cells[6] = format.Size(f.Bytes)
	}
	return cells
}

// chosenFunctions picks the rows that fit: those of the most time, but also the
// most frequent of those that have no times, launches above all.
func chosenFunctions(list []summary.Function, rows int) (shown, left []summary.Function) {
	if len(list) <= rows {
		return list, nil
	}
	timed, counted := 0, 0
	for _, f := range list {
		if f.Timed {
			timed++
		} else {
			counted++
		}
	}
	counted = min(counted, max(rows/4, rows-timed))
	timed = rows - counted
	for _, f := range list {
		room := &counted
		if f.Timed {
			room = &timed
		}
		if *room > 0 {
			*room--
			shown = append(shown, f)
		} else {
			left = append(left, f)
		}
	}
	return shown, left
}

func leftOut(list []summary.Function) string {
	if len(list) == 0 {
		return ""
	}
	calls, time := uint64(0), uint64(0)
	for _, f := range list {
		calls += f.Count
		time += f.Time
	}
	return fmt.Sprintf("%s more, with %s and %s in them, are left out here; --format json has all.",
		format.Plural(len(list), "function", "functions"), format.Plural(calls, "call", "calls"), format.Span(time))
}

// insideNote reports which calls are part of others, so that nobody misses them in the table.
func insideNote(s *summary.Summary, named int) string {
	if len(s.Inside) == 0 {
		return ""
	}
	var parts []string
	for _, in := range s.Inside[:min(len(s.Inside), named)] {
		parts = append(parts,
			fmt.Sprintf("%s %s in %s", format.Count(in.Count), format.Clean(in.Name), format.Clean(in.In)))
	}
	if len(s.Inside) > named {
		parts = append(parts, "and calls of "+format.Plural(len(s.Inside)-named, "other function", "other functions"))
	}
	return "Not counted again, because they are part of calls above: " + strings.Join(parts, ", ") + "."
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

func errorTable(list []summary.ErrorCode, rows int) *document.Table {
	t := &document.Table{
		Columns: []document.Column{
			document.Left("Function", 0),
			document.Left("Error", 0),
			document.Right("Code", 1),
			document.Right("Calls", 0),
		},
	}
	for _, e := range list[:min(len(list), rows)] {
		t.Row(format.Clean(e.Function), e.Name, fmt.Sprint(e.Code), format.Count(e.Count))
	}
	t.Note = more(len(list), rows, "kind of error", "kinds of error")
	return t
}

func more(n, rows int, one, many string) string {
	if n <= rows {
		return ""
	}
	return format.Plural(n-rows, one, many) + " more; --format json has all."
}

func copyTable(list []summary.Copy) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Direction", 0),
		document.Left("Call", 0),
		document.Right("Copies", 0),
		document.Right("Bytes", 0),
		document.Right("Average", 1),
		document.Right("Time in calls", 0),
		document.Right("Longest", 2),
		document.Right("Bandwidth", 0),
	}}
	for _, c := range list {
		call, bandwidth, average := "sync", format.Nothing, format.Nothing
		if c.Async {
			call = "async"
		}
		if c.Bandwidth > 0 {
			bandwidth = format.Size(uint64(c.Bandwidth)) + "/s"
		}
		if sized := c.Count - c.Failed - c.Unsized; sized > 0 {
			average = format.Size(c.Bytes / sized)
		}
		t.Row(directionName(c.Direction), call, format.Count(c.Count), format.Size(c.Bytes), average,
			format.Span(c.Time), format.Span(c.Longest), bandwidth)
		if c.Unsized > 0 {
			t.Note = "The size of some copies (batches, or arguments that could not be read) is not known: bytes are " +
				"a lower bound."
		}
	}
	return t
}

func directionName(d cuda.Direction) string {
	switch d {
	case cuda.Unknown, cuda.NoDirection:
		return "by pointer"
	}
	return format.Clean(string(d))
}

func memoryTable(m *summary.Memory) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Memory", 0),
		document.Right("Allocations", 0),
		document.Right("Failed", 1),
		document.Right("Bytes", 0),
		document.Right("Not freed", 0),
		document.Right("Time", 0),
	}}
	for _, k := range m.Kinds {
		t.Row(k.Kind, format.Count(k.Count), format.Count(k.Failed), format.Size(k.Bytes),
			format.Size(k.Kept), format.Span(k.Time))
	}
	if len(t.Rows) == 0 {
		return t
	}
	t.Note = fmt.Sprintf("Nothing was freed; net %s in the window.", format.SignedSize(m.Net))
	if m.Frees > 0 {
		t.Note = fmt.Sprintf("%s took %s and gave back %s of this; net %s in the window.",
			format.Plural(m.Frees, "free", "frees"), format.Span(m.FreeTime), format.Size(m.Freed),
			format.SignedSize(m.Net))
	}
	if m.Skipped > 0 {
		t.Note = fmt.Sprintf(
			"%s took %s. %s were so frequent that they were only counted: bytes and times are scaled by those that "+
				"were recorded, and what stays allocated is not known.",
			format.Plural(m.Frees, "free", "frees"),
			format.Span(m.FreeTime),
			format.Count(m.Skipped),
		)
	}
	if m.Unmatched > 0 {
		t.Note += fmt.Sprintf(
			" %s of memory whose allocation was not seen, so that the net is an upper bound.",
			format.Plural(m.Unmatched, "free was", "frees were"),
		)
	}
	return t
}

func shapeTable(l *summary.Launches) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Grid", 0),
		document.Left("Block", 0),
		document.Right("Dynamic shared", 1),
		document.Right("Kernels", 0),
		document.Right("Launches", 0),
		document.Right("Of launches", 0),
	}}
	for _, s := range l.Shapes {
		t.Row(dimensions(s.Grid), dimensions(s.Block), format.Size(uint64(s.Shared)), format.Count(s.Handles),
			format.Count(s.Count), format.Percent(s.Share))
	}
	if l.AllShapes > len(l.Shapes) {
		t.Note = fmt.Sprintf("The %d most frequent of %s sizes.", len(l.Shapes), format.Count(l.AllShapes))
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
