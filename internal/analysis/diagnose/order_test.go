package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestOrder: what wins back most of the time that it costs comes first; of what wins alike, and where nobody can say,
// the dearest.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		gains map[cause.ID]float64
		off   float64 // half of an interval, of its gain
		want  string
	}{
		{"no gain is known", nil, 0.02, "launch-overhead host-sync sleep"},
		{"the dearer one brings little", map[cause.ID]float64{cause.LaunchOverhead: 1.04, cause.HostSync: 1.18, cause.Sleep: 1.06}, 0.02, "host-sync sleep launch-overhead"},
		{"all alike", map[cause.ID]float64{cause.LaunchOverhead: 1.20, cause.HostSync: 1.22, cause.Sleep: 1.24}, 0.02, "launch-overhead host-sync sleep"},
		{"not all are known", map[cause.ID]float64{cause.LaunchOverhead: 1.02}, 0.02, "host-sync sleep launch-overhead"},
		{"more than it costs", map[cause.ID]float64{cause.Sleep: 2}, 0.02, "launch-overhead host-sync sleep"},
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

// TestExternalFirst: a thread that has no CPU for more of the time than it launches is told so first, although a graph
// would need no CPU and therefore brings more.
func TestExternalFirst(t *testing.T) {
	s := newScene(t)
	for i := range uint64(10) {
		s.kernel(i*100, i*100+5)
		s.step(i*100+5, i*100+71, cause.NoCPU)
		s.step(i*100+71, i*100+100, cause.LaunchOverhead)
	}
	gains := map[cause.ID]diagnose.Gain{
		cause.NoCPU:          {Speedup: 2.6, Low: 2.1, High: 3},
		cause.LaunchOverhead: {Speedup: 14, Low: 9, High: 19},
	}
	s.predict = func(id cause.ID) (diagnose.Gain, bool) { g, ok := gains[id]; return g, ok }
	if got := causes(s.diagnose()); got != "no-cpu launch-overhead" {
		t.Errorf("findings %q", got)
	}
	gains[cause.NoCPU] = diagnose.Gain{Speedup: 1, Low: 1, High: 1} // something else decides
	if got := causes(s.diagnose()); got != "launch-overhead no-cpu" {
		t.Errorf("findings %q", got)
	}
}

// TestUnsurePrediction: what costs twice as much stands first unless its interval says that fixing it brings less.
func TestUnsurePrediction(t *testing.T) {
	for high, want := range map[float64]string{1.55: "gil no-cpu", 1.06: "no-cpu gil"} {
		s := newScene(t)
		for i := range uint64(10) {
			s.kernel(i*100, i*100+60)
			s.step(i*100+60, i*100+88, cause.GIL)
			s.step(i*100+88, i*100+100, cause.NoCPU)
		}
		gains := map[cause.ID]diagnose.Gain{
			cause.GIL:   {Speedup: 1.04, Low: 0.78, High: high},
			cause.NoCPU: {Speedup: 1.05, Low: 0.93, High: 1.1},
		}
		s.predict = func(id cause.ID) (diagnose.Gain, bool) { g, ok := gains[id]; return g, ok }
		if got := causes(s.diagnose()); got != want {
			t.Errorf("up to %.2f: findings %q, want %q", high, got, want)
		}
	}
}

// TestSmallShares: 8% is more than 4%, although they differ by less than predictions are off by.
func TestSmallShares(t *testing.T) {
	s := newScene(t)
	for i := range uint64(10) {
		s.kernel(i*100, i*100+88)
		s.step(i*100+88, i*100+92, cause.NoCPU)
		s.step(i*100+92, i*100+100, cause.HostSync)
	}
	if got := causes(s.diagnose()); !strings.HasPrefix(got, "host-sync") {
		t.Errorf("findings %q", got)
	}
}

// TestTies: of what costs and wins back as much, what is surer comes first, else what takes less to change.
func TestTies(t *testing.T) {
	for _, c := range []struct {
		sure gap.Confidence
		want string
	}{{gap.Seen, "sleep python-work"}, {gap.Inferred, "python-work sleep"}} {
		s := newScene(t)
		for i := range uint64(10) {
			s.kernel(i*100, i*100+40)
			s.step(
				i*100+40,
				i*100+71,
				cause.PythonWork,
				func(x *gap.Step) { x.Op = 0 },
			) // in a call, so that no samples are needed
			s.step(i*100+71, i*100+100, cause.Sleep, func(x *gap.Step) { x.Sure = c.sure })
		}
		if got := causes(s.diagnose()); got != c.want {
			t.Errorf("sleep is known by %d: findings %q, want %q", c.sure, got, c.want)
		}
	}
}

// TestTooLittle: what cannot be told from nothing is no finding but what is left to gain, and a program of which
// nothing is accused may be healthy.
func TestTooLittle(t *testing.T) {
	for _, c := range []struct {
		name    string
		busy    uint64 // % of the time
		gain    diagnose.Gain
		verdict diagnose.Verdict
		minor   bool
	}{
		{"a graph decode that is busy", 94, diagnose.Gain{Speedup: 1.09, Low: 0.89, High: 1.42}, diagnose.Healthy, true},
		{"its interval holds 1", 91, diagnose.Gain{Speedup: 1.09, Low: 0.89, High: 1.42}, diagnose.Healthy, true},
		{"proven to matter", 80, diagnose.Gain{Speedup: 1.09, Low: 1.03, High: 1.2}, diagnose.Balanced, false},
		{"much, and not proven", 80, diagnose.Gain{Speedup: 1.09, Low: 0.89, High: 1.2}, diagnose.Balanced, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			for i := range uint64(10) {
				s.kernel(i*100, i*100+c.busy)
				s.step(i*100+c.busy, i*100+100, cause.LaunchOverhead)
			}
			s.predict = func(cause.ID) (diagnose.Gain, bool) { return c.gain, true }
			d := s.diagnose()
			if d.Verdict != c.verdict || len(d.Findings) != 1 || d.Findings[0].Minor != c.minor {
				t.Fatalf("%s, %+v", d.Verdict, d.Findings)
			}
			if g := d.Findings[0].Gain; g.High > 100/float64(c.busy)+0.001 {
				t.Errorf("%d%% busy, and a gain of up to %.3f", c.busy, g.High)
			}
		})
	}

	// Three causes of 6% each, none of which is proven to matter.
	s := newScene(t)
	for i := range uint64(10) {
		s.kernel(i*100, i*100+82)
		s.step(i*100+82, i*100+88, cause.LaunchOverhead)
		s.step(i*100+88, i*100+94, cause.HostSync)
		s.step(i*100+94, i*100+100, cause.Sleep)
	}
	s.predict = func(cause.ID) (diagnose.Gain, bool) { return diagnose.Gain{Speedup: 1.06, Low: 0.95, High: 1.2}, true }
	if d := s.diagnose(); d.Verdict != diagnose.Healthy || !d.Findings[0].Minor {
		t.Errorf("%s, %+v", d.Verdict, d.Findings)
	}
}

// TestTooLittleOfTheMainThread: the same holds of a program that uses no GPU, from less than 5% of the time.
func TestTooLittleOfTheMainThread(t *testing.T) {
	for low, minor := range map[float64]bool{0.92: true, 1.02: false} {
		s := newScene(t)
		s.Meta.GPU, s.alone = nil, true
		stack := s.Stack(recordtest.Python("crunch", "/srv/app/batch.py", 3))
		s.step(0, 960, cause.PythonWork, func(x *gap.Step) { x.Stack = stack })
		s.step(960, 1000, cause.NoCPU)
		s.predict = func(cause.ID) (diagnose.Gain, bool) {
			return diagnose.Gain{Speedup: 1.04, Low: low, High: 1.2}, true
		}
		d := s.diagnose()
		if causes(d) != "python-work no-cpu" || d.Findings[0].Minor || d.Findings[1].Minor != minor {
			t.Errorf("from %.2f: %q, minor %v and %v", low, causes(d), d.Findings[0].Minor, d.Findings[1].Minor)
		}
	}
}
