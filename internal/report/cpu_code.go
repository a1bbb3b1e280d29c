package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// maxName bounds a function's name in a table: C++ names have no bound of their own.
const maxName = 64

func addHottest(d *document.Document, m *Model, rows int) {
	c := &m.CPU
	if !c.Sampled {
		return
	}
	python, native := pythonTable(c, rows), nativeTable(c, rows)
	if len(native.Rows) > 0 {
		native.Note = originNote(&c.Origins)
	} else {
		python.Note = originNote(&c.Origins)
	}
	d.AddTable("Hottest Python code", python)
	d.AddTable("Hottest native code", native)
}

func pythonTable(c *cpu.Summary, rows int) *document.Table {
	t := &document.Table{
		Columns: []document.Column{
			document.Right("Self", 0),
			document.Right("Total", 0),
			document.Left("Python function", 0),
		},
	}
	for _, f := range c.Python {
		if len(t.Rows) < rows && f.Self > 0 {
			t.Row(format.Percent(f.SelfShare), format.Percent(f.TotalShare),
				format.Clean(cpu.PythonPlace(f.Name, f.File, f.Line)))
		}
	}
	return t
}

func nativeTable(c *cpu.Summary, rows int) *document.Table {
	t := &document.Table{
		Columns: []document.Column{
			document.Right("Self", 0),
			document.Right("Total", 0),
			document.Left("Native function", 0),
			document.Left("In", 1),
		},
	}
	for _, f := range c.Functions {
		if len(t.Rows) < rows && f.Self > 0 {
			in := format.Clean(f.File)
			if f.Kind == "kernel" {
				in = "kernel"
			}
			t.Row(format.Percent(f.SelfShare), format.Percent(f.TotalShare),
				format.Shorten(format.Clean(f.Name), maxName), format.Shorten(in, 32))
		}
	}
	return t
}

// originNote reports how sure the tables are: which share of the stacks came which way.
func originNote(o *cpu.Origins) string {
	of := func(n uint64) string { return format.Percent(float64(n) / float64(o.Samples)) }
	var parts []string
	for _, p := range []struct {
		n    uint64
		what string
	}{
		{o.Whole, "are whole"},
		{o.Spliced, "lack some native callers"},
		{o.Python, "have the Python frames and the native function on top only"},
		{o.Leaf, "have the native function on top only"},
	} {
		if p.n > 0 {
			parts = append(parts, of(p.n)+" "+p.what)
		}
	}
	s := fmt.Sprintf(
		"Shares of %s of running threads. Self is the time in a function itself, for Python with the native code "+
			"that it called; total is with everything that it called. Of the stacks, %s.",
		format.Plural(o.Samples, "sample", "samples"),
		strings.Join(parts, ", "),
	)
	if o.Samples < fewSamples {
		s += " These are too few samples to rely on: ask for a longer window."
	}
	return s
}

// fewSamples is where the error of a share of a half exceeds 7 points (1/(2 sqrt n)).
const fewSamples = 50

// knownStates reports what frames prove.
func knownStates(c *cpu.Summary) document.Bullets {
	var out document.Bullets
	for i := range c.States {
		a := &c.States[i]
		if a.Share < worthALine && float64(a.Blocked) < worthALine*float64(c.Length) {
			continue
		}
		out = append(out, stateText(a))
	}
	return out
}

func stateText(a *cpu.Activity) string {
	var parts []string
	if a.Samples > 0 && (a.Share >= worthALine || a.Blocked == 0) {
		parts = append(parts, format.Percent(a.Share)+" of the samples of running threads")
	}
	if a.Blocked > 0 {
		parts = append(parts,
			fmt.Sprintf("%s blocked in %s", format.Span(a.Blocked), format.Plural(a.Waits, "wait", "waits")))
	}
	s := upper(a.Name) + ": " + strings.Join(parts, ", ")
	if a.TID != 0 {
		s += fmt.Sprintf("; most of it by %s", who(a.Thread, a.TID))
	}
	if a.Place != "" {
		s += ", at " + format.Clean(a.Place)
	}
	s += "."
	if a.HolderTID != 0 {
		s += fmt.Sprintf(" Meanwhile %s ran Python most of the time", who(a.Holder, a.HolderTID))
		if a.HolderAt != "" {
			s += ", at " + format.Clean(a.HolderAt)
		}
		s += "."
	}
	return s
}
