package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/recording"
)

// sensed is a second of a busy GPU whose clock is what is given, for the reasons given, in half of the samples.
func sensed(t *testing.T, clock, reasons uint64, used bool) *diagnose.Diagnosis {
	t.Helper()
	return sensedAt(t, clock, reasons, used, 93)
}

// sensedAt is the same with this temperature (C) in those samples; 0: no sample has one.
func sensedAt(t *testing.T, clock, reasons uint64, used bool, heat int) *diagnose.Diagnosis {
	t.Helper()
	s := newScene(t)
	for i := range uint64(10) {
		s.kernel(100*i, 100*i+96)
	}
	s.Meta.GPU.Devices[0].UUID = "GPU-a"
	uuid := "GPU-a"
	if !used {
		uuid = "GPU-b"
	}
	for i := range uint64(40) {
		r := recording.Sensor{
			TS:          start + i*25*ms,
			UUID:        uuid,
			Name:        "NVIDIA Test",
			SMClock:     1980,
			SMClockMax:  1980,
			Utilization: 100,
			Temperature: min(60, heat),
			Power:       400_000,
			PowerLimit:  700_000,
		}
		if i%2 == 0 {
			r.SMClock, r.Reasons, r.Temperature = clock, reasons, heat
		}
		s.Meta.Sensors = append(s.Meta.Sensors, r)
	}
	return s.diagnose()
}

// TestClocksHeldDown: heat that costs a quarter of the cycles in half of the time is the finding of a GPU that is busy
// all the time; the same clock at the GPU's own power limit, or of a GPU that is not the target's, is none.
func TestClocksHeldDown(t *testing.T) {
	const hot, powerLimit = 0x40, 0x4
	key := cause.LowClocks.String()
	d := sensed(t, 990, hot, true)
	if len(d.Findings) == 0 || d.Findings[0].Cause != key || d.Verdict != diagnose.GPUBound {
		t.Fatalf("%s: %+v", d.Verdict, d.Findings)
	}
	f := d.Findings[0]
	if f.Share < 0.23 || f.Share > 0.25 { // a half of 96% of the time, at half of the clock
		t.Errorf("its share is %v", f.Share)
	}
	for _, want := range []string{"GPU 0", "990 of 1980 MHz", "too hot (hardware)"} {
		if !strings.Contains(f.Title, want) {
			t.Errorf("the title lacks %q: %s", want, f.Title)
		}
	}
	for name, d := range map[string]*diagnose.Diagnosis{
		"power limit": sensed(t, 990, powerLimit, true),
		"another GPU": sensed(t, 990, hot, false), "full clock": sensed(t, 1980, hot, true),
	} {
		for _, f := range d.Findings {
			if f.Cause == key {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}

// TestTemperatureNotKnown: the evidence has a temperature only where the sensors gave one.
func TestTemperatureNotKnown(t *testing.T) {
	for heat, want := range map[int]string{
		93: " of its busy time, 93 C at most, 400 of 700 W.", 0: " of its busy time, 400 of 700 W.",
	} {
		d := sensedAt(t, 990, 0x40, true, heat)
		if len(d.Findings) == 0 || len(d.Findings[0].Evidence) == 0 {
			t.Fatalf("%+v", d.Findings)
		}
		if got := d.Findings[0].Evidence[0].Text; !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q at its end", got, want)
		}
	}
}
