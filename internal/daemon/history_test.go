package daemon

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/loss"
)

func TestLossesBelongToTheirWindow(t *testing.T) {
	var now []loss.Loss
	h := newLossHistory(func() []loss.Loss { return now })
	refused := loss.Loss{Reason: loss.LibraryRefused, Count: 1, Where: "pid 1"}
	full := func(n uint64) loss.Loss { return loss.Loss{Reason: loss.RingFull, Count: n, Where: "cpu 0"} }
	h.tick(10 * second)
	now = []loss.Loss{full(5)}
	h.tick(20 * second)
	now = []loss.Loss{full(5), refused}
	h.tick(30 * second)
	now = []loss.Loss{full(7), refused}
	h.tick(40 * second)
	for _, c := range []struct {
		name     string
		from, to uint64
		want     []loss.Loss
	}{
		{"everything", 0, 50, []loss.Loss{full(7), refused}},
		{"before the first", 5, 10, nil},
		{"around the first", 12, 25, []loss.Loss{full(5), refused}}, // a state that came up to a sample later
		{"between", 22, 28, []loss.Loss{refused}},
		{"around the second", 32, 45, []loss.Loss{full(2), refused}},
		{"after all", 41, 50, []loss.Loss{refused}},
	} {
		if d := cmp.Diff(c.want, h.within(50*second, c.from*second, c.to*second)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestHistoryKeepsChangesOnly(t *testing.T) {
	reads := 0
	n := uint64(0)
	h := newLossHistory(func() []loss.Loss { reads++; return []loss.Loss{{Reason: loss.RingFull, Count: n}} })
	for i := range uint64(100) {
		h.tick(10*second + i*second/10)
	}
	if reads != 10 || len(h.samples) != 1 {
		t.Errorf("%d reads and %d samples in ten seconds, want 10 and 1", reads, len(h.samples))
	}
	for i := range uint64(3 * maxSamples) {
		n++
		h.tick((100 + i) * second)
	}
	if len(h.samples) > maxSamples {
		t.Errorf("%d samples are kept", len(h.samples))
	}
	end := (100 + 3*maxSamples) * uint64(second)
	if got := h.within(end, end-10*second, end); len(got) != 1 || got[0].Count != 9 {
		t.Errorf("in the last ten seconds %+v, want 9", got)
	}
}

func TestLossesThatCannotBeReadAreALoss(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	w.rings.mu.Lock()
	w.rings.err = errors.New("bad file descriptor")
	w.rings.mu.Unlock()
	got := d.Status().Losses
	if len(got) != 1 || got[0].Reason != loss.RingFull || got[0].Detail == "" {
		t.Errorf("losses = %+v: nothing known must not look like nothing lost", got)
	}
}

func TestOrderOfLosses(t *testing.T) {
	got := ordered([]loss.Loss{
		{Reason: "from the future"}, {Reason: loss.Overwritten}, {Reason: loss.RingFull, Where: "cpu 10"},
		{Reason: loss.RingFull, Where: "cpu 9"}, {Reason: loss.RingFull},
	})
	want := []loss.Loss{
		{Reason: loss.RingFull}, {Reason: loss.RingFull, Where: "cpu 9"}, {Reason: loss.RingFull, Where: "cpu 10"},
		{Reason: loss.Overwritten}, {Reason: "from the future"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}
