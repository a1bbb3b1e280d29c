package html

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/format"
)

// table is a table of the page. Cells are texts or numbers; the page writes numbers by the unit of their column.
type table struct {
	Key     string   `json:"key"`
	Title   string   `json:"title"`
	Columns []column `json:"columns"`
	Rows    [][]any  `json:"rows"`
	Note    string   `json:"note,omitempty"`
}

// column says what its cells are: text, code, count, ns, bytes, rate (bytes/s), share (a fraction), at (ns after the
// beginning of the window, where something begins that takes what the first column says).
type column struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
}

// maxRows bounds a table of the page; JSON has all.
const maxRows = 1000

func (t *table) cut() {
	if n := len(t.Rows); n > maxRows {
		t.Rows = t.Rows[:maxRows]
		t.Note += fmt.Sprintf(" The first %d of %d are here; --format json has all.", maxRows, n)
	}
}

// tables returns the tables that have rows.
func tables(in Input) []table {
	all := []table{functionTable(in), threadTable(in), pythonTable(in), nativeTable(in), waitTable(in)}
	if in.GPU != nil {
		all = append([]table{kernelTable(in), copyTable(in), peerTable(in), streamTable(in), rangeTable(in)}, all...)
	}
	all = append(append(requestTables(in), rankTables(in)...), all...)
	all = append(all, memoryTable(in), gpuMemoryTable(in))
	out := []table{}
	for i := range all {
		if all[i].cut(); len(all[i].Rows) > 0 {
			out = append(out, all[i])
		}
	}
	return out
}

func kernelTable(in Input) table {
	t := table{Key: "kernels", Title: "Kernels", Columns: []column{
		{
			"Kernel",
			"code",
		}, {"Runs", "count"}, {"Total", "ns"}, {"Of busy", "share"}, {"Mean", "ns"}, {"Min", "ns"}, {"Max", "ns"}, {
			"Grid", "text",
		}, {"Block", "text"}, {"Registers", "count"}, {"Launched by", "code"},
	}, Note: "Grid and block are those of most runs."}
	if in.GPU.Kernels.Names > len(in.GPU.Kernels.Rows) {
		t.Note += fmt.Sprintf(" The %d kernels of most time, of %d.", len(in.GPU.Kernels.Rows), in.GPU.Kernels.Names)
	}
	for i := range in.GPU.Kernels.Rows {
		k := &in.GPU.Kernels.Rows[i]
		name := format.CleanText(k.Full)
		if name == "" {
			name = "(name lost)"
		}
		by := ""
		if k.Call != "" {
			by = format.Clean(k.Thread) + " by " + format.Clean(k.Call)
		}
		t.Rows = append(
			t.Rows,
			[]any{name, k.Count, k.Time, k.Share, k.Mean, k.Min, k.Max, shape(k.Grid), shape(k.Block), k.Registers, by},
		)
	}
	return t
}

func shape(d [3]uint32) string { return fmt.Sprintf("%d × %d × %d", d[0], d[1], d[2]) }

func copyTable(in Input) table {
	t := table{Key: "copies", Title: "Copies", Columns: []column{
		{
			"Direction",
			"text",
		}, {"From", "text"}, {"To", "text"}, {"Async", "text"}, {
			"Copies", "count",
		}, {"Bytes", "bytes"}, {"Time", "ns"}, {"Longest", "ns"}, {"Bandwidth", "rate"}, {"Not overlapped", "ns"},
	}, Note: "Not overlapped is the time of copies in which no kernel ran."}
	for i := range in.GPU.Copies {
		c := &in.GPU.Copies[i]
		t.Rows = append(t.Rows, []any{
			c.Direction,
			c.Source,
			c.Destination,
			yes(c.Async),
			c.Count,
			c.Bytes,
			c.Time,
			c.Longest,
			c.Bandwidth,
			c.Exposed,
		})
	}
	return t
}

