package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
)

// TestOrder: what pays most comes first, whatever it costs; of what pays alike, and where nobody can say, the dearest.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		gains map[cause.ID]float64
		off   float64 // half of an interval, of its gain
		want  string
	}{
		{"no gain is known", nil, 0.02, "launch-overhead host-sync sleep"},
		{"the dearer one brings little", map[cause.ID]float64{cause.LaunchOverhead: 1.04, cause.HostSync: 1.18, cause.Sleep: 1.06}, 0.02, "host-sync launch-overhead sleep"},
		{"all alike", map[cause.ID]float64{cause.LaunchOverhead: 1.20, cause.HostSync: 1.22, cause.Sleep: 1.24}, 0.02, "launch-overhead host-sync sleep"},
		{"not all are known", map[cause.ID]float64{cause.LaunchOverhead: 1.02}, 0.02, "host-sync sleep launch-overhead"},
		{"more than it costs", map[cause.ID]float64{cause.Sleep: 2}, 0.02, "sleep launch-overhead host-sync"},
		{"intervals that meet", map[cause.ID]float64{cause.LaunchOverhead: 3.3, cause.HostSync: 4.1, cause.Sleep: 3.4}, 0.15, "launch-overhead host-sync sleep"},
		{"slower", map[cause.ID]float64{cause.LaunchOverhead: 0.9}, 0.02, "host-sync sleep launch-overhead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			for i := range uint64(10) {
				s.kernel(i*100, i*100+50)
				s.step(i*100+50, i*100+73, cause.LaunchOverhead)
				s.step(i*100+73, i*100+90, cause.HostSync)
				s.step(i*100+90, i*100+100, cause.Sleep)
			}
			s.predict = func(id cause.ID) (diagnose.Gain, bool) {
				g, ok := c.gains[id]
				return diagnose.Gain{Speedup: g, Low: g * (1 - c.off), High: g * (1 + c.off)}, ok
			}
			d := s.diagnose()
			if got := causes(d); got != c.want {
				t.Errorf("findings %q, want %q", got, c.want)
			}
			if top := d.Findings[0].Title; !strings.HasPrefix(d.Headline, top) {
				t.Errorf("the headline is %q, and the first finding %q", d.Headline, top)
			}
			for _, f := range d.Findings {
				row, _, _ := cause.ByKey(f.Cause)
				if _, known := c.gains[row.ID]; known != (f.Gain != nil) {
					t.Errorf("gain of %s: %+v", f.Cause, f.Gain)
				}
			}
		})
	}
}

// TestNoPredictionWithoutAVerdict: where there is not enough evidence, no gain is promised.
func TestNoPredictionWithoutAVerdict(t *testing.T) {
	s := newScene(t)
	loop(s, 50, cause.PythonWork, func(x *gap.Step) { x.Sure = gap.Guessed })
	s.predict = func(id cause.ID) (diagnose.Gain, bool) {
		t.Errorf("the gain of %s was asked for", id)
		return diagnose.Gain{}, true
	}
	if d := s.diagnose(); d.Verdict != diagnose.NotEnough {
		t.Errorf("verdict %s", d.Verdict)
	}
}
