// Package html writes a report as one self-contained page: what the report says in words, a timeline to look
// at, flame graphs and tables. The page fetches nothing; its data are a compressed block inside of it.
//
// Everything that a target can name (kernels, threads, files, its command line) reaches the page inside that
// block and is put there as text only, never as markup. The one exception is the title, which is escaped.
package html

import (
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/topology"
)

// Input is everything that a page shows. Texts are for people, in the words of the other forms of the report.
type Input struct {
	Title    string
	Version  string // of the daemon that made the recording
	Verdict  string // in a few words
	Mood     string // good, bad or plain
	Headline string
	Notes    []string // what to know before the rest is read
	Facts    []Fact
	Findings []Finding // in the order of the diagnosis
	Heading  string    // of the findings
	Went     string    // of the breakdown
	// Iteration is what an iteration takes on average, ns; 0 where they do not fill the time, or there are none.
	Iteration uint64
	Doubts    []Doubt // the worst first

	Diagnosis *diagnose.Diagnosis
	Calls     *summary.Summary
	CPU       *cpu.Summary
	GPU       *gpu.Summary         // nil where no GPU activity was asked for
	WhatIf    *WhatIf              // nil where nothing was predicted
	Requests  *requests.Summary    // nil where there were none
	Exchanged *collectives.Summary // nil where no call of NCCL was seen
	Topology  *topology.Summary    // nil where the host does not tell
	Memory    *memory.Summary      // nil where nothing was recorded of allocators
	Delays    []Delay              // what holds requests up, that of most time first

	Timeline *timeline.Timeline
	Threads  []threads.Thread // nil where scheduling was not recorded
	Walk     *gap.Walk
}

// Fact is a labelled value.
type Fact struct {
	Label string `json:"label"`
	Value string `json:"value"`
}

// Finding is a claim with its evidence, in words.
type Finding struct {
	Title      string     `json:"title"`
	Cause      string     `json:"cause"` // its key in the table of causes
	Cost       string     `json:"cost"`  // how much time, and of what
	Share      float64    `json:"share"`
	Confidence float64    `json:"confidence"`
	Sure       string     `json:"sure"` // Confidence in a word
	Gain       string     `json:"gain,omitempty"`
	Open       bool       `json:"open,omitempty"` // Gain says why nothing is predicted
	Facts      []Fact     `json:"facts"`
	Evidence   []Evidence `json:"evidence"`
	Changes    []Change   `json:"changes"`
	PID        uint32     `json:"pid,omitempty"`
	TID        uint32     `json:"tid,omitempty"`
}

// Delay is something that holds requests up, in words and numbers.
type Delay struct {
	Title    string
	Share    float64 // of the time of all requests
	Requests int
	P50, P99 uint64 // ns
	Proof    string
	Without  string // what the time to the first token would be; "": not known
	Change   string
}

// Evidence is one fact behind a finding. From and To are ns of CLOCK_MONOTONIC, 0 where there is nothing to
// look at in the timeline.
type Evidence struct {
	Text     string
	From, To uint64
	Stack    []string // the leaf first
}

// Change is something to do.
type Change struct {
	Where   string `json:"where"`
	Text    string `json:"text"`
	Example string `json:"example,omitempty"`
}

// Doubt is something that was lost or is not certain.
type Doubt struct {
	Severity string   `json:"severity"`
	Count    uint64   `json:"count"`
	Means    string   `json:"means"`
	Do       string   `json:"do,omitempty"`
	Where    []string `json:"where,omitempty"`
}

// WhatIf is the predicted effect of a change, computed for several strengths.
type WhatIf struct {
	Note string       `json:"note"` // what the predictions rest on
	Rows []Prediction `json:"rows"`
}

// Prediction is the predicted effect of one change.
type Prediction struct {
	Title   string  `json:"title"`
	Finding int     `json:"finding"` // index into Input.Findings; -1: none
	Points  []Point `json:"points"`  // by Removed
}

// Point is the outcome of one strength: the program is Speedup times as fast, between Low and High.
type Point struct {
	Removed float64 `json:"removed"` // share of the cost that is taken away, 0 to 1
	Speedup float64 `json:"speedup"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
}
