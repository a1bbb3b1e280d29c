package html_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// TestMemoryTrack: the page has what allocators held over time, allocations that failed, and who holds what.
func TestMemoryTrack(t *testing.T) {
	const mib = 1 << 20
	rec := timelinetest.Eager.Make(200)
	m := &rec.Meta
	m.To = max(m.To, m.From+4_000_000_000)
	pid := m.Processes[0].PID
	m.Frames = append(m.Frames, recording.Frame{Kind: recording.PythonFrame, Name: nasty, File: "serve.py", Line: 7})
	m.Stacks = append(m.Stacks, recording.Node{Parent: -1, Frame: uint32(len(m.Frames) - 1)})
	stack := uint64(len(m.Stacks))
	add := func(kind event.Kind, at, dur uint64, flags event.Flags, args ...uint64) {
		e := event.Event{
			TS: m.From + at, Dur: dur, PID: pid, TID: pid, Func: event.CUDAMemory, Kind: kind, Flags: flags | event.Timed,
		}
		copy(e.Args[:], args)
		rec.Events = append(rec.Events, e)
	}
	for i := range uint64(4) {
		held := min(i, 2) * 100 * mib // the last two say the same
		add(event.Memory, i*1_000_000_000, 1_000_000_000, 0, held, 400*mib, held, 0)
	}
	for i := range uint64(20) {
		add(event.Allocation, 100+i*200_000_000, 3_999_999_900-i*200_000_000, event.Open, stack, i<<20, mib, 4096)
	}
	add(event.OutOfMemory, 3_500_000_000, 0, 0, stack, 900*mib, 200*mib, 400*mib)
	// Segments of PyTorch, whose blocks count already.
	m.Frames = append(m.Frames, recording.Frame{Kind: recording.NativeFrame, Name: "c10::cuda::CUDACachingAllocator::malloc"})
	m.Stacks = append(m.Stacks, recording.Node{Parent: -1, Frame: uint32(len(m.Frames) - 1)})
	add(event.Allocation, 100, 3_999_999_900, event.Open, stack+1, 1<<40, 400*mib, 4096)
	rec.Events[len(rec.Events)-1].Func = event.DriverMemory
	page := pageOf(t, rec)
	doc, _ := data(t, page)
	items := map[string]int{}
	for _, tr := range doc.Tracks {
		if tr.Kind == "error" && tr.Group == "Memory" && !strings.Contains(tr.Name, "GPU 0, process ") {
			t.Errorf("track %q does not say of what", tr.Name)
		}
		if tr.Group == "Memory" {
			items[tr.Kind] += tr.N
		}
	}
	if items["sensor"] != 3 || items["error"] != 1 || len(items) != 2 {
		t.Errorf("items by kind of track: %v, want 3 levels and 1 failure", items)
	}
	want := [2]string{"up to 210 MB in blocks, 419 MB in segments", "sensor"}
	if !slices.Contains(doc.Labels, want) {
		t.Errorf("%q is not among the texts", want)
	}
	notes := strings.Join(doc.Notes, "\n")
	for _, want := range []string{"Grows without bound: ", "Out of memory 3.50 s into the window: "} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is not said: %s", want, notes)
		}
	}
	var segments []any
	for _, table := range doc.Tables {
		if table.Key == "gpu-memory" {
			for _, row := range table.Rows {
				segments = append(segments, row[3])
			}
		}
	}
	if !slices.Equal(segments, []any{400.0 * mib}) {
		t.Errorf("segments by GPU are %v, want 400 MiB", segments)
	}
	for _, table := range doc.Tables {
		if table.Key == "memory" {
			if len(table.Rows) != 1 || table.Rows[0][2].(float64) != 20*mib {
				t.Errorf("rows %v, want one place with 20 MiB", table.Rows)
			}
			return
		}
	}
	t.Error("there is no table of memory")
}
