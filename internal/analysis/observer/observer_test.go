package observer

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	us    = calltest.Microsecond
	ms    = calltest.Millisecond
	start = uint64(calltest.Start)
)

// launches is a second of graph launches every 2 ms that take in ns inside of windows of 100 ms every 200 ms, and out
// ns outside, give or take a tenth.
func launches(mode string, in, out uint64) *timeline.Timeline {
	b := calltest.New()
	b.Meta.GPU = &recording.GPU{Mode: mode, Agents: []recording.Agent{{PID: recordtest.PID, State: "running"}}}
	inside := func(at uint64) bool { return at%(200*ms) < 100*ms }
	for i := range uint64(5) {
		b.Meta.GPU.Windows = append(b.Meta.GPU.Windows, recording.GPUWindow{
			PID: recordtest.PID, From: start + i*200*ms, To: start + i*200*ms + 100*ms, Activity: true, Calls: true,
			End: "finalized",
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for at := uint64(0); at < 1000*ms; at += 2 * ms {
		dur := out
		if inside(at) {
			dur = in
		}
		dur += rng.Uint64N(dur/5) - dur/10
		b.Event(event.Event{
			TS: start + at, Dur: dur, PID: recordtest.PID, TID: recordtest.PID, Func: b.Fn("cuGraphLaunch"),
			Kind: event.Call, Flags: event.Timed, Args: [4]uint64{5},
		})
		b.Event(event.Event{
			TS: start + at + ms, Dur: dur, PID: recordtest.PID, TID: recordtest.PID, Func: b.Fn("cuStreamSynchronize"),
			Kind: event.Call, Flags: event.Timed, Args: [4]uint64{7},
		})
	}
	return timeline.Build(b.Recording())
}

func steps(in, out uint64) []Step {
	var list []Step
	for at := uint64(0); at < 1000*ms; {
		d := out
		if at%(200*ms) < 100*ms {
			d = in
		}
		list = append(list, Step{start + at, start + at + d})
		at += d
	}
	return list
}

func near(t *testing.T, what string, s Share, want float64) {
	t.Helper()
	if math.Abs(s.Mean-want) > 0.02 || s.Low > want || s.High < want || s.High-s.Low > 0.1 {
		t.Errorf("%s: %+v, want %.3f", what, s, want)
	}
}

// TestWhatWindowsAdd: launches of graphs that take 283 µs inside and 12 µs outside of windows, in steps that take 22%
// longer.
func TestWhatWindowsAdd(t *testing.T) {
	tl := launches("windows", 283*us, 12*us)
	e := Measure(tl, steps(6100*us, 5000*us))
	if len(e.Calls) != 1 {
		t.Fatalf("calls %+v: a synchronization waits for the GPU, and says nothing", e.Calls)
	}
	for f, s := range e.Calls {
		if base := tl.Rec.Meta.Functions[f].Base; base != "cuGraphLaunch" {
			t.Errorf("%s: %+v", base, s)
		}
		near(t, "launches", s, 1-12.0/283)
	}
	if s := e.Steps; math.Abs(s.Mean-1100.0/6100) > 0.001 {
		t.Errorf("steps %+v", s)
	}
}

// TestNothingAdded: without a difference that can be told from chance nothing is taken out, with a bound where there
// was one to be told, and nothing where all is recorded.
func TestNothingAdded(t *testing.T) {
	for name, e := range map[string]*Effect{
		"alike":      Measure(launches("windows", 12*us, 12*us), steps(5000*us, 5000*us)),
		"shorter":    Measure(launches("windows", 12*us, 15*us), steps(5000*us, 6000*us)),
		"continuous": Measure(launches("continuous", 283*us, 12*us), steps(6100*us, 5000*us)),
		"few steps":  Measure(launches("windows", 12*us, 12*us), steps(61000*us, 50000*us)),
	} {
		compared := name == "alike" || name == "shorter"
		if len(e.Calls) != 0 || e.Steps.Mean != 0 || e.Steps.Low != 0 ||
			(e.Steps.High > 0) != compared || e.Steps.High > 0.05 {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
