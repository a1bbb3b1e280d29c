// Package memory says what frameworks' allocators and the driver's own calls held over the time of a recording, who
// allocated it and what was never freed. Totals are what the allocators said themselves, or for the driver what was
// counted since the attach; what is said by stack is estimated from sampled allocations, each of which stands for as
// many bytes as it was unlikely to be chosen.
package memory

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Summary is what the allocators of a target's frameworks and the driver's own calls held.
type Summary struct {
	Devices []Device `json:"devices"` // those that hold most first
	GPUs    []GPU    `json:"gpus"`    // by process and GPU
}

// Device is what one allocator held of one device in one process. Times are CLOCK_MONOTONIC ns.
type Device struct {
	PID   uint32             `json:"pid"`
	ID    event.MemoryDevice `json:"-"`
	Type  string             `json:"type"`  // cuda, hip, cpu, other; the driver's: driver, pinned, managed, array, shared
	Index int                `json:"index"` // among those of its type; -1: on a GPU that is not known

	Allocated uint64 `json:"allocated_bytes"` // in blocks, at the end
	Reserved  uint64 `json:"reserved_bytes"`  // in segments, at the end
	// Process is what the process held of the GPU by NVML's count when that was asked for last; 0: not known. Driver is
	// what of it was not in segments then: contexts, code, what libraries allocate by themselves, and of the driver's own
	// calls what they allocated before the attach, arrays, and managed memory.
	Process  uint64 `json:"process_bytes,omitempty"`
	Driver   uint64 `json:"driver_bytes,omitempty"`
	Peak     uint64 `json:"peak_bytes"` // the most in blocks
	PeakAt   uint64 `json:"peak_at_ns"` // to 10 ms
	PeakHeld uint64 `json:"peak_reserved_bytes"`
	Start    uint64 `json:"start_bytes"` // in blocks, when the window began or the first call was seen
	// Before is what was in blocks before the first call that was seen: weights and caches of a program that was
	// attached to late. BeforeLeft is what is left of it at the end, an estimate.
	Before     uint64 `json:"before_bytes"`
	BeforeLeft uint64 `json:"before_left_bytes"`

	// In the window, exact.
	Allocations    uint64 `json:"allocations"`
	Frees          uint64 `json:"frees"`
	AllocatedBytes uint64 `json:"allocated_in_window_bytes"`
	FreedBytes     uint64 `json:"freed_in_window_bytes"`

	Kinds  []kindBytes `json:"kinds"`  // of what is in blocks at the end
	Levels []level     `json:"levels"` // over time, at most 240
	Sites  []site      `json:"sites"`  // by what they hold at the end, then by what they allocated
	Leaks  []leakSite  `json:"leaks"`  // the fastest first
	// Exhausted lists allocations that failed because memory was exhausted.
	Exhausted []Exhausted `json:"out_of_memory"`
	Samples   int         `json:"samples"` // allocations that the estimates rest on
}

// level is how a device stood at a time.
type level struct {
	At        uint64 `json:"at_ns"`
	Allocated uint64 `json:"allocated_bytes"`
	Reserved  uint64 `json:"reserved_bytes"`
	High      uint64 `json:"high_bytes"` // the most in blocks since the level before
}

// KindName describes what memory is used for.
type KindName string

// The kinds.
const (
	kindBefore    KindName = "before the attach" // weights and caches, where the program was attached to late
	KindKept      KindName = "kept"              // allocated in the window, and held for long
	KindTransient KindName = "in use"            // activations: others of the same stack were freed within the window
	kindWorkspace KindName = "workspace"         // of cuBLAS and cuDNN
	kindSegment   KindName = "segments"          // of PyTorch's allocator, which hands out blocks of them
	kindUnseen    KindName = "allocated before the window"
)

// kindBytes is a part of what is in blocks; estimates, scaled to the exact total.
type kindBytes struct {
	Kind  KindName `json:"kind"`
	Bytes uint64   `json:"bytes"`
}

// site is a place in a program that allocates: estimates.
type site struct {
	Name    string            `json:"name"`  // the Python line, or the native function
	Stack   []recording.Frame `json:"stack"` // leaf first, without the allocator's own frames; empty: not known
	Live    uint64            `json:"live_bytes"`
	Error   uint64            `json:"live_error_bytes"` // standard error of Live
	Low     uint64            `json:"live_low_bytes"`   // Live lies between Low and High with 95% probability
	High    uint64            `json:"live_high_bytes"`
	Blocks  uint64            `json:"live_blocks"`
	AtPeak  uint64            `json:"peak_bytes"` // live when the device was at its peak; 0: none, or too few samples
	Bytes   uint64            `json:"allocated_bytes"`
	Count   uint64            `json:"allocations"`
	Age     uint64            `json:"oldest_ns"`          // of the oldest live block, at the end
	Life    uint64            `json:"median_lifetime_ns"` // of those that were freed; 0: none was
	Kind    KindName          `json:"kind"`
	Samples int               `json:"samples"`
}

