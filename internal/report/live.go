package report

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/report/document"
)

// liveRows is how many rows the tables of a live view have.
const liveRows = 10

// Live is the report of a stretch that has just passed, for a screen that is drawn again and again: the answer, then
// requests, threads and kernels.
func Live(m *Model, ascii bool) *document.Document {
	d := &document.Document{}
	addAnswer(d, m, ascii)
	addDelays(d, m)
	addRequests(d, m, liveRows)
	if t := stateTable(m, liveRows, ascii); len(t.Rows) > 0 {
		d.AddTable("Threads", t)
	}
	if m.GPU != nil && m.GPU.Recorded {
		d.AddTable("Kernels", kernelTable(m, liveRows))
		d.AddTable("GPU copies", gpuCopyTable(m))
	}
	return d
}

// Glance is what a line of a live table says of a target.
type Glance struct {
	Verdict  string  `json:"verdict"`
	Recorded bool    `json:"gpu_recorded"` // what the GPU did was seen: Busy is known
	Busy     float64 `json:"gpu_busy"`     // share of the time that was seen in which a GPU ran something
	// where most of the time goes now, beside kernels; "" where it goes nowhere else
	Part      string  `json:"part"`
	PartShare float64 `json:"part_share"`
	Finding   string  `json:"finding,omitempty"` // what to change first
	Rate      float64 `json:"iterations_per_second,omitempty"`
	Latency   uint64  `json:"iteration_p50_ns,omitempty"`
	Losses    int     `json:"losses"` // kinds of loss that make numbers wrong

	Requests float64 `json:"requests_per_second,omitempty"` // HTTP requests that ended
	Open     int     `json:"requests_in_progress,omitempty"`
	TTFT     uint64  `json:"ttft_p50_ns,omitempty"`
	TTFTSlow uint64  `json:"ttft_p99_ns,omitempty"`
}

// Look makes a glance of a model.
func Look(m *Model) Glance {
	b := &m.Diagnosis.Breakdown
	g := Glance{Verdict: string(m.Diagnosis.Verdict), Recorded: !ofMainThread(m) && b.Time > 0}
	idle := slices.Clone(b.People)
	idle = slices.DeleteFunc(idle, func(p diagnose.Part) bool { return p.Key == "compute" || p.Time == 0 })
	for i := range b.Parts {
		if p := &b.Parts[i]; p.Busy && g.Recorded {
			g.Busy += p.Share
		}
	}
	if len(idle) > 0 {
		most := slices.MaxFunc(idle, func(a, b diagnose.Part) int { return cmp.Compare(a.Time, b.Time) })
		g.Part, g.PartShare = partName(&most), most.Share
	}
	if len(m.Diagnosis.Findings) > 0 {
		g.Finding = format.CleanText(m.Diagnosis.Findings[0].Title)
	}
	if it := m.Diagnosis.Iterations; it != nil && it.Count > 0 {
		g.Rate, g.Latency = it.PerSec, it.P50
	}
	if r := m.Requests; r != nil {
		g.Requests, g.Open = r.PerSec, r.Open
		if r.TTFT != nil {
			g.TTFT, g.TTFTSlow = r.TTFT.P50, r.TTFT.P99
		}
	}
	for i := range m.Doubts {
		if gravity(m.Doubts[i].Severity) > gravity(loss.Info) {
			g.Losses++
		}
	}
	return g
}
