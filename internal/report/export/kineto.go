package export

import (
	"bufio"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// The Chrome JSON that PyTorch's Kineto writes (libkineto/src/output_json.cpp): times in µs with three decimals,
// counted from baseTimeNanoseconds on the wall clock; rows of a GPU have the device as pid and the stream as tid.
// A field more than Kineto has hurts nobody: what only InferScope knows is in args and in "inferscope".

// kinetoSchema is the schema version of Kineto's files.
const kinetoSchema = 1

// kineto writes one trace.
type kineto struct {
	*writer
	v     *view
	ids   *ids
	comma bool
	steps uint64 // ranges called ProfilerStep so far
}

func writeKineto(v *view, out *bufio.Writer) error {
	k := &kineto{writer: newWriter(out), v: v, ids: newIDs(v.T)}
	k.head()
	k.threadNames()
	for i := range v.T.Ops {
		k.call(int32(i))
	}
	for _, i := range v.T.Ranges {
		k.rangeRow(i)
	}
	for i := range v.T.Activities {
		k.activity(int32(i))
	}
	k.text("\n]}\n")
	return k.err
}

func (k *kineto) head() {
	m := &k.v.rec.Meta
	k.text(`{"schemaVersion":`)
	k.uint(kinetoSchema)
	k.text(`,"displayTimeUnit":"ms","baseTimeNanoseconds":`)
	k.int(m.WallFrom - int64(m.From))
	k.text(`,"deviceProperties":[`)
	for i := range k.v.T.Devices {
		if i > 0 {
			k.text(",")
		}
		k.device(int32(i))
	}
	k.text(`],"inferscope":{"version":`)
	k.quote(m.Version)
	k.number("target", uint64(m.Target))
	k.number("from_ns", m.From)
	k.number("to_ns", m.To)
	if m.GPU != nil {
		k.string("gpu_mode", m.GPU.Mode)
	}
	k.windows()
	k.text(`},"traceEvents":[`)
}

// windows writes when GPU activity and launches were recorded: outside of it nothing is known, which is no idleness.
func (k *kineto) windows() {
	k.spans("activity_windows", func(s *timeline.Seen) timeline.Spans { return s.Activity })
	k.spans("call_windows", func(s *timeline.Seen) timeline.Spans { return s.Calls })
}

func (k *kineto) spans(name string, of func(*timeline.Seen) timeline.Spans) {
	k.text(`,"` + name + `":[`)
	comma := false
	for p := range k.v.T.Seen {
		for _, s := range of(&k.v.T.Seen[p]) {
			if comma {
				k.text(",")
			}
			comma = true
			k.text(`{"pid":`)
			k.uint(uint64(k.v.T.Processes[p].PID))
			k.number("from_ns", s.From)
			k.number("to_ns", s.To)
			k.text("}")
		}
	}
	k.text("]")
}

func (k *kineto) device(i int32) {
	d := &k.v.T.Devices[i]
	k.text(`{"id":`)
	k.uint(uint64(k.devicePID(i)))
	if info := d.Info; info != nil {
		k.string("name", info.Name)
		k.number("totalGlobalMem", info.Memory)
		k.number("computeMajor", uint64(info.Major))
		k.number("computeMinor", uint64(info.Minor))
		k.number("numSms", uint64(info.SMs))
		k.string("uuid", info.UUID)
	}
	k.text("}")
}

// devicePID is the pid of a device's rows: its number, or its place where two processes count differently.
func (k *kineto) devicePID(i int32) uint32 {
	for j := range k.v.T.Devices {
		if int32(j) != i && k.v.T.Devices[j].ID == k.v.T.Devices[i].ID {
			return uint32(i)
		}
	}
	return uint32(k.v.T.Devices[i].ID)
}

// row begins a row; what follows are its fields.
func (k *kineto) row(ph string) {
	if k.comma {
		k.text(",")
	}
	k.comma = true
	k.text("\n{\"ph\":\"")
	k.text(ph)
	k.text(`"`)
}

func (k *kineto) where(pid, tid uint32) {
	k.number("pid", uint64(pid))
	k.number("tid", uint64(tid))
}

func (k *kineto) times(ts, dur uint64) {
	k.text(`,"ts":`)
	k.decimal(ts, 3)
	k.text(`,"dur":`)
	k.decimal(dur, 3)
}

// threadNames writes the names of processes, threads and GPUs.
func (k *kineto) threadNames() {
	for i := range k.v.T.Processes {
		p := &k.v.T.Processes[i]
		k.named("process_name", p.PID, 0, p.Comm)
		if p.Cmdline != "" {
			k.label(p.PID, p.Cmdline)
		}
	}
	for _, t := range k.v.rec.Meta.Threads {
		k.named("thread_name", t.PID, t.TID, t.Name)
	}
	for i := range k.v.T.Devices {
		pid := k.devicePID(int32(i))
		k.named("process_name", pid, 0, k.v.T.Processes[k.v.T.Devices[i].Process].Comm)
		k.label(pid, deviceName(&k.v.T.Devices[i]))
	}
}

func (k *kineto) named(what string, pid, tid uint32, name string) {
	k.row("M")
	k.string("name", what)
	k.where(pid, tid)
	k.text(`,"ts":0,"args":{"name":`)
	k.quote(name)
	k.text("}}")
}

func (k *kineto) label(pid uint32, text string) {
	k.row("M")
	k.string("name", "process_labels")
	k.where(pid, 0)
	k.text(`,"ts":0,"args":{"labels":`)
	k.quote(text)
	k.text("}}")
}

// call writes the op at index i, and the beginning of the arrow to what it asked for.
func (k *kineto) call(i int32) {
	op := &k.v.T.Ops[i]
	if op.Via == timeline.Twin {
		return
	}
	e := k.v.T.RawEvent(op)
	c := k.v.decoder.Decode(e)
	k.row("X")
	k.string("cat", "cuda_"+string(c.Library))
	k.string("name", callName(c.Name, c.Base))
	k.where(e.PID, e.TID)
	k.times(op.Start, op.Dur)
	k.text(`,"args":{"function":`)
	k.quote(c.Name)
	id := k.ids.ops[i]
	if id != 0 {
		k.number("correlation", uint64(id))
	}
	if !op.Timed {
		k.text(`,"timed":false`)
	}
	if c.HasBytes {
		k.number("bytes", c.Bytes)
	}
	if c.Timed && c.Result != 0 {
		k.text(`,"result":`)
		k.int(int64(c.Result))
	}
	k.text("}}")
	if id != 0 {
		k.arrow("s", id, e.PID, e.TID, op.Start)
	}
}

// callName is the name by which tools know a call: without suffixes of versions and of per-thread streams,
// for HolisticTraceAnalysis compares whole names.
func callName(name, base string) string {
	if base == "" || strings.HasSuffix(base, "*") {
		return name
	}
	return base
}

func (k *kineto) arrow(ph string, id, pid, tid uint32, ts uint64) {
	k.row(ph)
	k.number("id", uint64(id))
	k.where(pid, tid)
	k.text(`,"ts":`)
	k.decimal(ts, 3)
	k.text(`,"cat":"ac2g","name":"ac2g"`)
	if ph == "f" {
		k.text(`,"bp":"e"`)
	}
	k.text("}")
}

// profilerStep is what torch.profiler calls its iterations, with a number behind #.
const profilerStep = "ProfilerStep"

// rangeRow writes a range that the program named.
func (k *kineto) rangeRow(i int32) {
	e := &k.v.rec.Events[i]
	name := k.v.rangeName(e.Ret)
	if name == "" {
		return
	}
	if name == profilerStep { // an import has cut the numbers off; HolisticTraceAnalysis wants them
		k.steps++
		name += "#" + strconv.FormatUint(k.steps, 10)
	}
	k.row("X")
	k.string("cat", "user_annotation")
	k.string("name", name)
	k.where(e.PID, e.TID)
	k.times(e.TS, e.Dur)
	k.text(`,"args":{}}`)
}

// activity writes what a GPU did, and the end of the arrow from its call.
func (k *kineto) activity(i int32) {
	w := k.v.work(i)
	pid := k.devicePID(w.stream.Device)
	id := k.ids.of(k.v.T, i)
	k.row("X")
	k.string("cat", [...]string{"kernel", "gpu_memcpy", "gpu_memset"}[w.Kind])
	k.string("name", w.name)
	k.where(pid, w.stream.ID)
	k.times(w.start, w.dur)
	k.text(`,"args":{"device":`)
	k.uint(uint64(pid))
	k.number("context", uint64(w.stream.Context))
	k.number("stream", uint64(w.stream.ID))
	k.number("correlation", uint64(id))
	k.number("process", uint64(w.pid))
	k.details(&w)
	k.text("}}")
	if w.Op != timeline.None {
		k.arrow("f", id, pid, w.stream.ID, w.start)
	}
}

func (k *kineto) details(w *work) {
	switch w.Kind {
	case timeline.Kernel:
		k.triple("grid", w.grid)
		k.triple("block", w.block)
		static := uint32(0)
		if kernel := k.v.T.Kernel(w.Activity); kernel != nil {
			static = kernel.StaticShared
			k.number("registers per thread", uint64(kernel.Registers))
			k.number("local memory per thread", uint64(kernel.Local))
		}
		k.number("shared memory", uint64(static)+uint64(w.dynamic))
		k.number("dynamic shared memory", uint64(w.dynamic))
	case timeline.Copy:
		k.number("bytes", w.bytes)
		if w.dur > 0 {
			k.text(`,"memory bandwidth (GB/s)":`)
			k.float(float64(w.bytes) / float64(w.dur))
		}
		if w.async {
			k.text(`,"async":1`)
		}
	case timeline.Set:
		k.number("bytes", w.bytes)
		k.number("value", w.value)
	}
	if w.Graph {
		k.number("graph id", w.graph)
		k.number("graph node id", w.node)
	}
	if w.Link == timeline.ByOrder {
		k.text(`,"link":"by order"`)
	}
}
