package export

import (
	"bufio"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of Perfetto's trace format that are written: protos/perfetto/trace/perfetto_trace.proto. There is no
// Go module of it, and these never change.
const (
	tracePacket = 1 // of Trace

	packetClocks      = 6 // of TracePacket
	packetTime        = 8
	packetSequence    = 10
	packetEvent       = 11
	packetInterned    = 12
	packetFlags       = 13
	packetRenderStage = 53
	packetTrack       = 60

	flagsCleared = 1 // SEQ_INCREMENTAL_STATE_CLEARED
	flagsNeeded  = 2 // SEQ_NEEDS_INCREMENTAL_STATE

	eventCategory    = 3 // of TrackEvent
	eventAnnotations = 4
	eventType        = 9
	eventName        = 10
	eventTrack       = 11
	eventDouble      = 44
	eventFlows       = 47
	eventFlowsEnd    = 48
	typeBegin        = 1
	typeEnd          = 2
	typeCounter      = 4

	annotationName   = 1 // of DebugAnnotation
	annotationUint   = 3
	annotationString = 6

	internedCategory = 1 // of InternedData
	internedName     = 2
	internedNote     = 3
	internedContext  = 23
	internedStage    = 24
	internIID        = 1 // of EventName and its kin
	internText       = 2
	internCategory   = 4 // of InternedGpuRenderStageSpecification
	contextPID       = 2 // of InternedGraphicsContext
	contextAPI       = 3
	apiCUDA          = 4
	stageCompute     = 2

	trackUUID    = 1 // of TrackDescriptor
	trackName    = 2
	trackProcess = 3
	trackThread  = 4
	trackParent  = 5
	trackCounter = 8
	trackOrder   = 11
	trackRank    = 12
	trackAbout   = 14
	explicit     = 3 // ChildTracksOrdering

	processPID      = 1 // of ProcessDescriptor
	processCmdline  = 2
	processName     = 6
	threadPID       = 1 // of ThreadDescriptor
	threadTID       = 2
	threadName      = 5
	counterUnitName = 6 // of CounterDescriptor

	renderID       = 1 // of GpuRenderStageEvent
	renderDuration = 2
	renderContext  = 5
	renderGPU      = 11
	renderQueue    = 13
	renderStage    = 14
	renderLaunch   = 21
	launchGrid     = 1 // of ComputeKernelLaunch
	launchBlock    = 2
	launchArgs     = 3
	argName        = 2 // of ExtraComputeArg
	argUint        = 4

	snapshotClock  = 1 // of ClockSnapshot
	clockID        = 1 // of Clock
	clockTime      = 2
	clockWall      = 1 // BuiltinClock
	clockMonotonic = 3
	clockBoot      = 6

	oneSequence = 1 // all packets are of it
)

// message is a protobuf message that is being made.
type message struct{ b []byte }

func (m *message) uint(field protowire.Number, n uint64) {
	m.b = protowire.AppendVarint(protowire.AppendTag(m.b, field, protowire.VarintType), n)
}

func (m *message) fixed(field protowire.Number, n uint64) {
	m.b = protowire.AppendFixed64(protowire.AppendTag(m.b, field, protowire.Fixed64Type), n)
}

func (m *message) double(field protowire.Number, f float64) { m.fixed(field, math.Float64bits(f)) }

func (m *message) string(field protowire.Number, s string) {
	m.b = protowire.AppendString(protowire.AppendTag(m.b, field, protowire.BytesType), s)
}

// in writes a message inside of this one.
func (m *message) in(field protowire.Number, inner *message) {
	m.b = protowire.AppendBytes(protowire.AppendTag(m.b, field, protowire.BytesType), inner.b)
}

// packets writes the packets of one sequence, and gives each text a number once.
type packets struct {
	out      *bufio.Writer
	interned map[internKey]uint64
	fresh    message // InternedData for the next packet
	started  bool
	packet   message
	event    message
	note     message
	tag      []byte
	err      error
}

// internKey is a text in one of the tables of InternedData.
type internKey struct {
	table protowire.Number
	text  string
}

func newPackets(out *bufio.Writer) *packets {
	return &packets{out: out, interned: map[internKey]uint64{}}
}

// intern returns the number of a text.
func (p *packets) intern(table protowire.Number, text string) uint64 {
	return p.entry(internKey{table, text}, func(m *message) {
		m.string(internText, text)
		if table == internedStage {
			m.uint(internCategory, stageCompute)
		}
	})
}

// entry returns the number of an entry of a table, which fill writes the first time.
func (p *packets) entry(k internKey, fill func(*message)) uint64 {
	iid, ok := p.interned[k]
	if !ok {
		iid = uint64(len(p.interned)) + 1
		p.interned[k] = iid
		var m message
		m.uint(internIID, iid)
		fill(&m)
		p.fresh.in(k.table, &m)
	}
	return iid
}

// send writes p.packet, which lacks what all packets have.
func (p *packets) send() {
	if len(p.fresh.b) > 0 {
		p.packet.in(packetInterned, &p.fresh)
		p.fresh.b = p.fresh.b[:0]
	}
	p.packet.uint(packetSequence, oneSequence)
	flags := uint64(flagsNeeded)
	if !p.started {
		p.started, flags = true, flagsNeeded|flagsCleared
	}
	p.packet.uint(packetFlags, flags)
	p.tag = protowire.AppendVarint(protowire.AppendTag(p.tag[:0], tracePacket, protowire.BytesType),
		uint64(len(p.packet.b)))
	for _, b := range [][]byte{p.tag, p.packet.b} {
		if _, err := p.out.Write(b); err != nil && p.err == nil {
			p.err = err
		}
	}
	p.packet.b = p.packet.b[:0]
}

// begin starts a packet of a TrackEvent; p.event takes its fields until sendEvent.
func (p *packets) begin(ts, track, kind uint64) {
	p.packet.uint(packetTime, ts)
	p.event.b = p.event.b[:0]
	p.event.uint(eventType, kind)
	p.event.uint(eventTrack, track)
}

func (p *packets) sendEvent() {
	p.packet.in(packetEvent, &p.event)
	p.send()
}

func (p *packets) name(name, category string) {
	p.event.uint(eventName, p.intern(internedName, name))
	p.event.uint(eventCategory, p.intern(internedCategory, category))
}

// number adds an annotation to the event.
func (p *packets) number(key string, n uint64) {
	p.note.b = p.note.b[:0]
	p.note.uint(annotationName, p.intern(internedNote, key))
	p.note.uint(annotationUint, n)
	p.event.in(eventAnnotations, &p.note)
}

// string adds an annotation to the event; an empty one is left out.
func (p *packets) string(key, s string) {
	if s == "" {
		return
	}
	p.note.b = p.note.b[:0]
	p.note.uint(annotationName, p.intern(internedNote, key))
	p.note.string(annotationString, s)
	p.event.in(eventAnnotations, &p.note)
}
