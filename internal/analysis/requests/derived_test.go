package requests_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/requests"
)

// TestDeriveWithHoles: where iterations were not recorded for a while, what streams were written in it are no batch,
// and it is no step.
func TestDeriveWithHoles(t *testing.T) {
	b := newBuilder(1000 * ms)
	for _, from := range []uint64{109 * ms, 119 * ms} { // each of 31 tokens: one of the second pair begins in the hole
		b.stream(50*ms, steady(from, 10*ms, 31)...)
		b.stream(50*ms, steady(from+320*ms, 10*ms, 31)...)
	}
	var starts []uint64
	for at := uint64(0); at < 1000*ms; at += 10 * ms {
		if at < 395*ms || at > 455*ms {
			starts = append(starts, at)
		}
	}
	s := b.summary()
	s.Derive(&b.rec, requests.Iterations{PID: 1, Source: "period", Starts: starts})
	if d := s.Derived; d == nil || d.MaxBatch != 2 || d.Step.Max != 10*ms || d.InTime == 1 {
		t.Errorf("%+v, step %+v", d, d.Step)
	}
}

// TestDerive: a server that tells nothing, whose streams get a token after each of its iterations of 10 ms: three
// streams at first, then one. Iterations that are not its steps are not taken for them.
func TestDerive(t *testing.T) {
	starts := func(period uint64) (out []uint64) {
		for at := uint64(0); at < 1000*ms; at += period {
			out = append(out, at)
		}
		return out
	}
	for _, test := range []struct {
		name   string
		starts []uint64
		pid    uint32
		want   bool
	}{
		{"steps", starts(10 * ms), 1, true},
		{"layers", starts(ms), 1, false},
		{"two tokens of a step", starts(20 * ms), 1, false},
		{"another period", starts(7 * ms), 1, false},
		{"another process", starts(10 * ms), 7, false},
		{"too few", starts(100 * ms), 1, false},
	} {
		b := newBuilder(1000 * ms)
		b.stream(50*ms, steady(109*ms, 10*ms, 80)...)
		b.stream(50*ms, steady(109*ms, 10*ms, 41)...)
		b.stream(50*ms, steady(109*ms, 10*ms, 41)...)
		s := b.summary()
		s.Derive(&b.rec, requests.Iterations{PID: test.pid, Source: "period of cuGraphLaunch", Starts: test.starts})
		d := s.Derived
		if (d != nil) != test.want {
			t.Errorf("%s: %+v", test.name, d)
			continue
		}
		if d != nil && (d.Steps != 79 || d.MaxBatch != 3 || d.MeanBatch < 2 || d.MeanBatch > 2.03 ||
			d.Step.P50 != 10*ms || d.InTime != 1) {
			t.Errorf("%s: %+v", test.name, *d)
		}
	}
}
