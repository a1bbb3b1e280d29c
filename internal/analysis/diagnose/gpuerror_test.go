package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestGPUError: a GPU that does nothing after an error is the first finding; one that goes on, and an error of another
// process, are none.
func TestGPUError(t *testing.T) {
	own, other := uint32(recordtest.PID), uint32(0)
	for name, c := range map[string]struct {
		code  int
		pid   uint32
		works uint64 // ms in which kernels run, of 1,000
		at    uint64 // ms
		want  string // of the title
	}{
		"out of bounds":                    {31, own, 600, 610, "an address that is not mapped (Xid 31)"},
		"fallen off the bus":               {79, other, 600, 610, "fallen off the bus (Xid 79)"},
		"a code that is not known":         {500, own, 600, 610, "after an error (Xid 500)"},
		"work goes on":                     {31, own, 1000, 610, ""},
		"in the work of another process":   {31, other, 600, 610, ""},
		"at the very end of the recording": {31, own, 1000, 999, ""},
	} {
		s := newScene(t)
		for at := uint64(0); at < c.works; at += 100 {
			s.kernel(at, at+50)
		}
		s.Meta.Driver = &recording.Driver{Xids: []recording.Xid{{
			TS: start + c.at*ms, GPU: 0, Bus: "0000:65:00", Code: c.code, PID: c.pid, Text: "MMU Fault",
		}}}
		s.Meta.GPU.Devices[0].UUID = "GPU-a"
		s.Meta.Sensors = []recording.Sensor{{TS: start, UUID: "GPU-a"}}
		d := s.diagnose()
		found := len(d.Findings) > 0 && d.Findings[0].Cause == cause.GPUError.String()
		if stopped := d.Verdict == diagnose.Stopped; stopped != (c.want != "") {
			t.Errorf("%s: the verdict is %s: %s", name, d.Verdict, d.Headline)
		}
		switch {
		case c.want == "" && found:
			t.Errorf("%s: %+v", name, d.Findings[0])
		case c.want != "" && !found:
			t.Errorf("%s: %s, findings %+v", name, d.Verdict, d.Findings)
		case found && !strings.Contains(d.Findings[0].Title, c.want):
			t.Errorf("%s: the title is %q", name, d.Findings[0].Title)
		case found && strings.HasPrefix(d.Findings[0].Changes[0].Text, "Drain") != (c.code != 31):
			t.Errorf("%s: the first change is %q", name, d.Findings[0].Changes[0].Text)
		case found && (d.Findings[0].Share < 0.38 || d.Findings[0].Share > 0.4):
			t.Errorf("%s: its share is %v, want 0.39", name, d.Findings[0].Share)
		}
	}
}
