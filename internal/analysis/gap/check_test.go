package gap

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// check returns an error that names the first broken invariant of a walk: the steps of a gap tile it,
// gaps of a device are apart, inside of what was covered, and with the busy time they tile that.
func check(t *timeline.Timeline, w *Walk) error {
	next := int32(0)
	idle := make([][]timeline.Span, len(t.Devices))
	kept := 0
	for g, steps := range w.All() {
		if kept < len(w.Gaps) && g == &w.Gaps[kept] {
			if g.First != next || g.Last <= g.First {
				return fmt.Errorf("gap %d %+v: want its steps to begin at %d", kept, *g, next)
			}
			next = g.Last
			kept++
		}
		if g.From >= g.To {
			return fmt.Errorf("gap %+v is empty", *g)
		}
		if err := tiles(steps, g.From, g.To); err != nil {
			return fmt.Errorf("gap %+v: %w", *g, err)
		}
		idle[g.Device] = append(idle[g.Device], timeline.Span{From: g.From, To: g.To})
	}
	if kept != len(w.Gaps) {
		return fmt.Errorf("%d gaps are kept, and %d of them are found", len(w.Gaps), kept)
	}
	if want := plainSums(t, w); !reflect.DeepEqual(w.Plain, want) {
		return fmt.Errorf("plain gaps sum to %+v, want %+v", w.Plain, want)
	}
	if w.Main != nil {
		if w.Main.First != next {
			return fmt.Errorf("main %+v: want %d", *w.Main, next)
		}
		next = w.Main.Last
		if err := tiles(w.Steps[w.Main.First:w.Main.Last], t.From, t.To); err != nil {
			return fmt.Errorf("main: %w", err)
		}
	}
	if int(next) != len(w.Steps) {
		return fmt.Errorf("%d steps are in no gap", len(w.Steps)-int(next))
	}
	for d := range t.Devices {
		if err := checkIdle(t, w, d, idle[d]); err != nil {
			return fmt.Errorf("device %d: %w", d, err)
		}
	}
	return nil
}

// plainSums sums the gaps that are found and not kept, in another way than the walk does.
func plainSums(t *timeline.Timeline, w *Walk) []Sum {
	var out []Sum
	kept := 0
	for g, steps := range w.All() {
		if kept < len(w.Gaps) && g == &w.Gaps[kept] {
			kept++
			continue
		}
		s := Sum{
			Device: g.Device, PID: steps[0].PID, TID: steps[0].TID, Func: t.Ops[steps[0].Op].Func,
			Certain: t.Confidence(g.Next) == 1,
			Count:   1, Time: g.To - g.From, Longest: []timeline.Span{{From: g.From, To: g.To}},
		}
		i := slices.IndexFunc(out, func(o Sum) bool {
			return o.Device == s.Device && o.PID == s.PID && o.TID == s.TID && o.Func == s.Func &&
				o.Certain == s.Certain
		})
		if i < 0 {
			out = append(out, s)
			continue
		}
		out[i].Count, out[i].Time, out[i].Longest = out[i].Count+1, out[i].Time+s.Time, append(
			out[i].Longest,
			s.Longest...)
	}
	for i := range out {
		slices.SortStableFunc(out[i].Longest,
			func(x, y timeline.Span) int { return cmp.Compare(y.To-y.From, x.To-x.From) })
		out[i].Longest = slices.Clip(out[i].Longest[:min(len(out[i].Longest), LongestSums)])
	}
	return out
}

// checkIdle holds that idle time is what of the covered time no activity covers.
func checkIdle(t *timeline.Timeline, w *Walk, d int, idle []timeline.Span) error {
	var busy []timeline.Span
	for i := t.Devices[d].First; i < t.Devices[d].Last; i++ {
		busy = append(busy, timeline.Span{From: t.Activities[i].Start, To: t.Activities[i].End})
	}
	want := w.Covered[d].Without(timeline.Join(busy))
	if got := timeline.Join(idle); got.Total() != want.Total() || len(got) > len(want) ||
		got.Both(want).Total() != want.Total() {
		return fmt.Errorf("idle for %d ns in %d gaps, want %d ns in %d", got.Total(), len(got), want.Total(), len(want))
	}
	return nil
}

func tiles(steps []Step, from, to uint64) error {
	for i := range steps {
		s := &steps[i]
		if s.From != from || s.To <= s.From {
			return fmt.Errorf("step %d %+v does not begin at %d", i, *s, from)
		}
		if s.Cause >= cause.Count || s.Inner >= cause.Count || s.Sure > Guessed {
			return fmt.Errorf("step %d %+v has no cause", i, *s)
		}
		from = s.To
	}
	if from != to {
		return fmt.Errorf("steps end at %d, want %d", from, to)
	}
	return nil
}

// sums returns how long each cause took.
func (w *Walk) sums() (out [cause.Count]uint64) {
	for i := range w.Steps {
		out[w.Steps[i].Cause] += w.Steps[i].To - w.Steps[i].From
	}
	return out
}

func checked(tb testing.TB, t *timeline.Timeline) *Walk {
	tb.Helper()
	w := Build(t)
	if err := check(t, w); err != nil {
		tb.Fatal(err)
	}
	w.spell()
	return w
}

// spell keeps plain gaps too, so that tests find all in Gaps and Steps.
func (w *Walk) spell() {
	var gaps []Gap
	var all []Step
	for g, steps := range w.All() {
		x := *g
		x.First = int32(len(all))
		all = append(all, steps...)
		x.Last = int32(len(all))
		gaps = append(gaps, x)
	}
	if w.Main != nil {
		steps := w.Steps[w.Main.First:w.Main.Last]
		w.Main.First = int32(len(all))
		all = append(all, steps...)
		w.Main.Last = int32(len(all))
	}
	w.Gaps, w.Steps, w.Plain, w.t = gaps, all, nil, nil
}
