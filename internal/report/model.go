// Package report says what a recording shows: one model made from the recording
// alone, and three renderings of it (terminal, Markdown, JSON) that cannot
// disagree because they have no other source.
package report

import (
	"cmp"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/analysis/sensors"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/topology"
	"github.com/inferscope/inferscope/internal/recording"
)

// schemaVersion is the version of the JSON form. Within one, fields are only ever added.
const schemaVersion = 1

// Kind describes what the JSON form is, for whoever finds such a file.
const Kind = "inferscope.report"

// Model is everything that a report says. Times are ns, sizes are bytes, shares are fractions.
type Model struct {
	Kind    string             `json:"kind"`
	Schema  int                `json:"schema"`
	Version string             `json:"version"` // of the daemon that made the recording
	Host    recording.Host     `json:"host"`
	Target  targetModel        `json:"target"`
	State   callState          `json:"state"`
	Doubts  []Doubt            `json:"doubts"` // the worst first
	Sources []recording.Source `json:"sources"`
	// Overhead is what watching cost the target; absent where nothing governed it.
	Overhead *recording.Overhead `json:"overhead,omitempty"`
	Summary  summary.Summary     `json:"summary"`
	CPU      cpu.Summary         `json:"cpu"`
	GPU      *gpu.Summary        `json:"gpu,omitempty"` // absent where no GPU activity was asked for
	// Memory is what allocators of frameworks and calls of the driver held; absent where nothing was recorded of them.
	Memory *memory.Summary `json:"memory,omitempty"`
	// Sensors are power, clocks and temperatures of the machine's GPUs; absent where none were read.
	Sensors *sensors.Summary `json:"sensors,omitempty"`
	// Collectives is what the program asked NCCL or RCCL for; absent where no call was seen.
	Collectives *collectives.Summary `json:"collectives,omitempty"`
	// Topology is where GPUs are attached and their launching threads ran; absent where the host does not tell.
	Topology *topology.Summary `json:"topology,omitempty"`
	// Requests are the HTTP requests that the target served; absent where none was seen.
	Requests *requests.Summary `json:"requests,omitempty"`
	// Diagnosis is the answer; everything else is what it was made of.
	Diagnosis diagnose.Diagnosis `json:"diagnosis"`
	// clock error above which a doubt is raised; absent without GPU
	Margin uint64 `json:"clock_margin_ns,omitempty"`

	result *analysis.Result // what it was made of, for the form that shows it; nil in a model that was read from JSON
}

// Options say how a report is made; the zero value has the defaults.
type Options struct {
	ClockMargin uint64              // ns; 0: 1 ms, the default of sync_error_margin_us
	Objective   *requests.Objective // that requests should keep to; nil: none
}

const defaultClockMargin = 1_000_000

// targetModel is the process that was asked for.
type targetModel struct {
	PID      uint32     `json:"pid"`
	NSPID    uint32     `json:"ns_pid,omitempty"`
	Comm     string     `json:"comm"`
	Cmdline  string     `json:"cmdline"`
	Exited   bool       `json:"exited"`
	Ending   *exitModel `json:"ending,omitempty"` // where it exited
	Children int        `json:"children"`         // processes that it made, directly or not
	Living   int        `json:"children_living"`  // of these, at the end of the window
}

// exitModel describes how a process ended.
type exitModel struct {
	At     uint64 `json:"at_ns"`  // CLOCK_MONOTONIC
	Ago    uint64 `json:"ago_ns"` // before the end of the window
	Code   int    `json:"code"`   // exit code, where no signal ended it
	Signal int    `json:"signal,omitempty"`
	Core   bool   `json:"core,omitempty"` // it left a core dump
	Status int32  `json:"wait_status"`    // as wait(2) gives it
	// OutOfMemory reports whether the kernel killed processes because memory was exhausted when this one was killed.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
}

// callState describes what a report can be about.
type callState string

// The states.
const (
	stateCalls     callState = "calls"      // CUDA calls were seen
	stateNoCalls   callState = "no_calls"   // libraries are probed, but nobody called them in the window
	stateNoLibrary callState = "no_library" // the target had mapped no CUDA library
	stateUnprobed  callState = "unprobed"   // it had, but none could be probed
)

// New makes the model of rec with the default options. It is a pure function of it.
func New(rec *recording.Recording) *Model { return NewWith(rec, Options{}) }

// NewWith makes the model of rec. It is a pure function of its arguments.
func NewWith(rec *recording.Recording, o Options) *Model {
	r := analysis.Run(rec)
	m := &Model{
		Kind: Kind, Schema: schemaVersion, Version: rec.Meta.Version, Host: rec.Meta.Host,
		Target: target(rec), Sources: rec.Meta.Sources, Overhead: rec.Meta.Overhead,
		Summary: *r.Calls, CPU: *r.CPU, GPU: r.GPU, Memory: r.Memory, Sensors: r.Sensors, Collectives: r.Exchanged,
		Topology: r.Topology, Requests: r.Requests, Diagnosis: *r.Diagnosis, result: r,
	}
	if m.GPU != nil {
		m.Margin = cmp.Or(o.ClockMargin, defaultClockMargin)
	}
	if m.Sources == nil {
		m.Sources = []recording.Source{}
	}
	if m.Requests != nil && o.Objective != nil {
		m.Requests.Judge(*o.Objective)
	}
	m.State = state(&m.Summary)
	m.Doubts = doubts(rec, m)
	return m
}

// target finds the process that was asked for: of several with its pid, the last
// that was born before the window ended.
func target(rec *recording.Recording) targetModel {
	t := targetModel{PID: rec.Meta.Target}
	for _, p := range rec.Meta.Processes {
		if p.PID != rec.Meta.Target {
			t.Children++
			if p.Died == 0 {
				t.Living++
			}
			continue
		}
		t.NSPID, t.Comm, t.Cmdline = p.NSPID, p.Comm, p.Cmdline
		t.Exited, t.Ending = p.Died != 0, ending(p, rec.Meta.To)
	}
	return t
}

// ending reports how p ended, nil where it runs.
func ending(p recording.Process, to uint64) *exitModel {
	if p.Died == 0 {
		return nil
	}
	e := endingOf(p.Died, p.ExitCode, to)
	e.OutOfMemory = p.OutOfMemory
	return &e
}

// endingOf reads a wait status: wait(2), and the macros of <sys/wait.h>.
func endingOf(died uint64, status int32, to uint64) exitModel {
	e := exitModel{At: died, Signal: int(status & 0x7f), Core: status&0x80 != 0, Status: status}
	if e.Signal == 0 {
		e.Code = int(status >> 8 & 0xff)
	}
	if to > died {
		e.Ago = to - died
	}
	return e
}

func state(s *summary.Summary) callState {
	if s.Operations > 0 || s.CallTime > 0 {
		return stateCalls
	}
	probed := false
	for _, l := range s.Libraries {
		probed = probed || l.Points > 0
	}
	switch {
	case probed:
		return stateNoCalls
	case len(s.Libraries) > 0:
		return stateUnprobed
	}
	return stateNoLibrary
}
