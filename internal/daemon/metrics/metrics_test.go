package metrics

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Indices into table.
const (
	launch = iota
	driverCopy
	driverCopyPTSZ
	runtimeCopy
	driverSync
	runtimeSync
	globbed
)

func table() []recording.Function {
	return []recording.Function{
		launch: {Name: "cuLaunchKernel", Base: "cuLaunchKernel", Library: "driver", Group: "launch"},
		driverCopy: {
			Name:    "cuMemcpyHtoDAsync_v2",
			Base:    "cuMemcpyHtoDAsync",
			Library: "driver",
			Group:   "copy",
			Timed:   true,
		},
		driverCopyPTSZ: {
			Name:    "cuMemcpyHtoDAsync_v2_ptsz",
			Base:    "cuMemcpyHtoDAsync",
			Library: "driver",
			Group:   "copy",
			Timed:   true,
		},
		runtimeCopy: {
			Name:    "cudaMemcpyAsync",
			Base:    "cudaMemcpyAsync",
			Library: "runtime",
			Group:   "copy",
			Timed:   true,
		},
		driverSync: {
			Name:    "cuStreamSynchronize",
			Base:    "cuStreamSynchronize",
			Library: "driver",
			Group:   "sync",
			Timed:   true,
		},
		runtimeSync: {
			Name:    "cudaStreamSynchronize",
			Base:    "cudaStreamSynchronize",
			Library: "runtime",
			Group:   "sync",
			Timed:   true,
		},
		globbed: {Name: "cuMemFoo\xff", Base: "cuMem*", Library: "driver", Group: "memory"},
	}
}

// testDecoder takes bytes from Args[0], and H2D for copies of the driver.
func testDecoder(functions []recording.Function) CopyDecoder {
	return func(e *event.Event) (cuda.Direction, uint64) {
		if functions[e.Func].Library == "driver" {
			return cuda.H2D, e.Args[0]
		}
		return cuda.NoDirection, e.Args[0]
	}
}

func calls(pid uint32, fn uint16, n int, dur, bytes uint64) []event.Event {
	var out []event.Event
	for range n {
		e := event.Event{PID: pid, Func: fn, Kind: event.Call, Args: [4]uint64{bytes}}
		if dur > 0 {
			e.Dur, e.Flags = dur, event.Timed
		}
		out = append(out, e)
	}
	return out
}

func status() api.Status {
	return api.Status{
		Targets: []api.Target{
			{PID: 10, Comm: "python\xff3", State: api.Watching},
			{PID: 20, Comm: "server", State: api.Exited},
		},
		Rings:    api.Rings{Bytes: 4096, Events: 12},
		Self:     api.Self{CPU: 1.25, RSS: 90 << 20},
		Recorder: api.Recorder{Used: 1024, Events: 7, Reach: 2.5},
		Losses: []loss.Loss{
			{Reason: loss.RingFull, Count: 2, CPU: loss.CPUOf(0), Where: "cpu 0"},
			{Reason: loss.RingFull, Count: 3, CPU: loss.CPUOf(1), Where: "cpu 1"},
		},
	}
}

func filled() *Tally {
	t := NewTally(table, testDecoder)
	t.Target(10, 10)
	t.Target(11, 10)
	t.Target(20, 20)
	t.Add(calls(10, launch, 5, 0, 0))
	t.Add(calls(11, launch, 2, 0, 0)) // a child counts for its target
	t.Add(calls(10, driverCopy, 2, 1e9, 1000))
	t.Add(calls(10, driverCopyPTSZ, 1, 1e9, 500))
	t.Add(calls(10, runtimeCopy, 3, 2e9, 800)) // the same copies, seen a layer above
	t.Add(calls(10, driverSync, 1, 3e9, 0))
	t.Add(calls(10, runtimeSync, 1, 4e9, 0)) // the same wait
	t.Add(calls(20, runtimeCopy, 1, 1e9, 64))
	t.Add(calls(20, globbed, 1, 0, 0))
	return t
}