// leakSite is a site that holds more and more: in each part of the time it allocated something that was not freed.
type leakSite struct {
	Site     int     `json:"site"`           // index into Sites
	PerSec   float64 `json:"bytes_per_s"`    //
	Bytes    uint64  `json:"bytes"`          // held of what was allocated in the window
	Blocks   float64 `json:"blocks_per_s"`   //
	FullIn   uint64  `json:"full_in_ns"`     // when the device is full if it goes on; 0: not known
	Observed uint64  `json:"observed_ns"`    // for how long it was seen
	Survival float64 `json:"survival_share"` // of its bytes
	Samples  int     `json:"samples"`        // that were not freed
	// the least part of the time's share of what stays, of an even one; 1: even
	Evenness float64 `json:"evenness_lowest"`
}

// Exhausted is an allocation that failed.
type Exhausted struct {
	At        uint64            `json:"at_ns"`
	Asked     uint64            `json:"asked_bytes"`
	Allocated uint64            `json:"allocated_bytes"`
	Reserved  uint64            `json:"reserved_bytes"`
	Stack     []recording.Frame `json:"stack"`
	Name      string            `json:"name"`
	Live      []Holding         `json:"live"` // what was held then, the most first
}

// Holding is what a site held at a moment.
type Holding struct {
	Site  int    `json:"site"` // index into Sites; -1: before the attach
	Bytes uint64 `json:"bytes"`
}

// deviceKey names an allocator.
type deviceKey struct {
	pid    uint32
	device event.MemoryDevice
}

// sample is an allocation that was chosen.
type sample struct {
	from, to uint64 // ns
	open     bool
	bytes    float64
	weight   float64 // bytes that it stands for
	count    float64 // allocations
	variance float64
	stack    uint64
	pointer  uint64
	mean     float64 // bytes for each sample, when it was chosen
}

// Summarize reads what a recording says of allocators; nil where it says nothing.
func Summarize(rec *recording.Recording) *Summary {
	g := gather(rec)
	if len(g.devices) == 0 {
		return nil
	}
	s := &Summary{Devices: make([]Device, 0, len(g.devices))}
	for key, d := range g.devices {
		s.Devices = append(s.Devices, d.result(rec, key, g.framework[key.pid]))
	}
	slices.SortFunc(s.Devices, func(a, b Device) int {
		return cmp.Or(
			last(a.OfDriver(), b.OfDriver()),
			cmp.Compare(b.Reserved, a.Reserved),
			cmp.Compare(b.Allocated, a.Allocated),
			cmp.Compare(a.PID, b.PID),
			cmp.Compare(a.Type, b.Type),
			cmp.Compare(a.Index, b.Index),
		)
	})
	s.GPUs = g.gpus(rec, s.Devices)
	return s
}

// OfDriver reports whether the driver's own calls allocated it, not a framework's allocator.
func (d *Device) OfDriver() bool {
	return slices.Contains([]string{"driver", "pinned", "managed", "array", "shared"}, d.Type)
}

// OnlySegments reports whether the driver's own calls allocated segments of PyTorch's allocators and nothing else.
func (d *Device) OnlySegments() bool {
	return d.OfDriver() && len(d.Exhausted) == 0 && len(d.Sites) > 0 &&
		!slices.ContainsFunc(d.Sites, func(s site) bool { return s.Kind != kindSegment })
}

// Shown returns the devices of which a report has something to say. What the driver's calls allocated for PyTorch alone
// is left out: the blocks in it are those of another device.
func (s *Summary) Shown() []*Device {
	var out []*Device
	for i := range s.Devices {
		d := &s.Devices[i]
		idle := d.Allocations == 0 && d.Reserved == 0 && d.Allocated == 0 && len(d.Exhausted) == 0
		if i == 0 || !idle && !d.OnlySegments() {
			out = append(out, d)
		}
	}
	return out
}

// Name returns what the device is, for people.
func (d *Device) Name() string {
	on := ""
	if d.Index >= 0 {
		on = fmt.Sprintf(" on GPU %d", d.Index)
	}
	switch d.Type {
	case "cuda", "hip":
		return fmt.Sprintf("GPU %d", d.Index)
	case "cpu":
		return "CPU"
	case "driver":
		return "GPU memory of the CUDA driver's calls" + on
	case "array":
		return "Arrays of the CUDA driver's calls" + on
	case "shared":
		return "Memory mapped from other processes and APIs" + on
	case "pinned":
		return "Pinned host memory of the CUDA driver's calls"
	case "managed":
		return "Managed memory of the CUDA driver's calls"
	}
	return fmt.Sprintf("device %d of another type", d.Index)
}

