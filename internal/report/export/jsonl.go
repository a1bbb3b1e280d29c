package export

import (
	"bufio"
	"math"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// JSON lines: one event a line, in the order of time. Every line has ts (seconds since 1970, with nine decimals),
// func, pid and tid (0 where a line is of a process); what else it has depends on kind.

// lines writes one file of them.
type lines struct {
	*writer
	v        *view
	activity []int32 // by event: index into Activities + 1
	op       []int32 // by event: index into Ops + 1
	ids      *ids
}

func writeJSONL(v *view, out *bufio.Writer) error {
	l := newLines(v, out)
	rows := rowsOf(&v.rec.Meta)
	for i := range v.rec.Events {
		rows = l.until(rows, v.rec.Events[i].TS)
		l.event(int32(i))
		if l.err != nil {
			return l.err
		}
	}
	l.until(rows, math.MaxUint64)
	return l.err
}

func newLines(v *view, out *bufio.Writer) *lines {
	l := &lines{
		writer: newWriter(out), v: v, ids: newIDs(v.T),
		activity: make([]int32, len(v.rec.Events)), op: make([]int32, len(v.rec.Events)),
	}
	for i := range v.T.Activities {
		l.activity[v.T.Activities[i].Event] = int32(i) + 1
	}
	for i := range v.T.Ops {
		l.op[v.T.Ops[i].Event] = int32(i) + 1
	}
	return l
}

func (l *lines) event(i int32) {
	e := &l.v.rec.Events[i]
	switch e.Kind {
	case event.Call:
		if op := l.op[i]; op != 0 && l.v.T.Ops[op-1].Via != timeline.Twin {
			l.call(op-1, e)
		}
	case event.Kernel, event.Copy, event.Set:
		if a := l.activity[i]; a != 0 {
			l.gpu(a - 1)
		}
	case event.Sample:
		l.sample(e)
	case event.OffCPU:
		l.wait(i, e)
	case event.Range:
		l.begin(e, "range", l.v.rangeName(e.Ret))
		l.end(e)
	case event.RequestChunk:
		l.begin(e, "request_chunk", "request chunk")
		l.number("request", e.Args[0])
		l.number("parts", e.Args[1])
		l.end(e)
	case event.Fork, event.Exec, event.Exit:
		l.process(e)
	}
}

// begin writes what every line has.
func (l *lines) begin(e *event.Event, kind, function string) {
	m := &l.v.rec.Meta
	wall := int64(e.TS) - int64(m.From) + m.WallFrom
	l.text(`{"ts":`)
	l.decimal(uint64(max(0, wall)), 9)
	l.string("func", function)
	l.number("pid", uint64(e.PID))
	l.number("tid", uint64(e.TID))
	l.string("kind", kind)
}

// end writes the duration, where it is known, and ends the line.
func (l *lines) end(e *event.Event) {
	if e.Flags&event.Timed != 0 {
		l.text(`,"dur_us":`)
		l.decimal(e.Dur, 3)
	}
	l.text("}\n")
}

func (l *lines) call(op int32, e *event.Event) {
	c := l.v.decoder.Decode(e)
	l.begin(e, "call", c.Name)
	l.string("library", string(c.Library))
	l.string("group", string(c.Group))
	if c.HasBytes {
		l.number("bytes", c.Bytes)
	}
	if c.Direction != "" {
		l.string("direction", string(c.Direction))
	}
	if c.HasStream {
		l.number("stream", c.Stream)
	}
	if c.Group == "launch" && e.Args[2] != 0 {
		l.triple("grid", c.Grid)
		l.triple("block", c.Block)
		l.number("shared_bytes", uint64(c.Shared))
	}
	for _, a := range [...]struct {
		key string
		n   uint64
	}{
		{"dst", c.Dst},
		{"src", c.Src},
		{"ptr", c.Pointer},
		{"handle", c.Handle},
		{"correlation", uint64(l.ids.ops[op])},
	} {
		if a.n != 0 {
			l.number(a.key, a.n)
		}
	}
	if c.Timed && e.Flags&event.Correlated == 0 {
		l.text(`,"result":`)
		l.int(int64(c.Result))
	}
	if l.v.T.Ops[op].Parent != timeline.None {
		l.text(`,"nested":true`)
	}
	l.end(e)
}

func (l *lines) gpu(i int32) {
	w := l.v.work(i)
	e := &l.v.rec.Events[w.Event]
	moved := *e
	moved.TID = 0 // it is a stream's number
	if w.Op != timeline.None {
		moved.TID = l.v.T.RawEvent(&l.v.T.Ops[w.Op]).TID
	}
	l.begin(&moved, [...]string{"kernel", "copy", "set"}[w.Kind], w.name)
	l.number("device", uint64(w.device.ID))
	l.number("context", uint64(w.stream.Context))
	l.number("stream", uint64(w.stream.ID))
	l.number("correlation", uint64(l.ids.of(l.v.T, i)))
	if w.Kind == timeline.Kernel {
		l.triple("grid", w.grid)
		l.triple("block", w.block)
		l.number("shared_bytes", uint64(w.dynamic))
	} else {
		l.number("bytes", w.bytes)
	}
	if w.Graph {
		l.number("graph", w.graph)
	}
	l.end(e)
}

func (l *lines) sample(e *event.Event) {
	leaf, stack := "", e.Args[0]
	for f := range threads.Walk(l.v.rec, stack) {
		leaf = l.v.rec.Meta.Frames[f].Name
		break
	}
	kind := "sample"
	if e.Func == uint16(event.Switch) {
		kind = "switch"
	}
	l.begin(e, kind, leaf)
	l.text(`,"stack":[`)
	comma := false
	for f := range threads.Walk(l.v.rec, stack) {
		if comma {
			l.text(",")
		}
		comma = true
		l.quote(frameText(&l.v.rec.Meta.Frames[f]))
	}
	l.text("]}\n")
}

func (l *lines) wait(i int32, e *event.Event) {
	if e.Flags&event.Mark != 0 {
		return
	}
	reason := "preempted"
	if e.Flags&event.Preempted == 0 {
		reason = l.v.waits().Text(i)
	}
	l.begin(e, "off_cpu", reason)
	if e.Args[0] != 0 {
		l.text(`,"blocked_us":`)
		l.decimal(e.Args[0], 3)
	}
	if e.Args[1] != 0 {
		l.number("by_pid", e.Args[1]>>32)
		l.number("by_tid", e.Args[1]&0xffffffff)
	}
	l.end(e)
}

func (l *lines) process(e *event.Event) {
	kind := map[event.Kind]string{event.Fork: "fork", event.Exec: "exec", event.Exit: "exit"}[e.Kind]
	l.begin(e, kind, kind)
	if e.Kind == event.Fork {
		l.number("parent", e.Args[0])
	}
	if e.Kind == event.Exit {
		l.text(`,"status":`)
		l.int(int64(e.Ret))
	}
	l.text("}\n")
}
