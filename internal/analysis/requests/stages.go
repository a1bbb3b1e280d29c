package requests

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// Stage is a part of a request's time, in ns of CLOCK_MONOTONIC.
type Stage struct {
	Name     string
	From, To uint64
}

// Names of stages. A stage whose end is not known is one with the next: its name has both.
const (
	StageRead    = "read"       // the server reads the request
	StageServer  = "API server" // before the engine has it, and after the engine's last token
	StageQueue   = "queue"
	StagePrefill = "prefill"
	StageFirst   = "queue and prefill"
	stageDecode  = "decode"
	StageFinish  = "finish" // after the last token
	stageAnswer  = "answer" // of a request that is not streamed
)

// Stages cuts the time of a request that ended at end into stages that follow each other: by what its engine told (nil:
// nothing), else by what its server read and wrote.
func Stages(r *recording.Request, engine *recording.EngineRequest, end uint64) []Stage {
	type cut struct {
		name string
		at   uint64 // its end
	}
	cuts := []cut{{StageRead, r.Asked}, {stageAnswer, end}}
	switch {
	case engine != nil:
		cuts = []cut{
			{StageServer, cmp.Or(engine.Asked, engine.Queued)},
			{StageQueue, engine.Scheduled},
			{StagePrefill, engine.First},
			{stageDecode, engine.Last},
			{StageServer, end},
		}
	case r.FirstToken > 0:
		cuts = []cut{
			{StageRead, r.Asked}, {StageFirst, r.FirstToken}, {stageDecode, r.LastToken}, {StageFinish, end},
		}
	}
	var out []Stage
	from, name := r.Received, ""
	for _, c := range cuts {
		if name != "" {
			name += ", "
		}
		name += c.name
		if c.at == 0 {
			continue
		}
		to := min(max(c.at, from), end)
		if to > from {
			out = append(out, Stage{name, from, to})
		}
		from, name = to, ""
	}
	return out
}

// Rows returns all requests that ended in the window, the slowest first.
func (s *Summary) Rows() []Row {
	out := slices.Clone(s.all)
	slices.SortStableFunc(out, func(a, b Row) int { return cmp.Compare(b.Latency, a.Latency) })
	return out
}
