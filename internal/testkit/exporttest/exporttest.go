// Package exporttest makes recordings that have something of everything, for the tests of exports and of what reads
// them.
package exporttest

import (
	"encoding/binary"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// PerIteration is how many events an iteration of Decode has.
const PerIteration = 4*2*kernelsOf + 12

// Units and sizes of an iteration, ns.
const (
	us        = 1_000
	ms        = 1_000_000
	kernelsOf = 20
	iteration = 2 * ms
)

// maker adds events to a Builder.
type maker struct {
	*calltest.Builder
	id uint32
}

// Decode is a program on one GPU that runs iterations of 2 ms: 80 kernels behind one another, a copy each way, a wait
// for the stream, samples with stacks, a wait off the CPU and a named range.
func Decode(iterations int) *recording.Recording {
	m := newMaker(recordtest.PID)
	m.Window(calltest.Start, calltest.Start+uint64(iterations)*iteration)
	for i := range iterations {
		m.iteration(int64(i) * iteration)
	}
	return m.finish()
}

func newMaker(pid uint32) *maker {
	m := &maker{Builder: calltest.New().As(pid, pid)}
	m.Meta.Losses, m.Meta.Libraries = nil, nil
	m.Meta.GPU = &recording.GPU{
		Mode: "continuous", Agents: []recording.Agent{},
		Devices: []recording.Device{
			{PID: pid, ID: 0, Name: "NVIDIA H200", UUID: "GPU-1", SMs: 132, Memory: 150 << 30, Major: 9},
		},
		Streams: []recording.Stream{{PID: pid, ID: 7, Context: 1}},
		Kernels: []recording.Kernel{
			{Name: "void gemm<float>(float*, \"quoted\\\")", Registers: 90, StaticShared: 1024},
			{Name: "softmax(int)", Registers: 16},
		},
		Ranges: []string{"decode"},
	}
	return m
}

func (m *maker) finish() *recording.Recording {
	rec := m.Recording()
	g := *m.Meta.GPU
	for _, p := range rec.Meta.Processes {
		g.Windows = append(g.Windows, recording.GPUWindow{
			PID:      p.PID,
			From:     rec.Meta.From,
			To:       rec.Meta.To,
			Activity: true,
			Calls:    true,
			End:      "kept",
		})
	}
	rec.Meta.GPU = &g
	return rec
}

// agent adds a call with a correlation id, as the agent sees it.
func (m *maker) agent(name string, at int64, dur uint64, args ...uint64) uint32 {
	m.id++
	e := event.Event{
		TS: uint64(calltest.Start + at), Dur: dur, PID: m.PID, TID: m.TID, Func: m.Fn(name), Kind: event.Call,
		Flags: event.Timed | event.Correlated, Ret: int32(m.id),
	}
	copy(e.Args[:], args)
	m.Event(e)
	return m.id
}

func (m *maker) gpu(kind event.Kind, at int64, dur uint64, id uint32, ret int32, a, b uint64) {
	m.Event(event.Event{
		TS:    uint64(calltest.Start + at),
		Dur:   dur,
		PID:   m.PID,
		TID:   7,
		Func:  1 << 8,
		Kind:  kind,
		Flags: event.Timed,
		Ret:   ret,
		Args:  [4]uint64{uint64(id), 0, a, b},
	})
}

func (m *maker) iteration(at int64) {
	m.copy("cuMemcpyHtoDAsync_v2", at+20*us, at+40*us, 1|1<<8|3<<16|1<<24)
	for k := range int64(4 * kernelsOf) {
		launch, start := at+100*us+k*10*us, at+110*us+k*15*us
		id := m.agent("cuLaunchKernel", launch, 4*us, 0xabc, 0x55, 64|1<<32|1<<48, 256|1<<11|1<<22|4096<<32)
		m.gpu(event.Kernel, start, uint64(5*us+k%7*us), id, int32(1+k%2), 64|1<<32|1<<48, 256|1<<11|1<<22|4096<<32)
	}
	m.copy("cuMemcpyDtoHAsync_v2", at+950*us, at+1400*us, 2|3<<8|2<<16|1<<24)
	m.Do("cuStreamSynchronize", at+1000*us, 450*us, 0x55)
	m.Event(event.Event{
		TS:    uint64(calltest.Start + at + 1010*us),
		Dur:   400 * us,
		PID:   m.PID,
		TID:   m.TID,
		Func:  event.NoSyscall,
		Kind:  event.OffCPU,
		Flags: event.Timed, Args: [4]uint64{390 * us, uint64(m.PID)<<32 | 9},
	})
	leaf := recordtest.Native("at::native::gemm", "libtorch_cpu.so")
	work := m.Stack(leaf, recordtest.Python("forward", "model.py", 12), recordtest.Python("main", "infer.py", 3))
	host := m.Stack(recordtest.Python("tokenize", "tokenizer.py", 40), recordtest.Python("main", "infer.py", 2))
	for i, s := range []uint64{work, work, host, host} {
		m.Event(event.Event{
			TS:   uint64(calltest.Start + at + []int64{150, 500, 1600, 1800}[i]*us),
			PID:  m.PID,
			TID:  m.TID,
			Kind: event.Sample,
			Func: uint16(event.Clock), Args: [4]uint64{s},
		})
	}
	m.Event(event.Event{
		TS:    uint64(calltest.Start + at + 10*us),
		Dur:   1900 * us,
		PID:   m.PID,
		TID:   m.TID,
		Kind:  event.Range,
		Flags: event.Timed,
		Ret:   1,
	})
}

func (m *maker) copy(name string, call, start int64, kinds int32) {
	id := m.agent(name, call, 10*us, 0x1000, 0x2000, 4096, 0x55)
	m.gpu(event.Copy, start, 8*us, id, kinds, 4096, 0)
}

// Repeating has two windows of GPU activity in which CUPTI counts anew, so that each correlation id means two calls.
func Repeating() *recording.Recording {
	m := newMaker(recordtest.PID)
	m.Window(calltest.Start, calltest.Start+20*iteration)
	m.iteration(0)
	m.id = 0
	m.iteration(10 * iteration)
	rec := m.finish()
	rec.Meta.GPU.Windows = []recording.GPUWindow{
		{
			PID:      recordtest.PID,
			From:     calltest.Start,
			To:       calltest.Start + 5*iteration,
			Activity: true,
			Calls:    true,
			End:      "finalized",
		},
		{
			PID:      recordtest.PID,
			From:     calltest.Start + 8*iteration,
			To:       calltest.Start + 15*iteration,
			Activity: true,
			Calls:    true,
			End:      "finalized",
		},
	}
	return rec
}

// TwoProcesses has two processes on one GPU, each with the same ids.
func TwoProcesses() *recording.Recording {
	m := newMaker(recordtest.PID)
	m.Window(calltest.Start, calltest.Start+4*iteration)
	m.Process(recording.Process{PID: recordtest.PID + 1, Parent: recordtest.PID, Comm: "worker", Born: 1})
	second := m.Meta.GPU.Devices[0]
	second.PID++
	m.Meta.GPU.Devices = append(m.Meta.GPU.Devices, second)
	m.iteration(0)
	m.id = 0
	m.As(recordtest.PID+1, recordtest.PID+1)
	m.iteration(iteration)
	return m.finish()
}

// Hostile is Decode whose names are all one that somebody chose to do harm, with events whose 16 bytes each are chosen
// as well.
func Hostile(raw []byte, name string) *recording.Recording {
	rec := Decode(1)
	m := &rec.Meta
	for i := range m.Processes {
		m.Processes[i].Comm, m.Processes[i].Cmdline = name, name
	}
	for i := range m.Threads {
		m.Threads[i].Name = name
	}
	for i := range m.Frames {
		m.Frames[i].Name, m.Frames[i].File = name+m.Frames[i].Name, name
	}
	for i := range m.GPU.Kernels {
		m.GPU.Kernels[i].Name = name
	}
	for i := range m.GPU.Devices {
		m.GPU.Devices[i].Name, m.GPU.Devices[i].UUID = name, name
	}
	for i := range m.GPU.Ranges {
		m.GPU.Ranges[i] = name
	}
	m.Libraries = append(m.Libraries, recording.Library{PID: m.Target, Path: name, Kind: "driver", Error: name})
	for ; len(raw) >= 16; raw = raw[16:] {
		le := binary.LittleEndian
		i := int(le.Uint16(raw)) % len(rec.Events)
		e := &rec.Events[i]
		switch raw[2] % 4 {
		case 0:
			e.TS += uint64(le.Uint32(raw[4:])) - 1<<31
		case 1:
			e.Dur = le.Uint64(raw[8:]) >> (raw[3] & 63)
		case 2:
			e.Args[raw[3]%4] = le.Uint64(raw[8:])
			e.Ret, e.Flags = int32(le.Uint32(raw[4:])), event.Flags(raw[3])
		case 3:
			e.Kind, e.Func, e.PID, e.TID = event.Kind(raw[3]),
				le.Uint16(raw[4:]), le.Uint32(raw[8:])%3+e.PID, le.Uint32(raw[12:])
		}
	}
	return rec
}
