package whatif

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// Kind and Schema say what the JSON form is. Within one schema, fields are only ever added.
const (
	kind   = "inferscope.whatif"
	schema = 1
)

// Answer is all that a recording says about what could be faster. Times are ns.
type Answer struct {
	Kind      string       `json:"kind"`
	Schema    int          `json:"schema"`
	Version   string       `json:"version"` // of the daemon that made the recording
	PID       uint32       `json:"pid"`
	Basis     basis        `json:"replay"`
	Pace      *Pace        `json:"pace"`     // before; null where nothing repeats
	Asked     *Prediction  `json:"asked"`    // what was asked for; null: nothing
	After     *Pace        `json:"after"`    // with it
	Remedies  []Prediction `json:"causes"`   // each cause that has a remedy and took time, the most gain first
	Marginals []Marginal   `json:"marginal"` // functions, calls, copies and kernels by themselves, the most gain first

	FirstToken []FirstToken `json:"first_token,omitempty"` // without what holds requests up, each by itself, the most time first
}

// FirstToken is the time to the first token of requests without one thing that holds them up, in ns, if all else took
// as long.
type FirstToken struct {
	Cause string `json:"without"`
	Was50 uint64 `json:"was_p50_ns"`
	Was99 uint64 `json:"was_p99_ns"`
	P50   uint64 `json:"p50_ns"`
	P99   uint64 `json:"p99_ns"`
}

// basis is what all predictions rest on.
type basis struct {
	Observed    uint64  `json:"observed_ns"` // how long the work took that is replayed
	Error       float64 `json:"error"`       // of the replay without changes, relative to that
	Learned     float64 `json:"learned"`     // error of a replay that takes how long everything took from the other half of the recording: see Study.Learned
	Unexplained float64 `json:"unexplained"` // see Study.Unexplained
	Varies      float64 `json:"varies"`      // by how much the pace varied within the recording: standard deviation of tenths
	// share of observed_ns that recording it cost, as far as the recording shows it: it is left out of all predictions
	Recording float64 `json:"recording"`
	Nodes     int     `json:"nodes"`
}

// Pace is latency and throughput of what the program does again and again.
type Pace struct {
	Of      string  `json:"of"` // what an iteration is
	Latency uint64  `json:"latency_ns"`
	Low     uint64  `json:"latency_low_ns,omitempty"` // the interval, of a prediction
	High    uint64  `json:"latency_high_ns,omitempty"`
	PerSec  float64 `json:"per_second"`
}

// Answer replays everything that is worth it; edits are what was asked for, before the pace as it was; nil: not known.
func (s *Study) Answer(before *Pace, edits []Edit) *Answer {
	a := &Answer{
		Kind: kind, Schema: schema, Pace: before, Remedies: []Prediction{}, Marginals: []Marginal{},
		Basis: basis{
			Observed:    s.observed,
			Error:       s.Error(),
			Learned:     s.Learned(),
			Unexplained: s.Unexplained(),
			Varies:      s.varies,
			Recording:   s.recorder.cost,
			Nodes:       s.Nodes(),
		},
	}
	if !s.Any() {
		return a
	}
	if len(edits) > 0 {
		p := s.Predict(edits...)
		a.Asked, a.After = &p, before.after(&p)
	}
	for id := range cause.Count {
		if p, ok := s.Of(id); ok && p.Touched > 0 {
			a.Remedies = append(a.Remedies, p)
		}
	}
	for _, id := range []cause.ID{cause.SyncCopy, cause.HostSync, cause.LaunchOverhead} {
		if p := s.Predict(editOf(cause.Remedy{Cause: id, Merge: true})); p.Touched > 0 {
			a.Remedies = append(a.Remedies, p)
		}
	}
	slices.SortStableFunc(a.Remedies, func(x, y Prediction) int { return cmp.Compare(y.Speedup, x.Speedup) })
	a.Marginals = s.Marginals()
	return a
}

// after is a pace with a prediction.
func (p *Pace) after(by *Prediction) *Pace {
	if p == nil {
		return nil
	}
	shorter := func(speedup float64) uint64 { return uint64(float64(p.Latency) / speedup) }
	return &Pace{
		Of:      p.Of,
		Latency: shorter(by.Speedup),
		Low:     shorter(by.High),
		High:    shorter(by.Low),
		PerSec:  p.PerSec * by.Speedup,
	}
}
