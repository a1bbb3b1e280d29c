package cpu

import (
	"testing"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/record/recordtest"
)

// BenchmarkSummarize reads what fills a recorder of 100 MB: 1.5 million events, one in
// ten of them a sample.
func BenchmarkSummarize(b *testing.B) {
	rec := large(1_500_000)
	b.ReportAllocs()
	for b.Loop() {
		Summarize(rec)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(rec.Events)), "ns/event")
}

func large(n int) *record.Recording {
	m := recordtest.New()
	var stacks []uint64
	for i := range uint32(500) {
		stacks = append(stacks, m.Stack(native("leaf"), recordtest.Python("f", "/app/f.py", i), recordtest.Python("main", "/app/main.py", 7)))
	}
	rec := m.Recording()
	rec.Meta.To = start + uint64(n)*10_000
	for i := range n {
		at, tid := start+uint64(i)*10_000, uint32(leader+i%16)
		e := event.Event{TS: at, PID: leader, TID: tid, Kind: event.OffCPU, Func: futexN, Flags: event.Timed, Dur: 100_000, Args: [4]uint64{90_000, leader<<32 | uint64(leader+(i+1)%16), uint64(i % 64)}}
		if i%10 == 0 {
			e = event.Event{TS: at, PID: leader, TID: tid, Kind: event.Sample, Func: uint16(i / 10 % 2), Args: [4]uint64{stacks[i%len(stacks)]}}
		}
		rec.Events = append(rec.Events, e)
	}
	return rec
}
