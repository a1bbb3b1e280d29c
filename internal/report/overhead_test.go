package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// TestSourceThatWasOff: a report says which source was off for how long, why, and of which time its rates are.
func TestSourceThatWasOff(t *testing.T) {
	rec := decode().Recording()
	from, to := rec.Meta.From, rec.Meta.To
	on := from + (to-from)/4
	rec.Meta.Requests = []recording.Request{{
		Number: 1, PID: rec.Meta.Target, Received: from + 1, End: from + 1000, Status: 200, Outcome: "complete",
		Route: "/v1/completions",
	}}
	rec.Meta.Overhead = &recording.Overhead{Target: rec.Meta.Target, Budget: 0.02, Sources: []recording.OverheadSource{{
		Name: recording.RequestsSource, Level: recording.LevelOff, Index: 1, Reason: "watching took 5.0% of its time",
		Loses: "requests", Paused: []recording.Pause{{From: on, To: to}},
		Shares: []recording.LevelShare{{Level: "on", Share: 0.25}, {Level: recording.LevelOff, Share: 0.75}},
	}}}
	var out bytes.Buffer
	if err := Text(&out, New(rec), TextOptions{}); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"A source was off for a part of the time, to keep watching within its budget (1; requests). 75.0% of the time",
		"rates and requests at a time refer to that time",
		"on 25.0%, off 75.0%; missing: requests; watching took 5.0% of its time",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, &out)
		}
	}
}