func peerTable(in Input) table {
	t := table{Key: "peers", Title: "Copies between GPUs", Columns: []column{
		{"Process", "id"},
		{"From GPU", "id"},
		{"To GPU", "id"},
		{"Copies", "count"},
		{"Bytes", "bytes"},
		{"Time", "ns"},
		{"Longest", "ns"},
		{"Bandwidth", "rate"},
		{"No kernel", "ns"},
	}, Note: "GPUs as the process counts them. No kernel is the time in which none ran on either of the two. What NCCL " +
		"moves with kernels is not in it."}
	for i := range in.GPU.Peers {
		p := &in.GPU.Peers[i]
		t.Rows = append(t.Rows,
			[]any{p.PID, p.Source, p.Destination, p.Count, p.Bytes, p.Time, p.Longest, p.Bandwidth, p.Alone})
	}
	return t
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func streamTable(in Input) table {
	t := table{Key: "streams", Title: "Streams", Columns: []column{
		{
			"Stream",
			"count",
		}, {"Process", "id"}, {"GPU", "count"}, {
			"Kernels", "count",
		}, {"Copies", "count"}, {"Memsets", "count"}, {"Busy", "ns"}, {"Of busy", "share"},
	}}
	for i := range in.GPU.Streams {
		s := &in.GPU.Streams[i]
		t.Rows = append(t.Rows, []any{s.ID, s.PID, s.Device, s.Kernels, s.Copies, s.Sets, s.Busy, s.OfBusy})
	}
	return t
}

func rangeTable(in Input) table {
	t := table{Key: "ranges", Title: "Named ranges", Columns: []column{
		{"Range", "code"}, {"Count", "count"}, {"Total", "ns"}, {"Mean", "ns"}, {"Longest", "ns"},
	}}
	for i := range in.GPU.Ranges {
		r := &in.GPU.Ranges[i]
		t.Rows = append(t.Rows, []any{format.Clean(r.Name), r.Count, r.Time, r.Time / max(1, r.Count), r.Longest})
	}
	return t
}

func functionTable(in Input) table {
	t := table{Key: "calls", Title: "CUDA calls", Columns: []column{
		{
			"Function",
			"code",
		}, {"Library", "text"}, {"Group", "text"}, {"Calls", "count"}, {"Time", "ns"}, {
			"Of one thread", "share",
		}, {"p50", "ns"}, {"p99", "ns"}, {"Longest", "ns"}, {"Errors", "count"}, {"Bytes", "bytes"},
	}, Note: "Outermost calls only: a driver call that a runtime call made is part of it. Calls that are counted " +
		"only have no times."}
	for i := range in.Calls.Functions {
		f := &in.Calls.Functions[i]
		row := []any{format.Clean(f.Name), f.Library, f.Group, f.Count, nil, nil, nil, nil, nil, f.Errors, f.Bytes}
		if f.Timed {
			copy(row[4:], []any{f.Time, f.Share, f.P50, f.P99, f.Max})
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func threadTable(in Input) table {
	t := table{Key: "threads", Title: "Threads", Columns: []column{
		{
			"Thread",
			"code",
		}, {"Id", "id"}, {"Process", "id"}, {"Running", "ns"}, {
			"Waiting for a CPU", "ns",
		}, {"Blocked", "ns"}, {"Mostly on", "text"}, {"Samples", "count"}, {"Mostly at", "code"}, {"Switches", "count"},
	}}
	for i := range in.CPU.Threads {
		h := &in.CPU.Threads[i]
		t.Rows = append(t.Rows, []any{
			format.Clean(h.Name),
			h.TID,
			h.PID,
			h.Running,
			h.Runnable,
			h.Blocked,
			h.Reason,
			h.Samples,
			format.Clean(h.Hottest),
			h.Voluntary + h.Involuntary,
		})
	}
	return t
}

func pythonTable(in Input) table {
	t := table{Key: "python", Title: "Python functions", Columns: []column{
		{
			"Function",
			"code",
		}, {"File", "code"}, {"Line", "id"}, {"Samples in it", "count"}, {"Share", "share"}, {
			"With what it calls", "count",
		}, {"Share ", "share"},
	}, Note: "Of samples of running threads. A Python function has the native code that it calls."}
	for i := range in.CPU.Python {
		f := &in.CPU.Python[i]
		t.Rows = append(
			t.Rows,
			[]any{format.Clean(f.Name), format.Clean(f.File), f.Line, f.Self, f.SelfShare, f.Total, f.TotalShare},
		)
	}
	return t
}

func nativeTable(in Input) table {
	t := table{Key: "native", Title: "Native functions", Columns: []column{
		{
			"Function",
			"code",
		}, {"Library", "code"}, {"Samples in it", "count"}, {"Share", "share"}, {
			"With what it calls", "count",
		}, {"Share ", "share"},
	}, Note: "Of samples of running threads; functions of the kernel are among them."}
	for i := range in.CPU.Functions {
		f := &in.CPU.Functions[i]
		t.Rows = append(t.Rows,
			[]any{format.Clean(f.Name), format.Clean(f.File), f.Self, f.SelfShare, f.Total, f.TotalShare})
	}
	return t
}

func waitTable(in Input) table {
	t := table{Key: "waits", Title: "Waits", Columns: []column{
		{
			"Thread",
			"code",
		}, {"Id", "id"}, {"For", "text"}, {"In", "code"}, {"At", "code"}, {
			"Count", "count",
		}, {"Time", "ns"}, {"Longest", "ns"}, {"Ended by", "code"},
	}}
	for i := range in.CPU.Waits {
		w := &in.CPU.Waits[i]
		by := ""
		if len(w.By) > 0 && !w.By[0].Nobody {
			by = format.Clean(w.By[0].Name)
		}
		t.Rows = append(t.Rows, []any{
			format.Clean(w.Thread),
			w.TID,
			w.Reason,
			format.Clean(w.Text),
			format.Clean(w.Place),
			w.Count,
			w.Time,
			w.Longest,
			by,
		})
	}
	return t
}
