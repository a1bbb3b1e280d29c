package export

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// writeMemoryViz writes a snapshot for pytorch.org/memory_viz and torch.cuda._memory_viz: what
// torch.cuda.memory._snapshot returns (torch/cuda/memory.py), as a pickle of plain dictionaries. It has the sampled
// allocations, each at its address with its own size, and one block for all the rest.
func writeMemoryViz(v *view, out *bufio.Writer) error {
	p := &pickler{w: out, memo: map[any]uint32{}}
	m := &snapshot{v: v, p: p, samples: memory.Samples(v.rec), summary: memory.Summarize(v.rec)}
	m.samples = slices.DeleteFunc(m.samples, func(s memory.Sample) bool { return !gpuType(s.Device) })
	p.begin()
	m.write()
	p.end()
	return nil // of the writer's own errors Flush tells
}

// snapshot writes a recording as one of PyTorch's.
type snapshot struct {
	v       *view
	p       *pickler
	samples []memory.Sample
	summary *memory.Summary
}

// restAddress is where the block lies that stands for what was not sampled; addresses of CUDA are below.
const restAddress = 1 << 56

func (m *snapshot) write() {
	devices := m.devices()
	p := m.p
	p.emptyDict()
	p.mark()
	p.text("segments")
	p.list(func() {
		for _, s := range m.samples {
			if s.Open && !s.Segment {
				m.segment(m.index(s.Device), s.Pointer, s.Bytes, s.Stack)
			}
		}
		m.rest()
	})
	p.text("device_traces")
	p.list(func() {
		for device := range devices {
			p.list(func() { m.trace(device) })
		}
	})
	p.setItems()
}

func gpuType(d event.MemoryDevice) bool {
	return d.Type() == event.CUDAMemory || d.Type() == event.HIPMemory || d.Type() == event.DriverMemory
}

// devices returns how many there are: the list of traces is by index. Bounded, because the index is the target's.
func (m *snapshot) devices() int {
	const most = 64
	n := 1
	for _, s := range m.samples {
		n = max(n, m.index(s.Device)+1)
	}
	for _, e := range memory.Failed(m.v.rec) {
		if d := event.MemoryDevice(e.Func); gpuType(d) {
			n = max(n, m.index(d)+1)
		}
	}
	return min(n, most)
}

// index returns the index of a GPU. One that is not known comes behind the others, and is never the first.
func (m *snapshot) index(d event.MemoryDevice) int {
	if !memory.UnknownGPU(d) {
		return d.Index()
	}
	n := 0
	if m.summary != nil {
		for i := range m.summary.Devices {
			n = max(n, m.summary.Devices[i].Index)
		}
	}
	return n + 1
}

// segment writes a segment with one live block.
func (m *snapshot) segment(device int, address, bytes, stack uint64) {
	p := m.p
	p.dict(func() {
		p.item("device", uint64(device))
		p.item("address", address)
		p.item("total_size", bytes)
		p.item("allocated_size", bytes)
		p.item("active_size", bytes)
		p.item("requested_size", bytes)
		p.item("stream", 0)
		p.textItem("segment_type", "large")
		p.text("segment_pool_id")
		p.integer(0)
		p.text("is_expandable")
		p.boolean(false)
		p.text("frames")
		p.list(func() {})
		p.text("blocks")
		p.list(func() {
			p.dict(func() {
				p.item("address", address)
				p.item("size", bytes)
				p.item("requested_size", bytes)
				p.textItem("state", "active_allocated")
				p.text("frames")
				m.frames(stack)
			})
		})
	})
}

// rest writes what no sampled block stands for, so that the whole is as large as it is.
func (m *snapshot) rest() {
	if m.summary == nil {
		return
	}
	for i := range m.summary.Devices {
		d := &m.summary.Devices[i]
		if d.Type != "cuda" && d.Type != "hip" && d.Type != "driver" {
			continue
		}
		sampled := uint64(0)
		for _, s := range m.samples {
			if s.Open && s.PID == d.PID && s.Device == d.ID {
				sampled += s.Bytes
			}
		}
		if d.Allocated > sampled {
			m.segment(m.index(d.ID), restAddress+uint64(i)<<48, d.Allocated-sampled, 0)
		}
	}
}

