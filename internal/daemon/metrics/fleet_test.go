package metrics

import (
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestRolling: what stretches say adds up, and ends with the target.
func TestRolling(t *testing.T) {
	tally := filled()
	st := func() api.Status {
		s := status()
		s.Discovery = &api.Discovery{Watched: 3, Skipped: 1}
		s.Kept = &api.Kept{Recordings: 5, Bytes: 1000, Deleted: 1, Uploaded: 2, Pending: 2, UploadFailed: 7, Flights: 1}
		return s
	}
	r := registry(t, tally, st)
	for range 2 {
		tally.Facts(api.Facts{
			PID:       10,
			Watched:   4e9,
			Busy:      1e9,
			Hangs:     1,
			Idle:      map[string]uint64{"host-sync": 2e9, "sleep": 1e9},
			Durations: []uint64{1e7, 2e7},
		})
	}
	tally.Facts(api.Facts{PID: 999, Watched: 1e9, Busy: 5e9, Durations: []uint64{1}}) // a target that was withdrawn
	want := `
# HELP inferscope_collective_hangs_total Collective operations of NCCL or RCCL that ranks of a target waited in for 3 s or more and another one had not come to, where recordings are kept; inferscope report says which one and where it is.
# TYPE inferscope_collective_hangs_total counter
inferscope_collective_hangs_total{pid="10"} 2
inferscope_collective_hangs_total{pid="20"} 0
# HELP inferscope_discovered_total Programs that use a GPU, by what became of them: watched, refused by a rule, skipped because they had ended, failed.
# TYPE inferscope_discovered_total counter
inferscope_discovered_total{result="failed"} 0
inferscope_discovered_total{result="refused"} 0
inferscope_discovered_total{result="skipped"} 1
inferscope_discovered_total{result="watched"} 3
# HELP inferscope_gpu_idle_seconds_total Time of inferscope_gpu_seconds_total{state="idle"}, by cause; inferscope explain CAUSE describes one.
# TYPE inferscope_gpu_idle_seconds_total counter
inferscope_gpu_idle_seconds_total{cause="host-sync",pid="10"} 4
inferscope_gpu_idle_seconds_total{cause="sleep",pid="10"} 2
# HELP inferscope_uploads_pending Recordings that the object store does not have yet.
# TYPE inferscope_uploads_pending gauge
inferscope_uploads_pending 2
# HELP inferscope_uploads_total Uploads of recordings, by result: uploaded, failed (attempts; what failed is tried again).
# TYPE inferscope_uploads_total counter
inferscope_uploads_total{result="failed"} 7
inferscope_uploads_total{result="uploaded"} 2
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "inferscope_collective_hangs_total", "inferscope_discovered_total", "inferscope_gpu_idle_seconds_total", "inferscope_uploads_total", "inferscope_uploads_pending"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	all, err := r.Gather()
	must.NoError(t, err)
	found := false
	for _, family := range all {
		if family.GetName() != "inferscope_iteration_seconds" {
			continue
		}
		found = true
		if n := len(family.Metric); n != 1 {
			t.Errorf("%d targets have iterations, want one", n)
		}
		h := family.Metric[0].GetHistogram()
		if h.GetSampleCount() != 4 || h.GetSampleSum() < 0.0599 || h.GetSampleSum() > 0.0601 || h.Schema == nil {
			t.Errorf("iterations %v: want 4 of 60 ms together, in a native histogram", h)
		}
	}
	if !found {
		t.Error("there is no histogram of iterations")
	}
	tally.Forget(10)
	for _, name := range []string{"inferscope_gpu_idle_seconds_total", "inferscope_iteration_seconds", "inferscope_gpu_seconds_total"} {
		if n, err := testutil.GatherAndCount(r, name); n != 0 || err != nil {
			t.Errorf("%d series of %s outlive their target (%v)", n, name, err)
		}
	}
}

// TestSeriesOfTargetsAreBounded: a target that claims to have any number of causes gets so many series and no more, and
// targets that come and go leave none.
func TestSeriesOfTargetsAreBounded(t *testing.T) {
	tally := NewTally(table, testDecoder)
	r := registry(t, tally, func() api.Status { return api.Status{} })
	before, err := testutil.GatherAndCount(r)
	must.NoError(t, err)
	for pid := uint32(1); pid <= 500; pid++ {
		tally.Target(pid, pid)
		tally.Add(calls(pid, launch, 1, 0, 0))
		idle := map[string]uint64{}
		for i := range 200 {
			idle["cause-"+strconv.Itoa(i)] = 1
		}
		tally.Facts(api.Facts{PID: pid, Watched: 10, Idle: idle})
		if n, err := testutil.GatherAndCount(r, "inferscope_gpu_idle_seconds_total"); n != maxCauses || err != nil {
			t.Fatalf("%d causes (%v), want %d", n, err, maxCauses)
		}
		tally.Forget(pid)
	}
	if after, err := testutil.GatherAndCount(r); after != before || err != nil {
		t.Errorf("%d series after 500 targets came and went, %d before (%v)", after, before, err)
	}
}

// TestLaunchesCountOnce: a launch by way of the runtime reaches the driver, and is one.
func TestLaunchesCountOnce(t *testing.T) {
	functions := func() []recording.Function {
		return []recording.Function{
			{Name: "cuLaunchKernel", Base: "cuLaunchKernel", Library: "driver", Group: "launch"},
			{Name: "cudaLaunchKernel", Base: "cudaLaunchKernel", Library: "runtime", Group: "launch"},
			{Name: "cuGraphLaunch", Base: "cuGraphLaunch", Library: "driver", Group: "graph", Timed: true},
			{Name: "cuGraphInstantiate", Base: "cuGraphInstantiate", Library: "driver", Group: "graph", Timed: true},
		}
	}
	tally := NewTally(functions, testDecoder)
	tally.Target(10, 10)
	for fn, n := range []int{5, 4, 3, 2} {
		for range n {
			tally.Add([]event.Event{{PID: 10, Func: uint16(fn), Kind: event.Call}})
		}
	}
	got := tally.totals()[0]
	if got.kernels != 5 || got.graphs != 3 {
		t.Errorf("%d kernels and %d graphs were launched, want 5 and 3", got.kernels, got.graphs)
	}
}
