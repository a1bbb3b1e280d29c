package memory_test

import (
	"math"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	second = 1_000_000_000
	mib    = 1 << 20
	from   = 10 * second
	to     = 20 * second
)

// build is a recording of ten seconds of one GPU.
type build struct {
	*recordtest.Builder
	pointer uint64
}

func newBuild() *build {
	b := &build{Builder: recordtest.New(), pointer: 0x1000}
	b.Window(from, to)
	return b
}

func (b *build) event(kind event.Kind, ts, dur uint64, flags event.Flags, args ...uint64) {
	e := event.Event{
		TS:    ts,
		Dur:   dur,
		PID:   recordtest.PID,
		TID:   recordtest.PID,
		Func:  event.CUDAMemory,
		Kind:  kind,
		Flags: flags | event.Timed,
	}
	copy(e.Args[:], args)
	b.Event(e)
}

// block is a sampled allocation; no end: it stays.
func (b *build) block(stack, ts, end, bytes, mean uint64) {
	b.pointer += 4096
	if end == 0 {
		b.event(event.Allocation, ts, to-ts, event.Open, stack, b.pointer, bytes, mean)
		return
	}
	b.event(event.Allocation, ts, end-ts, 0, stack, b.pointer, bytes, mean)
}

func (b *build) levels(at ...[2]uint64) {
	last := uint64(from)
	for _, l := range at {
		b.event(event.Memory, last, l[0]-last, 0, l[1], l[1]+20*mib, l[1]+mib, 100*mib)
		last = l[0]
	}
}

func (b *build) only(t *testing.T) memory.Device {
	t.Helper()
	s := memory.Summarize(b.Recording())
	if s == nil || len(s.Devices) != 1 {
		t.Fatalf("not one device: %+v", s)
	}
	return s.Devices[0]
}

func TestNothingWithoutEvents(t *testing.T) {
	if s := memory.Summarize(newBuild().Recording()); s != nil {
		t.Errorf("a summary of nothing: %+v", s)
	}
}

func TestTotals(t *testing.T) {
	b := newBuild()
	b.levels([2]uint64{12 * second, 150 * mib}, [2]uint64{15 * second, 300 * mib}, [2]uint64{to, 200 * mib})
	b.event(event.MemoryFlow, from, 2*second, 0, 10, 4, 60*mib, 10*mib)
	b.event(event.MemoryFlow, 12*second, 8*second, 0, 100, 50, 600*mib, 500*mib)
	d := b.only(t)
	if d.Allocated != 200*mib || d.Reserved != 220*mib || d.Before != 100*mib || d.Start != 100*mib {
		t.Errorf("%+v", d)
	}
	if d.Peak != 301*mib || d.PeakAt != 15*second || d.PeakHeld != 320*mib {
		t.Errorf("peak %d at %d, held %d", d.Peak, d.PeakAt, d.PeakHeld)
	}
	if d.Allocations != 100 || d.Frees != 50 || d.AllocatedBytes != 600*mib || d.FreedBytes != 500*mib {
		t.Errorf("%+v", d)
	}
	if d.Type != "cuda" || d.Index != 0 || len(d.Levels) != 3 {
		t.Errorf("%+v", d)
	}
}

// TestProcess: what NVML counts for the process, less what was in segments when it was asked, is the driver's.
func TestProcess(t *testing.T) {
	b := newBuild()
	b.levels([2]uint64{12 * second, 150 * mib}, [2]uint64{15 * second, 300 * mib}, [2]uint64{to, 200 * mib})
	b.Meta.GPU = &recording.GPU{Devices: []recording.Device{{PID: recordtest.PID, UUID: "GPU-0"}}}
	list := []recording.GPUProcess{
		{TS: 16 * second, PID: recordtest.PID, UUID: "GPU-1", Used: 1 << 40},
		{TS: 16 * second, PID: recordtest.PID + 1, UUID: "GPU-0", Used: 1 << 40},
		{TS: 16 * second, PID: recordtest.PID, UUID: "GPU-0", Used: 900 * mib},
	}
	b.Meta.Driver = &recording.Driver{Processes: list}
	if d := b.only(t); d.Process != 900*mib || d.Driver != (900-320)*mib {
		t.Errorf("%d of the process, %d of the driver", d.Process/mib, d.Driver/mib)
	}
	list[2].TS = from - second
	if d := b.only(t); d.Driver != (900-170)*mib {
		t.Errorf("%d of the driver before the window, want what the first level leaves", d.Driver/mib)
	}
}

