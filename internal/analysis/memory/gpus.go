package memory

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// GPU is what explains the memory of one process on one GPU: when NVML was last asked, else at the end.
type GPU struct {
	PID      uint32 `json:"pid"`
	Index    int    `json:"index"` // as the process counts; -1: not known
	UUID     string `json:"uuid,omitempty"`
	Process  uint64 `json:"process_bytes,omitempty"` // by NVML's count; 0: not known
	Segments uint64 `json:"framework_bytes"`         // segments of frameworks' allocators
	Calls    uint64 `json:"driver_call_bytes"`       // of the driver's own calls since the attach, but for segments
	Arrays   uint64 `json:"array_bytes"`
	Mapped   uint64 `json:"mapped_bytes"` // of other processes and APIs; whether Process has it is not known
	// Unexplained is the rest of Process: contexts, code, managed memory, and what calls allocated before the attach.
	Unexplained uint64 `json:"unexplained_bytes,omitempty"`
}

// GPUNote explains the columns of a table of GPUs, for people.
const GPUNote = "When NVML was last asked, else at the end. Driver's calls: since the attach, without frameworks' " +
	"segments (estimated). Not explained: contexts, code, managed memory, and what calls allocated before the attach." +
	" Mapped: from other processes and APIs, not included in the driver's calls; whether NVML counts it is not known."

// GPUColumns name what Sizes returns, for people.
func GPUColumns() []string {
	return []string{"By NVML", "Frameworks", "Driver's calls", "Arrays", "Not explained", "Mapped"}
}

// Sizes returns what a table says of a GPU, in the order of GPUColumns.
func (g *GPU) Sizes() []uint64 {
	return []uint64{g.Process, g.Segments, g.Calls, g.Arrays, g.Unexplained, g.Mapped}
}

// Name returns which GPU it is, for people.
func (g *GPU) Name() string {
	if g.Index < 0 {
		return "not known"
	}
	return strconv.Itoa(g.Index)
}

// gpuIndex is Index of what lies on a GPU that is not known.
const gpuIndex = -1

// onGPU reports whether memory of a type is on one GPU.
func onGPU(d event.MemoryDevice) bool {
	switch d.Type() {
	case event.CUDAMemory, event.HIPMemory, event.DriverMemory, event.ArrayMemory, event.SharedMemory:
		return true
	}
	return false
}

// UnknownGPU reports whether the driver's calls did not tell on which GPU memory is.
func UnknownGPU(d event.MemoryDevice) bool { return d.Driver() && onGPU(d) && d>>8 == 255 }

// index returns Index of a device.
func index(d event.MemoryDevice) int {
	if UnknownGPU(d) {
		return gpuIndex
	}
	return d.Index()
}

// place counts memory on a GPU that is not known for the only one on which the process holds memory by NVML's count.
func (g *gathered) place(rec *recording.Recording) {
	for key := range maps.Clone(g.devices) {
		if !UnknownGPU(key.device) {
			continue
		}
		only, ok := onlyGPU(rec, key.pid)
		if !ok {
			continue
		}
		to := deviceKey{key.pid, event.MemoryDevice(key.device.Type()) | event.MemoryDevice(only)<<8}
		d := g.devices[key]
		if same := g.devices[to]; same != nil {
			d = unite(rec, d, same)
		}
		g.devices[to] = d
		delete(g.devices, key)
	}
}

// onlyGPU returns the one GPU on which NVML counts memory of a process. What the process was seen to do does not tell:
// it may use others since before the attach.
func onlyGPU(rec *recording.Recording, pid uint32) (id uint8, ok bool) {
	if rec.Meta.GPU == nil || rec.Meta.Driver == nil {
		return 0, false
	}
	all := map[string]bool{}
	for _, p := range rec.Meta.Driver.Processes {
		if p.PID == pid {
			all[p.UUID] = true
		}
	}
	if len(all) != 1 {
		return 0, false
	}
	for _, d := range rec.Meta.GPU.Devices {
		if d.PID == pid && all[d.UUID] && d.ID < 255 {
			return uint8(d.ID), true
		}
	}
	return 0, false
}

// unite adds what is known of two devices up.
func unite(rec *recording.Recording, a, b *device) *device {
	out := &device{
		samples: maps.Clone(a.samples),
		levels:  sum(rec, a.levels, b.levels),
		flows:   sum(rec, a.flows, b.flows),
	}
	maps.Copy(out.samples, b.samples)
	for _, d := range []struct{ own, other *device }{{a, b}, {b, a}} {
		for _, e := range d.own.exhausted {
			held := d.other.heldAt(e.TS)
			e.Args[2], e.Args[3] = e.Args[2]+held, e.Args[3]+held
			out.exhausted = append(out.exhausted, e)
		}
	}
	slices.SortStableFunc(out.exhausted, func(x, y event.Event) int { return cmp.Compare(x.TS, y.TS) })
	return out
}

