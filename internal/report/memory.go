package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/document"
)

// Rows of a memory report.
const (
	memorySites  = 20
	memoryFrames = 12
	shortSites   = 8
	exhaustedMax = 4
	leaksMax     = 5
)

// addMemory reports what frameworks' allocators and the driver's own calls held.
func addMemory(d *document.Document, m *Model, rows int) {
	if m.Memory == nil {
		return
	}
	d.Add(document.Heading("GPU memory"))
	for _, dev := range m.Memory.Shown() {
		named := len(m.Memory.Devices) > 1 || dev.OfDriver() || dev.Type == "cpu"
		addDevice(d, dev, min(rows, shortSites), named, m.Summary.Window.From)
	}
	if t := gpuMemoryTable(m.Memory); len(t.Rows) > 1 {
		d.Add(t)
	}
}

// MemoryDocument is what `inferscope memory` prints.
func MemoryDocument(m *Model) *document.Document {
	d := &document.Document{Title: "InferScope memory report"}
	var f document.Facts
	f.Add("Target", m.Target.name())
	f.Add("Window", windowText(&m.Summary.Window))
	d.Add(f)
	exact := false // what the driver's calls hold is known since the attach
	switch {
	case m.Memory != nil:
		if t := gpuMemoryTable(m.Memory); len(t.Rows) > 0 {
			d.Add(t)
		}
		for i := range m.Memory.Devices {
			dev := &m.Memory.Devices[i]
			addDevice(d, dev, memorySites, true, m.Summary.Window.From)
			addSiteStacks(d, dev)
			exact = exact || dev.OfDriver()
		}
	case len(m.Summary.Memory.Kinds) == 0:
		d.Add(document.Paragraph("Nothing was recorded of allocators. Record while PyTorch or the CUDA driver " +
			"allocate, by a daemon without --memory=false."))
	}
	if lines := holderLines(m); len(lines) > 0 {
		d.Add(document.Bullets(lines))
	}
	if !exact {
		d.AddTable("Memory of the driver's own calls", memoryTable(&m.Summary.Memory))
	}
	for _, doubt := range m.Doubts {
		if strings.HasPrefix(string(doubt.Reason), "memory_") {
			d.Add(document.Notice{
				Mark: string(doubt.Severity),
				Text: format.CleanText(doubt.Means + ". " + strings.Join(doubt.Details, "; ")),
			})
		}
	}
	return d
}

// memoryReport is the JSON form of `inferscope memory`.
type memoryReport struct {
	Kind    string          `json:"kind"`
	Schema  int             `json:"schema"`
	Version string          `json:"version"`
	Target  targetModel     `json:"target"`
	Memory  *memory.Summary `json:"memory"` // null: nothing was recorded of allocators
	Driver  summary.Memory  `json:"driver"` // of the driver's own calls, a framework's among them
}

// MemoryJSON writes what is said of memory as JSON.
func MemoryJSON(w io.Writer, m *Model) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	r := memoryReport{"inferscope.memory", schemaVersion, m.Version, m.Target, m.Memory, m.Summary.Memory}
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func addDevice(d *document.Document, dev *memory.Device, rows int, named bool, from uint64) {
	if named {
		d.Add(document.Subheading(fmt.Sprintf("%s, process %d", dev.Name(), dev.PID)))
	}
	d.Add(memoryFacts(dev, from))
	if lines := leakLines(dev); len(lines) > 0 {
		d.Add(document.Bullets(lines))
	}
	for i := range dev.Exhausted[:min(len(dev.Exhausted), exhaustedMax)] {
		d.Add(document.Bullets{exhaustedText(dev, &dev.Exhausted[i], from)})
	}
	if t := siteTable(dev, rows); len(t.Rows) > 0 {
		d.Add(t)
	}
}

func memoryFacts(dev *memory.Device, from uint64) document.Facts {
	var f document.Facts
	if dev.OfDriver() {
		return driverFacts(dev, from)
	}
	held := fmt.Sprintf("%s in blocks, %s in segments of the driver",
		format.Size(dev.Allocated), format.Size(dev.Reserved))
	if unused := dev.Reserved - min(dev.Reserved, dev.Allocated); dev.Reserved > 0 {
		held += fmt.Sprintf("; %s (%s) is cached or fragmented",
			format.Size(unused), format.Percent(float64(unused)/float64(dev.Reserved)))
	}
	f.Add("Held at the end", held)
	if dev.Process > 0 {
		f.Add("Process on the GPU", fmt.Sprintf(
			"%s by NVML's count, of which %s belongs to no framework: CUDA's contexts and code, and what libraries allocate",
			format.Size(dev.Process),
			format.Size(dev.Driver),
		))
	}
	f.Add("Peak", fmt.Sprintf("%s in blocks, %s into the window; segments up to %s",
		format.Size(dev.Peak), format.Span(dev.PeakAt-min(dev.PeakAt, from)), format.Size(dev.PeakHeld)))
	addFlow(&f, dev)
	return f
}