// TestCountsOfTheWindow: an attach long before the window counts nothing of what came before it.
func TestCountsOfTheWindow(t *testing.T) {
	b := newBuild()
	b.event(event.MemoryFlow, from-second, second+1, 0, 1000, 900, 1000*mib, 900*mib)
	b.event(event.MemoryFlow, from+1, 9*second, 0, 1010, 905, 1010*mib, 905*mib)
	b.event(event.Memory, from-second, second+1, 0, 100*mib, 120*mib, 101*mib, 7*mib)
	b.event(event.Memory, from+1, 9*second, 0, 105*mib, 120*mib, 106*mib, 7*mib)
	d := b.only(t)
	if d.Allocations != 10 || d.Frees != 5 || d.AllocatedBytes != 10*mib || d.Start != 100*mib {
		t.Errorf("%+v", d)
	}
}

// TestLeak: what stays in every part of the time is a leak with its slope; a cache that fills, blocks that are held for
// a while, and what is freed at once are none.
func TestLeak(t *testing.T) {
	b := newBuild()
	b.levels([2]uint64{to, 400 * mib})
	stack := func(name string, line uint32) uint64 {
		return b.Stack(recordtest.Native("c10::reportMemoryUsageToProfiler", "libc10.so"),
			recordtest.Native("at::empty", "libtorch.so"), recordtest.Python(name, "serve.py", line),
			recordtest.Python("main", "serve.py", 1))
	}
	leak, cache, queue, activation := stack("remember", 12),
		stack("fill", 20), stack("enqueue",
			30), stack("forward", 40)
	for i := range uint64(100) {
		at := from + i*second/10
		b.block(leak, at, 0, mib, mib/1000)
		if i < 20 {
			b.block(cache, at, 0, 5*mib, mib/1000)
		}
		end := at + 3*second // a queue of three seconds
		if end > to {
			end = 0
		}
		b.block(queue, at, end, mib, mib/1000)
		b.block(activation, at, at+1000, mib, mib/1000)
	}
	d := b.only(t)
	if len(d.Leaks) != 1 {
		t.Fatalf("%d leaks: %+v", len(d.Leaks), d.Leaks)
	}
	l := d.Leaks[0]
	if name := d.Sites[l.Site].Name; name != "remember (serve.py:12)" {
		t.Errorf("the leak is at %s", name)
	}
	if math.Abs(l.PerSec-10*mib) > mib/100 || l.Bytes != 100*mib {
		t.Errorf("%.0f bytes a second, %d bytes", l.PerSec, l.Bytes)
	}
	for _, s := range d.Sites {
		want := map[string]memory.KindName{
			"remember (serve.py:12)": memory.KindKept, "fill (serve.py:20)": memory.KindKept,
			"enqueue (serve.py:30)": memory.KindTransient,
			"forward (serve.py:40)": memory.KindTransient,
		}[s.Name]
		if s.Kind != want {
			t.Errorf("%s is %q, want %q", s.Name, s.Kind, want)
		}
	}
}

