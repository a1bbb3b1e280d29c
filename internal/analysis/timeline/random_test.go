package timeline

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// tree writes calls down as they happen and remembers who made them.
type tree struct {
	rng     *rand.Rand
	now     uint64
	events  []event.Event
	callers map[uint64]uint64 // entry of a call to the entry of its caller, 0 for none
}

// grow makes a timed call with calls inside it and returns when it is over.
func (tr *tree) grow(tid uint32, caller uint64, depth int) {
	tr.now += 1 + tr.rng.Uint64N(20)
	start := tr.now
	tr.callers[start] = caller
	for range tr.rng.IntN(4 - depth) {
		tr.grow(tid, start, depth+1)
	}
	tr.now += 1 + tr.rng.Uint64N(20)
	e := call(cuMemcpyHtoD, start, int64(tr.now-start))
	if depth == 0 {
		e.Func = cudaMemcpy
	}
	e.TID = tid
	tr.events = append(tr.events, e)
}

// TestRandomTrees compares the parents that Build finds with those that were made.
func TestRandomTrees(t *testing.T) {
	for seed := range uint64(50) {
		tr := &tree{rng: rand.New(rand.NewPCG(seed, 1)), callers: map[uint64]uint64{}}
		tr.now = 1000
		for range 40 {
			tr.grow(uint32(1+tr.rng.IntN(3)), 0, 0)
		}
		tl := build(t, recordingOf(tr.events...))
		if len(tl.Ops) != len(tr.events) {
			t.Fatalf("seed %d: %d ops of %d calls", seed, len(tl.Ops), len(tr.events))
		}
		for i := range tl.Ops {
			got := uint64(0)
			if p := tl.Ops[i].Parent; p != None {
				got = tl.Ops[p].Start
			}
			if want := tr.callers[tl.Ops[i].Start]; got != want {
				t.Fatalf("seed %d: the call at %d has a parent at %d, want %d", seed, tl.Ops[i].Start, got, want)
			}
		}
	}
}

// FuzzBuild holds that no recording, however damaged, breaks an invariant.
func FuzzBuild(f *testing.F) {
	f.Add([]byte{}, uint64(0), uint64(100))
	f.Add([]byte{1, 0, 0, 3, 1, 1, 200, 1, 2, 0, 0, 4, 1, 1, 100, 1}, uint64(0), uint64(1000))
	f.Add([]byte{255, 255, 255, 255, 1, 1, 255, 255}, uint64(900), uint64(10))
	f.Add([]byte{ // a group of NCCL whose end launches two copies, and a third one between them
		2, 0, 1, 11, 1, 1, 1, 0, 3, 0, 1, 10, 1, 1, 1, 1, 5, 0, 40, 12, 1, 1, 1, 1, 8, 0, 1, 9, 1, 1, 1, 9,
		12, 0, 1, 9, 1, 1, 1, 13, 30, 0, 2, 0, 1, 1, 4, 49, 33, 0, 2, 0, 1, 1, 4, 1, 36, 0, 2, 0, 1, 1, 4, 81,
	}, uint64(0), uint64(1000))
	fuzzing.Run(f, func(t *testing.T, raw []byte, from, to uint64) {
		rec := hostileRecording(from, to)
		for ; len(raw) >= 8; raw = raw[8:] {
			rec.Events = append(rec.Events, hostileEvent(raw))
		}
		must.NoError(t, Build(rec).Check())
	})
}

// hostileRecording has tables that do not fit together, and no events.
func hostileRecording(from, to uint64) *recording.Recording {
	return &recording.Recording{Meta: recording.Meta{
		From: from, To: to, Functions: testFunctions(),
		Processes: []recording.Process{{PID: 1, Born: 5, Died: 90}, {PID: 1, Born: 80}, {PID: 2}},
		GPU: &recording.GPU{
			Windows: []recording.GPUWindow{
				{PID: 1, From: 0, To: 60, Activity: true, Calls: true},
				{PID: 1, From: 50, To: 300, Activity: true},
				{PID: 2, From: 1000, To: 20, Activity: true},
				{PID: 2, From: 10, To: ^uint64(0), Activity: true, Calls: true, Dropped: 3},
			},
			Devices: []recording.Device{{PID: 1, UUID: "a"}, {PID: 2, UUID: "a"}, {PID: 2, ID: 1, UUID: "b"}},
			Kernels: []recording.Kernel{{Name: "k"}},
		},
	}}
}

// hostileKinds are the kinds that a timeline is made of, and some that it is not.
var hostileKinds = []event.Kind{
	event.None,
	event.Call,
	event.Fork,
	event.Kernel,
	event.Copy,
	event.Set,
	event.Sync,
	event.Overhead,
	event.Range,
	event.Sample,
	event.OffCPU,
}

// hostileEvent makes an event of 8 bytes; times are small, or at the end of the range.
func hostileEvent(raw []byte) event.Event {
	e := event.Event{
		TS: uint64(binary.LittleEndian.Uint16(raw)), Dur: uint64(raw[2]),
		Func: uint16(raw[3]) % 16, PID: uint32(raw[4] % 4), TID: uint32(raw[5] % 4),
		Kind: hostileKinds[raw[6]%uint8(len(hostileKinds))], Flags: event.Flags(raw[7] & 15), Ret: int32(raw[7]) - 3,
	}
	e.Args[0] = uint64(raw[7] >> 3)
	e.Args[2], e.Args[3] = uint64(raw[6]>>4), uint64(raw[7]>>4)
	if raw[6] == 255 {
		e.TS = ^uint64(0) - e.TS
	}
	return e
}

// BenchmarkBuild has the calls of an eager decode on 8 threads: launches, with
// a nested copy and a synchronisation now and then.
func BenchmarkBuild(b *testing.B) {
	const n = 1_000_000
	rng := rand.New(rand.NewPCG(1, 2))
	events := make([]event.Event, 0, n)
	for ts := uint64(2000); len(events) < n; ts += 1000 + rng.Uint64N(500) {
		tid := uint32(200 + rng.IntN(8))
		at := len(events)
		switch rng.IntN(10) {
		case 0:
			events = append(events, call(cudaMemcpy, ts, 800), call(cuMemcpyHtoD, ts+100, 600))
		case 1:
			events = append(events, call(cuStreamSynchronize, ts, 900))
		default:
			events = append(events, launch(cudaLaunchKernel, ts, 5, 6), launch(cuLaunchKernel, ts+300, 5, 6))
		}
		for i := at; i < len(events); i++ {
			events[i].TID = tid
		}
	}
	rec := recordingOf(events...)
	b.ResetTimer()
	for range b.N {
		Build(rec)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(events)), "ns/event")
}
