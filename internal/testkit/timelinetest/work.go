package timelinetest

import (
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// Memory kinds of CUPTI: CUpti_ActivityMemoryKind.
const (
	Pageable = 1
	Pinned   = 2
	OnDevice = 3
)

// Copy copies bytes from host to device; memory is the kind of the host's.
func (t *Thread) Copy(st *Stream, bytes uint64, memory int32, cost uint64) {
	start := t.Now
	id, on := t.call("cuMemcpyHtoDAsync_v2", cost, 1, 2, bytes, st.Handle)
	e := event.Event{
		Kind: event.Copy,
		Ret:  1 | memory<<8 | OnDevice<<16 | 1<<24,
		Args: [4]uint64{uint64(id), 0, bytes, 0},
	}
	t.s.run(st, start, 1000+bytes/20, e, on) // 20 GB/s
}

// CopyBack copies bytes from device to host and waits.
func (t *Thread) CopyBack(st *Stream, bytes uint64, memory int32) {
	start := t.Now
	s := t.s
	began := max(start+Latency, st.free+1000)
	end := began + 1000 + bytes/10
	name, args := "cuMemcpyDtoH_v2", []uint64{1, 2, bytes}
	if st.Handle != 0 { // to pageable memory it waits all the same
		name, args = "cuMemcpyDtoHAsync_v2", append(args, st.Handle)
	}
	id, on := t.call(name, end-start+2000, args...)
	st.free = end
	e := event.Event{
		Kind: event.Copy,
		Ret:  2 | OnDevice<<8 | memory<<16 | int32(min(st.Handle, 1))<<24,
		Args: [4]uint64{uint64(id), 0, bytes, 0},
	}
	s.record(st, began, end-began, e, on)
}

// Fill sets bytes.
func (t *Thread) Fill(st *Stream, bytes, cost uint64) {
	start := t.Now
	id, on := t.call("cuMemsetD8Async", cost, 1, bytes, st.Handle)
	e := event.Event{Kind: event.Set, Ret: OnDevice, Args: [4]uint64{uint64(id), 0, bytes, 0}}
	t.s.run(st, start, 1200, e, on)
}

// Graph launches a graph of kernels that run one after the other.
func (t *Thread) Graph(st *Stream, exec uint64, nodes []Kernel, cost uint64) {
	start := t.Now
	id, on := t.call("cuGraphLaunch", cost, exec, st.Handle)
	s := t.s
	at := max(start+Latency, st.free+1500)
	for i, k := range nodes {
		e := event.Event{
			Kind: event.Kernel, Ret: s.kernel(k.Name),
			Args: [4]uint64{
				uint64(id) | exec<<32,
				uint64(i + 1),
				uint64(k.Grid[0]) | 1<<32 | 1<<48,
				uint64(k.Block[0]) | 1<<11 | 1<<22,
			},
		}
		s.record(st, at, k.Dur, e, on)
		at += k.Dur + 900
	}
	st.free = at
}

// Sync waits for a stream, or for the whole context where st is nil.
func (t *Thread) Sync(st *Stream) {
	s := t.s
	end, name, kind, id, context := t.Now+3000, "cuStreamSynchronize", int32(3), uint32(0xffffffff), uint16(1)
	for _, x := range s.streams {
		if st == nil || x == st {
			end = max(end, x.free+2500)
		}
	}
	args := []uint64{}
	if st == nil {
		name, kind = "cuCtxSynchronize", 4
	} else {
		id, args, context = st.ID, []uint64{st.Handle}, uint16(st.Context)
	}
	s.id++
	if w := s.window(t.Now); !s.Config.NoSyncs && w != nil && end < Start+w.To {
		s.Event(event.Event{
			TS: t.Now + 500, Dur: end - t.Now - 1000, PID: recordtest.PID,
			TID: id, Func: context << 8, Kind: event.Sync,
			Flags: event.Timed,
			Ret:   kind, Args: [4]uint64{uint64(s.id)},
		})
	}
	s.As(recordtest.PID, t.TID).Do(name, int64(t.Now-Start), end-t.Now, args...)
	t.Now = end
}

// Event is a CUDA event.
type Event struct {
	Handle uint64
	done   uint64 // ns: when what was before it in its stream will have ended
}

// Record records an event in a stream.
func (t *Thread) Record(e *Event, st *Stream) {
	e.done = st.free
	t.s.As(recordtest.PID, t.TID).Do("cuEventRecord", int64(t.Now-Start), 0, e.Handle, st.Handle)
	t.Now += 1000
}

// Wait makes a stream wait for an event.
func (t *Thread) Wait(st *Stream, e *Event) {
	st.free = max(st.free, e.done)
	t.s.As(recordtest.PID, t.TID).Do("cuStreamWaitEvent", int64(t.Now-Start), 0, st.Handle, e.Handle)
	t.Now += 1000
}

// Host lets the host run a function for dur ns in a stream, after all that is in it.
func (t *Thread) Host(st *Stream, dur uint64) {
	st.free = max(st.free, t.Now) + dur
	t.s.As(recordtest.PID, t.TID).Do("cuLaunchHostFunc", int64(t.Now-Start), 0, st.Handle, 0x77)
	t.Now += 1000
}

// SyncEvent waits for an event.
func (t *Thread) SyncEvent(e *Event) {
	end := max(t.Now+1500, e.done+2500)
	t.s.As(recordtest.PID, t.TID).Do("cuEventSynchronize", int64(t.Now-Start), end-t.Now, e.Handle)
	t.Now = end
}

// Pause lets time pass.
func (t *Thread) Pause(ns uint64) { t.Now += ns }

// Decode adds the steps of a decode loop: for each token a small copy, launches of kernels
// one after the other, a copy back, a synchronization and some work of the CPU.
func (t *Thread) Decode(st *Stream, tokens int, kernels []Kernel, cost, think uint64) {
	for range tokens {
		t.Then(func(t *Thread) { t.Copy(st, 4096, Pinned, cost) })
		for _, k := range kernels {
			t.Then(func(t *Thread) { t.Launch(st, k, cost+t.s.rng.Uint64N(cost/4+1)) })
		}
		t.Then(func(t *Thread) { t.CopyBack(st, 200_000, Pageable) })
		t.Then(func(t *Thread) { t.Sync(st); t.Pause(think) })
	}
}

// Layers returns the kernels of a model: a few shapes that come again in each layer.
func Layers(n int) []Kernel {
	kinds := []Kernel{
		{
			Name: "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, " +
				"float, float const*, float const*, float const*, float*, float*, float*)",
			Handle: 0x10,
			Grid:   [3]uint32{1, 1, 1},
			Block:  [3]uint32{32, 4, 1},
			Dur:    4_100,
		},
		{
			Name: "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, " +
				"false, false, false>(cublasLt::cublasSplitKParams<float>, float const*, __nv_bfloat16 const*)",
			Handle: 0x11,
			Grid:   [3]uint32{48, 1, 1},
			Block:  [3]uint32{128, 1, 1},
			Dur:    6_200,
		},
		{
			Name:   "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT",
			Handle: 0x12,
			Grid:   [3]uint32{4, 33, 1},
			Block:  [3]uint32{384, 1, 1},
			Dur:    9_300,
		},
		{
			Name: "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, " +
				"std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
			Handle: 0x13,
			Grid:   [3]uint32{2, 1, 1},
			Block:  [3]uint32{128, 1, 1},
			Dur:    1_700,
		},
		{Name: "flash_fwd_kernel", Handle: 0x14, Grid: [3]uint32{1, 12, 1}, Block: [3]uint32{256, 1, 1}, Dur: 7_900},
		{
			Name: "void at::native::vectorized_elementwise_kernel<4, " +
				"at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, " +
				"at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() " +
				"const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, " +
				"at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, " +
				"at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() " +
				"const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>)",
			Handle: 0x15,
			Grid:   [3]uint32{6, 1, 1},
			Block:  [3]uint32{128, 1, 1},
			Dur:    1_900,
		},
	}
	order := []int{0, 2, 1, 3, 4, 2, 3, 0, 2, 5, 2, 1, 3}
	var out []Kernel
	for range n {
		for _, i := range order {
			out = append(out, kinds[i])
		}
	}
	return out
}

// Microsecond and Millisecond are in ns.
const (
	Microsecond = calltest.Microsecond
	Millisecond = calltest.Millisecond
)
