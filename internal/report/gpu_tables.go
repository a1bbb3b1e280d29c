package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

func deviceTable(m *Model) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("GPU", 0),
		document.Right("pid", 2),
		document.Right("Busy", 0),
		document.Right("Kernels", 0),
		document.Right("Copies", 0),
		document.Right("Memsets", 1),
		document.Right("At once", 3),
		document.Right("Streams", 2),
		document.Right("Gaps", 4),
		document.Right("Longest gap", 4),
		document.Right("Recorded", 0),
	}}
	split, lost := false, false
	for i := range m.GPU.Devices {
		d := &m.GPU.Devices[i]
		lost = lost || d.Busy.Coverage.Dropped > 0
		t.Row(deviceName(d), id(d.PID), busyShare(&d.Busy), ofBusy(&d.Busy, d.Busy.Kernels),
			ofBusy(&d.Busy, d.Busy.Copies), ofBusy(&d.Busy, d.Busy.Sets), fmt.Sprintf("%.2f", d.Concurrency),
			format.Count(d.Streams), format.Count(d.Gaps.Count), format.Span(d.Gaps.Longest),
			format.Span(d.Busy.Coverage.Time))
		for j := range d.Parts {
			p := &d.Parts[j]
			split = true
			t.Row("  by process", id(p.PID), busyShare(&p.Busy), ofBusy(&p.Busy, p.Busy.Kernels),
				ofBusy(&p.Busy, p.Busy.Copies), ofBusy(&p.Busy, p.Busy.Sets), format.Nothing, format.Nothing,
				format.Nothing, format.Nothing, format.Span(p.Busy.Coverage.Time))
		}
	}
	if !severalProcesses(m) && !split {
		t.Drop("pid")
	}
	t.Note = "Kernels, copies and memsets are shares of the recorded time, and can run at once. At once is how many " +
		"activities ran on average while some ran."
	if lost {
		t.Drop("Gaps")
		t.Drop("Longest gap")
		t.Note += " Gaps are not shown, because lost records look like gaps."
	} else {
		t.Note += " Gaps are times without any, inside windows."
	}
	if split {
		t.Note += " A GPU that several processes use is judged by the time in which all of them were recorded."
	}
	return t
}

func deviceName(d *gpu.Device) string {
	if d.Name == "" {
		return fmt.Sprintf("%d", d.ID)
	}
	return fmt.Sprintf("%d: %s", d.ID, format.Clean(d.Name))
}

func busyShare(b *gpu.Busy) string {
	if b.Coverage.Time == 0 {
		return format.Nothing
	}
	if b.Coverage.Dropped > 0 {
		return "≥ " + format.Percent(b.Share)
	}
	return format.Percent(b.Share)
}

func ofBusy(b *gpu.Busy, n uint64) string {
	if b.Coverage.Time == 0 {
		return format.Nothing
	}
	return format.Percent(part(n, b.Coverage.Time))
}

func kernelTable(m *Model, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Kernel", 0),
		document.Right("Runs", 0),
		document.Right("Total", 0),
		document.Right("Of busy", 0),
		document.Right("Mean", 0),
		document.Right("Min", 3),
		document.Right("Max", 2),
		document.Left("Grid", 4),
		document.Left("Block", 4),
		document.Right("Registers", 5),
		document.Left("Launched by", 1),
	}}
	k := &m.GPU.Kernels
	for i := range k.Rows[:min(len(k.Rows), rows)] {
		r := &k.Rows[i]
		t.Row(kernelName(r), format.Count(r.Count), format.Span(r.Time), format.Percent(r.Share),
			format.Span(r.Mean), format.Span(r.Min), format.Span(r.Max), usual(r, r.Grid), usual(r, r.Block),
			format.Count(r.Registers), launcher(r))
	}
	t.Note = joinNotes(leftKernels(k, min(len(k.Rows), rows)), rests(&k.Coverage))
	return t
}

func kernelName(r *gpu.Kernel) string {
	if r.Name == "" {
		return "(name lost)"
	}
	return format.Shorten(format.Clean(r.Name), maxName)
}

// usual gives the grid or block of most runs, with a mark where others differ.
func usual(r *gpu.Kernel, d [3]uint32) string {
	s := fmt.Sprintf("%d", d[0])
	switch {
	case d[2] > 1:
		s += fmt.Sprintf("x%dx%d", d[1], d[2])
	case d[1] > 1:
		s += fmt.Sprintf("x%d", d[1])
	}
	if r.ShapeShare < always {
		s += "~"
	}
	return s
}

// nearlyAll is the share of runs from which on one thread is said to launch a kernel.
const nearlyAll = 0.95

func launcher(r *gpu.Kernel) string {
	if r.Call == "" {
		return format.Nothing
	}
	name := who(r.Thread, r.TID)
	if r.ThreadShare < nearlyAll {
		name += " and others"
	}
	return format.Shorten(name+" by "+format.Clean(r.Call), 48)
}

