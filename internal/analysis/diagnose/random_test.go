package diagnose_test

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// of makes the diagnosis of a recording.
func of(rec *recording.Recording) *diagnose.Diagnosis {
	t := timeline.Build(rec)
	return diagnose.New(t, gap.Build(t), gpu.Summarize(t), cpu.Summarize(rec), nil)
}

// TestRandomPrograms holds for programs made by dice, with windows, losses and clocks that differ, what is true of any
// diagnosis: breakdowns sum, findings cost no more than there is, and the same recording gives the same answer.
func TestRandomPrograms(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := timelinetest.Config{Seed: seed, Agent: rng.IntN(3) > 0, Both: rng.IntN(2) == 0, Length: 100 * ms}
		if rng.IntN(2) == 0 {
			c.Windows = []timelinetest.Span{timelinetest.Between(10*ms, 40*ms), timelinetest.Between(60*ms, 90*ms)}
		}
		if rng.IntN(3) == 0 {
			c.LoseCalls, c.LoseRecords, c.Burst = rng.Float64(), rng.Float64(), 1+rng.IntN(20)
		}
		if rng.IntN(4) == 0 {
			c.Skew = rng.Int64N(200_000) - 100_000
		}
		s := timelinetest.Random(c)
		host(s.Builder.Builder, rng, 100*ms)
		rec := s.Run()
		if rng.IntN(4) == 0 {
			rec.Events = slices.DeleteFunc(rec.Events, func(event.Event) bool { return rng.IntN(5) == 0 })
		}
		d := of(rec)
		check(t, d)
		if !reflect.DeepEqual(d, of(rec)) {
			t.Errorf("seed %d: two diagnoses of one recording differ", seed)
		}
		if _, err := json.Marshal(d); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// host adds what threads did on the CPU: waits of all kinds and samples of a few stacks.
func host(b *recordtest.Builder, rng *rand.Rand, length uint64) {
	stacks := []uint64{
		0,
		b.Stack(recordtest.Python("encode", "/srv/app/infer.py", 12),
			recordtest.Python("main", "/srv/app/infer.py", 90)),
		b.Stack(recordtest.Native("at::native::add", "libtorch_cuda.so"),
			recordtest.Python("forward", "/usr/lib/python3/dist-packages/torch/nn/linear.py", 3)),
		b.Stack(recordtest.Native("take_gil", "python3.12"), recordtest.Python("work", "/srv/app/infer.py", 5)),
		b.Stack(recordtest.Native("pthread_cond_wait", "libc.so.6"), recordtest.Native("pop", "libqueue.so")),
	}
	tids := []uint32{recordtest.PID, recordtest.PID + 1, recordtest.PID + 2}
	for _, tid := range tids {
		for at := rng.Uint64N(5 * ms); at < length; {
			d := 1 + rng.Uint64N(3*ms)
			b.Off(recordtest.Off{
				TID: tid, TS: start + at, Dur: d, Blocked: rng.Uint64N(d + 1),
				Call:  []uint16{0, 7, 202, 230, event.NoSyscall}[rng.IntN(5)],
				Flags: []event.Flags{0, 0, event.Preempted, event.MajorFault, event.FromIRQ, event.Open}[rng.IntN(6)],
				By: [2]uint32{
					recordtest.PID,
					tids[rng.IntN(3)],
				}, Type: []uint64{0, 1, 8, 12}[rng.IntN(4)], Stack: stacks[rng.IntN(len(stacks))],
			})
			at += d + rng.Uint64N(4*ms)
		}
		for at := rng.Uint64N(10 * ms); at < length; at += 10 * ms {
			b.Sample(tid, start+at, stacks[rng.IntN(len(stacks))], event.Whole)
		}
	}
	if rng.IntN(3) == 0 {
		b.Loss(loss.Loss{Reason: loss.RingFull, Count: rng.Uint64N(100_000)})
	}
}

// FuzzNew holds the same of events that no program makes: every kind, at any time, of any length, with any number in
// them.
func FuzzNew(f *testing.F) {
	f.Add([]byte{}, uint64(0), uint64(100))
	f.Add([]byte{10, 0, 20, 7, 1, 1, 0, 9, 40, 0, 200, 8, 1, 1, 1, 9, 5, 0, 1, 1, 1, 1, 0, 9}, uint64(0),
		uint64(60_000))
	f.Add([]byte{255, 255, 255, 255, 1, 1, 255, 255}, uint64(900), uint64(10))
	fuzzing.Run(f, func(t *testing.T, raw []byte, from, to uint64) {
		rec := hostile(from, to)
		for ; len(raw) >= 8; raw = raw[8:] {
			rec.Events = append(rec.Events, hostileEvent(raw))
		}
		check(t, of(rec))
	})
}

// hostile is a recording whose tables do not fit together.
func hostile(from, to uint64) *recording.Recording {
	return &recording.Recording{Meta: recording.Meta{
		Target: 1, From: from, To: max(from, to), Host: recording.Host{Arch: "amd64", NodeOf: []int{0, 7, -1}},
		Processes: []recording.Process{{PID: 1, Born: 5, Died: 30_000}, {PID: 1, Born: 80}, {PID: 2}},
		Functions: []recording.Function{
			{Name: "cuLaunchKernel", Base: "cuLaunchKernel", Library: "driver", Group: "launch"},
			{Name: "cuStreamSynchronize", Base: "cuStreamSynchronize", Library: "driver", Group: "sync", Timed: true},
			{Name: "cuMemcpyHtoD", Base: "cuMemcpyHtoD", Library: "driver", Group: "copy", Timed: true},
			{Name: "cuGraphLaunch", Base: "cuGraphLaunch", Library: "driver", Group: "graph", Timed: true},
			{},
		},
		Frames: []recording.Frame{
			{Kind: recording.PythonFrame, Name: "f", File: "/a.py", Line: 3},
			{Kind: "odd", Name: "g"},
			{},
		},
		Stacks: []recording.Node{
			{Parent: -1, Frame: 0},
			{Parent: 0, Frame: 9},
			{Parent: 2, Frame: 1},
			{Parent: 70, Frame: 2},
		},
		GPU: &recording.GPU{
			Windows: []recording.GPUWindow{
				{PID: 1, From: 0, To: 40_000, Activity: true, Calls: true},
				{PID: 1, From: 30_000, To: 50_000, Activity: true},
				{PID: 2, From: 1000, To: 20, Activity: true},
				{PID: 2, From: 10, To: ^uint64(0), Activity: true, Calls: true, Dropped: uint64(from % 3)},
			},
			Devices: []recording.Device{
				{PID: 1, UUID: "a", SMs: 1 << 31},
				{PID: 2, UUID: "a"},
				{PID: 2, ID: 1, UUID: "b"},
			},
			Kernels: []recording.Kernel{{Name: "gemv"}, {}},
			Ranges:  []string{"a", ""},
		},
		Pressure: []recording.Pressure{{TS: 5, GPUNode: 7, RemotePages: map[string]uint64{"x": 3}}},
	}}
}

// hostileEvent makes an event of 8 bytes; times are small, or at the end of the range.
func hostileEvent(raw []byte) event.Event {
	e := event.Event{
		TS: uint64(binary.LittleEndian.Uint16(raw)), Dur: uint64(raw[2]) << (raw[3] & 7),
		Func: uint16(raw[3]) % 7, PID: uint32(raw[4] % 4), TID: uint32(raw[5] % 4),
		Kind: event.Kind(raw[6] % 14), Flags: event.Flags(raw[7]), Ret: int32(raw[7]) - 3,
	}
	e.Args = [4]uint64{
		uint64(raw[7] >> 3),
		uint64(raw[4])<<32 | uint64(raw[5]),
		uint64(raw[6]) << 40,
		uint64(raw[7]) << 44,
	}
	if raw[6] == 255 {
		e.TS = ^uint64(0) - e.TS
	}
	return e
}
