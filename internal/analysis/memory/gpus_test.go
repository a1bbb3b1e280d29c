package memory_test

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const unknown = 255 << 8

// held adds what a device held of [from, at] ns, and how much was ever allocated and freed of it.
func (b *build) held(device uint16, begin, at, bytes, high, allocations, frees uint64) {
	for kind, args := range map[event.Kind][4]uint64{
		event.Memory:     {bytes, bytes, high},
		event.MemoryFlow: {allocations, frees, allocations * mib, frees * mib},
	} {
		b.Event(event.Event{
			TS: begin, Dur: at - begin, PID: recordtest.PID, TID: recordtest.PID, Func: device, Kind: kind,
			Flags: event.Timed, Args: args,
		})
	}
}

// TestUnknownGPU: what lies on a GPU that is not known is on the only one on which NVML counts memory of the process,
// with all that was held at any time; where it uses several, seen or not, or NVML says nothing, it is told of apart.
func TestUnknownGPU(t *testing.T) {
	const driver = event.DriverMemory
	for name, c := range map[string]struct {
		listed  []string // by NVML
		several bool     // are seen
		indices []int
	}{
		"one":     {listed: []string{"GPU-a"}},
		"several": {listed: []string{"GPU-a", "GPU-b"}, several: true, indices: []int{0, -1, 1}},
		"unseen":  {listed: []string{"GPU-a", "GPU-b"}, indices: []int{0, -1}},
		"no NVML": {indices: []int{0, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBuild()
			b.Meta.GPU = &recording.GPU{Devices: []recording.Device{{PID: recordtest.PID, UUID: "GPU-a"}}}
			b.Meta.Driver = &recording.Driver{}
			for _, uuid := range c.listed {
				b.Meta.Driver.Processes = append(b.Meta.Driver.Processes,
					recording.GPUProcess{TS: to, PID: recordtest.PID, UUID: uuid})
			}
			b.held(driver|unknown, from-second, 12*second, 10*mib, 12*mib, 10, 0)
			b.held(driver|unknown, 12*second, to, 8*mib, 9*mib, 14, 6)
			b.held(driver, 13*second, 15*second, 100*mib, 110*mib, 20, 0)
			b.held(driver, 15*second, to, 30*mib, 100*mib, 20, 7)
			b.Event(event.Event{
				TS: 14 * second, PID: recordtest.PID, TID: recordtest.PID, Func: driver, Kind: event.OutOfMemory,
				Flags: event.Timed, Args: [4]uint64{0, 1 << 40, 50 * mib, 50 * mib},
			})
			if c.several {
				b.held(driver|1<<8, 13*second, to, mib, mib, 1, 0)
			}
			s := memory.Summarize(b.Recording())
			if c.indices != nil {
				var got []int
				for _, d := range s.Devices {
					got = append(got, d.Index)
				}
				if n := len(c.indices); !slices.Equal(got, c.indices) || len(s.GPUs) != n || s.GPUs[n-1].Index != -1 {
					t.Errorf("devices of GPUs %v, and %+v", got, s.GPUs)
				}
				return
			}
			if len(s.Devices) != 1 {
				t.Fatalf("%d devices", len(s.Devices))
			}
			d := s.Devices[0]
			if d.Index != 0 || d.Allocated != 38*mib || d.Start != 10*mib {
				t.Errorf("GPU %d: %d bytes, at first %d", d.Index, d.Allocated, d.Start)
			}
			if d.Peak != 120*mib || d.PeakAt != 15*second {
				t.Errorf("peak %d at %d", d.Peak, d.PeakAt)
			}
			if d.Allocations != 14-10+20 || d.Frees != 6+7 {
				t.Errorf("%d allocations, %d frees", d.Allocations, d.Frees)
			}
			if d.AllocatedBytes != 24*mib || d.FreedBytes != 13*mib {
				t.Errorf("%d bytes allocated, %d freed", d.AllocatedBytes, d.FreedBytes)
			}
			if oom := d.Exhausted; len(oom) != 1 || oom[0].Allocated != 60*mib {
				t.Errorf("out of memory %+v", oom)
			}
		})
	}
}

// TestMemoryByGPU: of what NVML counts for a process on each GPU, what is in segments, what calls and arrays hold, and
// the rest, all at the time of that count. Segments that calls of the driver made count once, and what others allocated
// not at all.
func TestMemoryByGPU(t *testing.T) {
	b := newBuild()
	native := func(name, file string) recording.Frame {
		return recording.Frame{Kind: recording.NativeFrame, Name: name, File: file}
	}
	segment := b.Stack(native("c10::cuda::CUDACachingAllocator::malloc", "libc10_cuda.so"))
	own := b.Stack(native("cublas_workspace_of_mine", "app"))
	for gpu := range uint16(2) {
		n := uint64(gpu + 1)
		b.held(event.CUDAMemory|gpu<<8, from, 16*second, 300*n*mib, 300*n*mib, 3, 0)
		b.held(event.CUDAMemory|gpu<<8, 16*second, to, 900*mib, 900*mib, 3, 0)
		b.held(event.DriverMemory|gpu<<8, from, 16*second, 200*n*mib, 200*n*mib, 2, 0)
		b.held(event.DriverMemory|gpu<<8, 16*second, to, 400*n*mib, 400*n*mib, 4, 0)
		for i, stack := range []uint64{segment, own, segment, segment} {
			at := uint64(from + 1)
			if i > 1 { // after NVML was asked
				at = 16 * second
			}
			b.Event(event.Event{
				TS: at, Dur: to - at, PID: recordtest.PID, TID: recordtest.PID,
				Func: event.DriverMemory | gpu<<8, Kind: event.Allocation, Flags: event.Timed | event.Open,
				Args: [4]uint64{stack, uint64(i+1) << 30, 100 * n * mib, 1},
			})
		}
		b.held(event.ArrayMemory|gpu<<8, from, to, 10*n*mib, 10*n*mib, 1, 0)
		b.held(event.SharedMemory|gpu<<8, from, to, 5*n*mib, 5*n*mib, 1, 0)
	}
	b.Meta.GPU = &recording.GPU{Devices: []recording.Device{
		{PID: recordtest.PID, UUID: "GPU-a"},
		{PID: recordtest.PID, UUID: "GPU-b", ID: 1},
		{PID: recordtest.PID, UUID: "GPU-c", ID: 2},
	}}
	b.Meta.Driver = &recording.Driver{Processes: []recording.GPUProcess{
		{TS: 15 * second, PID: recordtest.PID, UUID: "GPU-a", Used: 1000 * mib},
		{TS: 15 * second, PID: recordtest.PID, UUID: "GPU-b", Used: 500 * mib},
		{TS: 15 * second, PID: recordtest.PID, UUID: "GPU-c", Used: 200 * mib},
	}}
	want := []memory.GPU{
		{
			UUID: "GPU-a", Process: 1000 * mib, Segments: 300 * mib, Calls: 100 * mib, Arrays: 10 * mib,
			Mapped: 5 * mib, Unexplained: 590 * mib,
		},
		{
			Index: 1, UUID: "GPU-b", Process: 500 * mib, Segments: 600 * mib, Calls: 200 * mib, Arrays: 20 * mib,
			Mapped: 10 * mib,
		},
		{Index: 2, UUID: "GPU-c", Process: 200 * mib, Unexplained: 200 * mib},
	}
	for i := range want {
		want[i].PID = recordtest.PID
	}
	if got := memory.Summarize(b.Recording()).GPUs; !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}
