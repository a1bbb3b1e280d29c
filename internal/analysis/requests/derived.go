package requests

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// derived is the steps of a server whose engine tells nothing: its iterations on the GPU, and the streams that were
// written to between the beginnings of two. Only iterations that streams keep time with are taken for steps.
type derived struct {
	Source    string     `json:"source"`     // how iterations were found
	Steps     int        `json:"steps"`      // after which at least one stream was written to
	MeanBatch float64    `json:"mean_batch"` // streams that were written to after one of these
	MaxBatch  int        `json:"max_batch"`
	InTime    float64    `json:"in_time"` // share of the gaps of streams in which exactly one iteration began
	Step      *Quantiles `json:"step,omitempty"`
}

// leastInTime is the share of gaps from which on iterations are the steps of a server: a layer comes back more often
// than tokens, and something else with no regard to them.
const leastInTime = 0.8

// Iterations are what a process does again and again.
type Iterations struct {
	PID    uint32
	Source string
	Starts []uint64 // ns, rising; else nothing is derived
}

// Derive finds the steps of a server without messages of an engine: once, after Summarize.
func (s *Summary) Derive(rec *recording.Recording, it Iterations) {
	if s.Engine != nil || len(it.Starts) < fewestGaps || !slices.IsSorted(it.Starts) {
		return
	}
	var of []*recording.Request
	for i := range rec.Meta.Requests {
		if r := &rec.Meta.Requests[i]; r.PID == it.PID && r.FirstToken > 0 {
			of = append(of, r)
		}
	}
	begun := func(at uint64) int { // iterations up to then
		n, exact := slices.BinarySearch(it.Starts, at)
		if exact {
			n++
		}
		return n
	}
	d := &derived{Source: it.Source}
	gaps, inTime := 0, 0
	steps := map[int][]gap{}
	for _, g := range gapsOf(rec, of) {
		from, to := begun(g.from), begun(g.to)
		if from == 0 || to == len(it.Starts) {
			continue // before the first iteration, or after the last
		}
		gaps++
		if to-from == 1 { // else iterations between were not recorded, or are something else
			inTime++
			steps[to] = append(steps[to], g)
		}
	}
	if gaps < fewestGaps {
		return
	}
	if d.InTime = float64(inTime) / float64(gaps); d.InTime < leastInTime {
		return
	}
	var lengths []uint64
	sum := 0
	for _, of := range steps {
		sum += len(of)
		d.MaxBatch = max(d.MaxBatch, len(of))
		length := of[0].to - of[0].from
		for _, g := range of[1:] {
			length = min(length, g.to-g.from)
		}
		lengths = append(lengths, length)
	}
	d.Steps = len(steps)
	d.MeanBatch = float64(sum) / float64(d.Steps)
	d.Step = quantilesOf(lengths)
	s.Derived = d
}
