package archive

import (
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// eventTable is a table whose rows are events of some kinds.
type eventTable struct {
	name   string
	kind   event.Kind // of every row; 0: the rows say it themselves, in a column kind
	doc    string
	fields []field
	// latest: the rows tell how things stood at the end, so that those of the last stretch replace all others.
	latest bool
}

// tieColumn puts events that began in the same ns into their order: 0 for nearly all of them.
func tieColumn() column {
	return column{
		"tie",
		int32Kind,
		packDict,
		"order among the events of all tables that start in the same ns; 0 for nearly all",
	}
}

// The names of the tables of events.
const (
	tableCalls     = "calls"
	tableLaunches  = "launches"
	tableOpen      = "open_states"
	tableLifecycle = "lifecycle"
	tableOther     = "other_events"
)

// launchGroup is the group of functions whose calls carry a grid (internal/cuda).
const launchGroup = "launch"

// eventTables returns all of them. Their order is that of documentation, and says nothing about time.
func eventTables() []eventTable {
	return []eventTable{
		{name: tableCalls, kind: event.Call, doc: "CUDA API calls that are not kernel launches", fields: callFields()},
		{
			name:   tableLaunches,
			kind:   event.Call,
			doc:    "CUDA API calls that launch a kernel, with the launch configuration",
			fields: launchFields(),
		},
		{name: "kernels", kind: event.Kernel, doc: "kernel executions on the GPU", fields: kernelFields()},
		{name: "copies", kind: event.Copy, doc: "memory copies by the GPU", fields: copyFields()},
		{name: "sets", kind: event.Set, doc: "memory sets by the GPU", fields: setFields()},
		{
			name:   "syncs",
			kind:   event.Sync,
			doc:    "waits of a thread or a stream for the GPU, from CUPTI",
			fields: syncFields(),
		},
		{
			name:   "overheads",
			kind:   event.Overhead,
			doc:    "time spent in CUPTI itself or in the driver's compiler",
			fields: overheadFields(),
		},
		{
			name:   "ranges",
			kind:   event.Range,
			doc:    "named ranges of threads: NVTX ranges and Python scopes",
			fields: rangeFields(),
		},
		{name: "samples", kind: event.Sample, doc: "stack samples of threads", fields: sampleFields()},
		{
			name:   "thread_states",
			kind:   event.OffCPU,
			doc:    "off-CPU intervals of threads, and scheduling marks",
			fields: stateFields(),
		},
		{
			name:   tableOpen,
			kind:   event.OffCPU,
			doc:    "thread_states still open at the end of the recording",
			fields: stateFields(),
			latest: true,
		},
		{
			name:   "request_chunks",
			kind:   event.RequestChunk,
			doc:    "writes of parts of streamed responses that carry content",
			fields: requestChunkFields(),
		},
		{
			name:   tableLifecycle,
			doc:    "fork, exec and exit events; the current daemon writes none, see processes",
			fields: lifecycleFields(),
		},
		{
			name: tableOther,
			doc: "skipped CUDA calls (kind 13), memory of frameworks (kinds 80 to 83, bpf/event.h), and events of " +
				"kinds that the writer does not know",
			fields: otherFields(),
		},
	}
}

// router says in which table an event belongs: an index into eventTables.
type router struct {
	launch []bool // by function
	byKind [256]uint8
	calls  uint8
	open   uint8
	first  uint8 // launches
}

func newRouter(tables []eventTable, functions []recording.Function) *router {
	r := &router{launch: make([]bool, len(functions))}
	for i, f := range functions {
		r.launch[i] = f.Group == launchGroup
	}
	at := map[string]uint8{}
	for i, t := range tables {
		at[t.name] = uint8(i)
	}
	for k := range r.byKind {
		r.byKind[k] = at[tableOther]
	}
	for i, t := range tables {
		if t.kind != event.None {
			r.byKind[t.kind] = uint8(i)
		}
	}
	for _, k := range []event.Kind{event.Fork, event.Exec, event.Exit} {
		r.byKind[k] = at[tableLifecycle]
	}
	r.calls, r.first, r.open = at[tableCalls], at[tableLaunches], at[tableOpen]
	r.byKind[event.OffCPU] = at["thread_states"]
	return r
}

func (r *router) table(e *event.Event) uint8 {
	switch e.Kind {
	case event.Call:
		if int(e.Func) < len(r.launch) && r.launch[e.Func] {
			return r.first
		}
		return r.calls
	case event.OffCPU:
		if e.Flags&event.Open != 0 {
			return r.open
		}
	}
	return r.byKind[e.Kind]
}
