package export

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"strconv"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// csvColumns are the columns of the CSV of kernels; units stand in the names.
func csvColumns() []string {
	return []string{
		"start_ns", "duration_ns", "pid", "device", "context", "stream", "correlation", "name",
		"grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
		"registers", "static_shared_bytes", "dynamic_shared_bytes", "local_bytes", "graph", "graph_node",
		"call", "call_tid", "call_start_ns", "launch_to_start_ns", "link_confidence",
	}
}

func writeCSV(v *view, out *bufio.Writer) error {
	w, ids := csv.NewWriter(out), newIDs(v.T)
	if err := w.Write(csvColumns()); err != nil {
		return err
	}
	row := make([]string, 0, len(csvColumns()))
	for i := range v.T.Activities {
		if v.T.Activities[i].Kind != timeline.Kernel {
			continue
		}
		row = v.csvRow(row[:0], int32(i), ids)
		if err := w.Write(row); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// csvRow appends the fields of a kernel to row. What is not known is empty.
func (v *view) csvRow(row []string, i int32, ids *ids) []string {
	w := v.work(i)
	n := func(list ...uint64) {
		for _, x := range list {
			row = append(row, strconv.FormatUint(x, 10))
		}
	}
	n(
		w.start,
		w.dur,
		uint64(w.pid),
		uint64(w.device.ID),
		uint64(w.stream.Context),
		uint64(w.stream.ID),
		uint64(ids.of(v.T, i)),
	)
	row = append(row, format.Cell(w.name))
	n(
		uint64(w.grid[0]),
		uint64(w.grid[1]),
		uint64(w.grid[2]),
		uint64(w.block[0]),
		uint64(w.block[1]),
		uint64(w.block[2]),
	)
	if k := v.T.Kernel(w.Activity); k != nil {
		n(uint64(k.Registers), uint64(k.StaticShared), uint64(w.dynamic), uint64(k.Local))
	} else {
		row = append(row, "", "")
		n(uint64(w.dynamic))
		row = append(row, "")
	}
	n(w.graph, w.node)
	if w.Op == timeline.None {
		return append(row, "", "", "", "", "0")
	}
	op := &v.T.Ops[v.T.Outermost(w.Op)]
	row = append(row, format.Cell(v.rec.Meta.Functions[op.Func].Name))
	n(uint64(v.T.RawEvent(op).TID), op.Start)
	row = append(row, strconv.FormatInt(int64(w.start-op.Start), 10))
	return append(row, fmt.Sprintf("%.3g", v.T.Confidence(i)))
}
