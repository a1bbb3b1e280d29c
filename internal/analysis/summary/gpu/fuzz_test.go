package gpu_test

import (
	"encoding/binary"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// FuzzSummarize holds that no recording, however damaged, stops the analysis, and that busy
// times and gaps stay within what was recorded.
func FuzzSummarize(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{10, 0, 20, 7, 1, 1, 0, 9, 40, 0, 200, 8, 1, 1, 1, 9, 5, 0, 1, 1, 1, 1, 0, 9})
	fuzzing.Run(f, func(t *testing.T, raw []byte) {
		rec := &recording.Recording{Meta: recording.Meta{
			From: 10, To: 60_000, Processes: []recording.Process{{PID: 1, Died: 30_000}, {PID: 1}, {PID: 2}},
			Functions: []recording.Function{
				{Name: "cuLaunchKernel", Base: "cuLaunchKernel", Library: "driver", Group: "launch"},
				{Name: "cuMemcpyHtoD_v2", Base: "cuMemcpyHtoD", Library: "driver", Group: "copy", Timed: true},
				{Name: "cuCtxSynchronize", Base: "cuCtxSynchronize", Library: "driver", Group: "sync", Timed: true},
			},
			GPU: &recording.GPU{
				Windows: []recording.GPUWindow{
					{PID: 1, From: 0, To: 20_000, Activity: true, Calls: true},
					{PID: 1, From: 15_000, To: ^uint64(0), Activity: true},
					{PID: 2, From: 500, To: 40_000, Activity: true, Calls: true, Dropped: 1},
				},
				Devices: []recording.Device{{PID: 1, UUID: "a"}, {PID: 2, UUID: "a"}},
				Kernels: []recording.Kernel{{Name: "_Z1kv"}}, Ranges: []string{"r"},
			},
		}}
		for ; len(raw) >= 8; raw = raw[8:] {
			rec.Events = append(rec.Events, event.Event{
				TS: uint64(binary.LittleEndian.Uint16(raw)), Dur: uint64(raw[2]) * 7, Kind: event.Kind(raw[3] % 14),
				PID: uint32(raw[4] % 4), TID: uint32(raw[5] % 4),
				Func: uint16(raw[6]), Flags: event.Flags(raw[7]), Ret: int32(raw[7]) - 2,
				Args: [4]uint64{uint64(raw[6] >> 2), 0, uint64(raw[5]), uint64(raw[4])},
			})
		}
		tl := timeline.Build(rec)
		must.NoError(t, tl.Check())
		s := gpu.Summarize(tl)
		for i := range s.Devices {
			if d := &s.Devices[i]; d.Busy.Time+d.Gaps.Time != d.Busy.Coverage.Time {
				t.Errorf("device %d: busy %d and gaps %d, recorded %d",
					i, d.Busy.Time, d.Gaps.Time, d.Busy.Coverage.Time)
			}
		}
	})
}
