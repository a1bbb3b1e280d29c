package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// shareBar is the length of the bar that stands for all of the time, in characters.
const shareBar = 20

// bar draws a share: solid where the GPU works, hollow where it does not.
func (p pen) bar(share float64, busy bool) string {
	mark := p.blocked
	if busy {
		mark = p.running
	}
	n := int(share*shareBar + 0.5)
	if n == 0 && share >= 0.01 {
		n = 1
	}
	return strings.Repeat(mark, max(0, min(n, shareBar)))
}

// breakdownTitle reports what time is broken down.
func breakdownTitle(m *Model) string {
	if ofMainThread(m) {
		return "Where the main thread's time went"
	}
	if n := len(m.Diagnosis.Devices); n > 1 {
		return fmt.Sprintf("Where the time of %d GPUs went", n)
	}
	return "Where the time went"
}

// peopleTable is the breakdown in the words that people know, with bars.
func peopleTable(m *Model, ascii bool) *document.Table {
	b := &m.Diagnosis.Breakdown
	t := &document.Table{Columns: []document.Column{
		document.Left("Part", 0),
		document.Right("Time", 0),
		document.Right("Per iteration", 0),
		document.Right("Share", 0),
		document.Left("", 1),
	}}
	each, ok := perIteration(m)
	draw := newPen(ascii)
	busy := false
	for i := range b.People {
		p := &b.People[i]
		if p.Time == 0 {
			continue
		}
		busy = busy || p.Busy
		t.Row(partName(p), format.Span(p.Time), spanOfEach(p.Share*each), format.Percent(p.Share),
			draw.bar(p.Share, p.Busy))
	}
	if !ok {
		t.Drop("Per iteration")
	}
	if busy {
		t.Note = fmt.Sprintf("%s the GPU works, %s it does not. The parts add up to %s.",
			draw.running, draw.blocked, format.Span(b.Time))
	}
	return t
}

// spanOfEach writes how much of each iteration something takes, in ns: what is there is not nothing.
func spanOfEach(ns float64) string {
	if ns > 0 && ns < 1 {
		return "<1 ns"
	}
	return format.Span(uint64(ns))
}

func partName(p *diagnose.Part) string {
	if p.Name == "" {
		return format.Clean(p.Key)
	}
	return upper(format.Clean(p.Name))
}

// perIteration returns the mean length of an iteration in ns, and whether a share of the time that was
// broken down can be said to be the same share of an iteration.
func perIteration(m *Model) (mean float64, ok bool) {
	it := m.Diagnosis.Iterations
	if !it.Tiles() {
		return 0, false
	}
	return float64(cmp.Or(it.Inside, it.Mean)), true
}

// partTable is the same time, idle time by its cause, and each GPU beside the whole.
func partTable(m *Model) *document.Table {
	g := &m.Diagnosis
	t := &document.Table{
		Columns: []document.Column{document.Left("Part", 0), document.Right("Time", 0), document.Right("Share", 0)},
	}
	var devices []diagnose.Device
	if len(g.Devices) > 1 {
		devices = g.Devices[:min(len(g.Devices), maxDevices)]
	}
	for i := range devices {
		t.Columns = append(t.Columns, document.Right(breakdownDevice(devices, i), len(devices)-i+1))
	}
	t.Columns = append(t.Columns, document.Left("Because", 1))
	for i := range g.Breakdown.Parts {
		p := &g.Breakdown.Parts[i]
		if p.Time == 0 {
			continue
		}
		name, because := causeOrPart(m, p)
		row := []string{name, format.Span(p.Time), format.Percent(p.Share)}
		for j := range devices {
			row = append(row, shareOf(&devices[j].Breakdown, p.Key))
		}
		t.Row(append(row, because)...)
	}
	if n := len(g.Devices); n > maxDevices {
		t.Note = fmt.Sprintf("The first %d of %d GPUs; --format json has all.", maxDevices, n)
	}
	return t
}

// causeOrPart names a part by its key where it is one of the causes, and says what that is.
func causeOrPart(m *Model, p *diagnose.Part) (name, because string) {
	if p.Busy {
		return partName(p), ""
	}
	if ofMainThread(m) {
		return format.Clean(p.Key), format.Clean(p.Name)
	}
	return "Idle: " + format.Clean(p.Key), format.Clean(p.Name)
}

func shareOf(b *diagnose.Breakdown, key string) string {
	for i := range b.Parts {
		if b.Parts[i].Key == key {
			return format.Percent(b.Parts[i].Share)
		}
	}
	return format.Nothing
}

// breakdownDevice names a GPU among others: two processes can each call theirs number 0.
func breakdownDevice(list []diagnose.Device, i int) string {
	for j := range list {
		if j != i && list[j].ID == list[i].ID {
			return fmt.Sprintf("GPU %d of %d", list[i].ID, list[i].PID)
		}
	}
	return fmt.Sprintf("GPU %d", list[i].ID)
}

// addBreakdown puts the causes of idle time behind the answer.
func addBreakdown(d *document.Document, m *Model) {
	title := "The same time by cause"
	if len(m.Diagnosis.Devices) > 1 {
		title = "The same time by cause and GPU"
	}
	d.AddTable(title, partTable(m))
	if it := m.Diagnosis.Iterations; it != nil && len(it.Kinds) > 0 {
		d.AddTable("Kinds of steps", stepsTable(it.Kinds))
	}
}
