package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestWhatIsLeftToGain: a GPU that works for more than nine tenths of the time is called healthy, and what the rest is
// for is said where it is worth a change: from 3% on, not guessed, and not where the remedy is predicted to bring less
// than that.
func TestWhatIsLeftToGain(t *testing.T) {
	guessed := func(x *gap.Step) { x.Sure = gap.Guessed }
	for _, c := range []struct {
		name  string
		make  func(s *scene)
		gain  float64 // predicted speed-up; 0: nobody can say
		minor string  // the causes of what is left to gain
	}{
		{"nothing", func(s *scene) { loop(s, 100, cause.HostSync) }, 0, ""},
		{"too little", func(s *scene) { loop(s, 98, cause.HostSync) }, 0, ""},
		{"some", func(s *scene) { loop(s, 91, cause.HostSync) }, 0, "host-sync"},
		{"some that can be gained", func(s *scene) { loop(s, 91, cause.HostSync) }, 1.08, "host-sync"},
		{"some that cannot", func(s *scene) { loop(s, 91, cause.HostSync) }, 1.01, ""},
		{"guessed", func(s *scene) { loop(s, 91, cause.HostSync, guessed) }, 0, ""},
		{"of which nothing is known", func(s *scene) { loop(s, 91, cause.Unknown) }, 0, ""},
		{"of two causes", func(s *scene) {
			loop(s, 92, cause.HostSync, func(x *gap.Step) { x.To = x.From + 5*ms })
			for i := range uint64(10) {
				s.step(i*100+97, i*100+100, cause.Sleep)
			}
		}, 0, "host-sync sleep"},
		{"more than that", func(s *scene) { loop(s, 89, cause.HostSync) }, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.make(s)
			if c.gain > 0 {
				s.predict = func(cause.ID) (diagnose.Gain, bool) {
					return diagnose.Gain{Speedup: c.gain, Low: 1, High: 1.2}, true
				}
			}
			d := s.diagnose()
			if got := minor(d); got != c.minor {
				t.Errorf("left to gain: %q, want %q (%s, %q)", got, c.minor, d.Verdict, causes(d))
			}
			if said := strings.Contains(d.Headline, "left to gain"); said != (c.minor != "") {
				t.Errorf("the headline is %q", d.Headline)
			}
			if c.minor != "" && (d.Verdict != diagnose.Healthy || len(d.Findings[0].Changes) == 0) {
				t.Errorf("%s, with %+v", d.Verdict, d.Findings[0].Changes)
			}
		})
	}
}

// TestWhatIsLeftToGainComesLast: of a GPU that works with poor kernels these are the matter.
func TestWhatIsLeftToGainComesLast(t *testing.T) {
	s := newScene(t)
	for i := range uint64(10) {
		s.work(event.Kernel, 1, i*100, i*100+91, grid(40), 256)
		s.step(i*100+91, i*100+100, cause.HostSync)
	}
	d := s.diagnose()
	if d.Verdict != diagnose.GPUBound || causes(d) != "small-batch host-sync" || minor(d) != "host-sync" {
		t.Errorf("%s with %q, of which %q is minor", d.Verdict, causes(d), minor(d))
	}
	if !strings.HasPrefix(d.Headline, d.Findings[0].Title) {
		t.Errorf("the headline is %q", d.Headline)
	}
}

// TestPausesBetweenKernels: where the launches of a busy GPU are in time, nobody says that they are not.
func TestPausesBetweenKernels(t *testing.T) {
	for busy, want := range map[uint64]string{94: "The GPU pauses between kernels", 60: "The CPU cannot launch as fast as the GPU runs"} {
		s := newScene(t)
		loop(s, busy, cause.LaunchOverhead)
		if d := s.diagnose(); len(d.Findings) == 0 || !strings.HasPrefix(d.Findings[0].Title, want) {
			t.Errorf("busy for %d%%: %q, want %q", busy, d.Headline, want)
		}
	}
}

// minor lists the causes of what is left to gain.
func minor(d *diagnose.Diagnosis) string {
	var out []string
	for i := range d.Findings {
		if d.Findings[i].Minor {
			out = append(out, d.Findings[i].Cause)
		}
	}
	return strings.Join(out, " ")
}