func registry(t *testing.T, tally *Tally, status func() api.Status) *prometheus.Registry {
	t.Helper()
	r, err := NewRegistry(tally, status)
	must.NoError(t, err)
	return r
}

func TestMetricsKeepPrometheusConventions(t *testing.T) {
	r := registry(t, filled(), status)
	problems, err := testutil.GatherAndLint(r)
	must.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestEveryMetricHasItsValue(t *testing.T) {
	want := `
# HELP inferscope_cuda_call_seconds_total Time that threads spent in CUDA API calls, of the functions whose duration is recorded.
# TYPE inferscope_cuda_call_seconds_total counter
inferscope_cuda_call_seconds_total{function="cuMemcpyHtoDAsync",group="copy",library="driver",pid="10"} 3
inferscope_cuda_call_seconds_total{function="cuStreamSynchronize",group="sync",library="driver",pid="10"} 3
inferscope_cuda_call_seconds_total{function="cudaMemcpyAsync",group="copy",library="runtime",pid="10"} 6
inferscope_cuda_call_seconds_total{function="cudaMemcpyAsync",group="copy",library="runtime",pid="20"} 1
inferscope_cuda_call_seconds_total{function="cudaStreamSynchronize",group="sync",library="runtime",pid="10"} 4
# HELP inferscope_cuda_calls_total CUDA API calls seen. A runtime call and the driver call inside it are two. Launches are seen in windows only, unless GPU activity is recorded all the time: see inferscope_cuda_launches_total.
# TYPE inferscope_cuda_calls_total counter
inferscope_cuda_calls_total{function="cuLaunchKernel",group="launch",library="driver",pid="10"} 7
inferscope_cuda_calls_total{function="cuMemFoo�",group="memory",library="driver",pid="20"} 1
inferscope_cuda_calls_total{function="cuMemcpyHtoDAsync",group="copy",library="driver",pid="10"} 3
inferscope_cuda_calls_total{function="cuStreamSynchronize",group="sync",library="driver",pid="10"} 1
inferscope_cuda_calls_total{function="cudaMemcpyAsync",group="copy",library="runtime",pid="10"} 3
inferscope_cuda_calls_total{function="cudaMemcpyAsync",group="copy",library="runtime",pid="20"} 1
inferscope_cuda_calls_total{function="cudaStreamSynchronize",group="sync",library="runtime",pid="10"} 1
# HELP inferscope_cuda_copy_bytes_total Bytes that copy calls asked to move. A runtime copy and the driver copy inside it are one.
# TYPE inferscope_cuda_copy_bytes_total counter
inferscope_cuda_copy_bytes_total{direction="H2D",pid="10"} 2500
inferscope_cuda_copy_bytes_total{direction="unknown",pid="20"} 64
# HELP inferscope_cuda_launches_total Launches of kernels and graphs that were seen, each once. Those of graphs are seen all the time. Those of kernels are seen in windows only, unless GPU activity is recorded all the time (--gpu continuous): launches a second are rate(inferscope_cuda_launches_total) / rate(inferscope_gpu_observed_seconds_total) then.
# TYPE inferscope_cuda_launches_total counter
inferscope_cuda_launches_total{kind="graph",pid="10"} 0
inferscope_cuda_launches_total{kind="graph",pid="20"} 0
inferscope_cuda_launches_total{kind="kernel",pid="10"} 7
inferscope_cuda_launches_total{kind="kernel",pid="20"} 0
# HELP inferscope_cuda_sync_seconds_total Time that threads spent in CUDA calls that wait for the device; threads that wait at once add up.
# TYPE inferscope_cuda_sync_seconds_total counter
inferscope_cuda_sync_seconds_total{pid="10"} 4
inferscope_cuda_sync_seconds_total{pid="20"} 0
# HELP inferscope_recorder_bytes Memory that the recorder holds.
# TYPE inferscope_recorder_bytes gauge
inferscope_recorder_bytes 1024
# HELP inferscope_recorder_events Events that the recorder holds.
# TYPE inferscope_recorder_events gauge
inferscope_recorder_events 7
# HELP inferscope_recorder_reach_seconds How far back the recorder is complete.
# TYPE inferscope_recorder_reach_seconds gauge
inferscope_recorder_reach_seconds 2.5
# HELP inferscope_ring_bytes Kernel memory of the ring buffers.
# TYPE inferscope_ring_bytes gauge
inferscope_ring_bytes 4096
# HELP inferscope_ring_events_total Events taken out of the ring buffers.
# TYPE inferscope_ring_events_total counter
inferscope_ring_events_total 12
# HELP inferscope_self_cpu_seconds_total CPU time of the daemon and of the processes that work for it; process_cpu_seconds_total leaves those out.
# TYPE inferscope_self_cpu_seconds_total counter
inferscope_self_cpu_seconds_total 1.25
# HELP inferscope_self_resident_bytes Resident memory of the daemon and of the processes that work for it, added up: pages that they share count in each.
# TYPE inferscope_self_resident_bytes gauge
inferscope_self_resident_bytes 9.437184e+07
# HELP inferscope_target_up 1 while the target or one of its children runs, 0 afterwards.
# TYPE inferscope_target_up gauge
inferscope_target_up{comm="python�3",pid="10"} 1
inferscope_target_up{comm="server",pid="20"} 0
`
	var names []string
	for line := range strings.Lines(want) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			names = append(names, strings.Fields(rest)[0])
		}
	}
	if err := testutil.GatherAndCompare(registry(t, filled(), status), strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestEveryLossHasASeries(t *testing.T) {
	r := registry(t, filled(), status)
	n, err := testutil.GatherAndCount(r, "inferscope_losses_total")
	if err != nil || n != len(loss.Kinds()) {
		t.Errorf("%d series of losses, %v, want %d", n, err, len(loss.Kinds()))
	}
	families, err := r.Gather()
	must.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "inferscope_losses_total" && m.GetLabel()[0].GetValue() == "ring_full" &&
				m.GetCounter().GetValue() != 5 {
				t.Errorf("ring_full = %v, want 5", m.GetCounter().GetValue())
			}
		}
	}
}