// TestDriverLeak: a leak of the driver's own calls is found, under the function that called the runtime; segments of
// PyTorch's allocator that grow are no leak of theirs.
func TestDriverLeak(t *testing.T) {
	b := newBuild()
	leak := b.Stack(recordtest.Native("cudaMalloc", "libcudart.so.13"), recordtest.Native("llama.so+0x10", "llama.so"),
		recordtest.Native("new_session", "serve"), recordtest.Native("main", "serve"))
	segment := b.Stack(recordtest.Native("cudaMalloc", "libcudart.so.13"),
		recordtest.Native("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc", "libc10_cuda.so"),
		recordtest.Python("forward", "serve.py", 40))
	for i := range uint64(100) {
		for k, stack := range []uint64{leak, segment} {
			b.pointer += 4096
			at := from + i*second/10
			b.Event(event.Event{
				TS: at, Dur: to - at, PID: recordtest.PID, TID: recordtest.PID, Func: event.DriverMemory | 255<<8,
				Kind: event.Allocation, Flags: event.Open | event.Timed,
				Args: [4]uint64{stack, b.pointer, uint64(k+1) * mib, 4096},
			})
		}
	}
	for _, stack := range []uint64{leak, segment} {
		b.Event(event.Event{
			TS: to - second, PID: recordtest.PID, Func: event.DriverMemory | 255<<8, Kind: event.OutOfMemory,
			Args: [4]uint64{stack, 500 * mib, 270 * mib, 270 * mib},
		})
	}
	d := b.only(t)
	if len(d.Exhausted) != 1 || d.Exhausted[0].Name != d.Sites[d.Exhausted[0].Live[1].Site].Name {
		t.Errorf("the allocation that failed: %+v", d.Exhausted)
	}
	if d.Type != "driver" || !d.OfDriver() || d.OnlySegments() || len(d.Leaks) != 1 {
		t.Fatalf("%+v", d)
	}
	l := d.Leaks[0]
	if name := d.Sites[l.Site].Name; name != "new_session < main (at llama.so+0x10)" {
		t.Errorf("the leak is at %s", name)
	}
	if math.Abs(l.PerSec-10*mib) > mib/100 || l.Bytes != 100*mib {
		t.Errorf("%.0f bytes a second, %d bytes", l.PerSec, l.Bytes)
	}
	segments := 0
	for _, s := range memory.Samples(b.Recording()) {
		if s.Segment {
			segments++
		}
	}
	if segments != 100 {
		t.Errorf("%d samples are of segments, want 100", segments)
	}
}

// driverBlocks adds a block of 1 MiB each tenth of a second that stays, and a refusal.
func (b *build) driverBlocks(device uint16, stack uint64) {
	for i := range uint64(100) {
		b.pointer += 4096
		at := from + i*second/10
		b.Event(event.Event{
			TS: at, Dur: to - at, PID: recordtest.PID, TID: recordtest.PID, Func: device | 255<<8,
			Kind: event.Allocation, Flags: event.Open | event.Timed, Args: [4]uint64{stack, b.pointer, mib, 4096},
		})
	}
	b.Event(event.Event{
		TS: to - second, PID: recordtest.PID, Func: device | 255<<8, Kind: event.OutOfMemory,
		Args: [4]uint64{stack, 500 * mib, 90 * mib, 90 * mib},
	})
}

// TestDriverOfPyTorch: pinned memory of PyTorch is no segment, as it reports no blocks of it. GPU memory with an unknown
// stack may be one where PyTorch has GPU memory, and is no leak then.
func TestDriverOfPyTorch(t *testing.T) {
	for name, c := range map[string]struct {
		device    uint16
		framework bool
		stack     []recording.Frame
		want      int // leaks, and failures
	}{
		"pinned": {event.PinnedMemory, true, []recording.Frame{
			recordtest.Native("cudaHostAlloc", "libcudart.so.13"),
			recordtest.Native("at::native::CachingHostAllocatorImpl::allocate", "libtorch_cuda.so"),
			recordtest.Python("pin", "serve.py", 40),
		}, 1},
		"unknown": {event.DriverMemory, true, nil, 0},
		"only the call": {event.DriverMemory, true, []recording.Frame{
			recordtest.Native("cudaMalloc", "libcudart.so.13"),
		}, 0},
		"the program's": {event.DriverMemory, true, []recording.Frame{
			recordtest.Native("cudaMalloc", "libcudart.so.13"), recordtest.Native("grow", "serve"),
		}, 1},
		"unknown without PyTorch": {event.DriverMemory, false, nil, 1},
	} {
		b := newBuild()
		stack := uint64(0)
		if len(c.stack) > 0 {
			stack = b.Stack(c.stack...)
		}
		b.driverBlocks(c.device, stack)
		if c.framework {
			b.levels([2]uint64{to, 400 * mib})
		}
		devices := memory.Summarize(b.Recording()).Devices
		d := devices[len(devices)-1]
		if !d.OfDriver() || len(d.Leaks) != c.want || len(d.Exhausted) != c.want {
			t.Errorf("%s: %d leaks, %d failures, want %d: %+v", name, len(d.Leaks), len(d.Exhausted), c.want, d)
		}
		if got := len(memory.Failed(b.Recording())); got != c.want {
			t.Errorf("%s: %d allocations failed, want %d", name, got, c.want)
		}
	}
}

