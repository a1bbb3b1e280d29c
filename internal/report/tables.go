package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analyze"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/human"
	"github.com/inferscope/inferscope/internal/page"
)

func addTables(d *page.Document, m *Model, rows int) {
	s := &m.Summary
	d.AddTable("Functions", functionTable(s, rows))
	d.AddTable("Errors returned by CUDA", errorTable(s.Errors, rows))
	d.AddTable("Copies", copyTable(s.Copies))
	d.AddTable("Memory", memoryTable(&s.Memory))
	d.AddTable("CUDA calls by thread", threadTable(m, rows))
	d.AddTable("Streams", streamTable(m, rows))
	d.AddTable("Launch sizes", shapeTable(&s.Launches))
}

func functionTable(s *analyze.Summary, rows int) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Function", 0), page.Right("Calls", 0), page.Right("Total", 0), page.Right("p50", 0), page.Right("p99", 5),
		page.Right("Max", 2), page.Right("Bytes", 3), page.Right("Errors", 1), page.Right("Of wall", 0),
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

func functionRow(f *analyze.Function) []string {
	cells := []string{human.Clean(f.Name), human.Count(f.Count), human.Nothing, human.Nothing, human.Nothing, human.Nothing, human.Nothing, human.Nothing, human.Nothing}
	if f.Timed {
		cells[2], cells[7], cells[8] = human.Span(f.Time), human.Count(f.Errors), human.Percent(f.Share)
	}
	if f.Timed && f.Count > f.Untimed {
		cells[3], cells[4], cells[5] = human.Span(f.P50), human.Span(f.P99), human.Span(f.Max)
	}
	if f.Bytes > 0 {
		cells[6] = human.Size(f.Bytes)
	}
	return cells
}

// chosenFunctions picks the rows that fit: those of the most time, but also the
// most frequent of those that have no times, launches above all.
func chosenFunctions(list []analyze.Function, rows int) (shown, left []analyze.Function) {
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

func leftOut(list []analyze.Function) string {
	if len(list) == 0 {
		return ""
	}
	calls, time := uint64(0), uint64(0)
	for _, f := range list {
		calls += f.Count
		time += f.Time
	}
	return fmt.Sprintf("%s more, with %s and %s in them, are left out here; --format json has all.",
		human.Plural(len(list), "function", "functions"), human.Plural(calls, "call", "calls"), human.Span(time))
}

// insideNote says which calls are part of others, so that nobody misses them in the table.
func insideNote(s *analyze.Summary, named int) string {
	if len(s.Inside) == 0 {
		return ""
	}
	var parts []string
	for _, in := range s.Inside[:min(len(s.Inside), named)] {
		parts = append(parts, fmt.Sprintf("%s %s in %s", human.Count(in.Count), human.Clean(in.Name), human.Clean(in.In)))
	}
	if len(s.Inside) > named {
		parts = append(parts, "and calls of "+human.Plural(len(s.Inside)-named, "other function", "other functions"))
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

func errorTable(list []analyze.ErrorCode, rows int) *page.Table {
	t := &page.Table{Columns: []page.Column{page.Left("Function", 0), page.Left("Error", 0), page.Right("Code", 1), page.Right("Calls", 0)}}
	for _, e := range list[:min(len(list), rows)] {
		t.Row(human.Clean(e.Function), e.Name, fmt.Sprint(e.Code), human.Count(e.Count))
	}
	t.Note = more(len(list), rows, "kind of error", "kinds of error")
	return t
}

func more(n, rows int, one, many string) string {
	if n <= rows {
		return ""
	}
	return human.Plural(n-rows, one, many) + " more; --format json has all."
}

func copyTable(list []analyze.Copy) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Direction", 0), page.Left("Call", 0), page.Right("Copies", 0), page.Right("Bytes", 0),
		page.Right("Average", 1), page.Right("Time in calls", 0), page.Right("Longest", 2), page.Right("Bandwidth", 0),
	}}
	for _, c := range list {
		call, bandwidth, average := "sync", human.Nothing, human.Nothing
		if c.Async {
			call = "async"
		}
		if c.Bandwidth > 0 {
			bandwidth = human.Size(uint64(c.Bandwidth)) + "/s"
		}
		if sized := c.Count - c.Failed - c.Unsized; sized > 0 {
			average = human.Size(c.Bytes / sized)
		}
		t.Row(directionName(c.Direction), call, human.Count(c.Count), human.Size(c.Bytes), average, human.Span(c.Time), human.Span(c.Longest), bandwidth)
		if c.Unsized > 0 {
			t.Note = "The size of some copies (batches, or arguments that could not be read) is not known: bytes are a lower bound."
		}
	}
	return t
}

func directionName(d cuda.Direction) string {
	switch d {
	case cuda.Unknown, cuda.NoDirection:
		return "by pointer"
	}
	return human.Clean(string(d))
}

func memoryTable(m *analyze.Memory) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Memory", 0), page.Right("Allocations", 0), page.Right("Failed", 1), page.Right("Bytes", 0), page.Right("Not freed", 0), page.Right("Time", 0),
	}}
	for _, k := range m.Kinds {
		t.Row(k.Kind, human.Count(k.Count), human.Count(k.Failed), human.Size(k.Bytes), human.Size(k.Kept), human.Span(k.Time))
	}
	if len(t.Rows) == 0 {
		return t
	}
	t.Note = fmt.Sprintf("Nothing was freed; net %s in the window.", human.SignedSize(m.Net))
	if m.Frees > 0 {
		t.Note = fmt.Sprintf("%s took %s and gave back %s of this; net %s in the window.", human.Plural(m.Frees, "free", "frees"), human.Span(m.FreeTime), human.Size(m.Freed), human.SignedSize(m.Net))
	}
	if m.Unmatched > 0 {
		t.Note += fmt.Sprintf(" %s of memory whose allocation was not seen, so that the net is an upper bound.", human.Plural(m.Unmatched, "free was", "frees were"))
	}
	return t
}

func shapeTable(l *analyze.Launches) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Grid", 0), page.Left("Block", 0), page.Right("Dynamic shared", 1), page.Right("Kernels", 0), page.Right("Launches", 0), page.Right("Of launches", 0),
	}}
	for _, s := range l.Shapes {
		t.Row(dimensions(s.Grid), dimensions(s.Block), human.Size(uint64(s.Shared)), human.Count(s.Handles), human.Count(s.Count), human.Percent(s.Share))
	}
	if l.AllShapes > len(l.Shapes) {
		t.Note = fmt.Sprintf("The %d most frequent of %s sizes.", len(l.Shapes), human.Count(l.AllShapes))
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
