package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// TestLossesOfATarget: each target has its own, by reason.
func TestLossesOfATarget(t *testing.T) {
	r := registry(t, filled(), func() api.Status {
		return api.Status{Targets: []api.Target{
			{PID: 10, Losses: []loss.Loss{
				{
					Reason: loss.ProcessesSkipped,
					Count:  3,
					PID:    10,
					Where:  "pid 10",
				}, {Reason: loss.LateProbe, Count: 1, PID: 11, Where: "pid 11"}, {Reason: loss.LateProbe, Count: 4, PID: 12, Where: "pid 12"},
			}},
			{PID: 20},
		}}
	})
	want := `
# HELP inferscope_target_losses_total What was lost or is in doubt of one target's processes, or because of them, by reason.
# TYPE inferscope_target_losses_total counter
inferscope_target_losses_total{pid="10",reason="late_probe"} 5
inferscope_target_losses_total{pid="10",reason="processes_skipped"} 3
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "inferscope_target_losses_total"); err != nil {
		t.Error(err)
	}
}