// gpuMemoryTable says what explains the memory of each process on each GPU.
func gpuMemoryTable(s *memory.Summary) *document.Table {
	t := &document.Table{
		Columns: []document.Column{document.Left("GPU", 0), document.Right("Process", 0)},
		Note:    memory.GPUNote,
	}
	for _, name := range memory.GPUColumns() {
		rank := 0
		if name == "Arrays" || name == "Mapped" {
			rank = 2
		}
		t.Columns = append(t.Columns, document.Right(name, rank))
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		cells := []string{g.Name(), fmt.Sprint(g.PID)}
		for _, n := range g.Sizes() {
			text := format.Nothing
			if n > 0 {
				text = format.Size(n)
			}
			cells = append(cells, text)
		}
		t.Row(cells...)
	}
	return t
}

// driverFacts is memoryFacts of what the driver's own calls allocated.
func driverFacts(dev *memory.Device, from uint64) document.Facts {
	var f document.Facts
	held := format.Size(dev.Allocated) + " of what was allocated since the attach"
	switch dev.Type {
	case "array":
		held += ", by the arrays' dimensions: the driver pads them"
	case "shared":
		held = format.Size(dev.Allocated) + " mapped since the attach: not this process's own memory"
		if n := unsized(dev); n > 0 {
			held += fmt.Sprintf("; %s of CUDA IPC of unknown size", format.Plural(n, "block", "blocks"))
		}
	}
	f.Add("Held at the end", held)
	if dev.Process > 0 {
		f.Add("Process on the GPU", fmt.Sprintf(
			"%s by NVML's count, of which %s is something else: allocated before the attach, managed memory, CUDA's contexts "+
				"and code",
			format.Size(dev.Process), format.Size(dev.Driver)))
	}
	f.Add("Peak", fmt.Sprintf("%s, %s into the window",
		format.Size(dev.Peak), format.Span(dev.PeakAt-min(dev.PeakAt, from))))
	addFlow(&f, dev)
	return f
}

// unsized returns how many blocks are live whose size is not known.
func unsized(dev *memory.Device) (blocks uint64) {
	for i := range dev.Sites {
		if dev.Sites[i].Live == 0 {
			blocks += dev.Sites[i].Blocks
		}
	}
	return blocks
}

// addFlow adds what was allocated and freed, and what for.
func addFlow(f *document.Facts, dev *memory.Device) {
	if dev.Allocations+dev.Frees > 0 {
		f.Add("In the window", fmt.Sprintf("%s of %s, %s of %s; net %s",
			format.Plural(dev.Allocations, "allocation", "allocations"), format.Size(dev.AllocatedBytes),
			format.Plural(dev.Frees, "free", "frees"), format.Size(dev.FreedBytes),
			format.SignedSize(int64(dev.AllocatedBytes)-int64(dev.FreedBytes))))
	}
	var parts []string
	for _, k := range dev.Kinds {
		parts = append(parts, fmt.Sprintf("%s %s", format.Size(k.Bytes), k.Kind))
	}
	if len(parts) > 0 {
		f.Add("What for", strings.Join(parts, ", ")+" (estimated)")
	}
}

func leakLines(dev *memory.Device) []string {
	var lines []string
	for _, l := range dev.Leaks[:min(len(dev.Leaks), leaksMax)] {
		s := &dev.Sites[l.Site]
		text := fmt.Sprintf("Grows without bound: %s keeps %s/s (%s in %s, %s of what it allocates stays)",
			format.Clean(s.Name), format.Size(uint64(l.PerSec)), format.Size(l.Bytes),
			format.Span(l.Observed), format.Percent(l.Survival))
		if l.FullIn > 0 {
			text += fmt.Sprintf("; the device is full in %s at this rate", format.Span(l.FullIn))
		}
		if caller := firstPython(s.Stack[min(1, len(s.Stack)):]); caller != "" {
			text += "; called from " + caller
		}
		lines = append(lines, text+".")
	}
	return lines
}

// memoryNotes returns what grows without bound, and allocations that failed.
func memoryNotes(m *Model) (out []string) {
	if m.Memory == nil {
		return nil
	}
	for i := range m.Memory.Devices {
		d := &m.Memory.Devices[i]
		out = append(out, leakLines(d)...)
		for k := range d.Exhausted[:min(len(d.Exhausted), exhaustedMax)] {
			out = append(out, exhaustedText(d, &d.Exhausted[k], m.Summary.Window.From))
		}
	}
	return out
}

