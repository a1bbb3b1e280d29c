package report

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/summary"
)

// A server that starts a process for each request must not fill the report with those.
func TestProcessesThatEnded(t *testing.T) {
	m := &Model{Target: targetModel{PID: 1}}
	m.Summary.Processes = []summary.Process{{PID: 1, Comm: "server", Died: 5}, {PID: 2, Parent: 1, Comm: "worker"}}
	for i := range uint32(30) {
		m.Summary.Processes = append(m.Summary.Processes,
			summary.Process{PID: 100 + i, Parent: 1, Comm: "child", Died: 7, Count: uint64(i)})
	}
	m.Summary.Window = summary.Window{To: 10}
	table := processTable(m)
	if len(table.Rows) != 2+maxEnded {
		t.Fatalf("%d rows, want the server, the worker and %d children", len(table.Rows), maxEnded)
	}
	if first := table.Rows[2][1]; first != "120" { // the last ten have the most operations
		t.Errorf("the first child listed is %s, want 120", first)
	}
	if want := "And 20 more that ended, with 190 operations"; !strings.Contains(table.Note, want) {
		t.Errorf("the note is %q, want %q", table.Note, want)
	}
	m.Summary.Processes = m.Summary.Processes[:2+maxEnded]
	if table = processTable(m); table.Note != "" || len(table.Rows) != 2+maxEnded {
		t.Errorf("%d rows and the note %q, want all and none", len(table.Rows), table.Note)
	}
}