// last orders what is before what is not.
func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// gathered is what events say of each allocator.
type gathered struct {
	devices   map[deviceKey]*device
	framework map[uint32]bool // processes in which a framework has GPU memory
}

type device struct {
	levels    []event.Event
	flows     []event.Event
	samples   map[sampleKey]sample
	exhausted []event.Event
}

// sampleKey names a sampled allocation: one that was live at the end of several stretches of a recording is told of
// in each.
type sampleKey struct{ pointer, from uint64 }

func gather(rec *recording.Recording) gathered {
	g := gathered{devices: map[deviceKey]*device{}, framework: map[uint32]bool{}}
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind < event.Memory || e.Kind > event.OutOfMemory {
			continue
		}
		key := deviceKey{e.PID, event.MemoryDevice(e.Func)}
		d := g.devices[key]
		if d == nil {
			d = &device{samples: map[sampleKey]sample{}}
			g.devices[key] = d
			if t := key.device.Type(); t == event.CUDAMemory || t == event.HIPMemory {
				g.framework[key.pid] = true
			}
		}
		d.add(e)
	}
	g.place(rec)
	return g
}

func (d *device) add(e *event.Event) {
	switch e.Kind {
	case event.Memory:
		d.levels = append(d.levels, *e)
	case event.MemoryFlow:
		d.flows = append(d.flows, *e)
	case event.OutOfMemory:
		d.exhausted = append(d.exhausted, *e)
	case event.Allocation:
		s := sampleOf(e)
		key := sampleKey{s.pointer, s.from}
		if old, ok := d.samples[key]; !ok || old.open && (!s.open || s.to > old.to) {
			d.samples[key] = s
		}
	}
}

func sampleOf(e *event.Event) sample {
	bytes, mean := float64(e.Args[2]), float64(e.Args[3])
	p := 1.0
	if mean > 0 && bytes > 0 {
		p = -math.Expm1(-bytes / mean)
	}
	return sample{
		mean: mean, from: e.TS, to: e.End(), open: e.Flags&event.Open != 0,
		bytes: bytes, weight: bytes / p, count: 1 / p, variance: bytes * bytes * (1 - p) / (p * p),
		stack: e.Args[0], pointer: e.Args[1],
	}
}

// liveAt reports whether it was allocated at a time.
func (s *sample) liveAt(at uint64) bool { return s.from <= at && (s.open || s.to > at) }

// TypeName returns the Type of a Device.
func TypeName(d event.MemoryDevice) string {
	switch d.Type() {
	case event.CPUMemory:
		return "cpu"
	case event.CUDAMemory:
		return "cuda"
	case event.HIPMemory:
		return "hip"
	case event.DriverMemory:
		return "driver"
	case event.PinnedMemory:
		return "pinned"
	case event.ManagedMemory:
		return "managed"
	case event.ArrayMemory:
		return "array"
	case event.SharedMemory:
		return "shared"
	}
	return "other"
}

func (d *device) result(rec *recording.Recording, key deviceKey, framework bool) Device {
	out := Device{
		PID: key.pid, ID: key.device, Type: TypeName(key.device), Index: index(key.device),
		Kinds: []kindBytes{}, Levels: []level{}, Sites: []site{}, Leaks: []leakSite{}, Exhausted: []Exhausted{},
		Samples: len(d.samples),
	}
	d.totals(&out, rec)
	gpu := gpuOf(rec, key)
	d.process(&out, rec, gpu)
	samples := make([]sample, 0, len(d.samples))
	for _, s := range d.samples {
		samples = append(samples, s)
	}
	slices.SortFunc(
		samples,
		func(a, b sample) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.pointer, b.pointer)) },
	)
	w := windowOf(rec, key, framework)
	if len(d.levels) > 0 {
		w.from = max(w.from, d.levels[0].TS)
		w.to = max(w.from, min(w.to, d.levels[len(d.levels)-1].End()))
	}
	sites := sitesOf(&w, samples, out.PeakAt)
	sites.limit(&out)
	out.Sites = sites.list
	out.kinds()
	out.Leaks = sites.leaks(&w)
	sites.fullIn(&out, gpu.Memory)
	for i := range d.exhausted {
		if w.retried(&d.exhausted[i]) {
			continue
		}
		out.Exhausted = append(out.Exhausted, sites.exhausted(&w, &d.exhausted[i], &out))
	}
	return out
}

