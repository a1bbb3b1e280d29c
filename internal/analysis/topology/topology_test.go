package topology_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/topology"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	start  = calltest.Start
	ms     = calltest.Millisecond
	first  = recordtest.PID
	second = recordtest.PID + 1
)

// twoNodes is a process with a GPU on each of two nodes and a thread for each of them, for a second. Even CPUs are on
// node 0, odd ones on node 1. The second thread runs on one CPU, and for the last tenth of a second on another one.
func twoNodes(cpu, last uint16) *calltest.Builder {
	b := calltest.New()
	b.Meta.Host.NodeOf = []int{0, 1, 0, 1}
	b.Meta.Host.GPUs = []recording.HostGPU{
		{UUID: "GPU-0", Bus: "0000:1b:00.0", Node: 0},
		{UUID: "GPU-1", Bus: "0000:9a:00.0", Node: 1},
	}
	b.Meta.GPU = &recording.GPU{
		Mode: "continuous", Agents: []recording.Agent{{PID: first, State: "running"}},
		Devices: []recording.Device{{PID: first, ID: 0, UUID: "GPU-0"}, {PID: first, ID: 1, UUID: "GPU-1"}},
		Windows: []recording.GPUWindow{
			{PID: first, From: start, To: start + calltest.Second, Activity: true, Calls: true, End: "open"},
		},
	}
	id := uint32(0)
	for i, tid := range []uint32{first, second} {
		b.Thread(first, tid, []string{"main", "feeder"}[i])
		at := []uint16{0, cpu}[i]
		// It is seen on its CPU from the beginning on, and leaves for a millisecond.
		b.Off(recordtest.Off{TID: tid, TS: start, Dur: ms, CPUs: [2]uint16{at, at}})
		b.Off(recordtest.Off{TID: tid, TS: start + 900*ms, Dur: ms, CPUs: [2]uint16{at, []uint16{0, last}[i]}})
		b.Off(recordtest.Off{TID: tid, TS: start + 999*ms, Dur: ms, CPUs: [2]uint16{[]uint16{0, last}[i], at}})
		b.As(first, tid)
		for n := range uint64(90) {
			id++
			b.Event(event.Event{
				TS: start + n*10*ms + 2*ms, Dur: 3000, PID: first, TID: tid, Func: b.Fn("cuLaunchKernel"),
				Kind: event.Call, Flags: event.Timed | event.Correlated, Ret: int32(id),
			})
			b.Event(event.Event{
				TS: start + n*10*ms + 2*ms + 10_000, Dur: ms, PID: first, TID: 7 + uint32(i),
				Func: uint16(i) | uint16(1+i)<<8, Kind: event.Kernel, Flags: event.Timed, Args: [4]uint64{uint64(id)},
			})
		}
	}
	return b
}

// TestFarThread: who launches for a GPU from the other node is told, with the share of its time there, and is a hint.
func TestFarThread(t *testing.T) {
	r := analysis.Run(twoNodes(2, 3).Recording())
	want := &topology.Summary{
		Nodes: 2,
		GPUs: []topology.GPU{
			{PID: first, ID: 0, UUID: "GPU-0", Bus: "0000:1b:00.0", Node: 0},
			{PID: first, ID: 1, UUID: "GPU-1", Bus: "0000:9a:00.0", Node: 1},
		},
		Launchers: []topology.Launcher{
			{PID: first, TID: first, Name: "main", GPU: 0, Launched: 90, Share: 1, Ran: 997 * ms, Node: 0},
			{
				PID: first, TID: second, Name: "feeder", GPU: 1, Launched: 90, Share: 1, Ran: 997 * ms, Far: 899 * ms,
				Node: 0,
			},
		},
	}
	if diff := cmp.Diff(want, r.Topology); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	text := ""
	for _, f := range r.Diagnosis.Findings {
		if f.Cause == "remote-memory" {
			text = f.Title + ": " + f.Evidence[0].Text
		}
	}
	for _, part := range []string{
		"Threads launch from another NUMA node than that of their GPU: GPU 1 (0000:9a:00.0) is on NUMA node 1; feeder (",
		"launched 100.0% of what it did, ran on other nodes for 90.2% of its time (899 ms), mostly on node 0.",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the finding lacks %q: %q of %+v", part, text, r.Diagnosis.Findings)
		}
	}
}

// TestNearThread: neither a thread on its GPU's node is told of, nor one of which it is not known where the GPU is.
func TestNearThread(t *testing.T) {
	unknown := twoNodes(2, 3)
	unknown.Meta.Host.GPUs[1].Node = -1
	oneNode := twoNodes(2, 3)
	oneNode.Meta.Host.NodeOf = nil
	for name, b := range map[string]*calltest.Builder{
		"near": twoNodes(1, 0), "always near": twoNodes(3, 3), "node not known": unknown, "one node": oneNode,
	} {
		r := analysis.Run(b.Recording())
		for _, f := range r.Diagnosis.Findings {
			if f.Cause == "remote-memory" {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if r.Topology == nil || len(r.Topology.Launchers) != 2 || r.Topology.Launchers[1].Remote() {
			t.Errorf("%s: %+v", name, r.Topology)
		}
	}
	silent := twoNodes(2, 3)
	silent.Meta.Host.GPUs = nil
	if r := analysis.Run(silent.Recording()); r.Topology != nil {
		t.Errorf("%+v of a host that does not tell of its GPUs", r.Topology)
	}
}

// TestLinks: how the GPUs that the target uses are connected is told, and that exposed communication has no NVLink.
func TestLinks(t *testing.T) {
	const evidence = "GPUs are connected without NVLink: GPU 0 of process 1234 (0000:1b:00.0) and GPU 1 of " +
		"process 1234 (0000:9a:00.0) by PCIe, by the link between NUMA nodes."
	for kind, want := range map[string]string{
		"SYS": "PCIe, by the link between NUMA nodes", "NV18": "18 NVLinks", "NV1": "1 NVLink", "NEW": "NEW",
	} {
		b := twoNodes(1, 1)
		b.Meta.GPU.Kernels = []recording.Kernel{{Name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}}
		b.Meta.Driver = &recording.Driver{Links: []recording.GPULink{
			{A: "GPU-0", B: "GPU-7", Kind: "PIX"}, {A: "GPU-1", B: "GPU-0", Kind: kind},
		}}
		rec := b.Recording()
		for i := range rec.Events {
			if rec.Events[i].Kind == event.Kernel {
				rec.Events[i].Ret = 1
			}
		}
		r := analysis.Run(rec)
		if diff := cmp.Diff([]topology.Link{{A: 0, B: 1, Kind: kind, Text: want}}, r.Topology.Links); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		told := false
		for _, f := range r.Diagnosis.Findings {
			for _, e := range f.Evidence {
				told = told || f.Cause == "exposed-communication" && e.Text == evidence
			}
		}
		if told != (kind == "SYS") {
			t.Errorf("%s: the finding says of the link: %v; %+v", kind, told, r.Diagnosis.Findings)
		}
	}
}
