package archive

import (
	"reflect"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// codeTable maps the numeric codes in columns of other tables to names, for readers without this program.
const codeTable = "codes"

type codeRow struct {
	Table  string `isc:"table_name"  doc:"table"`
	Column string `isc:"column_name" doc:"column of that table"`
	Value  int32  `isc:"value"       doc:"number in that column"`
	Bit    bool   `isc:"bit"         doc:"the column is a bit mask, and value one of its bits"`
	Where  string `isc:"only_where"  doc:"condition on the row under which the number means this; empty: always"`
	Name   string `isc:"name"        doc:"what the number means"`
}

// codesTable is the same in each recording, and so is written once.
func codesTable() nameTable {
	return nameTable{
		name: codeTable, doc: "names of the numbers in columns of other tables", row: reflect.TypeFor[codeRow](),
		rows: func(*recording.Meta, int) (reflect.Value, bool) { return reflect.ValueOf(codeRows()), true },
		take: func(*recording.Meta, reflect.Value) {},
	}
}

// codes collects rows.
type codes []codeRow

// list names the values from 0 on; "" is a value that has no name.
func (c *codes) list(table, column string, names []string) {
	for v, name := range names {
		if name != "" {
			*c = append(*c, codeRow{Table: table, Column: column, Value: int32(v), Name: name})
		}
	}
}

// bits adds the names of the flags of a table, starting at a bit.
func (c *codes) bits(table string, first event.Flags, names ...string) {
	for i, name := range names {
		*c = append(*c, codeRow{Table: table, Column: "flags", Value: int32(first) << i, Bit: true, Name: name})
	}
}

func (c *codes) value(table, column string, value int32, name string) {
	*c = append(*c, codeRow{Table: table, Column: column, Value: value, Name: name})
}

func codeRows() []codeRow {
	var c codes
	for _, t := range eventTables() {
		c.bits(t.name, event.Timed, "timed")
	}
	for _, table := range []string{tableCalls, tableLaunches, tableOther} {
		c.bits(table, event.Fault, "fault", "dereferenced", "correlated", "kernel of NCCL")
	}
	c.states("thread_states")
	c.states(tableOpen)
	c.activity()
	c.list("ranges", "origin", []string{event.NVTXRange: "NVTX", event.ScopeRange: "Python scope"})
	c.list("samples", "cause", []string{event.Clock: "sampling clock", event.Switch: "left its CPU"})
	c.value("samples", "cause", int32(event.Traced), "stack of an imported trace")
	c.list("samples", "origin", []string{
		event.Whole: "whole", event.Spliced: "spliced", event.Python: "Python frames", event.Leaf: "leaf",
	})
	c.list(tableLifecycle, "kind", []string{event.Fork: "fork", event.Exec: "exec", event.Exit: "exit"})
	c.list(tableOther, "kind", []string{
		event.Skipped: "skipped calls", event.Memory: "memory", event.MemoryFlow: "memory flow",
		event.Allocation: "allocation", event.OutOfMemory: "out of memory",
	})
	return c
}

// activity names what CUPTI numbers.
func (c *codes) activity() {
	for k := cuda.CopyKind(0); k == 0 || k.Known() != 0; k++ {
		c.value("copies", "copy_kind", int32(k), k.CUPTI())
	}
	for k := cuda.MemoryKind(0); k == 0 || k.Known() != 0; k++ {
		c.value("copies", "source_memory", int32(k), k.CUPTI())
		c.value("copies", "destination_memory", int32(k), k.CUPTI())
		c.value("sets", "memory", int32(k), k.CUPTI())
	}
	c.list("copies", "asynchronous", []string{"waited for", "asynchronous"})
	c.list("syncs", "sync_kind", []string{"unknown", "event", "stream waits for event", "stream", "context"})
	c.list("overheads", "overhead_kind", []string{
		"driver compiler", "CUPTI buffer flush", "CUPTI instrumentation", "CUPTI resources",
		"runtime triggered module loading", "lazy function loading", "command buffer full", "activity buffer request",
		"UVM activity init",
	})
}

// states adds the codes of a table of OffCPU events.
func (c *codes) states(table string) {
	c.bits(table, event.Mark, "mark", "preempted", "uninterruptible", "major page fault", "woken by interrupt", "open")
	c.value(table, "syscall", event.NoSyscall, "none")
	c.value(table, "syscall", event.Stopped, "stopped")
	c.value(table, "syscall", event.Unexplained, "not known")
	from := len(*c)
	c.list(table, "syscall", []string{
		event.Born: "born", event.Died: "died", event.Waited: "waits for a CPU", event.Runs: "runs",
		event.Short: "sum of intervals",
	})
	for i := range (*c)[from:] {
		(*c)[from+i].Where = "flags & 4 != 0"
	}
	c.list(table, "file_type", []string{
		1: "pipe", 2: "character device", 4: "directory", 6: "block device", 8: "regular file", 12: "socket",
	})
}
