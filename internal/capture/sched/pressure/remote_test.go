package pressure

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/sleeper"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// onCPU2 lets the main thread of a recording run on CPU 2, but for waits of a microsecond.
func onCPU2(rec *recording.Recording) {
	rec.Events = slices.DeleteFunc(rec.Events, func(e event.Event) bool { return e.Kind == event.OffCPU })
	for at := rec.Meta.From; at < rec.Meta.To; at += 1_000_000 {
		rec.Events = append(rec.Events, event.Event{
			TS: at, Dur: 1000, PID: recordtest.PID, TID: recordtest.PID, Kind: event.OffCPU, Func: event.NoSyscall,
			Flags: event.Timed, Ret: 2 | 2<<16,
		})
	}
	slices.SortStableFunc(rec.Events, func(a, b event.Event) int { return cmp.Compare(a.TS, b.TS) })
}

// TestRemoteNodeReachesTheReport: from the files of a host with two NUMA nodes to the finding of a report. The thread
// runs on CPU 2, of node 1, and three quarters of its pages lie there; the GPU is at node 0, and then at node 1.
func TestRemoteNodeReachesTheReport(t *testing.T) {
	p := sleeper.Start(t)
	own := fmt.Sprintf("/proc/%d/", p.PID)
	stat, err := os.ReadFile(own + "stat")
	must.NoError(t, err)
	host := map[string]string{
		own + "stat":                                  string(stat),
		own + "statm":                                 "4000 1000 100 1 0 300 0\n",
		own + "numa_maps":                             "7f00 default anon=1000 N0=250 N1=750 kernelpagesize_kB=4\n",
		"/sys/devices/system/node/node0/cpulist":      "0-1\n",
		"/sys/devices/system/node/node1/cpulist":      "2-3\n",
		"/sys/bus/pci/devices/0000:1b:00.0/vendor":    "0x10de\n",
		"/sys/bus/pci/devices/0000:1b:00.0/class":     "0x030200\n",
		"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "0\n",
	}
	words := func(gpuNode string) string {
		files := maps.Clone(host)
		files["/sys/bus/pci/devices/0000:1b:00.0/numa_node"] = gpuNode
		f := tree(t, files)
		source := New(Options{root: f.root})
		defer source.Close()
		must.NoError(t, source.Follow(p))
		samples := source.Pressure(p.Root, 0, clock.Monotonic())
		if len(samples) == 0 {
			t.Fatal("no samples")
		}
		rec := timelinetest.Eager.Make(2000) // launches leave the GPU idle in part
		rec.Meta.Host.NodeOf = f.nodeOf()
		rec.Meta.Pressure = nil
		for i, sample := range samples {
			sample.TS = rec.Meta.From + uint64(i)
			rec.Meta.Pressure = append(rec.Meta.Pressure, sample)
		}
		onCPU2(rec)
		var text bytes.Buffer
		must.NoError(t, report.Text(&text, report.New(rec), report.TextOptions{}))
		return strings.Join(strings.Fields(text.String()), " ")
	}
	const finding = "Threads or memory are on another NUMA node than the GPU"
	far := words("0\n")
	for _, want := range []string{
		"75.0% of the pages are on another node than the GPU, which is at node 0",
		"threads ran 100.0% of their time on another node than the GPU's, which is 0",
		"numactl --cpunodebind=0 --membind=0", finding, "inferscope explain remote-memory",
		"may cost time, which was not measured, low confidence",
	} {
		if !strings.Contains(far, want) {
			t.Errorf("%q is missing in:\n%s", want, far)
		}
	}
	if near := words("1\n"); strings.Contains(near, "threads ran") || strings.Contains(near, finding) || !strings.Contains(near, "25.0% of the pages are on") {
		t.Errorf("where the GPU is near:\n%s", near)
	}
	if unknown := words("-1\n"); strings.Contains(unknown, "numactl") || strings.Contains(unknown, finding) {
		t.Errorf("where nobody knows where the GPU is:\n%s", unknown)
	}
}