// TestFullIn: the device is full when what is neither in blocks nor of others than the framework is used up; free parts
// of its segments count as free.
func TestFullIn(t *testing.T) {
	b := newBuild()
	b.event(event.Memory, from, to-from, 0, 100*mib, 900*mib, 100*mib, 0)
	stack := b.Stack(recordtest.Python("remember", "serve.py", 12))
	for i := range uint64(100) {
		b.block(stack, from+i*second/10, 0, mib, mib/1000)
	}
	b.Meta.GPU = &recording.GPU{Devices: []recording.Device{{PID: recordtest.PID, UUID: "GPU-0", Memory: 1000 * mib}}}
	b.Meta.Driver = &recording.Driver{Processes: []recording.GPUProcess{
		{TS: to, PID: recordtest.PID, UUID: "GPU-0", Used: 1000*mib - mib},
	}}
	d := b.only(t)
	if len(d.Leaks) != 1 || d.Leaks[0].FullIn/second != 80 { // (1000 - 100 - 99) MiB at 10 MiB/s
		t.Errorf("%+v", d.Leaks)
	}
}

// TestManagedMemory: what NVML counts for a process is not set against managed memory, which may be on the host.
func TestManagedMemory(t *testing.T) {
	b := newBuild()
	b.Meta.GPU = &recording.GPU{Devices: []recording.Device{{PID: recordtest.PID, UUID: "GPU-0", Memory: 1000 * mib}}}
	b.Meta.Driver = &recording.Driver{Processes: []recording.GPUProcess{
		{TS: to, PID: recordtest.PID, UUID: "GPU-0", Used: 900 * mib},
	}}
	for _, device := range []uint16{event.ManagedMemory, event.DriverMemory} {
		b.Event(event.Event{
			TS: from, Dur: to - from, PID: recordtest.PID, Func: device | 255<<8, Kind: event.Memory, Flags: event.Timed,
			Args: [4]uint64{mib, mib, mib, 0},
		})
	}
	for _, d := range memory.Summarize(b.Recording()).Devices {
		if (d.Process == 0) != (d.Type == "managed") {
			t.Errorf("%s: %d of the process", d.Type, d.Process)
		}
	}
}

// TestEstimatesWithinTotals: no place has more than the exact totals, and few samples do not tell what it held at the peak.
func TestEstimatesWithinTotals(t *testing.T) {
	b := newBuild()
	b.event(event.Memory, from, to-from, 0, 60*mib, 60*mib, 60*mib, 0)
	b.event(event.MemoryFlow, from, to-from, 0, 10, 0, 60*mib, 0)
	sure, few := b.Stack(recordtest.Python("sure", "a.py", 1)), b.Stack(recordtest.Python("few", "a.py", 2))
	b.block(sure, from+1, 0, 70*mib, 4096)
	b.block(few, from+1, 0, mib, 800*mib)
	for _, s := range b.only(t).Sites {
		if want := map[string]uint64{"sure (a.py:1)": 60 * mib}[s.Name]; s.AtPeak != want {
			t.Errorf("%s held %d at the peak, want %d", s.Name, s.AtPeak, want)
		}
		if s.Bytes > 60*mib || s.Count > 10 {
			t.Errorf("%s allocated %d bytes in %d", s.Name, s.Bytes, s.Count)
		}
	}
}