// trace writes the allocations and frees of a device in the order of time.
func (m *snapshot) trace(device int) {
	type entry struct {
		at   uint64
		free bool
		s    *memory.Sample
	}
	var all []entry
	for i := range m.samples {
		s := &m.samples[i]
		if s.Segment || m.index(s.Device) != device {
			continue
		}
		if s.From >= m.v.rec.Meta.From {
			all = append(all, entry{s.From, false, s})
		}
		if !s.Open {
			all = append(all, entry{s.To, true, s})
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.at, b.at) })
	for _, e := range all {
		if e.free {
			m.entry("free_requested", e.at, e.s)
			m.entry("free_completed", e.at, e.s)
			continue
		}
		m.entry("alloc", e.at, e.s)
	}
	for _, e := range memory.Failed(m.v.rec) {
		if d := event.MemoryDevice(e.Func); gpuType(d) && m.index(d) == device {
			m.p.dict(func() {
				m.p.textItem("action", "oom")
				m.p.item("size", e.Args[1])
				m.p.item("device_free", 0)
				m.p.item("addr", 0)
				m.common(e.TS, e.Args[0])
			})
		}
	}
}

func (m *snapshot) entry(action string, at uint64, s *memory.Sample) {
	m.p.dict(func() {
		m.p.textItem("action", action)
		m.p.item("addr", s.Pointer)
		m.p.item("size", s.Bytes)
		m.common(at, s.Stack)
	})
}

func (m *snapshot) common(at, stack uint64) {
	wall := int64(at) - int64(m.v.rec.Meta.From) + m.v.rec.Meta.WallFrom
	m.p.item("stream", 0)
	m.p.item("time_us", uint64(max(0, wall/1000)))
	m.p.shared("frames")
	m.frames(stack)
}

// frames writes a stack, the first time whole and then by reference.
func (m *snapshot) frames(stack uint64) {
	type stackKey uint64
	m.p.once(stackKey(stack), func() {
		m.p.list(func() {
			for _, f := range m.stack(stack) {
				m.p.dict(func() {
					m.p.shared("filename")
					m.p.shared(f.File)
					m.p.item("line", uint64(f.Line))
					m.p.shared("name")
					m.p.shared(f.Name)
				})
			}
		})
	})
}

func (m *snapshot) stack(stack uint64) []recording.Frame {
	if stack == 0 {
		return []recording.Frame{{Name: "before the attach, or not among the sampled allocations"}}
	}
	return memory.SiteStack(m.v.rec, stack)
}

// pickler writes Python's pickle protocol 2 (Lib/pickletools.py): dictionaries, lists, integers, texts.
type pickler struct {
	w    *bufio.Writer
	memo map[any]uint32
}

func (p *pickler) op(b ...byte) { _, _ = p.w.Write(b) } // the writer keeps its first error

func (p *pickler) begin()     { p.op(0x80, 2) }
func (p *pickler) end()       { p.op('.') }
func (p *pickler) mark()      { p.op('(') }
func (p *pickler) emptyDict() { p.op('}') }
func (p *pickler) setItems()  { p.op('u') }

func (p *pickler) list(items func()) {
	p.op(']', '(')
	items()
	p.op('e')
}

func (p *pickler) dict(items func()) {
	p.op('}', '(')
	items()
	p.op('u')
}

func (p *pickler) boolean(b bool) {
	if b {
		p.op(0x88)
		return
	}
	p.op(0x89)
}

// integer writes BININT where it fits, else LONG1.
func (p *pickler) integer(n uint64) {
	if n < 1<<31 {
		p.op(binary.LittleEndian.AppendUint32([]byte{'J'}, uint32(n))...)
		return
	}
	p.op(0x8a, 9)
	p.op(binary.LittleEndian.AppendUint64(nil, n)...)
	p.op(0) // it is not negative
}

func (p *pickler) text(s string) {
	p.op(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(s)))...)
	_, _ = p.w.WriteString(s) // as op
}

func (p *pickler) item(key string, n uint64) {
	p.shared(key)
	p.integer(n)
}

func (p *pickler) textItem(key, text string) {
	p.shared(key)
	p.shared(text)
}

// shared writes a text, from the second time on by reference.
func (p *pickler) shared(s string) { p.once(s, func() { p.text(s) }) }

// once writes a value the first time and remembers it under a number (LONG_BINPUT), then refers to it (LONG_BINGET).
func (p *pickler) once(key any, write func()) {
	if n, ok := p.memo[key]; ok {
		p.op(binary.LittleEndian.AppendUint32([]byte{'j'}, n)...)
		return
	}
	write()
	n := uint32(len(p.memo))
	p.memo[key] = n
	p.op(binary.LittleEndian.AppendUint32([]byte{'r'}, n)...)
}