func firstPython(stack []recording.Frame) string {
	for _, f := range stack {
		if f.Kind == recording.PythonFrame {
			return frameText(&f)
		}
	}
	return ""
}

func frameText(f *recording.Frame) string {
	switch {
	case f.Line > 0:
		return format.Clean(fmt.Sprintf("%s (%s:%d)", f.Name, f.File, f.Line))
	case f.File != "":
		return format.Clean(fmt.Sprintf("%s (%s)", f.Name, f.File))
	}
	return format.Clean(f.Name)
}

func exhaustedText(dev *memory.Device, e *memory.Exhausted, from uint64) string {
	if dev.OfDriver() {
		text := fmt.Sprintf("Out of memory %s into the window: the CUDA driver refused %s to %s, with %s allocated since "+
			"the attach.", format.Span(e.At-min(e.At, from)), format.Size(e.Asked), format.Clean(e.Name),
			format.Size(e.Allocated))
		return text + heldText(dev, e)
	}
	text := fmt.Sprintf(
		"Out of memory %s into the window: %s asked for %s with %s in blocks and %s in segments.",
		format.Span(e.At-min(e.At, from)),
		format.Clean(e.Name),
		format.Size(e.Asked),
		format.Size(e.Allocated),
		format.Size(e.Reserved),
	)
	if free := e.Reserved - min(e.Reserved, e.Allocated); free >= e.Asked {
		text += fmt.Sprintf(
			" The segments had %s free, but in no piece or pool that it fits in: fragmentation, which the "+
				"allocator's setting expandable_segments:True mostly avoids.",
			format.Size(free),
		)
	}
	return text + heldText(dev, e)
}

// heldText says who held most when an allocation failed.
func heldText(dev *memory.Device, e *memory.Exhausted) string {
	var held []string
	for _, h := range e.Live[:min(len(e.Live), 5)] {
		name := "blocks from before the attach"
		if h.Site >= 0 {
			name = format.Clean(dev.Sites[h.Site].Name)
		}
		held = append(held, fmt.Sprintf("%s by %s", format.Size(h.Bytes), name))
	}
	if len(held) == 0 {
		return ""
	}
	return " Held then: " + strings.Join(held, ", ") + "."
}

func siteTable(dev *memory.Device, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Allocated by", 0),
		document.Right("Live", 0),
		document.Right("In 95% of cases", 2),
		document.Right("Blocks", 1),
		document.Right("At the peak", 3),
		document.Right("Allocated", 0),
		document.Right("Allocations", 1),
		document.Right("Lifetime", 2),
		document.Left("Kind", 3),
	}}
	for i := range dev.Sites[:min(len(dev.Sites), rows)] {
		s := &dev.Sites[i]
		life, atPeak := format.Nothing, format.Nothing
		if s.Life > 0 {
			life = format.Span(s.Life)
		}
		if s.AtPeak > 0 {
			atPeak = format.Size(s.AtPeak)
		}
		t.Row(format.Clean(s.Name), format.Size(s.Live), limits(s.Low, s.High), format.Count(s.Blocks),
			atPeak, format.Size(s.Bytes), format.Count(s.Count), life, string(s.Kind))
	}
	if len(t.Rows) > 0 {
		t.Note = joinNotes(
			fmt.Sprintf(
				"Estimated from %s sampled in proportion to their bytes; in 95%% of cases between the two sizes. Totals "+
					"above are exact.",
				format.Plural(dev.Samples, "allocation", "allocations"),
			),
			more(len(dev.Sites), rows, "place", "places"),
		)
	}
	return t
}

// limits writes between what a size lies; of one that is exact nothing.
func limits(low, high uint64) string {
	if format.Size(low) == format.Size(high) {
		return format.Nothing
	}
	return format.Size(low) + " to " + format.Size(high)
}

// addSiteStacks shows the whole stacks of what holds most.
func addSiteStacks(d *document.Document, dev *memory.Device) {
	for i := range dev.Sites[:min(len(dev.Sites), 5)] {
		s := &dev.Sites[i]
		if s.Live == 0 || len(s.Stack) == 0 {
			continue
		}
		d.Add(document.Bullets{fmt.Sprintf("%s live of %s, allocated at:", format.Size(s.Live), format.Clean(s.Name))})
		var lines document.Stack
		for k := range s.Stack[:min(len(s.Stack), memoryFrames)] {
			lines = append(lines, frameText(&s.Stack[k]))
		}
		d.Add(lines)
	}
}