// TestWorkspace: what a line of Python allocates for cuBLAS is another kind than the tensors of the same line.
func TestWorkspace(t *testing.T) {
	b := newBuild()
	b.levels([2]uint64{to, 400 * mib})
	line := recordtest.Python("forward", "serve.py", 40)
	workspace := b.Stack(recordtest.Native("c10::reportMemoryUsageToProfiler", "libc10.so"),
		recordtest.Native("at::cuda::getCUDABlasLtWorkspace", "libtorch_cuda.so"), line)
	tensor := b.Stack(recordtest.Native("c10::reportMemoryUsageToProfiler", "libc10.so"),
		recordtest.Native("at::empty", "libtorch.so"), line)
	b.block(workspace, from+second, 0, 8*mib, 4096)
	b.block(tensor, from+second, 0, 4*mib, 4096)
	d := b.only(t)
	if len(d.Sites) != 2 || d.Sites[0].Kind != "workspace" || d.Sites[0].Live != 8*mib || d.Sites[1].Kind != memory.KindKept {
		t.Errorf("%+v", d.Sites)
	}
}

// TestWeights: an allocation stands for more bytes the less likely it was to be chosen, and one of two stretches that
// tell of it counts once.
func TestWeights(t *testing.T) {
	b := newBuild()
	b.levels([2]uint64{to, 400 * mib})
	stack := b.Stack(recordtest.Native("work", "prog"))
	b.block(stack, from+1, 0, mib, mib) // chosen with probability 1 - 1/e
	b.event(event.Allocation, from+1, 5*second, event.Open, stack, b.pointer, mib, mib)
	d := b.only(t)
	probability := 1 - 1/math.E
	want := mib / probability
	if len(d.Sites) != 1 || math.Abs(float64(d.Sites[0].Live)-want) > 1 || d.Samples != 1 {
		t.Errorf("%+v, want %f live", d.Sites, want)
	}
	if d.Sites[0].Error == 0 {
		t.Error("an estimate of one sample has no error")
	}
}

func TestOutOfMemory(t *testing.T) {
	b := newBuild()
	b.levels([2]uint64{to, 400 * mib})
	hog, other := b.Stack(recordtest.Python("hog", "a.py", 3)), b.Stack(recordtest.Python("asks", "a.py", 9))
	b.block(hog, from+second, 0, 250*mib, mib)
	b.block(other, from+second, from+2*second, 900*mib, mib) // freed before
	b.event(event.OutOfMemory, from+3*second, 0, 0, other, 512*mib, 350*mib, 380*mib)
	d := b.only(t)
	if len(d.Exhausted) != 1 {
		t.Fatalf("%+v", d.Exhausted)
	}
	e := d.Exhausted[0]
	if e.Asked != 512*mib || e.Name != "asks (a.py:9)" || len(e.Live) != 2 {
		t.Fatalf("%+v", e)
	}
	if d.Sites[e.Live[0].Site].Name != "hog (a.py:3)" || e.Live[0].Bytes != 250*mib ||
		e.Live[1] != (memory.Holding{Site: -1, Bytes: 100 * mib}) {
		t.Errorf("%+v", e.Live)
	}
}

// FuzzSummarize: whatever the events and tables say, it ends.
func FuzzSummarize(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint64(3), uint64(4), uint16(1), uint8(82), int32(0))
	f.Fuzz(func(t *testing.T, a, b, c, d uint64, device uint16, kind uint8, parent int32) {
		r := newBuild().Recording()
		r.Meta.Frames = []recording.Frame{{Kind: recording.PythonFrame, Name: "f", File: "f.py"}}
		r.Meta.Stacks = []recording.Node{{Parent: parent, Frame: uint32(a)}, {Parent: 1, Frame: 0}}
		for _, k := range []event.Kind{
			event.Kind(kind), event.Memory, event.MemoryFlow, event.Allocation, event.OutOfMemory,
		} {
			r.Events = append(r.Events, event.Event{
				TS:    a,
				Dur:   b,
				PID:   1,
				Func:  device,
				Kind:  k,
				Args:  [4]uint64{c, d, a, b},
				Flags: event.Flags(d),
			})
		}
		slices.SortFunc(r.Events, func(x, y event.Event) int { return int(x.Kind) - int(y.Kind) })
		memory.Summarize(r)
	})
}
