package overhead

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// maxChanges bounds what is remembered of levels: an hour of measuring all that may be measured.
const maxChanges = 1 << 13

// history remembers which source was at which level when.
type history struct {
	sources [][]levelFrom // by source, in order of time
}

// levelFrom is a level from a time on.
type levelFrom struct {
	at      uint64
	level   int
	reduced bool // for a slice only
}

func (h *history) begin(now uint64, sources []*governed) {
	for _, s := range sources {
		h.sources = append(h.sources, []levelFrom{{at: now, level: s.level}})
	}
}

func (h *history) note(at uint64, source, level int, reduced bool) {
	list := h.sources[source]
	if len(list) >= maxChanges {
		list = slices.Delete(list, 0, maxChanges/4)
	}
	h.sources[source] = append(list, levelFrom{at, level, reduced})
}

// shares returns for what share of [from, to] a source was at which level, the levels in their order. What was
// reduced for a slice of measuring is told apart.
func (h *history) shares(source int, levels []Level, from, to uint64) []recording.LevelShare {
	if to <= from {
		return nil
	}
	spent := make([]uint64, len(levels))
	paused := uint64(0)
	list := h.sources[source]
	for i, l := range list {
		begin, end := max(l.at, from), to
		if i == 0 {
			begin = from
		}
		if i+1 < len(list) {
			end = min(end, list[i+1].at)
		}
		if end <= begin {
			continue
		}
		if l.reduced {
			paused += end - begin
		} else {
			spent[l.level] += end - begin
		}
	}
	var out []recording.LevelShare
	for i, ns := range spent {
		if ns > 0 {
			out = append(out, recording.LevelShare{Level: levels[i].Name, Share: float64(ns) / float64(to-from)})
		}
	}
	if paused > 0 {
		out = append(
			out,
			recording.LevelShare{Level: recording.LevelMeasuring, Share: float64(paused) / float64(to-from)},
		)
	}
	return out
}

// pauses returns when in [from, to] a source was reduced for a slice of measuring, or at its last level, which is off.
func (h *history) pauses(source, off int, from, to uint64) []recording.Pause {
	var out []recording.Pause
	list := h.sources[source]
	for i, l := range list {
		begin, end := max(l.at, from), to
		if i+1 < len(list) {
			end = min(end, list[i+1].at)
		}
		if end <= begin || !l.reduced && l.level != off {
			continue
		}
		if n := len(out); n > 0 && out[n-1].To == begin {
			out[n-1].To = end
			continue
		}
		out = append(out, recording.Pause{From: begin, To: end})
	}
	return out
}

// State returns what watching cost a target in [from, to] (ns), and what was done about it; nil for one that is not
// known.
func (g *Governor) State(pid uint32, from, to uint64) *recording.Overhead {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.targets, func(w *watched) bool { return w.target.PID() == pid })
	if i < 0 {
		return nil
	}
	w := g.targets[i]
	o := &recording.Overhead{Target: pid, Budget: g.opts.Budget, Total: w.verdict.total, State: w.verdict.words()}
	if w.verdict.measured {
		o.Progress, o.Pairs = g.progressOf(&w.yard), w.verdict.pairs
	}
	times := w.idleness()
	var metered recording.Cost // of what counts by itself: no share of a quarter of a CPU
	for j, s := range g.sources {
		row := recording.OverheadSource{
			Name: s.Name(), Level: s.levels[s.level].Name, Index: s.level, Loses: s.levels[s.level].Loses,
			Reason: s.reason, Pinned: s.pinned,
			Shares: g.history.shares(j, s.levels, from, to),
			Paused: g.history.pauses(j, len(s.levels)-1, from, to),
		}
		if j < len(w.verdict.costs) {
			row.Cost = w.verdict.costs[j]
			if s.metered != nil && s.metered.Cost(pid).Basis != "" {
				metered.Share += row.Cost.Share
				metered.Low += row.Cost.Low
				metered.High += row.Cost.High
			} else {
				row.Cost = ofOwn(row.Cost, times, recording.Cost{})
			}
		}
		o.Sources = append(o.Sources, row)
	}
	if times > 1 && o.State != "" {
		o.State += fmt.Sprintf("; counts as %.1f%%, of a quarter of a CPU", 100*o.Total.Share)
	}
	o.Total = ofOwn(o.Total, times, metered)
	return o
}

// ofOwn makes of a cost that counts against leastCPU a share of the target's own time, but for a part of it.
func ofOwn(c recording.Cost, times float64, but recording.Cost) recording.Cost {
	c.Share = (c.Share-but.Share)*times + but.Share
	c.Low = (c.Low-but.Low)*times + but.Low
	c.High = (c.High-but.High)*times + but.High
	return c
}

func (g *Governor) progressOf(y *yardstick) string {
	name := "calls"
	if g.opts.Name != nil {
		name += " of " + g.opts.Name(y.key.Func)
	}
	if !y.pace {
		return "CPU time for its " + name
	}
	return name
}

func (v *verdict) words() string {
	var words []string
	switch {
	case v.over:
		words = append(words, "above the budget")
	case v.under:
		words = append(words, "within the budget")
	}
	if v.why != "" {
		words = append(words, v.why)
	}
	return strings.Join(words, "; ")
}
