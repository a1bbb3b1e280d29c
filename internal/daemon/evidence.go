package daemon

import (
	"cmp"
	"iter"
	"os"
	"slices"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/metrics"
	"github.com/inferscope/inferscope/internal/daemon/push"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// What follows are sources by what they can do. cmd chooses them: the daemon imports none, so that most of these have
// one implementation.

// callObserver is a source that inspects fresh events, to resolve names that disappear later.
type callObserver interface {
	// Observe receives every batch from the rings, in the drain goroutine; the batch is valid only until it returns.
	Observe(batch []event.Event)
}

// completer is a source that knows of operations which have no event yet.
type completer interface {
	// Complete returns events for what was in progress at the time to (ns). It is called before the rings are drained
	// for a recording that ends at to: whatever ends meanwhile has its own event as well. It may be called from any
	// goroutine.
	Complete(to uint64) []event.Event
}

// namer is a source that resolves the references of its events to names, for all targets.
type namer interface {
	Objects() []recording.Object
	OtherThreads() []recording.Thread
}

// gauge is a source that samples pressure on the host and in the targets' cgroups.
type gauge interface {
	// Pressure returns the samples of a target within [from, to] (ns), ordered by TS.
	Pressure(root uint32, from, to uint64) []recording.Pressure
}

// requester is a source of the requests that targets served.
type requester interface {
	// Requests returns those that overlap [from, to] (ns), ordered by when they were read.
	Requests(from, to uint64) []recording.Request
	// OnEnd registers f for each request that ends from then on. f must be fast, must not call the source, and must not
	// keep the request.
	OnEnd(f func(*recording.Request))
	// Serving returns how many requests each process is serving. It may be called from any goroutine.
	Serving() map[uint32]int
	// Steps returns the steps of inference engines within [from, to] (ns), and the requests that they worked on.
	Steps(from, to uint64) ([]recording.Step, []recording.EngineRequest)
}

// sensing is a source that samples the sensors of the host's GPUs.
type sensing interface {
	// Sensors returns the samples within [from, to] (ns), ordered by TS, then GPU.
	Sensors(from, to uint64) []recording.Sensor
	// Latest returns the last sample of each GPU.
	Latest() []recording.Sensor
}

// driverReader is a source of what the driver of the host's GPUs says beyond sensors.
type driverReader interface {
	// Processes returns what processes held of the GPUs' memory lately.
	Processes() []recording.GPUProcess
	// Parts returns the parts of divided GPUs (MIG).
	Parts() []recording.GPUPart
	// Xids returns the errors of GPUs within [from, to] (ns), ordered by TS.
	Xids(from, to uint64) []recording.Xid
	// XidCounts returns how often errors of GPUs were reported.
	XidCounts() []recording.XidCount
}

// linking is a source of how GPUs are connected.
type linking interface {
	GPULinks() []recording.GPULink
}

// communicating is a source of what NCCL's communicators say of themselves.
type communicating interface {
	// Communicators returns those of the processes that are wanted, by process and address.
	Communicators(want func(proc.ID) bool) []recording.Communicator
}

// evidence holds the sources that add more than events to recordings.
type evidence struct {
	observers  []callObserver
	completers []completer
	namers     []namer
	gauges     []gauge
	sensing    []sensing
	drivers    []driverReader
	comms      []communicating
	linkers    []linking
	helped     []helped
	requesters []requester
}

func gather(sources []Source) evidence {
	var e evidence
	for _, s := range sources {
		appendIf(&e.observers, s)
		appendIf(&e.completers, s)
		appendIf(&e.namers, s)
		appendIf(&e.helped, s)
		appendIf(&e.requesters, s)
		appendIf(&e.sensing, s)
		appendIf(&e.drivers, s)
		appendIf(&e.comms, s)
		appendIf(&e.linkers, s)
		appendIf(&e.gauges, s)
	}
	return e
}

// appendIf appends a source to the list of those that implement T, if it does.
func appendIf[T any](list *[]T, s Source) {
	if t, ok := s.(T); ok {
		*list = append(*list, t)
	}
}

// count makes the tally count the requests that targets serve.
func (e *evidence) count(tally *metrics.Tally) {
	for _, r := range e.requesters {
		r.OnEnd(tally.Request)
		tally.Serving(r.Serving)
	}
}

// pusher creates the exporter of requests over OTLP.
func (d *Daemon) pusher(o push.Options) *push.Pusher {
	p := push.New(o, push.Watched{
		Clock:   d.clock,
		Targets: func() []api.Target { return d.targets(d.clock()) },
		Engines: d.evidence.engines,
	}, d.log)
	for _, r := range d.evidence.requesters {
		r.OnEnd(p.Request)
	}
	return p
}

// engines returns the requests that engines worked on within [from, to].
func (e *evidence) engines(from, to uint64) (out []recording.EngineRequest) {
	for _, s := range e.requesters {
		_, requests := s.Steps(from, to)
		out = append(out, requests...)
	}
	return out
}

func (e *evidence) observe(batch []event.Event) {
	for _, o := range e.observers {
		o.Observe(batch)
	}
}

func (e *evidence) complete(to uint64) []event.Event {
	var rows []event.Event
	for _, c := range e.completers {
		rows = append(rows, c.Complete(to)...)
	}
	return rows
}

// name adds the names of a target's files and of other processes that its events refer to, and its pressure samples.
// Apart from those references only the target's own data is added.
func (e *evidence) name(m *recording.Meta, v *view) {
	foreign := func(o recording.Object) bool { return !v.has(o.PID) }
	member := func(t recording.Thread) bool { return v.has(t.PID) }
	for _, n := range e.namers {
		m.Objects = append(m.Objects, slices.DeleteFunc(n.Objects(), foreign)...)
		m.OtherThreads = append(m.OtherThreads, slices.DeleteFunc(n.OtherThreads(), member)...)
	}
	own := e.own()
	for i := range m.OtherThreads {
		if s := &m.OtherThreads[i]; own[s.PID] {
			s.Own, s.Name = true, s.Name+ofOurs
		}
	}
	for _, g := range e.gauges {
		m.Pressure = append(m.Pressure, g.Pressure(v.pid, m.From, m.To)...)
	}
	for _, g := range e.sensing {
		m.Sensors = append(m.Sensors, g.Sensors(m.From, m.To)...)
	}
	var d recording.Driver
	for _, g := range e.drivers {
		xids := g.Xids(m.From, m.To)
		for i := range xids {
			if x := &xids[i]; x.PID != 0 && !v.has(x.PID) { // another process's, whose name stands in the text
				x.PID, x.Text = 0, "in the work of another process"
			}
		}
		for _, p := range g.Processes() {
			if v.has(p.PID) && p.TS <= m.To {
				d.Processes = append(d.Processes, p)
			}
		}
		d.Xids = append(d.Xids, xids...)
		d.Parts = append(
			d.Parts,
			slices.DeleteFunc(slices.Clone(g.Parts()), func(p recording.GPUPart) bool { return p.TS > m.To })...,
		)
	}
	for _, l := range e.linkers {
		d.Links = append(d.Links, l.GPULinks()...)
	}
	if len(d.Processes)+len(d.Xids)+len(d.Parts)+len(d.Links) > 0 {
		m.Driver = &d
	}
	for _, c := range e.comms {
		m.Communicators = append(m.Communicators, c.Communicators(v.hasProcess)...)
	}
	for _, r := range e.requesters {
		m.Requests = append(m.Requests, slices.DeleteFunc(r.Requests(m.From, m.To), func(r recording.Request) bool {
			return !v.has(r.PID) || v.owns != nil && !v.owns(&event.Event{TS: r.Received, PID: r.PID})
		})...)
		v.addSteps(m, r)
	}
	slices.SortFunc(m.Objects, func(a, b recording.Object) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Inode, b.Inode))
	})
	slices.SortFunc(m.OtherThreads, func(a, b recording.Thread) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.TID, b.TID))
	})
}