func TestTableThatGrows(t *testing.T) {
	var functions []recording.Function
	tally := NewTally(func() []recording.Function { return functions }, testDecoder)
	tally.Target(10, 10)
	functions = table()[:1]
	tally.Add(calls(10, launch, 1, 0, 0))
	functions = table()
	tally.Add(calls(10, driverCopy, 1, 1, 100))
	got := tally.totals()
	if len(got) != 1 || got[0].bytes[cuda.H2D] != 100 || len(got[0].functions) != 2 {
		t.Errorf("totals = %+v", got)
	}
}

func TestUnknownFunctions(t *testing.T) {
	decoders := 0
	tally := NewTally(table, func(f []recording.Function) CopyDecoder { decoders++; return testDecoder(f) })
	tally.Target(10, 10)
	for range 100 {
		tally.Add(calls(10, 65535, 10, 1, 1))
		tally.Add(calls(10, driverCopy, 1, 1, 1))
	}
	if got := tally.totals(); len(got[0].functions) != 1 || got[0].bytes[cuda.H2D] != 100 {
		t.Errorf("totals = %+v", got)
	}
	if decoders > 2 {
		t.Errorf("the table was read %d times", decoders)
	}
}

func TestSeriesAreBounded(t *testing.T) {
	var functions []recording.Function
	for i := range 3 * maxFunctions {
		functions = append(
			functions,
			recording.Function{Name: fmt.Sprintf("cuMem%d", i), Base: "cuMem*", Library: "driver", Group: "memory"},
		)
	}
	tally := NewTally(func() []recording.Function { return functions }, testDecoder)
	tally.Target(10, 10)
	for i := range functions {
		tally.Add(calls(10, uint16(i), 1, 0, 0))
	}
	got := tally.totals()[0].functions
	if len(got) != maxFunctions+1 {
		t.Errorf("%d series, want %d", len(got), maxFunctions+1)
	}
	sum := uint64(0)
	for _, f := range got {
		sum += f.Calls
	}
	if sum != uint64(len(functions)) {
		t.Errorf("%d calls are left, want %d", sum, len(functions))
	}
	for i := range uint32(maxPIDs + 10) {
		tally.Target(i+1, 10)
	}
	if len(tally.roots) > maxPIDs {
		t.Errorf("%d processes are remembered", len(tally.roots))
	}
}

