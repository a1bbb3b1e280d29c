package report

import "testing"

// TestRecordingIsTheCallersAgain: when a report is made nothing reads the recording any more, also where what was begun
// for it was not needed, as gains are where there is no finding. It is the race detector that says so.
func TestRecordingIsTheCallersAgain(t *testing.T) {
	for range 5 {
		rec := healthy()
		m := New(rec)
		clear(rec.Events)
		clear(rec.Meta.Functions)
		rec.Meta.Target = 0
		if n := len(m.Diagnosis.Findings); n != 0 {
			t.Fatalf("%d findings: their gains were asked for", n)
		}
	}
}
