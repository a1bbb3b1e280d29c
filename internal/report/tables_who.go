package report

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/analyze"
)

// severalProcesses says whether rows must name their process.
func severalProcesses(m *Model) bool { return len(m.Summary.Processes) > 1 }

func threadTable(m *Model, rows int) *table {
	t := &table{columns: []column{
		{"Thread", true, 0}, {"tid", false, 1}, {"pid", false, 0}, {"Operations", false, 0}, {"Launches", false, 2},
		{"Time in calls", false, 0}, {"Of wall", false, 3}, {"In sync", false, 0}, {"Of wall", false, 4},
	}}
	list := m.Summary.Threads
	for _, th := range list[:min(len(list), rows)] {
		name := clean(th.Name)
		if name == "" {
			name = fmt.Sprintf("thread %d", th.TID)
		}
		t.row(name, id(th.TID), id(th.PID), count(th.Count), count(th.Launches), span(th.Time), percent(th.Share), span(th.Sync), percent(th.SyncPart))
	}
	if !severalProcesses(m) {
		t.drop("pid")
	}
	t.note = more(len(list), rows, "thread", "threads")
	return t
}

func streamTable(m *Model, rows int) *table {
	t := &table{columns: []column{
		{"Stream", true, 0}, {"pid", false, 0}, {"Operations", false, 1}, {"Kernels", false, 0}, {"Graphs", false, 2},
		{"Copies", false, 0}, {"Copied", false, 0}, {"Syncs", false, 3}, {"In sync", false, 4},
	}}
	list := m.Summary.Streams
	for _, s := range list[:min(len(list), rows)] {
		t.row(streamName(&s), id(s.PID), count(s.Count), count(s.Kernels), count(s.Graphs), count(s.Copies), size(s.Bytes), count(s.Syncs), span(s.Sync))
	}
	if !severalProcesses(m) {
		t.drop("pid")
	}
	t.note = more(len(list), rows, "stream", "streams")
	return t
}

func streamName(s *analyze.Stream) string {
	if s.Name != "" {
		return s.Name
	}
	return fmt.Sprintf("0x%x", s.Handle)
}

// processTable is left out where there is one process only: the head describes it.
func processTable(m *Model) *table {
	t := &table{columns: []column{
		{"Process", true, 0}, {"pid", false, 0}, {"Parent", false, 2}, {"Operations", false, 0}, {"State", true, 0}, {"Command", true, 1},
	}}
	if !severalProcesses(m) {
		return t
	}
	for _, p := range m.Summary.Processes {
		parent := nothing
		if p.Parent != 0 {
			parent = id(p.Parent)
		}
		t.row(clean(p.Comm), id(p.PID), parent, count(p.Count), processState(&p, m.Summary.Window.To), shorten(clean(p.Cmdline), 40))
	}
	return t
}

func processState(p *analyze.Process, to uint64) string {
	if p.Died == 0 {
		if p.Probed == 0 {
			return "running, no CUDA library"
		}
		return "running"
	}
	ended := endingOf(p.Died, p.ExitCode, to)
	return fmt.Sprintf("exited %s ago %s", span(ended.Ago), ended.how())
}

// probeTable says what was watched, and at what kind of points.
func probeTable(m *Model) *table {
	t := &table{columns: []column{
		{"Library", true, 0}, {"Kind", true, 2}, {"Processes", false, 1}, {"Known", false, 3}, {"Probed", false, 0}, {"Cheap", false, 0}, {"Mode", true, 0},
	}}
	for _, l := range m.Summary.Libraries {
		mode := clean(l.Mode)
		if l.Error != "" {
			mode = "not probed"
		}
		if mode == "" {
			mode = nothing
		}
		t.row(shortPath(clean(l.Path), 48), clean(l.Kind), count(len(l.PIDs)), count(l.Found), count(l.Points), count(l.Cheap), mode)
	}
	if len(t.rows) > 0 {
		t.note = "Known functions are those of the library that InferScope's table has; several can share one probed address, and some are left out because they are called often and say little. At a cheap point a probe costs about half a microsecond for each call, elsewhere 10 to 33 times more."
	}
	return t
}

func id(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// drop takes a column out, the first of that title.
func (t *table) drop(title string) {
	i := slices.IndexFunc(t.columns, func(c column) bool { return c.title == title })
	if i < 0 {
		return
	}
	t.columns = slices.Delete(slices.Clone(t.columns), i, i+1)
	for r := range t.rows {
		t.rows[r] = slices.Delete(slices.Clone(t.rows[r]), i, i+1)
	}
}

// shorten cuts s to n characters at its end.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// shortPath cuts s to n characters at its beginning: a path ends with what tells files apart.
func shortPath(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return "…" + string(r[len(r)-n+1:])
}
