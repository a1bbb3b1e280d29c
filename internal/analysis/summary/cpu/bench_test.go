package cpu

import (
	"runtime"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// full is what fills a recorder of 100 MB.
const full = 1_500_000

// BenchmarkSummarize reads full recorders: locks, one event in ten of them a sample;
// the same with very many stacks; and a crowd of threads that one thread wakes.
func BenchmarkSummarize(b *testing.B) {
	for _, c := range []struct {
		name string
		make func() *recording.Recording
	}{
		{"locks", func() *recording.Recording { return large(full) }},
		{"stacks", func() *recording.Recording { return deep(full, 30_000) }},
		{"crowd", func() *recording.Recording { return crowd(full, 200) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			rec := c.make()
			runtime.GC() // what made the recording is no part of it
			b.ReportAllocs()
			for b.Loop() {
				Summarize(rec)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(rec.Events)), "ns/event")
		})
	}
}

// TestMemory holds that a summary takes less memory than twice the events: a client that
// reads a full recorder of 100 MB stays far below 500 MB.
func TestMemory(t *testing.T) {
	for name, rec := range map[string]*recording.Recording{
		"locks": large(200_000), "stacks": deep(200_000, 4000), "crowd": crowd(200_000, 50),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Summarize(rec)
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(rec.Events)); each > 2*event.Size {
			t.Errorf("%s: %d bytes were allocated per event of %d", name, each, event.Size)
		}
	}
}

func large(n int) *recording.Recording {
	m := recordtest.New()
	var stacks []uint64
	for i := range uint32(500) {
		stacks = append(stacks, m.Stack(native("leaf"), recordtest.Python("f", "/app/f.py", i),
			recordtest.Python("main", "/app/main.py", 7)))
	}
	rec := m.Recording()
	rec.Meta.To = start + uint64(n)*10_000
	for i := range n {
		at, tid := start+uint64(i)*10_000, uint32(leader+i%16)
		e := event.Event{
			TS:    at,
			PID:   leader,
			TID:   tid,
			Kind:  event.OffCPU,
			Func:  futexN,
			Flags: event.Timed,
			Dur:   100_000,
			Args:  [4]uint64{90_000, leader<<32 | uint64(leader+(i+1)%16), uint64(i % 64)},
		}
		if i%10 == 0 {
			e = event.Event{
				TS:   at,
				PID:  leader,
				TID:  tid,
				Kind: event.Sample,
				Func: uint16(i / 10 % 2),
				Args: [4]uint64{stacks[i%len(stacks)]},
			}
		}
		rec.Events = append(rec.Events, e)
	}
	return rec
}

// deep is large with so many stacks of 40 frames.
func deep(n, stacks int) *recording.Recording {
	rec := large(n)
	m := &rec.Meta
	m.Frames, m.Stacks = nil, nil
	for i := range uint32(2000) {
		m.Frames = append(m.Frames,
			recordtest.Python("step", "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", i),
			native("at::_ops::add_Tensor::call"))
	}
	var leaves []uint64
	for range stacks {
		parent := int32(-1)
		for depth := range 40 {
			// The outer frames are common to many stacks, as in a program.
			m.Stacks = append(
				m.Stacks,
				recording.Node{
					Parent: parent,
					Frame:  uint32((len(leaves)>>(40-depth)*7919 + depth*31 + depth/30*len(leaves)) % len(m.Frames)),
				},
			)
			parent = int32(len(m.Stacks) - 1)
		}
		leaves = append(leaves, uint64(len(m.Stacks)))
	}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Sample {
			e.Args[0] = leaves[i/10%len(leaves)]
		}
	}
	return rec
}

// crowd is threads that wait for pipes which one thread writes to.
func crowd(n, threads int) *recording.Recording {
	rec := large(n)
	for i := range rec.Events {
		e := &rec.Events[i]
		e.TID = uint32(leader + i%(threads+1))
		if e.Kind == event.OffCPU && e.TID != leader {
			e.Func,
				e.Args[1],
				e.Args[2],
				e.Args[3] = readN,
				leader<<32|leader,
				uint64(i%threads),
				1<<48|uint64(i%threads)
		}
	}
	return rec
}
