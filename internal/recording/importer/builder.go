package importer

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

// builder gathers events and the tables that name things.
type builder struct {
	meta      recording.Meta
	gpu       recording.GPU
	events    []event.Event
	rows      []event.Event // of GPUs, which become events when all calls are known: see kineto.settle
	until     uint64        // ns: what begins later is given up
	late      uint64        // how many rows that is
	ends      uint64        // ns: when the last row of the file begins
	before    []event.Event // threads that came on a CPU at TS and were on none before, as far as the file says
	after     []event.Event // threads that left their CPU and did not come back
	limits    Limits
	names     int64 // bytes so far
	functions map[string]uint16
	kernels   map[recording.Kernel]int32
	ranges    map[string]int32
	processes map[uint32]int    // index into meta.Processes
	threads   map[uint64]string // names by pid and tid
	streams   map[recording.Stream]bool
	devices   map[[2]uint32]recording.Device
	skipped   map[string]uint64 // rows that were left out, by why
	from, to  uint64            // ns: of GPU rows and calls, where hasWork
	hasWork   bool
	active    bool // there are rows of GPUs
	spans     spans
	launched  map[uint64]launch     // by process and correlation id: what a launch started
	recorded  []recording.GPUWindow // as the file says; none: from the first to the last row
}

func newBuilder(limits Limits, tool string) *builder {
	return &builder{
		until: math.MaxUint64, limits: limits, functions: map[string]uint16{}, kernels: map[recording.Kernel]int32{},
		ranges:    map[string]int32{},
		processes: map[uint32]int{}, threads: map[uint64]string{}, streams: map[recording.Stream]bool{},
		devices: map[[2]uint32]recording.Device{}, skipped: map[string]uint64{}, launched: map[uint64]launch{},
		spans: spans{byThread: map[uint64][]span{}, frames: map[recording.Frame]uint32{}},
		meta: recording.Meta{
			Schema: recording.SchemaVersion, Version: recording.ImportVersion(tool),
			Host:      recording.Host{Arch: runtime.GOARCH},
			Processes: []recording.Process{}, Threads: []recording.Thread{}, Functions: []recording.Function{},
			Libraries: []recording.Library{},
		},
	}
}

// maxFunctions is how many functions events can name.
const maxFunctions = 1 << 16

// name counts a name that is kept.
func (b *builder) name(s string) error {
	if b.names += int64(len(s)); b.names > b.limits.Names {
		return fmt.Errorf("its names are longer than the limit of %d bytes together: %w",
			b.limits.Names, memlimit.ErrExceeded)
	}
	return nil
}

// add adds an event.
func (b *builder) add(e event.Event) error {
	if e.Dur > math.MaxInt64 || e.TS > math.MaxInt64-e.Dur {
		b.skip("rows with a time that no clock can show")
		return nil
	}
	if ok, err := b.room(e.TS); !ok {
		return err
	}
	b.events = append(b.events, e)
	return nil
}

// worked adds an event about CUDA: from the first to the last of them the tool was recording.
func (b *builder) worked(e event.Event) error {
	if e.Dur > math.MaxInt64 || e.TS > math.MaxInt64-e.Dur {
		return b.add(e) // which counts it
	}
	if !b.hasWork {
		b.from, b.hasWork = e.TS, true
	}
	b.from, b.to = min(b.from, e.TS), max(b.to, e.End())
	b.active = b.active || e.Kind == event.Kernel || e.Kind == event.Copy || e.Kind == event.Set
	return b.add(e)
}

// function returns the index of a CUDA function, None where there is no room for more; tools name functions as the
// headers do, and symbol is the exported name where they say it too.
func (b *builder) function(name, library string) (uint16, bool, error) {
	if i, ok := b.functions[name]; ok {
		return i, true, nil
	}
	if len(b.meta.Functions) >= maxFunctions {
		return 0, false, nil
	}
	f := recording.Function{Name: name, Base: name, Library: library, Group: "other", Timed: true}
	row, ok := cuda.Match(name)
	if !ok {
		row, ok = cuda.MatchHIP(name)
	}
	if ok {
		f.Base, f.Library, f.Group, f.Timed = row.Name, string(row.Library), string(row.Group), row.Timed
	}
	i := uint16(len(b.meta.Functions))
	b.meta.Functions = append(b.meta.Functions, f)
	b.functions[name] = i
	return i, true, b.name(name)
}

func (b *builder) kernel(k recording.Kernel) (int32, error) {
	if i, ok := b.kernels[k]; ok {
		return i, nil
	}
	b.gpu.Kernels = append(b.gpu.Kernels, k)
	i := int32(len(b.gpu.Kernels))
	b.kernels[k] = i
	return i, b.name(k.Name)
}

