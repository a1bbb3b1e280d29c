package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
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
	if err := Text(&text, New(rec), TextOptions{}); err != nil {
		t.Fatal(err)
	}
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
