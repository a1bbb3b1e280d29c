package export

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// buckets bounds the values of a counter.
const buckets = 2000

// shortestBucket is the shortest time that a counter's value stands for, ns.
const shortestBucket = 1_000_000

// gpu writes one GPU: why it was idle, how busy it was, what its streams did.
func (p *perfetto) gpu(d int32) {
	dev := &p.v.T.Devices[d]
	name := deviceName(dev)
	root := p.track(0, func(m *message) {
		m.string(trackName, name)
		m.uint(trackOrder, explicit)
	})
	p.idle(root, d)
	p.counters(root, d)
	streams := map[int32]*lanes{}
	for i := dev.First; i < dev.Last; i++ {
		a := &p.v.T.Activities[i]
		l := streams[a.Stream]
		if l == nil {
			s := &p.v.T.Streams[a.Stream]
			l = p.lanesOf(root, fmt.Sprintf("stream %d of process %d", s.ID, p.v.T.Processes[s.Process].PID), 2)
			streams[a.Stream] = l
		}
		p.activity(l, i)
	}
	for s := range p.v.T.Streams {
		if l := streams[int32(s)]; l != nil {
			l.finish()
		}
	}
}

// activity writes what a stream did, with the arrow from its call, and a kernel once more as the GPU's compute work,
// with what it was launched with.
func (p *perfetto) activity(l *lanes, i int32) {
	w := p.v.work(i)
	id := p.ids.of(p.v.T, i)
	l.open(w.start, w.start+w.dur)
	p.name(w.name, [...]string{"kernel", "gpu_memcpy", "gpu_memset"}[w.Kind])
	if w.Op != timeline.None {
		p.event.fixed(eventFlowsEnd, uint64(id))
		p.string("call", p.v.rec.Meta.Functions[p.v.T.Ops[p.v.T.Outermost(w.Op)].Func].Name)
	}
	if id != 0 {
		p.number("correlation", uint64(id))
	}
	if w.Kind == timeline.Kernel {
		p.string("grid", dims(w.grid))
		p.string("block", dims(w.block))
	} else {
		p.number("bytes", w.bytes)
	}
	if w.Graph {
		p.number("graph", w.graph)
	}
	p.sendEvent()
	if w.Kind == timeline.Kernel {
		p.render(&w, uint64(i)+1)
	}
}

func dims(d [3]uint32) string { return fmt.Sprintf("%d x %d x %d", d[0], d[1], d[2]) }

// render writes a GpuRenderStageEvent: what Perfetto's plugin for GPU compute reads.
func (p *perfetto) render(w *work, id uint64) {
	var m, launch message
	m.uint(renderID, id)
	m.uint(renderDuration, w.dur)
	m.uint(renderGPU, uint64(w.device.ID))
	m.uint(renderContext, p.context(w))
	m.uint(renderQueue, p.hwQueue(w))
	m.uint(renderStage, p.intern(internedStage, w.name))
	for field, d := range [...][3]uint32{launchGrid: w.grid, launchBlock: w.block} {
		if field == 0 {
			continue
		}
		var dim message
		for axis, n := range d {
			dim.uint(1+protoNumber(axis), uint64(n))
		}
		launch.in(protoNumber(field), &dim)
	}
	if k := p.v.T.Kernel(w.Activity); k != nil {
		arg(&launch, "registers per thread", uint64(k.Registers))
		arg(&launch, "static shared memory (bytes)", uint64(k.StaticShared))
		arg(&launch, "local memory per thread (bytes)", uint64(k.Local))
	}
	arg(&launch, "dynamic shared memory (bytes)", uint64(w.dynamic))
	m.in(renderLaunch, &launch)
	p.packet.uint(packetTime, w.start)
	p.packet.in(packetRenderStage, &m)
	p.send()
}

func arg(launch *message, name string, n uint64) {
	var a message
	a.string(argName, name)
	a.uint(argUint, n)
	launch.in(launchArgs, &a)
}

// context returns the number of a graphics context: of CUDA, of the process.
func (p *perfetto) context(w *work) uint64 {
	return p.entry(internKey{internedContext, fmt.Sprint(w.pid)}, func(m *message) {
		m.uint(contextPID, uint64(w.pid))
		m.uint(contextAPI, apiCUDA)
	})
}

// hwQueue returns the number of the queue that stands for a stream.
func (p *perfetto) hwQueue(w *work) uint64 {
	iid, ok := p.queue[w.Stream]
	if !ok {
		iid = p.intern(internedStage, fmt.Sprintf("stream %d", w.stream.ID))
		p.queue[w.Stream] = iid
	}
	return iid
}

// idle writes why a GPU ran nothing, step by step, and where it is not known what it did.
func (p *perfetto) idle(root uint64, d int32) {
	track := p.named(root, "why it is idle", 0)
	walk := p.v.walk()
	for g, steps := range walk.All() {
		if g.Device != d {
			continue
		}
		for j := range steps {
			p.step(track, &steps[j])
		}
	}
	whole := timeline.Join([]timeline.Span{{From: p.v.T.From, To: p.v.T.To}})
	for _, s := range whole.Without(walk.Covered[d]) {
		p.slice(track, s.From, s.To, "not recorded", "not_recorded")
		p.sendEvent()
		p.end(track, s.To)
	}
}

func (p *perfetto) step(track uint64, s *gap.Step) {
	title := p.causeTitle(s.Cause)
	p.slice(track, s.From, s.To, title, "gap")
	if s.TID != 0 {
		p.string("thread", p.v.threadName(s.PID, s.TID))
		p.number("tid", uint64(s.TID))
	}
	if s.Inner != s.Cause && s.Inner != cause.Unknown {
		p.string("there", p.causeTitle(s.Inner))
	}
	if s.Op != timeline.None {
		p.string("call", p.v.rec.Meta.Functions[p.v.T.Ops[s.Op].Func].Name)
	}
	p.string("known", [...]string{"seen", "inferred", "guessed"}[min(s.Sure, 2)])
	p.string("stack", p.stackText(s.Stack))
	p.sendEvent()
	p.end(track, s.To)
}

func (p *perfetto) causeTitle(id cause.ID) string {
	if int(id) < len(p.v.causes) {
		return p.v.causes[id].Title
	}
	return "not known"
}

func (p *perfetto) slice(track, from, _ uint64, name, category string) {
	p.begin(from, track, typeBegin)
	p.name(name, category)
}

func (p *perfetto) end(track, to uint64) {
	p.begin(to, track, typeEnd)
	p.sendEvent()
}

// maxText bounds the frames of a stack.
const maxText = 24

func (p *perfetto) stackText(stack uint64) string {
	var lines []string
	for _, f := range p.v.frames(stack) {
		if lines = append(lines, frameText(&f)); len(lines) == maxText {
			break
		}
	}
	return strings.Join(lines, "\n")
}