func (b *builder) rangeName(name string) (int32, error) {
	if i, ok := b.ranges[name]; ok {
		return i, nil
	}
	b.gpu.Ranges = append(b.gpu.Ranges, name)
	i := int32(len(b.gpu.Ranges))
	b.ranges[name] = i
	return i, b.name(name)
}

// process enters a process.
func (b *builder) process(pid uint32) {
	if _, ok := b.processes[pid]; !ok {
		b.processes[pid] = len(b.meta.Processes)
		b.meta.Processes = append(b.meta.Processes, recording.Process{PID: pid})
	}
}

func key(pid, tid uint32) uint64 { return uint64(pid)<<32 | uint64(tid) }

func (b *builder) stream(pid, context, id uint32) {
	b.streams[recording.Stream{PID: pid, Context: context, ID: id}] = true
}

// place packs device and context as bpf/event.h has them.
func place(device, context uint64) uint16 {
	return uint16(min(device, 255)) | uint16(min(context, 255))<<8
}

// packGrid and packBlock pack a launch's shape as bpf/event.h has it, each dimension clipped to its field.
func packGrid(g [3]uint64) uint64 {
	return min(g[0], math.MaxUint32) | min(g[1], math.MaxUint16)<<32 | min(g[2], math.MaxUint16)<<48
}

func packBlock(blk [3]uint64, dynamic uint64) uint64 {
	return min(blk[0], 1<<11-1) | min(blk[1], 1<<11-1)<<11 | min(blk[2], 1<<10-1)<<22 | min(dynamic, math.MaxUint32)<<32
}

// skip counts a row that is left out.
func (b *builder) skip(why string) {
	const most = 100 // the file chooses some of these texts
	if _, known := b.skipped[why]; !known && len(b.skipped) >= most {
		why = "other rows"
	}
	b.skipped[why]++
}

// finish makes the recording. about is what the tool records and what it lacks.
func (b *builder) finish(wallOf func(ns uint64) int64, about []recording.Source) (*recording.Recording, error) {
	if len(b.events) == 0 && b.spans.count == 0 {
		return nil, fmt.Errorf(
			"it has no row about CUDA calls, GPUs, threads, operators or ranges%s: was the profiler on?",
			b.left(),
		)
	}
	b.completeCalls()
	if err := b.trace(); err != nil {
		return nil, err
	}
	b.order()
	b.window()
	b.halves()
	b.order()
	m := &b.meta
	m.WallFrom = wallOf(m.From)
	m.Sources = slices.Concat(about, b.skippedSource())
	if text := b.cutText(); text != "" {
		m.Sources = append(m.Sources, recording.Source{Name: "import", State: "running", Detail: text})
		m.Losses = append(m.Losses, loss.Loss{Reason: loss.RowsCut, Count: b.late, Detail: text})
	}
	b.tables()
	m.GPU = &b.gpu
	return &recording.Recording{Meta: *m, Events: b.events}, nil
}

func (b *builder) order() {
	slices.SortStableFunc(b.events, func(x, y event.Event) int { return cmp.Compare(x.TS, y.TS) })
}

// halves adds the times off a CPU of which the file has one end: they go from the beginning of the window, or to its
// end.
func (b *builder) halves() {
	for _, e := range b.before {
		if _, ours := b.processes[e.PID]; ours && e.TS > b.meta.From {
			e.TS, e.Dur, e.Ret = b.meta.From, e.TS-b.meta.From, e.Ret|e.Ret<<16
			b.events = append(b.events, e)
		}
	}
	for _, e := range b.after {
		if _, ours := b.processes[e.PID]; ours && e.TS < b.meta.To {
			e.Dur, e.Flags = b.meta.To-e.TS, e.Flags|event.Open
			b.events = append(b.events, e)
		}
	}
}

// window sets the window of the recording, and that of GPU activity in each process.
func (b *builder) window() {
	m := &b.meta
	m.From, m.To = b.events[0].TS, 0
	for i := range b.events {
		m.To = max(m.To, b.events[i].End())
	}
	m.To, b.to = min(m.To, b.until), min(b.to, b.until)
	if !b.hasWork {
		b.gpu.Mode = "off"
		return
	}
	b.gpu.Mode = cmp.Or(b.gpu.Mode, "continuous")
	if len(b.recorded) > 0 {
		b.gpu.Windows = slices.DeleteFunc(b.recorded, func(w recording.GPUWindow) bool {
			_, known := b.processes[w.PID]
			return !known || w.From >= w.To || w.To <= m.From || w.From >= m.To
		})
		return
	}
	for _, p := range m.Processes {
		b.gpu.Windows = append(
			b.gpu.Windows,
			recording.GPUWindow{PID: p.PID, From: b.from, To: b.to, Activity: b.active, Calls: true, End: "kept"},
		)
	}
}

