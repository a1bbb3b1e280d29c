package daemon

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// witness is a source that knows more than its events say.
type witness struct {
	*fakeSource
	rows     []event.Event
	observed atomic.Int64
	asked    atomic.Uint64
}

func (w *witness) Observe(batch []event.Event)      { w.observed.Add(int64(len(batch))) }
func (w *witness) Complete(to uint64) []event.Event { w.asked.Store(to); return w.rows }

func (w *witness) Objects() []recording.Object {
	return []recording.Object{{PID: 20, Inode: 2, Name: "b"}, {PID: 10, Inode: 1, Name: "a"}}
}

func (w *witness) OtherThreads() []recording.Thread {
	return []recording.Thread{
		{PID: 99, TID: 99, Name: "other"},
		{PID: 10, TID: 11, Name: "of the target"},
		{PID: uint32(os.Getpid()), TID: 1, Name: "drain"},
	}
}

func (w *witness) GPULinks() []recording.GPULink {
	return []recording.GPULink{{A: "GPU-0", B: "GPU-1", Kind: "SYS"}}
}

// Communicators has one of the target and one of a process that had its pid before.
func (w *witness) Communicators(want func(proc.ID) bool) (out []recording.Communicator) {
	for rank, born := range []uint64{900 * second, 800 * second} {
		if p := process(10, 0, born); want(p.ID()) {
			out = append(out, recording.Communicator{PID: 10, Address: 1, Rank: rank, Ranks: 2})
		}
	}
	return out
}

func (w *witness) Pressure(root uint32, from, to uint64) []recording.Pressure {
	return []recording.Pressure{{TS: from, MajorFaults: uint64(root)}}
}

func TestEvidenceOfEachTargetAlone(t *testing.T) {
	w := newWorld(t)
	source := &witness{fakeSource: w.other, rows: []event.Event{
		{Kind: event.OffCPU, PID: 10, TID: 10, TS: 1100 * second, Dur: 50 * second, Flags: event.Open | event.Timed},
		{Kind: event.OffCPU, PID: 20, TID: 20, TS: 1160 * second, Dur: 40 * second, Flags: event.Open | event.Timed},
	}}
	w.parts.Sources = []Source{w.source, source}
	d, _ := w.start(Options{Keep: 10 * time.Minute}, process(10, 0, 900*second), process(20, 0, 900*second))
	w.now.Store(1200 * second)
	w.rings.put(call(10, 1120*second))
	rec := fetch(t, d, 10, 0, 0)
	if i := slices.IndexFunc(rec.Events, func(e event.Event) bool { return e.Kind == event.OffCPU }); i < 0 ||
		rec.Events[i].PID != 10 ||
		len(rec.Events) != 2 {
		t.Errorf("events %+v, want the call and the row of process 10", rec.Events)
	}
	if source.observed.Load() != 1 || source.asked.Load() != rec.Meta.To {
		t.Errorf("%d events observed, completed up to %d of %d",
			source.observed.Load(), source.asked.Load(), rec.Meta.To)
	}
	if o := rec.Meta.Objects; len(o) != 1 || o[0].Name != "a" {
		t.Errorf("objects %+v", o)
	}
	others := map[uint32]recording.Thread{}
	for _, s := range rec.Meta.OtherThreads {
		others[s.PID] = s
	}
	if s := others[99]; len(others) != 2 || s.Name != "other" || s.Own {
		t.Errorf("other threads %+v: want one of another program, one of this, and none of the target", others)
	}
	if s := others[uint32(os.Getpid())]; !s.Own || s.Name != "drain"+ofOurs {
		t.Errorf("a thread of this program is %+v: want it marked as our own", s)
	}
	if c := rec.Meta.Communicators; len(c) != 1 || c[0].PID != 10 || c[0].Rank != 0 {
		t.Errorf("communicators %+v", c)
	}
	if m := rec.Meta.Driver; m == nil || len(m.Links) != 1 || m.Links[0].Kind != "SYS" {
		t.Errorf("what the driver says is %+v", m)
	}
	if p := rec.Meta.Pressure; len(p) != 1 || p[0].MajorFaults != 10 || p[0].TS != rec.Meta.From {
		t.Errorf("pressure %+v", p)
	}
}

// manyFiles is a source that knows n files, each of a process of its own.
type manyFiles []recording.Object

func (m manyFiles) Objects() []recording.Object      { return slices.Clone(m) }
func (m manyFiles) OtherThreads() []recording.Thread { return nil }

// BenchmarkNames: the time in which the files of a recording are named grows with files and processes, not with their
// product.
func BenchmarkNames(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("processes=%d", n), func(b *testing.B) {
			v := &view{pid: 1, members: map[uint32]bool{}}
			files := make(manyFiles, n)
			for i := range files {
				files[i].PID = uint32(i + 1)
				v.members[files[i].PID] = true
			}
			e := evidence{namers: []namer{files}}
			for b.Loop() {
				m := &recording.Meta{}
				e.name(m, v)
				if len(m.Objects) != n {
					b.Fatalf("%d files are named, want %d", len(m.Objects), n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/file")
		})
	}
}

// TestRowsOfTheWindowAlone: what a source keeps of before the recording is not sent along.
func TestRowsOfTheWindowAlone(t *testing.T) {
	w := newWorld(t)
	source := &witness{fakeSource: w.other, rows: []event.Event{
		{Kind: event.OffCPU, PID: 10, TID: 10, TS: 1010 * second, Dur: 20 * second, Flags: event.Open | event.Timed},
		{Kind: event.OffCPU, PID: 10, TID: 11, TS: 1010 * second, Dur: 60 * second, Flags: event.Open | event.Timed},
	}}
	w.parts.Sources = []Source{w.source, source}
	d, _ := w.start(Options{Keep: 10 * time.Minute}, process(10, 0, 900*second))
	w.now.Store(1200 * second)
	r, err := d.Record(t.Context(), api.Asker{Any: true}, 10, 160*time.Second, 0)
	must.NoError(t, err)
	defer r.Release()
	var got []uint32
	for run := range r.Events() {
		for i := range run {
			got = append(got, run[i].TID)
		}
	}
	if from := r.Meta().From; from != 1040*second || !slices.Equal(got, []uint32{11}) {
		t.Errorf("from %d s on there are rows of %v", from/second, got)
	}
}
