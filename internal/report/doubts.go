package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Doubt is something that was lost, or that makes a number less than certain.
type Doubt struct {
	Reason   loss.Reason   `json:"reason"`
	Severity loss.Severity `json:"severity"`
	Count    uint64        `json:"count"`
	Means    string        `json:"means"`
	Do       string        `json:"do,omitempty"`
	Where    []string      `json:"where,omitempty"`
	Details  []string      `json:"details,omitempty"`
}

// Doubts that only whoever reads the recording can have; package loss knows the others.
const (
	overlapping   loss.Reason = "overlapping_calls"
	unlisted      loss.Reason = "unlisted_process"
	stray         loss.Reason = "unknown_function"
	sourceDown    loss.Reason = "source_unavailable"
	untimed       loss.Reason = "untimed_calls"
	sourceReduced loss.Reason = "source_reduced"
	maxPlaces                 = 64 // of one doubt, so that a model stays small
	unknownSource             = "it did not say why"
)

// FromLosses puts losses of one reason together, the worst first.
func FromLosses(losses []loss.Loss) []Doubt {
	out := []Doubt{}
	for _, l := range losses {
		out = note(out, loss.Describe(l.Reason), l)
	}
	return worstFirst(out)
}

// doubts gathers what the recording carries and what its reading brought up, the worst first.
func doubts(rec *recording.Recording, m *Model) []Doubt {
	out := FromLosses(rec.Meta.Losses)
	carried := slices.Clone(out)
	for _, own := range append(ownDoubts(rec, &m.Summary), gpuDoubts(rec, m)...) {
		known := slices.ContainsFunc(carried, func(d Doubt) bool { return d.Reason == own.Kind.Reason })
		if !known {
			out = note(out, own.Kind, own.Loss)
		}
	}
	return worstFirst(out)
}

func worstFirst(list []Doubt) []Doubt {
	slices.SortStableFunc(list, func(x, y Doubt) int {
		return cmp.Or(cmp.Compare(gravity(y.Severity), gravity(x.Severity)),
			cmp.Compare(place(x.Reason), place(y.Reason)))
	})
	return list
}

// note adds l to the doubt of its reason. A loss of nothing is none.
func note(list []Doubt, k loss.Kind, l loss.Loss) []Doubt {
	if l.Count == 0 {
		return list
	}
	i := slices.IndexFunc(list, func(d Doubt) bool { return d.Reason == k.Reason })
	if i < 0 {
		i = len(list)
		list = append(list, Doubt{Reason: k.Reason, Severity: k.Severity, Means: k.Means, Do: k.Do})
	}
	d := &list[i]
	d.Count += l.Count
	d.Where = addPlace(d.Where, l.Where)
	d.Details = addPlace(d.Details, l.Detail)
	return list
}

func addPlace(list []string, s string) []string {
	if s == "" || len(list) >= maxPlaces || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// ownDoubt is a doubt that the recording's own list of losses need not name.
type ownDoubt struct {
	Kind loss.Kind
	Loss loss.Loss
}

func ownDoubts(rec *recording.Recording, s *summary.Summary) []ownDoubt {
	own := func(r loss.Reason, sev loss.Severity, means, do string, count uint64) ownDoubt {
		return ownDoubt{loss.Kind{Reason: r, Severity: sev, Means: means, Do: do}, loss.Loss{Reason: r, Count: count}}
	}
	out := []ownDoubt{
		own(stray, loss.Error, "calls of functions that the recording does not name were left out",
			"use a daemon and a client of the same version", uint64(s.Stray)),
		own(
			overlapping,
			loss.Warning,
			"timed calls of one thread overlap although neither made the other, so that times can be counted twice",
			"",
			uint64(s.Overlapping),
		),
		own(unlisted, loss.Info, "calls came from processes that the recording does not describe",
			"", uint64(s.Unlisted)),
		own(untimed, loss.Warning, "calls that should have a duration have none: times are lower bounds",
			"", untimedCalls(s)),
	}
	for _, l := range s.Libraries {
		out = append(out, libraryDoubts(l)...)
	}
	_, other := importedFrom(rec.Meta.Version)
	if s.Unreadable > 0 && !other { // arguments that other tools do not record are no failure of ours
		out = append(out, ownDoubt{loss.Describe(loss.ArgumentFault), loss.Loss{Count: s.Unreadable}})
	}
	for _, src := range rec.Meta.Sources {
		if src.State == "unavailable" {
			severity := loss.Error
			if src.Optional {
				severity = loss.Info
			}
			means := "a source of events could not run"
			if other {
				means = "the file lacks a kind of events"
			}
			d := own(sourceDown, severity, means, "", 1)
			d.Loss.Where, d.Loss.Detail = src.Name, cmp.Or(src.Detail, unknownSource)
			out = append(out, d)
		}
	}
	if o := rec.Meta.Overhead; o != nil {
		out = append(out, reducedDoubts(o)...)
	}
	return out
}

// reducedDoubts are of sources that were off for a part of the window, to keep the cost within the budget.
func reducedDoubts(o *recording.Overhead) []ownDoubt {
	var out []ownDoubt
	for i := range o.Sources {
		s := &o.Sources[i]
		at := slices.IndexFunc(s.Shares, func(l recording.LevelShare) bool { return l.Level == recording.LevelOff })
		if at < 0 || s.Pinned || s.Shares[at].Share < notedPause {
			continue
		}
		out = append(out, ownDoubt{
			loss.Kind{
				Reason: sourceReduced, Severity: loss.Warning,
				Means: "a source was off for a part of the time, to keep watching within its budget",
				Do:    "to record all of the time, start the daemon with a larger --overhead-budget",
			},
			loss.Loss{
				Count: 1, Where: s.Name, Detail: fmt.Sprintf("%s of the time", format.Percent(s.Shares[at].Share)),
			},
		})
	}
	return out
}

func untimedCalls(s *summary.Summary) uint64 {
	n := uint64(0)
	for _, f := range s.Functions {
		n += f.Untimed
	}
	return n
}

func libraryDoubts(l summary.Library) []ownDoubt {
	var out []ownDoubt
	if dear := l.Points - l.Cheap; dear > 0 {
		out = append(out, ownDoubt{
			loss.Describe(loss.ExpensivePoint),
			loss.Loss{Count: uint64(dear), Where: l.Path, Detail: fmt.Sprintf("%d of %d probe points", dear, l.Points)},
		})
	}
	if l.Error != "" {
		out = append(out,
			ownDoubt{loss.Describe(loss.LibraryRefused), loss.Loss{Count: 1, Where: l.Path, Detail: l.Error}})
	}
	return out
}

func gravity(s loss.Severity) int {
	switch s {
	case loss.Error:
		return 3
	case loss.Info:
		return 1
	}
	return 2 // a severity from a newer recording is taken as a warning
}

// place is where a reason stands in the registry; those it does not know come last.
func place(r loss.Reason) int {
	kinds := loss.Kinds()
	if i := slices.IndexFunc(kinds, func(k loss.Kind) bool { return k.Reason == r }); i >= 0 {
		return i
	}
	return len(kinds)
}