// heldAt returns what was in segments at a time.
func (d *device) heldAt(at uint64) (bytes uint64) {
	slices.SortStableFunc(d.levels, byEnd)
	for i := range d.levels {
		if i > 0 && d.levels[i].End() > at {
			break
		}
		bytes = d.levels[i].Args[1]
	}
	return bytes
}

// sum adds two series of the same kind up: whenever one of them changes, the other is what it was.
func sum(rec *recording.Recording, a, b []event.Event) []event.Event {
	var last [2][4]uint64
	type step struct {
		event.Event
		of int
	}
	var steps []step
	for of, list := range [][]event.Event{a, b} {
		for i := range list {
			steps = append(steps, step{list[i], of})
			if i == 0 && list[i].TS < rec.Meta.From { // what it was before is no less known
				last[of] = list[i].Args
			}
		}
	}
	slices.SortStableFunc(steps, func(x, y step) int { return byEnd(x.Event, y.Event) })
	out := make([]event.Event, len(steps))
	for i := range steps {
		e := steps[i].Event
		other := last[1-steps[i].of]
		last[steps[i].of] = e.Args
		for k := range e.Args {
			e.Args[k] += other[k]
		}
		if e.Kind == event.Memory { // the most of one, with what the other holds
			e.Args[2] = steps[i].Args[2] + other[0]
		}
		out[i] = e
		if first := &out[0]; e.TS < first.TS {
			first.Dur, first.TS = first.End()-e.TS, e.TS
		}
	}
	return out
}

func byEnd(a, b event.Event) int {
	return cmp.Or(cmp.Compare(a.End(), b.End()), cmp.Compare(a.TS, b.TS))
}

// gpus returns what explains the memory of each process on each GPU.
func (g *gathered) gpus(rec *recording.Recording, devices []Device) []GPU {
	type place struct {
		pid   uint32
		index int
	}
	all := map[place]*GPU{}
	of := func(pid uint32, index int) *GPU {
		p := place{pid, index}
		if all[p] == nil {
			all[p] = &GPU{PID: pid, Index: index}
		}
		return all[p]
	}
	asked := map[place]uint64{}
	if rec.Meta.GPU != nil && rec.Meta.Driver != nil {
		for _, d := range rec.Meta.GPU.Devices {
			for _, p := range rec.Meta.Driver.Processes {
				if p.PID == d.PID && p.UUID == d.UUID && p.Used > 0 {
					gpu := of(d.PID, int(d.ID))
					gpu.UUID, gpu.Process = d.UUID, p.Used
					asked[place{d.PID, int(d.ID)}] = p.TS
				}
			}
		}
	}
	for i := range devices {
		d := &devices[i]
		if !onGPU(d.ID) {
			continue
		}
		at, ok := asked[place{d.PID, d.Index}]
		bytes := d.Reserved
		if ok {
			bytes = g.devices[deviceKey{d.PID, d.ID}].heldAt(at)
		} else {
			at = math.MaxUint64
		}
		if d.ID.Type() == event.DriverMemory {
			bytes -= uint64(float64(bytes) * g.segmentsAt(rec, deviceKey{d.PID, d.ID}, at))
		}
		of(d.PID, d.Index).add(d, bytes)
	}
	out := make([]GPU, 0, len(all))
	for _, gpu := range all {
		gpu.Unexplained = less(gpu.Process, gpu.Segments+gpu.Calls+gpu.Arrays)
		out = append(out, *gpu)
	}
	slices.SortFunc(out, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), last(a.Index < 0, b.Index < 0), cmp.Compare(a.Index, b.Index))
	})
	return out
}

// segmentsAt estimates which share of what a device held at a time was segments of PyTorch's allocators.
func (g *gathered) segmentsAt(rec *recording.Recording, key deviceKey, at uint64) float64 {
	w := windowOf(rec, key, g.framework[key.pid])
	isSegment := w.ofSegments()
	var all, segments float64
	for _, s := range g.devices[key].samples {
		if !s.liveAt(at) {
			continue
		}
		all += s.weight
		if isSegment(s.stack) {
			segments += s.weight
		}
	}
	if all == 0 {
		return 0
	}
	return segments / all
}

// add counts what a device held.
func (g *GPU) add(d *Device, bytes uint64) {
	switch d.ID.Type() {
	case event.DriverMemory:
		g.Calls += bytes
	case event.ArrayMemory:
		g.Arrays += bytes
	case event.SharedMemory:
		g.Mapped += bytes
	default:
		g.Segments += bytes
	}
}