// addSteps adds the steps of the target's engines. A request without an answer is left out: its owner is unknown.
func (v *view) addSteps(m *recording.Meta, s requester) {
	own := func(pid uint32, ts uint64) bool {
		return v.has(pid) && (v.owns == nil || v.owns(&event.Event{TS: ts, PID: pid}))
	}
	steps, requests := s.Steps(m.From, m.To)
	m.Steps = append(m.Steps, slices.DeleteFunc(steps, func(s recording.Step) bool { return !own(s.PID, s.TS) })...)
	m.EngineRequests = append(m.EngineRequests, slices.DeleteFunc(requests, func(q recording.EngineRequest) bool {
		return !own(q.PID, q.Last)
	})...)
}

// ofOurs is the suffix of the names of InferScope's own threads.
const ofOurs = " of InferScope itself"

// own returns the processes of this daemon.
func (e *evidence) own() map[uint32]bool {
	out := map[uint32]bool{uint32(os.Getpid()): true}
	for _, h := range e.helped {
		for _, pid := range h.Helpers() {
			out[uint32(pid)] = true
		}
	}
	return out
}

// with yields the events, and then the rows that want accepts.
func with(events iter.Seq[[]event.Event], rows []event.Event, want func(*event.Event) bool) iter.Seq[[]event.Event] {
	rows = slices.DeleteFunc(slices.Clone(rows), func(e event.Event) bool { return want != nil && !want(&e) })
	if len(rows) == 0 {
		return events
	}
	return func(yield func([]event.Event) bool) {
		for run := range events {
			if !yield(run) {
				return
			}
		}
		yield(rows)
	}
}
