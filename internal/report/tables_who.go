package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/analyze"
	"github.com/inferscope/inferscope/internal/human"
	"github.com/inferscope/inferscope/internal/page"
)

// severalProcesses says whether rows must name their process.
func severalProcesses(m *Model) bool { return len(m.Summary.Processes) > 1 }

func threadTable(m *Model, rows int) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Thread", 0), page.Right("tid", 1), page.Right("pid", 0), page.Right("Operations", 0), page.Right("Launches", 2),
		page.Right("Time in calls", 0), page.Right("Of wall", 3), page.Right("In sync", 0), page.Right("Sync of wall", 4),
	}}
	list := m.Summary.Threads
	for _, th := range list[:min(len(list), rows)] {
		name := human.Clean(th.Name)
		if name == "" {
			name = fmt.Sprintf("thread %d", th.TID)
		}
		t.Row(name, id(th.TID), id(th.PID), human.Count(th.Count), human.Count(th.Launches), human.Span(th.Time), human.Percent(th.Share), human.Span(th.Sync), human.Percent(th.SyncPart))
	}
	if !severalProcesses(m) {
		t.Drop("pid")
	}
	t.Note = more(len(list), rows, "thread", "threads")
	return t
}

func streamTable(m *Model, rows int) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Stream", 0), page.Right("pid", 0), page.Right("Operations", 1), page.Right("Kernels", 0), page.Right("Graphs", 2),
		page.Right("Copies", 0), page.Right("Copied", 0), page.Right("Syncs", 3), page.Right("In sync", 4),
	}}
	list := m.Summary.Streams
	for _, s := range list[:min(len(list), rows)] {
		t.Row(streamName(&s), id(s.PID), human.Count(s.Count), human.Count(s.Kernels), human.Count(s.Graphs), human.Count(s.Copies), human.Size(s.Bytes), human.Count(s.Syncs), human.Span(s.Sync))
	}
	if !severalProcesses(m) {
		t.Drop("pid")
	}
	t.Note = more(len(list), rows, "stream", "streams")
	return t
}

func streamName(s *analyze.Stream) string {
	if s.Name != "" {
		return s.Name
	}
	return fmt.Sprintf("0x%x", s.Handle)
}

// processTable is left out where there is one process only: the head describes it.
func processTable(m *Model) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Process", 0), page.Right("pid", 0), page.Right("Parent", 2), page.Right("Operations", 0), page.Left("State", 0), page.Left("Command", 1),
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
			t.Row("not described", id(p.PID), human.Nothing, human.Count(p.Count), human.Nothing, "")
			continue
		}
		parent := human.Nothing
		if p.Parent != 0 {
			parent = id(p.Parent)
		}
		t.Row(human.Clean(p.Comm), id(p.PID), parent, human.Count(p.Count), processState(&p, m.Summary.Window.To), human.Shorten(human.Clean(p.Cmdline), 40))
	}
	return t
}

// maxEnded is how many processes that ended a text lists: a server that starts a process
// for each request, or a shell script, has thousands of them in a minute.
const maxEnded = 10

// endedBeyond says by index which processes the text leaves out: of those that ended all but
// the maxEnded with the most operations. The target itself is always shown.
func endedBeyond(all []analyze.Process, target uint32) map[int]bool {
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

func endedNote(all []analyze.Process, left map[int]bool) string {
	if len(left) == 0 {
		return ""
	}
	operations := uint64(0)
	for i := range left {
		operations += all[i].Count
	}
	return fmt.Sprintf("And %s more that ended, with %s; --format json has all.",
		human.Count(uint64(len(left))), human.Plural(int(operations), "operation", "operations"))
}

func processState(p *analyze.Process, to uint64) string {
	if p.Died == 0 {
		if p.Probed == 0 {
			return "running, no CUDA library"
		}
		return "running"
	}
	return fmt.Sprintf("exited %s ago %s", human.Span(endingOf(p.Died, p.ExitCode, to).Ago), human.Ending(p.ExitCode))
}

// Probes says which libraries are probed, and at what kind of points.
func Probes(list []analyze.Library) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Left("Library", 0), page.Left("Kind", 2), page.Right("Processes", 1), page.Right("Known", 3), page.Right("Probed", 0), page.Right("Cheap", 0), page.Left("Mode", 0),
	}}
	for _, l := range list {
		t.Row(human.ShortPath(human.Clean(l.Path), 48), human.Clean(l.Kind), human.Count(len(l.PIDs)), human.Count(l.Found), human.Count(l.Points), human.Count(l.Cheap), probeMode(&l))
	}
	t.Note = probeNote(list)
	return t
}

func probeNote(list []analyze.Library) string {
	points, cheap := 0, 0
	for _, l := range list {
		points, cheap = points+l.Points, cheap+l.Cheap
	}
	switch points {
	case 0:
		return ""
	case cheap:
		return "Probed are distinct addresses: several exported names can share one. All are cheap points, at which a probe costs about half a microsecond for each call."
	}
	return "Probed are distinct addresses: several exported names can share one. At a cheap point a probe costs about half a microsecond for each call, at the others 10 to 33 times more."
}

// probeMode says how the probes of a library are attached.
func probeMode(l *analyze.Library) string {
	switch {
	case l.Points == 0:
		return "not probed"
	case l.Error != "":
		return human.Clean(l.Mode) + ", failed in part"
	}
	return human.Clean(l.Mode)
}

func id(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
