package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

func TestAgentsHaveTheirMetrics(t *testing.T) {
	r := registry(t, filled(), func() api.Status {
		s := status()
		s.Agents = []recording.AgentStatus{
			{
				Agent:    recording.Agent{PID: 10, State: "running", Dropped: 4},
				Kernels:  1000,
				Windows:  10,
				Disabled: 2,
				Kept:     3,
				Held:     &recording.Held{Threads: [5]uint32{7, 5, 3, 2, 1}, Sum: 36_000_000, Longest: 11_000_000},
				Sections: &recording.Sections{
					Drain: recording.Times{Counts: [5]uint32{4, 1, 1, 0, 0}, Sum: 5_000_000, Longest: 3_000_000},
				},
			},
			{Agent: recording.Agent{PID: 20, State: "refused"}},
		}
		return s
	})
	want := `
# HELP inferscope_gpu_agent 1 for the state in which the agent of a process is: waiting, running, dormant, refused, gone.
# TYPE inferscope_gpu_agent gauge
inferscope_gpu_agent{pid="10",state="running"} 1
inferscope_gpu_agent{pid="20",state="refused"} 1
# HELP inferscope_gpu_held_section_seconds Time of a flush or removal of CUPTI, by part (drain, cpu_wait, work).
# TYPE inferscope_gpu_held_section_seconds histogram
inferscope_gpu_held_section_seconds_bucket{part="cpu_wait",pid="10",le="0.001"} 0
inferscope_gpu_held_section_seconds_bucket{part="cpu_wait",pid="10",le="0.002"} 0
inferscope_gpu_held_section_seconds_bucket{part="cpu_wait",pid="10",le="0.005"} 0
inferscope_gpu_held_section_seconds_bucket{part="cpu_wait",pid="10",le="0.01"} 0
inferscope_gpu_held_section_seconds_bucket{part="cpu_wait",pid="10",le="+Inf"} 0
inferscope_gpu_held_section_seconds_sum{part="cpu_wait",pid="10"} 0
inferscope_gpu_held_section_seconds_count{part="cpu_wait",pid="10"} 0
inferscope_gpu_held_section_seconds_bucket{part="drain",pid="10",le="0.001"} 4
inferscope_gpu_held_section_seconds_bucket{part="drain",pid="10",le="0.002"} 5
inferscope_gpu_held_section_seconds_bucket{part="drain",pid="10",le="0.005"} 6
inferscope_gpu_held_section_seconds_bucket{part="drain",pid="10",le="0.01"} 6
inferscope_gpu_held_section_seconds_bucket{part="drain",pid="10",le="+Inf"} 6
inferscope_gpu_held_section_seconds_sum{part="drain",pid="10"} 0.005
inferscope_gpu_held_section_seconds_count{part="drain",pid="10"} 6
inferscope_gpu_held_section_seconds_bucket{part="work",pid="10",le="0.001"} 0
inferscope_gpu_held_section_seconds_bucket{part="work",pid="10",le="0.002"} 0
inferscope_gpu_held_section_seconds_bucket{part="work",pid="10",le="0.005"} 0
inferscope_gpu_held_section_seconds_bucket{part="work",pid="10",le="0.01"} 0
inferscope_gpu_held_section_seconds_bucket{part="work",pid="10",le="+Inf"} 0
inferscope_gpu_held_section_seconds_sum{part="work",pid="10"} 0
inferscope_gpu_held_section_seconds_count{part="work",pid="10"} 0
# HELP inferscope_gpu_held_seconds Time that a thread was kept out of the driver, while an agent entered, flushed or left CUPTI.
# TYPE inferscope_gpu_held_seconds histogram
inferscope_gpu_held_seconds_bucket{pid="10",le="0.001"} 7
inferscope_gpu_held_seconds_bucket{pid="10",le="0.002"} 12
inferscope_gpu_held_seconds_bucket{pid="10",le="0.005"} 15
inferscope_gpu_held_seconds_bucket{pid="10",le="0.01"} 17
inferscope_gpu_held_seconds_bucket{pid="10",le="+Inf"} 18
inferscope_gpu_held_seconds_sum{pid="10"} 0.036
inferscope_gpu_held_seconds_count{pid="10"} 18
inferscope_gpu_held_seconds_bucket{pid="20",le="0.001"} 0
inferscope_gpu_held_seconds_bucket{pid="20",le="0.002"} 0
inferscope_gpu_held_seconds_bucket{pid="20",le="0.005"} 0
inferscope_gpu_held_seconds_bucket{pid="20",le="0.01"} 0
inferscope_gpu_held_seconds_bucket{pid="20",le="+Inf"} 0
inferscope_gpu_held_seconds_sum{pid="20"} 0
inferscope_gpu_held_seconds_count{pid="20"} 0
# HELP inferscope_gpu_kernels_total Kernels that agents saw: in windows, unless GPU activity is recorded all the time.
# TYPE inferscope_gpu_kernels_total counter
inferscope_gpu_kernels_total{pid="10"} 1000
inferscope_gpu_kernels_total{pid="20"} 0
# HELP inferscope_gpu_records_dropped_total GPU records that were lost, by CUPTI or in the agent's ring.
# TYPE inferscope_gpu_records_dropped_total counter
inferscope_gpu_records_dropped_total{pid="10"} 4
inferscope_gpu_records_dropped_total{pid="20"} 0
# HELP inferscope_gpu_windows_total Windows of GPU records that ended, by how: finalized; disabled, which leaves CUDA graphs slower; kept, which stays subscribed to CUPTI.
# TYPE inferscope_gpu_windows_total counter
inferscope_gpu_windows_total{end="disabled",pid="10"} 2
inferscope_gpu_windows_total{end="disabled",pid="20"} 0
inferscope_gpu_windows_total{end="finalized",pid="10"} 5
inferscope_gpu_windows_total{end="finalized",pid="20"} 0
inferscope_gpu_windows_total{end="kept",pid="10"} 3
inferscope_gpu_windows_total{end="kept",pid="20"} 0
`
	err := testutil.GatherAndCompare(r, strings.NewReader(want), "inferscope_gpu_agent",
		"inferscope_gpu_held_section_seconds", "inferscope_gpu_held_seconds", "inferscope_gpu_kernels_total",
		"inferscope_gpu_records_dropped_total",
		"inferscope_gpu_windows_total")
	if err != nil {
		t.Error(err)
	}
}

// TestCallsOfAgentsCountOnce: a call whose duration is recorded is seen by a probe as well;
// a launch is not, while an agent tells of it.
func TestCallsOfAgentsCountOnce(t *testing.T) {
	tally := NewTally(table, testDecoder)
	tally.Target(10, 10)
	tally.Add(calls(10, driverCopy, 1, 1e9, 1000))
	fromAgent := append(calls(10, driverCopy, 1, 1e9, 1000), calls(10, launch, 1, 1e3, 0)...)
	for i := range fromAgent {
		fromAgent[i].Flags |= event.Correlated
		fromAgent[i].Ret = 77
	}
	tally.Add(fromAgent)
	totals := tally.totals()
	if len(totals) != 1 || totals[0].bytes["H2D"] != 1000 || len(totals[0].functions) != 2 {
		t.Fatalf("totals are %+v", totals)
	}
	for _, f := range totals[0].functions {
		if f.Calls != 1 || f.Failed != 0 {
			t.Errorf("%s: %d calls, %d failed, want 1 and 0", f.name, f.Calls, f.Failed)
		}
	}
}