func leftKernels(k *gpu.Kernels, shown int) string {
	if k.Names <= shown {
		return ""
	}
	count, time := k.Count, k.Time
	for i := range k.Rows[:shown] {
		count -= k.Rows[i].Count
		time -= k.Rows[i].Time
	}
	return fmt.Sprintf("%s more, with %s of %s in all, are left out here.",
		format.Plural(k.Names-shown, "kernel", "kernels"), format.Plural(count, "run", "runs"),
		format.Span(time))
}

// rests reports which time a table is about, where that is not all of it.
func rests(c *gpu.Coverage) string {
	s := ""
	if c.Share < always {
		s = fmt.Sprintf("In the %s recorded, %s of the time.", format.Span(c.Time), format.Percent(c.Share))
	}
	if c.Dropped > 0 {
		s = joinNotes(s, fmt.Sprintf("%s lost: counts and times are lower bounds.",
			format.Plural(c.Dropped, "record was", "records were")))
	}
	return s
}

func gpuCopyTable(m *Model) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Direction", 0),
		document.Left("From", 0),
		document.Left("To", 0),
		document.Left("Call", 3),
		document.Right("Copies", 0),
		document.Right("Bytes", 0),
		document.Right("Time", 0),
		document.Right("Longest", 4),
		document.Right("Bandwidth", 0),
		document.Right("Each", 5),
		document.Right("No kernel", 1),
	}}
	for i := range m.GPU.Copies {
		c := &m.GPU.Copies[i]
		call := "sync"
		if c.Async {
			call = "async"
		}
		t.Row(c.Direction, c.Source, c.Destination, call, format.Count(c.Count), format.Size(c.Bytes),
			format.Span(c.Time), format.Span(c.Longest), speed(c.Bandwidth), speed(c.Each),
			format.Percent(part(c.Exposed, c.Time)))
	}
	if m.GPU.Activity.Dropped > 0 {
		t.Drop("No kernel")
	}
	if len(t.Rows) > 0 {
		t.Note = joinNotes(
			"Time on the GPU. Bandwidth is bytes over the time in which such a copy ran, each what one copy gets; no "+
				"kernel is the share of the time in which no kernel ran beside it.",
			rests(&m.GPU.Copies[0].Coverage),
		)
	}
	return t
}

// maxPairs bounds the pairs of GPUs that a text shows; JSON has all.
const maxPairs = 64

// peerTable shows copies by pair of GPUs.
func peerTable(m *Model) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("pid", 1),
		document.Right("From GPU", 0),
		document.Right("To GPU", 0),
		document.Right("Copies", 0),
		document.Right("Bytes", 0),
		document.Right("Time", 0),
		document.Right("Longest", 2),
		document.Right("Bandwidth", 0),
		document.Right("No kernel", 1),
	}}
	list := m.GPU.Peers
	for i := range list[:min(len(list), maxPairs)] {
		p := &list[i]
		t.Row(id(p.PID), fmt.Sprint(p.Source), fmt.Sprint(p.Destination), format.Count(p.Count),
			format.Size(p.Bytes), format.Span(p.Time), format.Span(p.Longest), speed(p.Bandwidth),
			format.Percent(part(p.Alone, p.Time)))
	}
	if !severalProcesses(m) {
		t.Drop("pid")
	}
	if m.GPU.Activity.Dropped > 0 {
		t.Drop("No kernel")
	}
	if len(list) > 0 {
		t.Note = joinNotes(
			"GPUs as the process counts them. No kernel is the share of the time in which none ran on either of the two. "+
				"What NCCL moves with kernels is not in it.",
			more(len(list), maxPairs, "pair", "pairs"),
			rests(&m.GPU.Activity),
		)
	}
	return t
}

// topologyTable reports where GPUs are attached and where the threads ran that launch for them.
func topologyTable(m *Model) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("GPU", 0),
		document.Left("PCI address", 1),
		document.Right("Node", 0),
		document.Left("Launched by", 0),
		document.Right("Of its work", 1),
		document.Right("Ran on node", 0),
		document.Right("On another node", 0),
	}}
	s := m.Topology
	if s == nil {
		return t
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		node, listed := nodeName(g.Node), false
		for j := range s.Launchers {
			l := &s.Launchers[j]
			if l.GPU != i {
				continue
			}
			distance := format.Nothing
			if l.Ran > 0 && g.Node >= 0 {
				distance = format.Percent(part(l.Far, l.Ran))
			}
			t.Row(fmt.Sprint(g.ID), g.Bus, node, who(l.Name, l.TID), format.Percent(l.Share), nodeName(l.Node), distance)
			listed = true
		}
		if !listed {
			t.Row(fmt.Sprint(g.ID), g.Bus, node, format.Nothing,
				format.Nothing, format.Nothing, format.Nothing)
		}
	}
	t.Note = fmt.Sprintf("The host has %s with CPUs.", format.Plural(s.Nodes, "NUMA node", "NUMA nodes"))
	return t
}

