package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestErrorsOfGPUs: a report names the errors that the driver reported, and of which GPU, also where no sensor answers.
func TestErrorsOfGPUs(t *testing.T) {
	rec := decode().Recording()
	from := rec.Meta.From
	rec.Meta.Driver = &recording.Driver{Xids: []recording.Xid{
		{TS: from + 2_000_000, GPU: 1, Bus: "0000:65:00", Code: 31, PID: 17, Text: "MMU Fault"},
		{TS: from + 3_000_000, GPU: -1, Bus: "0000:66:00", Code: 79, Text: "GPU has fallen off the bus."},
	}}
	var text bytes.Buffer
	must.NoError(t, Text(&text, New(rec), TextOptions{}))
	got := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{
		"The driver reported Xid 31 (a kernel used an address that is not mapped) of GPU 1 in the work of process 17, 2.00 ms",
		"The driver reported Xid 79 (the GPU has fallen off the bus) of the GPU at PCI 0000:66:00, 3.00 ms",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, text.String())
		}
	}
}

// TestTrafficOfLinks: a report says what PCIe and NVLink carried, and nothing of links that no sample knows.
func TestTrafficOfLinks(t *testing.T) {
	rec := decode().Recording()
	for i := range 3 {
		rec.Meta.Sensors = append(rec.Meta.Sensors, recording.Sensor{
			TS: rec.Meta.From + uint64(i)*100_000_000, GPU: 1, Links: recording.PCIeLink,
			PCIeRx: 12_300_000_000 + uint64(i)*1_000_000_000, PCIeTx: 40_000_000, NVLinkRx: 9,
		})
	}
	var text bytes.Buffer
	must.NoError(t, Text(&text, New(rec), TextOptions{}))
	got := strings.Join(strings.Fields(text.String()), " ")
	if want := "1 PCIe 13.3 GB/s 14.3 GB/s 40 MB/s 40 MB/s"; !strings.Contains(got, want) {
		t.Errorf("%q is missing in:\n%s", want, text.String())
	}
	if strings.Contains(got, "1 NVLink") {
		t.Errorf("traffic of NVLink that nobody read:\n%s", text.String())
	}
}

// TestDividedGPU: a report says that the sensors are of the whole GPU, and what its parts hold.
func TestDividedGPU(t *testing.T) {
	rec := decode().Recording()
	rec.Meta.Sensors = []recording.Sensor{{TS: rec.Meta.From, UUID: "GPU-1", MIG: true, Power: 300_000}}
	rec.Meta.Driver = &recording.Driver{Parts: []recording.GPUPart{
		{GPUUUID: "GPU-1", Index: 2, UUID: "MIG-1", Profile: "1g.5gb", MemoryUsed: 3e9, MemoryTotal: 5e9},
	}}
	var text bytes.Buffer
	must.NoError(t, Text(&text, New(rec), TextOptions{}))
	got := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{
		"GPU 0 is divided (MIG): power", "Part 2 (1g.5gb) holds 3.00 GB of 5.00 GB.",
		"300 W 300 W - - - - - - 0 B", // of temperature and utilization nothing
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, text.String())
		}
	}
}