// Failed returns the allocations that failed and count in a summary, in the recording's order.
func Failed(rec *recording.Recording) []event.Event {
	var out []event.Event
	g := gather(rec)
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind != event.OutOfMemory {
			continue
		}
		w := windowOf(rec, deviceKey{e.PID, event.MemoryDevice(e.Func)}, g.framework[e.PID])
		if !w.retried(e) {
			out = append(out, *e)
		}
	}
	return out
}

// gpuOf returns the GPU that a device of an allocator is; the zero value where that is not known.
func gpuOf(rec *recording.Recording, key deviceKey) recording.Device {
	if rec.Meta.GPU == nil {
		return recording.Device{}
	}
	if !onGPU(key.device) || key.device.Type() == event.SharedMemory { // managed memory may be on the host
		return recording.Device{}
	}
	for _, g := range rec.Meta.GPU.Devices {
		if g.PID == key.pid && int(g.ID) == index(key.device) {
			return g
		}
	}
	return recording.Device{}
}

// process compares what the process held by NVML's count with what was in segments at that time.
func (d *device) process(out *Device, rec *recording.Recording, gpu recording.Device) {
	if rec.Meta.Driver == nil || out.Type == "array" {
		return
	}
	for _, p := range rec.Meta.Driver.Processes {
		if p.PID != out.PID || gpu.UUID == "" || p.UUID != gpu.UUID || len(d.levels) == 0 {
			continue
		}
		next, _ := slices.BinarySearchFunc(d.levels, p.TS, func(e event.Event, at uint64) int {
			return cmp.Compare(e.End(), at+1)
		})
		reserved := d.levels[max(next, 1)-1].Args[1]
		out.Process, out.Driver = p.Used, less(p.Used, reserved)
	}
}

// maxLevels bounds the levels of a device in a summary.
const maxLevels = 240

// totals fills in what the allocator said itself.
func (d *device) totals(out *Device, rec *recording.Recording) {
	slices.SortStableFunc(d.levels, byEnd)
	slices.SortStableFunc(d.flows, byEnd)
	if n := len(d.levels); n > 0 {
		first, last := &d.levels[0], &d.levels[n-1]
		out.Allocated, out.Reserved, out.Before = last.Args[0], last.Args[1], last.Args[3]
		out.Start = first.Args[0]
		if first.TS >= rec.Meta.From { // the first call was seen in the window
			out.Start = first.Args[3]
			out.Peak, out.PeakAt = first.Args[3], first.TS
		}
		for i := range d.levels {
			e := &d.levels[i]
			if e.Args[2] > out.Peak {
				out.Peak, out.PeakAt = e.Args[2], e.End()
			}
			out.PeakHeld = max(out.PeakHeld, e.Args[1])
		}
		out.Levels = thin(d.levels)
	}
	if n := len(d.flows); n > 0 {
		last, first := d.flows[n-1].Args, d.flows[0].Args
		if d.flows[0].TS >= rec.Meta.From {
			first = [4]uint64{}
		}
		out.Allocations, out.Frees = less(last[0], first[0]), less(last[1], first[1])
		out.AllocatedBytes, out.FreedBytes = less(last[2], first[2]), less(last[3], first[3])
	}
}

func less(a, b uint64) uint64 { return a - min(a, b) }

// thin joins neighbours until there are few enough, and keeps their highest.
func thin(events []event.Event) []level {
	each := (len(events) + maxLevels - 1) / maxLevels
	out := make([]level, 0, min(len(events), maxLevels))
	for i := 0; i < len(events); i += each {
		part := events[i:min(len(events), i+each)]
		last := &part[len(part)-1]
		l := level{At: last.End(), Allocated: last.Args[0], Reserved: last.Args[1]}
		for k := range part {
			l.High = max(l.High, part[k].Args[2])
		}
		out = append(out, l)
	}
	return out
}

// kinds divides what is in blocks at the end.
func (d *Device) kinds() {
	var since float64
	parts := map[KindName]float64{}
	for i := range d.Sites {
		since += float64(d.Sites[i].Live)
		parts[d.Sites[i].Kind] += float64(d.Sites[i].Live)
	}
	// Blocks from before the attach are those that no sample stands for; never more than there were.
	left := min(float64(d.Before), max(0, float64(d.Allocated)-since))
	d.BeforeLeft = uint64(left)
	rest := float64(d.Allocated) - left
	if since > 0 {
		for kind, bytes := range parts {
			parts[kind] = bytes / since * rest
		}
	} else {
		parts[kindUnseen] = rest
	}
	parts[kindBefore] = left
	for _, kind := range []KindName{kindBefore, KindKept, KindTransient, kindWorkspace, kindSegment, kindUnseen} {
		if bytes := uint64(parts[kind]); bytes > 0 {
			d.Kinds = append(d.Kinds, kindBytes{kind, bytes})
		}
	}
}
