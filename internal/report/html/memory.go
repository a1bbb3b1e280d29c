package html

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/format"
)

// memoryName returns what an allocator hands out and in which process.
func memoryName(d *memory.Device) string { return fmt.Sprintf("%s, process %d", d.Name(), d.PID) }

// addMemory creates a track of each allocator: what it held, and allocations that failed.
func (s *scene) addMemory() {
	if s.in.Memory == nil {
		return
	}
	const group = "Memory"
	for _, d := range s.in.Memory.Shown() {
		held := track{head: trackHead{Kind: sensorTrack, Name: memoryName(d), Group: group, PID: d.PID, Seen: -1}}
		at := s.in.Timeline.From
		for _, l := range d.Levels {
			from, to, ok := s.clip(at, l.At)
			at = max(at, l.At)
			if !ok || from == to {
				continue
			}
			text := "up to " + format.Size(l.High)
			if !d.OfDriver() {
				text = fmt.Sprintf("up to %s in blocks, %s in segments", format.Size(l.High), format.Size(l.Reserved))
			}
			label := s.labels.of(text, "sensor", "memory")
			if n := len(held.items); n > 0 && held.items[n-1].end == from && held.items[n-1].label == label {
				held.items[n-1].end = to
				continue
			}
			held.items = append(held.items, item{start: from, end: to, label: label, ref: none, src: none})
		}
		s.add(held)
		failed := track{head: trackHead{
			Kind: errorTrack, Name: "out of memory: " + memoryName(d), Group: group, PID: d.PID, Seen: -1,
		}}
		for k := range d.Exhausted {
			e := &d.Exhausted[k]
			if from, to, ok := s.clip(e.At, e.At); ok {
				text := fmt.Sprintf("out of memory: %s asked for %s", format.Clean(e.Name), format.Size(e.Asked))
				label := s.labels.of(format.Shorten(text, maxKernel), "xid", "out of memory")
				failed.items = append(failed.items, item{start: from, end: to, label: label, ref: none, src: none})
			}
		}
		s.add(failed)
	}
}

func memoryTable(in Input) table {
	t := table{Key: "memory", Title: "Memory", Columns: []column{
		{"Allocated by", "code"},
		{"Of", "text"},
		{"Live", "bytes"},
		{"At least", "bytes"},
		{"At most", "bytes"},
		{"Blocks", "count"},
		{"At the peak", "bytes"},
		{"Allocated", "bytes"},
		{"Allocations", "count"},
		{"Lifetime", "ns"},
		{"Kind", "text"},
		{"Called from", "code"},
	}, Note: "Estimated from sampled allocations; live bytes lie between the two sizes in 95% of cases."}
	if in.Memory == nil {
		return t
	}
	for _, d := range in.Memory.Shown() {
		for k := range d.Sites {
			x := &d.Sites[k]
			from := ""
			if len(x.Stack) > 1 {
				from = format.Clean(x.Stack[1].Name)
			}
			t.Rows = append(t.Rows, []any{
				format.Clean(x.Name), memoryName(d), x.Live, x.Low, x.High, x.Blocks, x.AtPeak, x.Bytes, x.Count, x.Life,
				string(x.Kind), from,
			})
		}
	}
	return t
}

// gpuMemoryTable says what explains the memory of each process on each GPU.
func gpuMemoryTable(in Input) table {
	t := table{
		Key: "gpu-memory", Title: "Memory by GPU", Note: memory.GPUNote,
		Columns: []column{{"GPU", "text"}, {"Process", "text"}},
	}
	for _, name := range memory.GPUColumns() {
		t.Columns = append(t.Columns, column{name, "bytes"})
	}
	if in.Memory == nil {
		return t
	}
	for i := range in.Memory.GPUs {
		g := &in.Memory.GPUs[i]
		row := []any{g.Name(), fmt.Sprint(g.PID)}
		for _, n := range g.Sizes() {
			row = append(row, n)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
