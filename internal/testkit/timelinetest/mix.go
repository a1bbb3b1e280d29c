package timelinetest

import (
	"fmt"
	"math/rand/v2"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// Mix is a recording of many events in the proportions of a real program, made fast: for benchmarks.
type Mix uint8

// The mixes.
const (
	// one thread decodes, a launch every 22 µs: launches and kernels in equal parts, a copy and a wait for each token
	Eager  Mix = iota
	Graphs     // one thread replays a graph of 600 kernels for each token
	Crowd      // 64 threads with streams of their own launch, and wait for locks and for the GPU
	Mixes      // how many there are
)

// String returns the name of a mix.
func (m Mix) String() string { return [...]string{"eager", "graphs", "crowd", "?"}[min(m, Mixes)] }

// mixer writes events in the order of time.
type mixer struct {
	*calltest.Builder
	rng     *rand.Rand
	events  []event.Event
	want    int
	now     uint64        // ns
	free    uint64        // ns: when the device has done everything
	pending []event.Event // of the GPU, in the order of time, that begin after now
	room    []event.Event // for pending
	id      uint32
	stacks  []uint64
	launch  uint16
	graph   uint16
}

// Make returns a recording of about n events.
func (m Mix) Make(n int) *recording.Recording {
	x := newMixer(n)
	for len(x.events) < n {
		switch m {
		case Graphs:
			x.replay(600)
		case Crowd:
			x.crowd(64, 200)
		default:
			x.token(300)
		}
	}
	rec := x.Recording()
	rec.Events = x.events
	rec.Meta.To = x.now + calltest.Millisecond
	rec.Meta.GPU.Windows = []recording.GPUWindow{
		{PID: recordtest.PID, From: Start, To: rec.Meta.To, Activity: true, Calls: true, End: "open"},
	}
	return rec
}

func newMixer(n int) *mixer {
	x := &mixer{
		Builder: calltest.New(),
		rng:     rand.New(rand.NewPCG(1, 7)),
		want:    n,
		now:     Start + calltest.Millisecond,
		id:      1000,
	}
	x.events = make([]event.Event, 0, n+50_000)
	x.room = make([]event.Event, 0, 1<<16)
	x.pending = x.room
	x.launch, x.graph = x.Fn("cuLaunchKernel"), x.Fn("cuGraphLaunch")
	x.Meta.GPU = &recording.GPU{
		Mode:    "continuous",
		Devices: []recording.Device{{PID: recordtest.PID, Name: "NVIDIA H200", UUID: "GPU-0a1b"}},
	}
	for i := range uint32(128) {
		x.Meta.GPU.Kernels = append(x.Meta.GPU.Kernels,
			recording.Kernel{Name: fmt.Sprintf("void kernel_%d<float>(float*)", i)})
		x.Meta.GPU.Streams = append(x.Meta.GPU.Streams, recording.Stream{PID: recordtest.PID, ID: 13 + i, Context: 1})
	}
	for i := range uint32(300) {
		x.stacks = append(x.stacks, x.Stack(recordtest.Native("at::native::add", "libtorch_cpu.so"),
			recordtest.Python("forward", "/app/model.py", i),
			recordtest.Python("main", "/app/infer.py", 12)))
	}
	return x
}

// cpu writes an event of a thread at the present time, after what the GPU did before.
func (x *mixer) cpu(tid uint32, e event.Event) {
	n := 0
	for n < len(x.pending) && x.pending[n].TS <= x.now {
		n++
	}
	x.events = append(x.events, x.pending[:n]...)
	if x.pending = x.pending[n:]; len(x.pending) == 0 {
		x.pending = x.room[:0]
	}
	e.TS, e.PID, e.TID = x.now, recordtest.PID, tid
	x.events = append(x.events, e)
}

// run lets the device run something after all that it has to do.
func (x *mixer) run(stream uint32, dur uint64, e event.Event) {
	start := max(x.now+7000, x.free+900)
	x.free = start + dur
	e.TS, e.Dur, e.Flags, e.PID, e.TID, e.Func = start, dur, event.Timed, recordtest.PID, stream, 1<<8
	x.pending = append(x.pending, e)
}

// kernel launches a kernel.
func (x *mixer) kernel(tid, stream uint32, dur uint64) {
	x.id += 1 + uint32(x.rng.IntN(2))
	k := x.rng.Uint64N(128)
	grid, block := k+1|1<<32|1<<48, 256|1<<11|uint64(1)<<22
	x.cpu(tid, event.Event{
		Dur: 4000, Func: x.launch, Kind: event.Call, Flags: event.Timed | event.Correlated, Ret: int32(x.id),
		Args: [4]uint64{k, uint64(stream) << 8, grid, block},
	})
	x.run(stream, dur,
		event.Event{Kind: event.Kernel, Ret: int32(k + 1), Args: [4]uint64{uint64(x.id), 0, grid, block}})
}

// call writes a call of a probe.
func (x *mixer) call(tid uint32, name string, dur uint64, args ...uint64) {
	e := event.Event{Dur: dur, Func: x.Fn(name), Kind: event.Call, Flags: event.Timed}
	copy(e.Args[:], args)
	x.cpu(tid, e)
}

// wait waits for the device, asleep most of the time.
func (x *mixer) wait(tid, stream uint32) {
	done := max(x.now+3000, x.free+2500)
	x.call(tid, "cuStreamSynchronize", done-x.now, uint64(stream)<<8)
	if done-x.now > 50_000 {
		x.now += 2000
		x.off(tid, done-x.now-2000, 7, 0, 0)
	}
	x.now = max(x.now, done)
}

// off writes an interval off the CPU, and a sample of where it began.
func (x *mixer) off(tid uint32, dur uint64, call uint16, waker uint32, address uint64) {
	x.cpu(tid, event.Event{
		Kind:  event.OffCPU,
		Func:  call,
		Flags: event.Timed,
		Dur:   dur,
		Args:  [4]uint64{dur - 1000, uint64(recordtest.PID)<<32 | uint64(waker), address},
	})
}

// sample writes a sample of a running thread.
func (x *mixer) sample(tid uint32) {
	x.cpu(tid, event.Event{Kind: event.Sample, Args: [4]uint64{x.stacks[x.rng.IntN(len(x.stacks))]}})
}

// back copies the result of a token back.
func (x *mixer) back(tid, stream uint32) {
	end := max(x.now+9000, x.free+3000)
	dur := end - x.now
	x.call(tid, "cuMemcpyDtoHAsync_v2", dur, 1, 2, 8, uint64(stream)<<8)
	x.id++
	x.run(
		stream,
		1200,
		event.Event{Kind: event.Copy, Ret: 2 | OnDevice<<8 | Pageable<<16, Args: [4]uint64{uint64(x.id), 0, 8}},
	)
	x.now = end
}

// token is one step of an eager decode.
func (x *mixer) token(kernels int) {
	const tid, stream = recordtest.PID, 13
	for i := range kernels {
		x.kernel(tid, stream, 4000+x.rng.Uint64N(9000))
		x.now += 20_000 + x.rng.Uint64N(4000)
		if i%45 == 0 { // 999 Hz
			x.sample(tid)
		}
	}
	x.back(tid, stream)
	x.wait(tid, stream)
	x.now += 100_000
	for i := range uint32(2) { // threads beside it
		x.off(tid+1+i, 90_000, 202, tid, 0x7f00)
	}
}

// replay is one step of a decode by graph.
func (x *mixer) replay(nodes int) {
	const tid, stream = recordtest.PID, 13
	x.id++
	x.cpu(tid, event.Event{
		Dur:   30_000,
		Func:  x.graph,
		Kind:  event.Call,
		Flags: event.Timed | event.Correlated,
		Ret:   int32(x.id),
		Args:  [4]uint64{0x99, stream << 8},
	})
	for i := range nodes {
		k := uint64(i % 128)
		x.run(stream, 3000+100*k, event.Event{
			Kind: event.Kernel,
			Ret:  int32(k + 1),
			Args: [4]uint64{uint64(x.id) | 5<<32, uint64(i + 1), k + 1 | 1<<32 | 1<<48, 256 | 1<<11 | 1<<22},
		})
	}
	x.now += 40_000
	x.sample(tid)
	x.wait(tid, stream)
	x.now += 60_000
}

// crowd is some rounds in which each thread launches.
func (x *mixer) crowd(threads, rounds uint32) {
	for r := range rounds {
		for i := range threads {
			tid, stream := recordtest.PID+i, 13+i
			x.kernel(tid, stream, 1500)
			x.now += 1500
			switch x.rng.IntN(12) {
			case 0:
				x.off(tid, 60_000, 202, recordtest.PID+(i+1)%threads, uint64(0x7f00+i%8))
			case 1:
				x.sample(tid)
			}
		}
		if r%20 == 19 {
			x.wait(recordtest.PID+r%threads, 13+r%threads)
		}
	}
}
