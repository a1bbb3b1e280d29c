package export

import (
	"bufio"
	"cmp"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// perfetto writes one trace. Its tracks are: for each process its threads, with a lane of states, of calls and of
// named ranges each, and the requests that it served; for each GPU why it was idle, counters, and its streams.
type perfetto struct {
	*packets
	v     *view
	ids   *ids
	uuid  uint64
	roots map[uint32]uint64 // tracks of processes
	lanes map[uint64]uint64 // tracks of threads
	queue map[int32]uint64  // hw_queue_iid by stream
}

func writePerfetto(v *view, out *bufio.Writer) error {
	p := &perfetto{
		packets: newPackets(out), v: v, ids: newIDs(v.T),
		roots: map[uint32]uint64{}, lanes: map[uint64]uint64{}, queue: map[int32]uint64{},
	}
	p.clocks()
	p.processes()
	p.requests()
	p.states()
	p.calls()
	p.ranges()
	for d := range v.T.Devices {
		p.gpu(int32(d))
	}
	return p.err
}

// clocks declares that the times of packets, which Perfetto takes as CLOCK_BOOTTIME, are CLOCK_MONOTONIC of a machine
// that was not suspended, and what the wall clock said then.
func (p *perfetto) clocks() {
	m := &p.v.rec.Meta
	var snapshot message
	for _, c := range [...]struct{ id, at uint64 }{
		{clockBoot, m.From}, {clockMonotonic, m.From}, {clockWall, uint64(max(0, m.WallFrom))},
	} {
		var clock message
		clock.uint(clockID, c.id)
		clock.uint(clockTime, c.at)
		snapshot.in(snapshotClock, &clock)
	}
	p.packet.in(packetClocks, &snapshot)
	p.send()
}

// track creates a track and returns its uuid; fill sets all fields but the parent.
func (p *perfetto) track(parent uint64, fill func(m *message)) uint64 {
	p.uuid++
	var m message
	m.uint(trackUUID, p.uuid)
	if parent != 0 {
		m.uint(trackParent, parent)
	}
	fill(&m)
	p.packet.in(packetTrack, &m)
	p.send()
	return p.uuid
}

func (p *perfetto) named(parent uint64, name string, rank uint64) uint64 {
	return p.track(parent, func(m *message) {
		m.string(trackName, name)
		m.uint(trackRank, rank)
	})
}

// counter creates a counter track.
func (p *perfetto) counter(parent uint64, name, unit, about string) uint64 {
	return p.track(parent, func(m *message) {
		var c message
		c.string(counterUnitName, unit)
		m.string(trackName, name)
		m.in(trackCounter, &c)
		m.string(trackAbout, about)
		m.uint(trackRank, 1)
	})
}

func (p *perfetto) value(track, ts uint64, f float64) {
	p.begin(ts, track, typeCounter)
	p.event.double(eventDouble, f)
	p.sendEvent()
}

func (p *perfetto) processes() {
	for i := range p.v.T.Processes {
		proc := &p.v.T.Processes[i]
		p.roots[proc.PID] = p.track(0, func(m *message) {
			var d message
			d.uint(processPID, uint64(proc.PID))
			d.string(processCmdline, proc.Cmdline)
			d.string(processName, proc.Comm)
			m.in(trackProcess, &d)
		})
	}
}

// thread returns the track of a thread.
func (p *perfetto) thread(pid, tid uint32) uint64 {
	k := threadKey(pid, tid)
	uuid, ok := p.lanes[k]
	if !ok {
		uuid = p.track(p.roots[pid], func(m *message) {
			var d message
			d.uint(threadPID, uint64(pid))
			d.uint(threadTID, uint64(tid))
			d.string(threadName, p.v.threadName(pid, tid))
			m.in(trackThread, &d)
			m.uint(trackOrder, explicit)
		})
		p.lanes[k] = uuid
	}
	return uuid
}

// states writes what each thread waited for: blocked, and on what, or waiting for a CPU. In between it ran.
func (p *perfetto) states() {
	all := p.v.threads()
	for i := range all {
		t := &all[i]
		track := p.named(p.thread(t.PID, t.TID), "off the CPU", 0)
		for _, iv := range t.Intervals {
			switch iv.State {
			case threads.Runnable:
				p.state(track, iv, "waits for a CPU", "runnable")
			case threads.Blocked:
				p.state(track, iv, cmp.Or(p.v.waits().Text(iv.Wait), iv.Reason.String()), "blocked")
			}
		}
	}
}

func (p *perfetto) state(track uint64, iv threads.Interval, name, category string) {
	p.begin(iv.From, track, typeBegin)
	p.name(name, category)
	if iv.Wait >= 0 {
		if e := &p.v.rec.Events[iv.Wait]; e.Args[1] != 0 {
			p.number("by pid", e.Args[1]>>32)
			p.number("by tid", e.Args[1]&0xffffffff)
		}
	}
	p.sendEvent()
	p.begin(iv.To, track, typeEnd)
	p.sendEvent()
}

// calls writes the calls of each thread on its own track.
func (p *perfetto) calls() {
	for i := range p.v.T.Threads {
		th := &p.v.T.Threads[i]
		parent := p.thread(p.v.T.Processes[th.Process].PID, th.TID)
		l := p.lanesOf(parent, "CUDA calls", 1)
		for op := th.First; op < th.Last; op++ {
			if p.v.T.Ops[op].Via != timeline.Twin {
				p.call(l, op)
			}
		}
		l.finish()
	}
}

func (p *perfetto) call(l *lanes, i int32) {
	op := &p.v.T.Ops[i]
	c := p.v.decoder.Decode(p.v.T.RawEvent(op))
	l.open(op.Start, op.End())
	p.name(c.Name, "cuda_"+string(c.Library))
	if id := p.ids.ops[i]; id != 0 {
		p.event.fixed(eventFlows, uint64(id))
		p.number("correlation", uint64(id))
	}
	if c.HasBytes {
		p.number("bytes", c.Bytes)
	}
	p.string("direction", string(c.Direction))
	if c.Timed && c.Result != 0 {
		p.number("result", uint64(uint32(c.Result)))
	}
	if !op.Timed {
		p.string("duration", "not measured")
	}
	p.sendEvent()
}

// ranges writes the ranges that the program named, by thread.
func (p *perfetto) ranges() {
	byThread := map[uint64][]int32{}
	for _, i := range p.v.T.Ranges {
		e := &p.v.rec.Events[i]
		k := threadKey(e.PID, e.TID)
		byThread[k] = append(byThread[k], i)
	}
	keys := make([]uint64, 0, len(byThread))
	for k := range byThread {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		p.rangesOf(p.thread(uint32(k>>32), uint32(k)), byThread[k])
	}
}

func (p *perfetto) rangesOf(parent uint64, list []int32) {
	events := p.v.rec.Events
	slices.SortFunc(list, func(i, j int32) int {
		return cmp.Or(cmp.Compare(events[i].TS, events[j].TS), cmp.Compare(events[j].Dur, events[i].Dur))
	})
	l := p.lanesOf(parent, "ranges", 2)
	for _, i := range list {
		e := &events[i]
		if name := p.v.rangeName(e.Ret); name != "" {
			l.open(e.TS, e.End())
			p.name(name, "range")
			p.sendEvent()
		}
	}
	l.finish()
}

// lanes are tracks of one name: what overlaps without one holding the other goes to the next one.
type lanes struct {
	p      *perfetto
	parent uint64
	name   string
	rank   uint64
	tracks []lane
}

// lane is a track with the ends of its open slices, the outermost first.
type lane struct {
	uuid uint64
	ends []uint64
}

func (p *perfetto) lanesOf(parent uint64, name string, rank uint64) *lanes {
	return &lanes{p: p, parent: parent, name: name, rank: rank}
}

// maxLanes bounds the tracks of one name; what fits on none of them is cut off where it would cross.
const maxLanes = 16

// open begins a slice in the first lane where it fits; the caller adds to p.event and sends it. Slices come in the
// order of their beginnings.
func (l *lanes) open(start, end uint64) {
	for i := range l.tracks {
		t := &l.tracks[i]
		l.close(t, start)
		if n := len(t.ends); n == 0 || end <= t.ends[n-1] {
			l.begin(t, start, end)
			return
		}
	}
	if n := len(l.tracks); n == maxLanes {
		t := &l.tracks[n-1]
		l.begin(t, start, min(end, t.ends[len(t.ends)-1]))
		return
	}
	name := l.name
	if len(l.tracks) > 0 {
		name = fmt.Sprintf("%s (%d)", l.name, len(l.tracks)+1)
	}
	l.tracks = append(l.tracks, lane{uuid: l.p.named(l.parent, name, l.rank)})
	l.begin(&l.tracks[len(l.tracks)-1], start, end)
}

func (l *lanes) begin(t *lane, start, end uint64) {
	t.ends = append(t.ends, end)
	l.p.begin(start, t.uuid, typeBegin)
}

// close ends the slices of a lane that are over at a time.
func (l *lanes) close(t *lane, at uint64) {
	for n := len(t.ends); n > 0 && t.ends[n-1] <= at; n-- {
		l.p.begin(t.ends[n-1], t.uuid, typeEnd)
		l.p.sendEvent()
		t.ends = t.ends[:n-1]
	}
}

func (l *lanes) finish() {
	for i := range l.tracks {
		l.close(&l.tracks[i], ^uint64(0))
	}
}
