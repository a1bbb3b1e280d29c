package loss

import (
	"encoding/json"
	"testing"
)

// TestPlacesInJSON: CPU 0 is a CPU, none is left out, and both come back.
func TestPlacesInJSON(t *testing.T) {
	for want, l := range map[string]Loss{
		`{"reason":"ring_full","count":2,"cpu":0,"where":"cpu 0"}`: {
			Reason: RingFull, Count: 2, CPU: CPUOf(0), Where: CPUOf(0).String(),
		},
		`{"reason":"agent_refused","count":1,"pid":20}`: {Reason: AgentRefused, Count: 1, PID: 20},
		`{"reason":"overwritten","count":3,"where":"at 5 ns","detail":"x"}`: {
			Reason: Overwritten, Count: 3, Where: "at 5 ns", Detail: "x",
		},
	} {
		text, err := json.Marshal(l)
		if err != nil || string(text) != want {
			t.Errorf("%s, %v; want %s", text, err, want)
		}
		var back Loss
		if err := json.Unmarshal(text, &back); err != nil || back != l {
			t.Errorf("%s came back as %+v, %v", text, back, err)
		}
	}
	var l Loss
	for _, bad := range []string{`{"cpu":-1}`, `{"cpu":"x"}`, `{"cpu":4294967295}`, `{"pid":-2}`} {
		if json.Unmarshal([]byte(bad), &l) == nil {
			t.Errorf("%s is taken: %+v", bad, l)
		}
	}
}
