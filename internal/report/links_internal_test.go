package report

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/topology"
)

// TestLinkTable: GPUs are named with their process, by which each counts its own from 0.
func TestLinkTable(t *testing.T) {
	m := &Model{Topology: &topology.Summary{
		GPUs:  []topology.GPU{{PID: 7, Bus: "0000:1b:00.0"}, {PID: 8, Bus: "0000:9a:00.0"}},
		Links: []topology.Link{{A: 0, B: 1, Kind: "NV18", Text: "18 NVLinks"}},
	}}
	want := []string{"0 of process 7 (0000:1b:00.0)", "0 of process 8 (0000:9a:00.0)", "18 NVLinks"}
	if rows := linkTable(m).Rows; len(rows) != 1 || !slices.Equal(rows[0], want) {
		t.Errorf("%q", rows)
	}
	if rows := linkTable(&Model{}).Rows; len(rows) != 0 {
		t.Errorf("%q of a host that tells nothing", rows)
	}
}