// tables puts the tables into their order.
func (b *builder) tables() {
	m := &b.meta
	slices.SortFunc(m.Processes, func(x, y recording.Process) int { return cmp.Compare(x.PID, y.PID) })
	for k, name := range b.threads {
		if _, ours := b.processes[uint32(k>>32)]; !ours { // nsys names every thread of the machine
			continue
		}
		m.Threads = append(m.Threads, recording.Thread{PID: uint32(k >> 32), TID: uint32(k), Name: name})
	}
	slices.SortFunc(
		m.Threads,
		func(x, y recording.Thread) int { return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID)) },
	)
	for s := range b.streams {
		b.gpu.Streams = append(b.gpu.Streams, s)
	}
	slices.SortFunc(b.gpu.Streams, func(x, y recording.Stream) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Context, y.Context), cmp.Compare(x.ID, y.ID))
	})
	for _, d := range b.devices {
		b.gpu.Devices = append(b.gpu.Devices, d)
	}
	slices.SortFunc(b.gpu.Devices,
		func(x, y recording.Device) int { return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.ID, y.ID)) })
	b.gpu.Agents = []recording.Agent{}
	m.Target = b.target()
}

// target is the process with most events.
func (b *builder) target() uint32 {
	counts := map[uint32]int{}
	for i := range b.events {
		counts[b.events[i].PID]++
	}
	best, most := uint32(0), 0
	for pid, n := range counts {
		if n > most || n == most && pid < best {
			best, most = pid, n
		}
	}
	return best
}

// launch is what a launch started, as its kernel tells.
type launch struct {
	grid, block uint64 // as bpf/event.h packs them
	kernel      int32  // index + 1 into GPU.Kernels
}

// completeCalls gives launches the shape of their kernels, and copies whether they only enqueue: tools note the one
// with the kernel, the other in the name of the call. Tools do not know the function that a launch names; its kernel
// stands for it, so that the first launch of a kernel can be told from the next.
func (b *builder) completeCalls() {
	groups := make([]cuda.Group, len(b.meta.Functions))
	async := make([]bool, len(b.meta.Functions))
	for i, f := range b.meta.Functions {
		groups[i], async[i] = cuda.Group(f.Group), strings.Contains(f.Base, "Async")
	}
	copies := map[uint64]bool{} // by process and correlation id: whether the call only enqueued it
	for i := range b.events {
		e := &b.events[i]
		if e.Kind != event.Call || e.Flags&event.Correlated == 0 {
			continue
		}
		switch groups[e.Func] {
		case cuda.Launch:
			if l, ok := b.launched[key(e.PID, uint32(e.Ret))]; ok {
				e.Args[0], e.Args[2], e.Args[3] = uint64(l.kernel), l.grid, l.block
			}
		case cuda.Copy:
			copies[key(e.PID, uint32(e.Ret))] = async[e.Func]
		case cuda.Graph:
			copies[key(e.PID, uint32(e.Ret))] = true
		}
	}
	for i := range b.events {
		e := &b.events[i]
		if e.Kind != event.Copy {
			continue
		}
		enqueued, known := copies[key(e.PID, uint32(e.Args[0]))]
		if !known { // called before the file begins: nothing shows that the caller waited, unless the memory does
			enqueued = cuda.MemoryKind(e.Ret>>8) != cuda.Pageable && cuda.MemoryKind(e.Ret>>16) != cuda.Pageable
		}
		if enqueued {
			e.Ret |= asyncCopy
		}
	}
}

// asyncCopy is the bit of a copy's Ret that says that its call only enqueued it: bpf/event.h.
const asyncCopy = 1 << 24

func (b *builder) skippedSource() []recording.Source {
	if len(b.skipped) == 0 {
		return nil
	}
	return []recording.Source{{Name: "import", State: "running", Detail: "left out" + b.left()}}
}

// left describes what was left out.
func (b *builder) left() string {
	var why []string
	for k := range b.skipped {
		why = append(why, k)
	}
	slices.Sort(why)
	out := ""
	for i, k := range why {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		out += fmt.Sprintf("%s%d %s", sep, b.skipped[k], k)
	}
	return out
}
