package isc

import (
	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
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
	return column{"tie", int32Kind, packDict, "position among the events of all tables that began in the same ns: 0 for nearly all"}
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
		{name: tableLaunches, kind: event.Call, doc: "CUDA API calls that launch a kernel, with its grid", fields: launchFields()},
		{name: "kernels", kind: event.Kernel, doc: "kernels that a GPU ran", fields: kernelFields()},
		{name: "copies", kind: event.Copy, doc: "copies that a GPU made", fields: copyFields()},
		{name: "sets", kind: event.Set, doc: "memory that a GPU set", fields: setFields()},
		{name: "syncs", kind: event.Sync, doc: "waits of a thread or stream for a GPU, as CUPTI tells them", fields: syncFields()},
		{name: "overheads", kind: event.Overhead, doc: "time that CUPTI itself or the driver's compiler took", fields: overheadFields()},
		{name: "ranges", kind: event.Range, doc: "named ranges of threads: NVTX and scopes", fields: rangeFields()},
		{name: "samples", kind: event.Sample, doc: "what threads were doing, with their stacks", fields: sampleFields()},
		{name: "thread_states", kind: event.OffCPU, doc: "times that threads were on no CPU, and marks about their scheduling", fields: stateFields()},
		{name: tableOpen, kind: event.OffCPU, doc: "thread_states that went on at the end of the recording", fields: stateFields(), latest: true},
		{name: tableLifecycle, doc: "processes that were born, replaced their program or ended", fields: otherFields()},
		{name: tableOther, doc: "events of kinds that the writer did not know", fields: otherFields()},
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

func newRouter(tables []eventTable, functions []record.Function) *router {
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
