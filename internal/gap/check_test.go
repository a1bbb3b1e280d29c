package gap

import (
	"fmt"
	"testing"

	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/timeline"
)

// check returns an error that names the first broken invariant of a walk: the steps of a gap tile it,
// gaps of a device are apart, inside of what was covered, and with the busy time they tile that.
func check(t *timeline.Timeline, w *Walk) error {
	next := int32(0)
	idle := make([][]timeline.Span, len(t.Devices))
	r := w.Reader()
	for i := range w.Gaps {
		g := &w.Gaps[i]
		if g.First != next || g.Last < g.First || g.From >= g.To {
			return fmt.Errorf("gap %d %+v: want its steps to begin at %d", i, *g, next)
		}
		next = g.Last
		if err := tiles(r.Of(g), g.From, g.To); err != nil {
			return fmt.Errorf("gap %d %+v: %w", i, *g, err)
		}
		idle[g.Device] = append(idle[g.Device], timeline.Span{From: g.From, To: g.To})
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
		if err := apart(t, w, d, idle[d]); err != nil {
			return fmt.Errorf("device %d: %w", d, err)
		}
	}
	return nil
}

// apart holds that idle time is what of the covered time no activity covers.
func apart(t *timeline.Timeline, w *Walk, d int, idle []timeline.Span) error {
	var busy []timeline.Span
	for i := t.Devices[d].First; i < t.Devices[d].Last; i++ {
		busy = append(busy, timeline.Span{From: t.Activities[i].Start, To: t.Activities[i].End})
	}
	want := w.Covered[d].Without(timeline.Join(busy))
	if got := timeline.Join(idle); got.Total() != want.Total() || len(got) > len(want) || got.Both(want).Total() != want.Total() {
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

// spell writes the steps of plain gaps out, so that tests find all in Steps.
func (w *Walk) spell() {
	var all []Step
	r := w.Reader()
	for i := range w.Gaps {
		g, steps := &w.Gaps[i], r.Of(&w.Gaps[i])
		g.First = int32(len(all))
		all = append(all, steps...)
		g.Last = int32(len(all))
	}
	if w.Main != nil {
		steps := w.Steps[w.Main.First:w.Main.Last]
		w.Main.First = int32(len(all))
		all = append(all, steps...)
		w.Main.Last = int32(len(all))
	}
	w.Steps = all
}