// linkTable reports how the GPUs are connected.
func linkTable(m *Model) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("GPU", 0), document.Left("GPU", 0), document.Left("Connected by", 0),
	}}
	if m.Topology == nil {
		return t
	}
	for _, l := range m.Topology.Links[:min(len(m.Topology.Links), maxPairs)] {
		t.Row(m.Topology.GPUs[l.A].Name(), m.Topology.GPUs[l.B].Name(), l.Text)
	}
	t.Note = more(len(m.Topology.Links), maxPairs, "pair", "pairs")
	return t
}

func nodeName(node int) string {
	if node < 0 {
		return format.Nothing
	}
	return fmt.Sprint(node)
}

func speed(bytesPerSecond float64) string {
	if bytesPerSecond <= 0 {
		return format.Nothing
	}
	return format.Size(uint64(bytesPerSecond)) + "/s"
}

func gpuStreamTable(m *Model, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("Stream", 0),
		document.Right("pid", 1),
		document.Right("GPU", 2),
		document.Right("Busy", 0),
		document.Right("Of busy", 0),
		document.Right("Kernels", 0),
		document.Right("Copies", 0),
		document.Right("Memsets", 3),
	}}
	list := m.GPU.Streams
	for i := range list[:min(len(list), rows)] {
		s := &list[i]
		t.Row(id(s.ID), id(s.PID), fmt.Sprint(s.Device), format.Percent(s.Share), format.Percent(s.OfBusy),
			format.Count(s.Kernels), format.Count(s.Copies), format.Count(s.Sets))
	}
	if !severalProcesses(m) {
		t.Drop("pid")
	}
	if len(m.GPU.Devices) == 1 {
		t.Drop("GPU")
	}
	t.Note = joinNotes("Streams as CUPTI numbers them.", more(len(list), rows, "stream", "streams"))
	return t
}

// maxAwaited bounds what a thread waited for, in characters.
const maxAwaited = 44

func syncTable(m *Model, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Thread", 0),
		document.Left("Call", 4),
		document.Left("For", 2),
		document.Right("Times", 0),
		document.Right("Waited", 0),
		document.Right("Longest", 1),
		document.Right("At once", 3),
		document.Left("Mostly for", 0),
	}}
	list := m.GPU.Syncs
	for i := range list[:min(len(list), rows)] {
		s := &list[i]
		name, call, what := format.Nothing, format.Nothing, format.Nothing
		if s.Call != "" {
			name, call = who(s.Thread, s.TID), format.Clean(s.Call)
		}
		if s.For != "" {
			what = format.Shorten(format.Clean(s.For), maxAwaited)
		}
		t.Row(name, call, s.Type, format.Count(s.Count), format.Span(s.Time), format.Span(s.Longest),
			format.Count(s.Idle), what)
	}
	note := "At once: there was nothing left to wait for."
	if m.GPU.Activity.Dropped > 0 {
		t.Drop("At once") // what was waited for can be among the lost records
		note = ""
	}
	t.Note = joinNotes(note, more(len(list), rows, "row", "rows"))
	return t
}

func rangeTable(m *Model, rows int) *document.Table {
	t := &document.Table{
		Columns: []document.Column{
			document.Left("Range", 0),
			document.Right("Times", 0),
			document.Right("Total", 0),
			document.Right("Longest", 1),
		},
	}
	list := m.GPU.Ranges
	told := slices.ContainsFunc(list[:min(len(list), rows)], func(r gpu.Range) bool { return len(r.Attributes) > 0 })
	if told {
		t.Columns = append(t.Columns, document.Left("With", 2))
	}
	for i := range list[:min(len(list), rows)] {
		r := &list[i]
		cells := []string{
			format.Shorten(format.Clean(r.Name), maxName),
			format.Count(r.Count),
			format.Span(r.Time),
			format.Span(r.Longest),
		}
		if told {
			cells = append(cells, attributesText(r))
		}
		t.Row(cells...)
	}
	t.Note = joinNotes("Named by the program (NVTX, scopes).", more(len(list), rows, "range", "ranges"))
	return t
}

// attributesText names the attributes that a range took most time with.
func attributesText(r *gpu.Range) string {
	const few = 2
	var parts []string
	for i := range r.Attributes[:min(len(r.Attributes), few)] {
		x := &r.Attributes[i]
		parts = append(parts, fmt.Sprintf("%s: %s times, %s each",
			format.Shorten(format.Clean(x.Values), maxName), format.Count(x.Count),
			format.Span(x.Time/max(1, x.Count))))
	}
	if len(r.Attributes) > few {
		parts = append(parts, "and others")
	}
	return strings.Join(parts, "; ")
}