func TestAddress(t *testing.T) {
	for typed, want := range map[string]string{
		":9400": "127.0.0.1:9400", "9400": "127.0.0.1:9400", "0.0.0.0:9400": "0.0.0.0:9400",
		"localhost:0": "localhost:0", "[::1]:9400": "[::1]:9400", "[::]:1": "[::]:1",
	} {
		if got, err := Address(typed); err != nil || got != want {
			t.Errorf("%q = %q, %v, want %q", typed, got, err, want)
		}
	}
	for _, typed := range []string{"", ":", "host", "host:http", "::1:9400", "1.2.3.4:99999", "-1"} {
		if got, err := Address(typed); clierror.CodeOf(err) != clierror.Usage || clierror.HintOf(err) == "" {
			t.Errorf("%q = %q, %v, want a usage fault", typed, got, err)
		}
	}
}

func TestServer(t *testing.T) {
	s, err := Listen(context.Background(), "127.0.0.1:0", nil, registry(t, filled(), status), nil)
	must.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- s.Serve() }()
	statuses := map[string]int{}
	for _, path := range []string{"/metrics", "/", "/debug/pprof/"} {
		resp, err := http.Get("http://" + s.Addr() + path)
		must.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		statuses[path] = resp.StatusCode
	}
	if d := cmp.Diff(map[string]int{"/metrics": 200, "/": 404, "/debug/pprof/": 404}, statuses); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// BenchmarkAdd is what metrics cost for each event; a copy in 10 calls is what eager decode does at most.
func BenchmarkAdd(b *testing.B) {
	for name, share := range map[string]int{"no copies": 0, "1 copy in 10": 10, "copies only": 1} {
		b.Run(name, func(b *testing.B) {
			tally := NewTally(table, DecodeCopies)
			tally.Target(10, 10)
			batch := calls(10, launch, 512, 0, 0)
			for i := range batch {
				if share > 0 && i%share == 0 {
					batch[i] = calls(10, driverCopy, 1, 1000, 4096)[0]
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				tally.Add(batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(batch)), "ns/event")
		})
	}
}

func TestEveryDirectionHasItsPlace(t *testing.T) {
	for i, d := range allDirections() {
		if indexOf(d) != i {
			t.Errorf("%s is counted as %s", d, allDirections()[indexOf(d)])
		}
	}
	if indexOf(cuda.NoDirection) != indexOf(cuda.Unknown) {
		t.Error("a copy without a direction is not unknown")
	}
}

// TestLossesOfATarget: each target has its own, by reason.
func TestLossesOfATarget(t *testing.T) {
	r := registry(t, filled(), func() api.Status {
		return api.Status{Targets: []api.Target{
			{PID: 10, Losses: []loss.Loss{
				{Reason: loss.ProcessesSkipped, Count: 3, PID: 10, Where: "pid 10"},
				{Reason: loss.LateProbe, Count: 1, PID: 11, Where: "pid 11"},
				{Reason: loss.LateProbe, Count: 4, PID: 12, Where: "pid 12"},
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
