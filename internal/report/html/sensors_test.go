package html_test

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// sensed returns a recording of one GPU with a second of samples: clocks are low from the sixth on.
func sensed(n int) *recording.Recording {
	rec := timelinetest.Eager.Make(n)
	m := &rec.Meta
	m.To = max(m.To, m.From+2_000_000_000)
	for i := range uint64(11) {
		s := recording.Sensor{
			TS: m.From + i*100_000_000, GPU: 3, UUID: "GPU-3", Name: nasty, Power: 540_000 + i, SMClock: 1980,
			Links: recording.PCIeLink, PCIeRx: 12_340_000_000,
		}
		if i > 4 {
			s.SMClock, s.Reasons = 1404, 0x4
		}
		m.Sensors = append(m.Sensors, s)
	}
	m.Driver = &recording.Driver{Xids: []recording.Xid{
		{TS: m.From + 1000, GPU: 3, UUID: "GPU-3", Code: 31, Text: nasty},
		{TS: m.From + 2000, GPU: 3, UUID: "GPU-3", Code: 31, Text: nasty},
		{TS: m.From + 3000, GPU: -1, Bus: "0000:66:00", Code: 79},
		{TS: m.To + 1, GPU: 3, UUID: "GPU-3", Code: 13},
	}}
	return rec
}

// TestSensorTracks: sensors and errors stand below the work of their GPU; samples that differ by noise are one item,
// and errors are never drawn as one.
func TestSensorTracks(t *testing.T) {
	for _, n := range []int{200, 400_000} { // the second is too large to be drawn as it was recorded
		rec := sensed(n)
		rec.Meta.GPU.Devices[0].UUID = "GPU-3"
		doc, _ := data(t, pageOf(t, rec))
		if n > 1000 && doc.Merged == 0 {
			t.Fatal("nothing was merged: the test tests nothing")
		}
		work := ""
		items := map[string]int{}
		for _, tr := range doc.Tracks {
			switch tr.Kind {
			case "gpu":
				work = tr.Group
			case "sensor", "error":
				items[tr.Kind+" of "+tr.Group] = tr.N
			}
		}
		if items["sensor of "+work] != 2 || items["error of "+work] != 2 || items["error of Other GPUs"] != 1 || len(items) != 3 {
			t.Errorf("%d launches: %v, want 2 items of sensors and 2 errors of %q, and one error elsewhere", n, items, work)
		}
		for _, want := range [][2]string{
			{"540 W, 1980 MHz, PCIe 12.3 in, 0.0 out GB/s", "sensor"},
			{"540 W, 1410 MHz, clocks low: power limit, PCIe 12.3 in, 0.0 out GB/s", "sensor limited"},
			{"Xid 79, the GPU has fallen off the bus, of the GPU at PCI 0000:66:00", "xid"},
		} {
			if !slices.Contains(doc.Labels, want) {
				t.Errorf("no label %q in %q", want, doc.Labels)
			}
		}
	}
}

// TestSensorsOfUnusedGPUs: a GPU that the target does not use has no track of sensors; where it is not known which ones
// it uses, all have.
func TestSensorsOfUnusedGPUs(t *testing.T) {
	rec := sensed(200)
	rec.Meta.Driver = nil
	rec.Meta.GPU.Devices[0].UUID = "GPU-0"
	count := func() (n int) {
		doc, _ := data(t, pageOf(t, rec))
		for _, tr := range doc.Tracks {
			if tr.Kind == "sensor" {
				n++
			}
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d tracks of a GPU that the target does not use", n)
	}
	idle := sensed(200)
	idle.Meta.Driver, idle.Meta.GPU, idle.Events = nil, nil, nil
	rec = idle
	if n := count(); n != 1 {
		t.Errorf("%d tracks where no GPU's work was recorded, want 1", n)
	}
}
