package record

import (
	"bytes"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/event"
)

const benchEvents = 1_500_000

// full returns a recorder of 100 MB that has wrapped, so that its memory is all in use.
func full(b *testing.B) *Recorder {
	r, err := NewRecorder(100_000_000, time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	batch := make([]event.Event, 512)
	for i := range 2 * benchEvents / len(batch) {
		for j := range batch {
			batch[j] = event.Event{TS: uint64(512*i + j), Kind: event.Call, Func: uint16(j % 300)}
		}
		r.Append(batch...)
	}
	return r
}

func perEvent(b *testing.B, events int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(events), "ns/event")
}

func BenchmarkAppendBatch(b *testing.B) {
	r := full(b)
	batch := make([]event.Event, 512)
	for i := range batch {
		batch[i] = event.Event{TS: uint64(i), Kind: event.Call, Func: uint16(i % 300), Flags: event.Timed, Dur: 5}
	}
	for b.Loop() {
		r.Append(batch...)
	}
	perEvent(b, len(batch))
}

// BenchmarkGrow is Append while the recorder takes its memory.
func BenchmarkGrow(b *testing.B) {
	batch := make([]event.Event, 512)
	for b.Loop() {
		r, err := NewRecorder(100_000_000, time.Hour)
		if err != nil {
			b.Fatal(err)
		}
		for range benchEvents / 2 / len(batch) {
			r.Append(batch...)
		}
	}
	perEvent(b, benchEvents/2)
}

func BenchmarkAppendOne(b *testing.B) {
	r := full(b)
	e := event.Event{Kind: event.Call}
	for b.Loop() {
		r.Append(e)
	}
}

func BenchmarkTally(b *testing.B) {
	batch := make([]event.Event, 512)
	for i := range batch {
		batch[i] = event.Event{Kind: event.Call, Func: uint16(i % 300), Flags: event.Timed, Dur: 5}
	}
	var t Tally
	for b.Loop() {
		for i := range batch {
			t.Add(&batch[i])
		}
	}
	perEvent(b, len(batch))
}

// BenchmarkSnapshot is the time for which the writer has to wait.
func BenchmarkSnapshot(b *testing.B) {
	r := full(b)
	for b.Loop() {
		r.Snapshot(0, math.MaxUint64).Release()
	}
}

func BenchmarkWriteStream(b *testing.B) {
	r := full(b)
	s := r.Snapshot(0, math.MaxUint64)
	defer s.Release()
	b.SetBytes(int64(r.Stats().Events) * event.Size)
	for b.Loop() {
		if err := WriteStream(io.Discard, Meta{Schema: SchemaVersion}, s.Events(nil)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReadStream reads 1.5 M events of two CPUs, sorting included.
func BenchmarkReadStream(b *testing.B) {
	var stream bytes.Buffer
	meta := Meta{Schema: SchemaVersion, To: math.MaxInt64}
	if err := WriteStream(&stream, meta, slices.Values([][]event.Event{jumble(benchEvents, 2, 1)})); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(stream.Len()))
	for b.Loop() {
		if _, err := ReadStream(bytes.NewReader(stream.Bytes()), DefaultLimits()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkArrange(b *testing.B) {
	for name, events := range map[string][]event.Event{
		"sorted": sorted(jumble(benchEvents, 2, 1)), "2cpus": jumble(benchEvents, 2, 1), "64cpus": jumble(benchEvents, 64, 1),
	} {
		b.Run(name, func(b *testing.B) {
			var a arrival
			for rest := events; len(rest) > 0; {
				n := copy(a.room(len(rest)), rest)
				a.fill(n)
				rest = rest[n:]
			}
			for b.Loop() {
				a.arrange(0, math.MaxUint64)
			}
			perEvent(b, len(events))
		})
	}
}

// BenchmarkSortStable is what arrange has to beat.
func BenchmarkSortStable(b *testing.B) {
	events := jumble(benchEvents, 2, 1)
	for b.Loop() {
		b.StopTimer()
		work := slices.Clone(events)
		b.StartTimer()
		slices.SortStableFunc(work, byTS)
	}
	perEvent(b, len(events))
}
