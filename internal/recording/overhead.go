package recording

// Overhead is what watching cost a target, and what was done about it (internal/capture/overhead).
type Overhead struct {
	Target uint32  `json:"target"` // pid of the process that was asked for
	Budget float64 `json:"budget"` // share of the target's time that watching may take
	// Total is the cost of everything together, at the levels of the end of the window.
	Total Cost `json:"total"`
	// by what it was measured: calls of a function; "": it was predicted
	Progress string           `json:"progress,omitempty"`
	Pairs    int              `json:"pairs,omitempty"` // of slices that were compared
	State    string           `json:"state"`           // what the governor is doing, in words
	Sources  []OverheadSource `json:"sources"`
}

// The ways to know a cost.
const (
	CostMeasured  = "measured"  // the target's progress, with the source on and off
	CostPredicted = "predicted" // what programs did, times what each was measured to take
)

// Cost is a share of a target's time. Of what is measured, Low and High hold the truth at all times together with 95%;
// of what is predicted, they are how wrong it may be.
type Cost struct {
	Share float64 `json:"share"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Basis string  `json:"basis"` // measured or predicted
}

// OverheadSource is what one source costs, and at which level it is.
type OverheadSource struct {
	Name   string       `json:"name"`
	Level  string       `json:"level"`            // at the end of the window
	Index  int          `json:"index"`            // of Level: 0 is everything
	Loses  string       `json:"loses,omitempty"`  // what is not recorded at this level
	Reason string       `json:"reason,omitempty"` // why it is at this level, where that is not its first
	Pinned bool         `json:"pinned,omitempty"` // the level is fixed by a setting
	Cost   Cost         `json:"cost"`
	Shares []LevelShare `json:"levels,omitempty"` // of the recording's window
	Paused []Pause      `json:"paused,omitempty"` // of the recording's window, in their order
}

// Pause is a time in which a source was off, or reduced to measure what it costs. Nothing that it would have recorded
// then is known not to have happened.
type Pause struct {
	From uint64 `json:"from_ns"` // CLOCK_MONOTONIC
	To   uint64 `json:"to_ns"`
}

// Interval is a time in ns of CLOCK_MONOTONIC.
type Interval struct{ From, To uint64 }

// PausedOf returns the pauses of a source; nil where nobody governed it.
func (o *Overhead) PausedOf(source string) []Pause {
	if o == nil {
		return nil
	}
	for i := range o.Sources {
		if o.Sources[i].Name == source {
			return o.Sources[i].Paused
		}
	}
	return nil
}

// Active returns the intervals of [from, to] (ns) in which a source was not paused, in their order.
func (o *Overhead) Active(source string, from, to uint64) []Interval {
	var out []Interval
	for _, p := range o.PausedOf(source) {
		if begin := min(p.From, to); begin > from {
			out = append(out, Interval{from, begin})
		}
		from = max(from, min(p.To, to))
	}
	if to > from {
		out = append(out, Interval{from, to})
	}
	return out
}

// Whole reports whether a source recorded all that it can for all of the window, as far as is known.
func (o *Overhead) Whole(source string) bool {
	if o == nil {
		return true
	}
	for i := range o.Sources {
		if s := &o.Sources[i]; s.Name == source && (s.Index > 0 || len(s.Shares) > 1 || len(s.Paused) > 0) {
			return false
		}
	}
	return true
}

// LevelShare is for what share of the time a source was at a level.
type LevelShare struct {
	Level string  `json:"level"`
	Share float64 `json:"share"`
}

// LevelOff is the name of the last level of sources that can be turned off.
const LevelOff = "off"

// LevelMeasuring is what LevelShare calls the time for which a source was reduced only to measure what it costs.
const LevelMeasuring = "measuring"
