package sensors_test

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/sensors"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const tenth = 100_000_000

// record is three seconds of one GPU: clock and reasons as f says of each sample.
func record(f func(i int, s *recording.Sensor)) *recording.Recording {
	b := recordtest.New()
	for i := range 31 {
		s := recording.Sensor{
			TS: b.Meta.From + uint64(
				i,
			)*tenth, GPU: 2, UUID: "GPU-2", Name: "NVIDIA H200", Power: 400_000, PowerLimit: 700_000, Temperature: 50,
			SMClock: 1980, SMClockMax: 1980, Utilization: 100, MemoryTotal: 100, MemoryUsed: uint64(i),
		}
		f(i, &s)
		b.Meta.Sensors = append(b.Meta.Sensors, s)
	}
	b.Meta.GPU = &recording.GPU{Devices: []recording.Device{{UUID: "GPU-2"}}}
	return b.Recording()
}

func one(t *testing.T, rec *recording.Recording, rates sensors.Rates) sensors.GPU {
	t.Helper()
	s := sensors.Summarize(rec, rates)
	if s == nil || len(s.GPUs) != 1 {
		t.Fatalf("%+v", s)
	}
	return s.GPUs[0]
}

func TestNone(t *testing.T) {
	if s := sensors.Summarize(recordtest.New().Recording(), sensors.Rates{Iterations: 1}); s != nil {
		t.Errorf("%+v", s)
	}
}

// TestEnergy: a ramp from 0 to 300 W over three seconds is 450 J; at 10 iterations, 2 requests and 100 tokens a second
// 15, 75 and 1.5 J each.
func TestEnergy(t *testing.T) {
	g := one(t, record(func(i int, s *recording.Sensor) { s.Power = uint64(i) * 10_000 }),
		sensors.Rates{Iterations: 10, Requests: 2, Tokens: 100})
	if math.Abs(g.Energy-450) > 1e-6 || g.Power != 150_000 || g.PowerPeak != 300_000 ||
		math.Abs(g.PerIteration-15)+math.Abs(g.PerRequest-75)+math.Abs(g.PerToken-1.5) > 1e-9 {
		t.Errorf("%+v", g)
	}
	if !g.Used || g.Index != 2 || g.MemoryUsed != 30 || g.Throttled || len(g.Throttle) != 0 || g.SMClock != 1980 {
		t.Errorf("%+v", g)
	}
}

// TestDivided: of a divided GPU there is no energy per iteration, since its power is that of all parts; it is used
// where one of its parts is.
func TestDivided(t *testing.T) {
	rec := record(func(_ int, s *recording.Sensor) { s.MIG, s.Utilization = true, 0 })
	rec.Meta.GPU.Devices[0].UUID = "MIG-1"
	rec.Meta.Driver = &recording.Driver{Parts: []recording.GPUPart{
		{GPUUUID: "GPU-2", Index: 1, UUID: "MIG-1", MemoryUsed: 7},
		{GPUUUID: "GPU-2", Index: 0, UUID: "MIG-0"},
		{GPUUUID: "GPU-9", Index: 0, UUID: "MIG-9"},
	}}
	g := one(t, rec, sensors.Rates{Iterations: 10})
	if !g.MIG || !g.Used || g.PerIteration != 0 || g.Energy == 0 || len(g.Parts) != 2 || g.Parts[0].Used ||
		!g.Parts[1].Used || g.Parts[1].MemoryUsed != 7 {
		t.Errorf("%+v", g)
	}
}

// TestTraffic: averages and peaks are of the samples that know a link; a link that no sample knows is absent.
func TestTraffic(t *testing.T) {
	g := one(t, record(func(i int, s *recording.Sensor) {
		if i%2 == 0 {
			s.Links, s.PCIeRx, s.PCIeTx = recording.PCIeLink, 100, uint64(i)
		}
	}), sensors.Rates{})
	want := sensors.Traffic{Received: 100, ReceivedPeak: 100, Sent: 15, SentPeak: 30}
	if g.PCIe == nil || *g.PCIe != want || g.NVLink != nil {
		t.Errorf("%+v and %+v, want %+v and none", g.PCIe, g.NVLink, want)
	}
}

// TestThrottled: clocks that the power limit lowers are throttled; the bit alone, at full clocks, is not, and neither
// are idle ones.
func TestThrottled(t *testing.T) {
	g := one(t, record(func(i int, s *recording.Sensor) {
		if i%2 == 0 {
			s.SMClock, s.Reasons = 1400, 0x4
		}
	}), sensors.Rates{})
	if !g.Throttled || len(g.Throttle) != 1 || g.Throttle[0].Reason != "power limit" || g.Throttle[0].Clock != 1400 ||
		g.SMClockLow != 1400 ||
		g.PerIteration+g.PerRequest+g.PerToken != 0 {
		t.Errorf("%+v", g)
	}
	g = one(t, record(func(_ int, s *recording.Sensor) { s.Reasons = 0x4 }), sensors.Rates{})
	if g.Throttled || g.Throttle[0].Share != 1 {
		t.Errorf("at full clocks: %+v", g)
	}
	resting := record(func(_ int, s *recording.Sensor) { s.SMClock, s.Reasons, s.Utilization = 345, 0x1, 0 })
	g = one(t, resting, sensors.Rates{})
	if g.Throttled || g.SMClock != 0 || g.Busy != 0 {
		t.Errorf("idle: %+v", g)
	}
}

// TestTwoVendors: GPU 2 of NVIDIA's and GPU 2 of AMD's are two, and AMD's traffic is an upper bound.
func TestTwoVendors(t *testing.T) {
	rec := record(func(i int, s *recording.Sensor) {
		if i%2 == 1 {
			s.UUID, s.Name, s.Power = "GPU-amd", "AMD GPU 0x740f", 100_000
			s.Links, s.PCIeRx = recording.PCIeLink|recording.PCIeAtMost, 5
		}
	})
	s := sensors.Summarize(rec, sensors.Rates{})
	if len(s.GPUs) != 2 || s.GPUs[0].Power != 400_000 || s.GPUs[1].Power != 100_000 || s.GPUs[0].PCIe != nil ||
		!s.GPUs[1].PCIe.AtMost {
		t.Errorf("%+v", s.GPUs)
	}
}
