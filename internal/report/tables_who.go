package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// severalProcesses reports whether rows must name their process.
func severalProcesses(m *Model) bool { return len(m.Summary.Processes) > 1 }

func threadTable(m *Model, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Thread", 0),
		document.Right("tid", 1),
		document.Right("pid", 0),
		document.Right("Operations", 0),
		document.Right("Launches", 2),
		document.Right("Time in calls", 0),
		document.Right("Of wall", 3),
		document.Right("In sync", 0),
		document.Right("Sync of wall", 4),
	}}
	list := m.Summary.Threads
	for _, th := range list[:min(len(list), rows)] {
		name := format.Clean(th.Name)
		if name == "" {
			name = fmt.Sprintf("thread %d", th.TID)
		}
		t.Row(name, id(th.TID), id(th.PID), format.Count(th.Count), format.Count(th.Launches),
			format.Span(th.Time), format.Percent(th.Share), format.Span(th.Sync), format.Percent(th.SyncPart))
	}
	if !severalProcesses(m) {
		t.Drop("pid")
	}
	t.Note = more(len(list), rows, "thread", "threads")
	return t
}

func streamTable(m *Model, rows int) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Stream", 0),
		document.Right("pid", 0),
		document.Right("Operations", 1),
		document.Right("Kernels", 0),
		document.Right("Graphs", 2),
		document.Right("Copies", 0),
		document.Right("Copied", 0),
		document.Right("Syncs", 3),
		document.Right("In sync", 4),
	}}
	list := m.Summary.Streams
	for _, s := range list[:min(len(list), rows)] {
		t.Row(streamName(&s), id(s.PID), format.Count(s.Count), format.Count(s.Kernels),
			format.Count(s.Graphs), format.Count(s.Copies), format.Size(s.Bytes), format.Count(s.Syncs),
			format.Span(s.Sync))
	}
	if !severalProcesses(m) {
		t.Drop("pid")
	}
	t.Note = more(len(list), rows, "stream", "streams")
	return t
}

func streamName(s *summary.Stream) string {
	if s.Name != "" {
		return s.Name
	}
	return fmt.Sprintf("0x%x", s.Handle)
}

// processTable is left out where there is one process only: the head describes it.
func processTable(m *Model) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Process", 0),
		document.Right("pid", 0),
		document.Right("Parent", 2),
		document.Right("Operations", 0),
		document.Left("State", 0),
		document.Left("Command", 1),
	}}
	if !severalProcesses(m) {
		return t
	}
	left := endedBeyond(m.Summary.Processes, m.Target.PID)
	t.Note = endedNote(m.Summary.Processes, left)
	for i, p := range m.Summary.Processes {
		if left[i] {
			continue
		}
		if p.Comm == "" && p.Cmdline == "" {
			t.Row("not described", id(p.PID), format.Nothing, format.Count(p.Count), format.Nothing, "")
			continue
		}
		parent := format.Nothing
		if p.Parent != 0 {
			parent = id(p.Parent)
		}
		t.Row(format.Clean(p.Comm), id(p.PID), parent, format.Count(p.Count),
			processState(&p, m.Summary.Window.To), format.Shorten(format.Clean(p.Cmdline), 40))
	}
	return t
}

// maxEnded is how many processes that ended a text lists: a server that starts a process
// for each request, or a shell script, has thousands of them in a minute.
const maxEnded = 10

// endedBeyond says by index which processes the text leaves out: of those that ended all but
// the maxEnded with the most operations. The target itself is always shown.
func endedBeyond(all []summary.Process, target uint32) map[int]bool {
	var ended []int
	for i := range all {
		if all[i].Died != 0 && all[i].PID != target {
			ended = append(ended, i)
		}
	}
	slices.SortStableFunc(ended, func(a, b int) int { return cmp.Compare(all[b].Count, all[a].Count) })
	left := map[int]bool{}
	for _, i := range ended[min(maxEnded, len(ended)):] {
		left[i] = true
	}
	return left
}

func endedNote(all []summary.Process, left map[int]bool) string {
	if len(left) == 0 {
		return ""
	}
	operations := uint64(0)
	for i := range left {
		operations += all[i].Count
	}
	return fmt.Sprintf("And %s more that ended, with %s; --format json has all.",
		format.Count(uint64(len(left))), format.Plural(int(operations), "operation", "operations"))
}

func processState(p *summary.Process, to uint64) string {
	if p.Died == 0 {
		if p.Probed == 0 {
			return "running, no CUDA library"
		}
		return "running"
	}
	return fmt.Sprintf("exited %s ago %s", format.Span(endingOf(p.Died, p.ExitCode, to).Ago), format.Ending(p.ExitCode))
}

// Probes reports which libraries are probed, and at what kind of points.
func Probes(list []summary.Library) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("Library", 0),
		document.Left("Kind", 2),
		document.Right("Processes", 1),
		document.Right("Known", 3),
		document.Right("Probed", 0),
		document.Right("Cheap", 0),
		document.Left("Mode", 0),
	}}
	for _, l := range list {
		t.Row(format.ShortPath(format.Clean(l.Path), 48), format.Clean(l.Kind), format.Count(len(l.PIDs)),
			format.Count(l.Found), format.Count(l.Points), format.Count(l.Cheap), probeMode(&l))
	}
	t.Note = probeNote(list)
	return t
}

func probeNote(list []summary.Library) string {
	points, cheap := 0, 0
	for _, l := range list {
		points, cheap = points+l.Points, cheap+l.Cheap
	}
	switch points {
	case 0:
		return ""
	case cheap:
		return "Probed are distinct addresses: several exported names can share one. All are cheap points, at which " +
			"a probe costs about half a microsecond for each call."
	}
	return "Probed are distinct addresses: several exported names can share one. At a cheap point a probe costs " +
		"about half a microsecond for each call, at the others 10 to 33 times more."
}

// probeMode reports how the probes of a library are attached.
func probeMode(l *summary.Library) string {
	switch {
	case l.Points == 0:
		return "not probed"
	case l.Error != "":
		return format.Clean(l.Mode) + ", failed in part"
	}
	return format.Clean(l.Mode)
}

func id(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
