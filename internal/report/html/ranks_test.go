package html_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// twoRanks are two processes with a GPU each, which do ten all-reduces of 64 bytes; the second begins 100 µs later.
func twoRanks() *recording.Recording {
	b := calltest.New()
	b.Process(recording.Process{PID: recordtest.PID + 1, Comm: "rank"})
	b.Meta.Host.GPUs = []recording.HostGPU{{UUID: "GPU-0", Bus: "0000:1b:00.0", Node: 0}}
	b.Meta.Driver = &recording.Driver{Links: []recording.GPULink{{A: "GPU-0", B: "GPU-1", Kind: "NV18"}}}
	b.Meta.GPU = &recording.GPU{
		Mode: "continuous", Kernels: []recording.Kernel{{Name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}},
	}
	b.Meta.Communicators = []recording.Communicator{{PID: recordtest.PID, Address: 0x110, Rank: 0, Ranks: 2}}
	id := uint32(0)
	for r := range uint32(2) {
		pid := recordtest.PID + r
		b.Meta.GPU.Devices = append(b.Meta.GPU.Devices, recording.Device{PID: pid, UUID: fmt.Sprintf("GPU-%d", r)})
		b.Meta.GPU.Windows = append(b.Meta.GPU.Windows, recording.GPUWindow{
			PID: pid, From: calltest.Start, To: calltest.Start + calltest.Second,
			Activity: true, Calls: true, End: "open",
		})
		b.As(pid, pid).Do("ncclCommInitRank", 0, 10, 0x110+uint64(r), 2)
		for i := range uint64(10) {
			at := i*calltest.Millisecond + 500_000 + uint64(r)*100_000
			b.Do("ncclAllReduce", int64(at), 4000, 16, 0x110+uint64(r), 0, 7<<56)
			id++
			b.Event(event.Event{
				TS: calltest.Start + at + 1000, Dur: 1000, PID: pid,
				TID: pid, Func: b.Fn("cuLaunchKernel"), Kind: event.Call,
				Flags: event.Correlated | event.Timed, Ret: int32(id),
			})
			b.Event(event.Event{
				TS: calltest.Start + at + 5000, Dur: 300_000 - uint64(r)*100_000, PID: pid, TID: 7, Func: 1 << 8,
				Kind: event.Kernel, Flags: event.Timed, Ret: 1, Args: [4]uint64{uint64(id)},
			})
		}
	}
	return b.Recording()
}

// TestRankTables: operations by communicator, when ranks came to them, and on which nodes GPUs are.
func TestRankTables(t *testing.T) {
	doc, _ := data(t, pageOf(t, twoRanks()))
	got := map[string][][]any{}
	for _, table := range doc.Tables {
		got[table.Key] = table.Rows
	}
	pid := float64(recordtest.PID)
	want := map[string][][]any{
		"collectives": {
			{
				pid, "0x110", 0.0, 2.0, "AllReduce", "float32", 10.0, 640.0, 64.0, 64.0, "", "", 40_000.0, 3e6,
				640 / 3e-3, 640 / 3e-3,
			},
			{
				pid + 1, "0x111", nil, 2.0, "AllReduce", "float32", 10.0, 640.0, 64.0, 64.0, "", "", 40_000.0, 2e6,
				640 / 2e-3, 640 / 2e-3,
			},
		},
		"ranks": {{pid, 0.0, 0.0, 1e6, 0.0, 0.0}, {pid + 1, 0.0, 1.0, 0.0, 1e5, 1e5}},
		"links": {{"0 of process 1234 (0000:1b:00.0)", "0 of process 1235", "18 NVLinks"}},
		"nodes": {
			{pid, 0.0, "0000:1b:00.0", "0", fmt.Sprintf("python (%d)", recordtest.PID), 1.0, "not known", nil},
			{pid + 1, 0.0, "", "not known", fmt.Sprintf("rank (%d)", recordtest.PID+1), 1.0, "not known", nil},
		},
	}
	for key, rows := range want {
		if diff := cmp.Diff(rows, got[key]); diff != "" {
			t.Errorf("%s (-want +got)\n%s", key, diff)
		}
	}
}
