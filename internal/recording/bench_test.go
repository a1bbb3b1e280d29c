package recording

import (
	"bytes"
	"hash/crc32"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const benchEvents = 1_500_000

// BenchmarkPack is what packing costs, and for how long 100 MB last at 150,000 events a second: what the rings (16 MiB)
// and stacks (10 MB) leave of it, without the eighth that is kept for readers.
func BenchmarkPack(b *testing.B) {
	for _, m := range mixes(b) {
		b.Run(m.name, func(b *testing.B) {
			s, room := new(state), make([]byte, maxSegment)
			packed, rounds := 0, 0
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := threadCPU(b)
			for b.Loop() {
				packed = 0
				rounds++
				s.reset()
				at := 0
				for i := range m.events {
					if at+maxPacked > len(room) {
						at = 0
						s.reset()
					}
					n := s.pack(room[at:], &m.events[i])
					at += n
					packed += n
				}
			}
			took := float64(threadCPU(b)-began) / float64(rounds*len(m.events))
			b.ReportMetric(took, "cpu-ns/event")
			bytes := float64(packed) / float64(len(m.events))
			b.ReportMetric(bytes, "B/event")
			b.ReportMetric((100_000_000-16<<20-10_000_000)*7/8/bytes/150_000, "s/100MB")
			b.ReportMetric(took*150_000/1e7, "%core")
		})
	}
}

// threadCPU returns the CPU time of this thread, in ns: beside other work the clock tells more than packing took.
func threadCPU(b *testing.B) int64 {
	var t unix.Timespec
	must.NoError(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return t.Nano()
}

// BenchmarkUnpack is what a reader takes for an event.
func BenchmarkUnpack(b *testing.B) {
	for _, m := range mixes(b) {
		b.Run(m.name, func(b *testing.B) {
			packed, u := packAll(m.events), new(unpacker)
			sum := crc32.Checksum(packed, castagnoli)
			for b.Loop() {
				if err := u.state.unpackAll(packed, len(m.events), sum, u.room[:], func([]event.Event) bool {
					return true
				}); err != nil {
					b.Fatal(err)
				}
			}
			perEvent(b, len(m.events))
		})
	}
}

// BenchmarkMinute streams a minute of 150,000 events a second out of a recorder of the default size, as the daemon does
// for a client.
func BenchmarkMinute(b *testing.B) {
	for _, m := range mixes(b) {
		b.Run(m.name, func(b *testing.B) {
			r, err := NewRecorder(73_000_000, time.Minute)
			must.NoError(b, err)
			const all, rate = 60 * 150_000, 150_000
			batch := make([]event.Event, 256)
			for i := 0; i < all; i += len(batch) {
				for j := range batch {
					batch[j] = m.events[(i+j)%len(m.events)]
					batch[j].TS = uint64(i+j) * second / rate
				}
				r.Append(batch...)
			}
			s := r.Snapshot(0, math.MaxUint64)
			defer s.Release()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began, rounds := threadCPU(b), 0
			for b.Loop() {
				must.NoError(b, WriteStream(io.Discard, Meta{Schema: SchemaVersion}, s.Events(nil)))
				rounds++
			}
			b.ReportMetric(float64(threadCPU(b)-began)/1e9/float64(rounds), "cpu-s")
			held := r.Stats()
			b.ReportMetric(float64(held.Events)/rate, "s-held")
			b.ReportMetric(float64(held.Used)/1e6, "MB")
		})
	}
}

// full returns a recorder of 100 MB that has wrapped, so that its memory is all in use.
func full(b *testing.B) *Recorder {
	r, err := NewRecorder(100_000_000, time.Hour)
	must.NoError(b, err)
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
		must.NoError(b, err)
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
		must.NoError(b, WriteStream(io.Discard, Meta{Schema: SchemaVersion}, s.Events(nil)))
	}
}

// BenchmarkReadStream reads 1.5 M events of two CPUs, sorting included.
func BenchmarkReadStream(b *testing.B) {
	var stream bytes.Buffer
	meta := Meta{Schema: SchemaVersion, To: math.MaxInt64}
	must.NoError(b, WriteStream(&stream, meta, slices.Values([][]event.Event{jumble(benchEvents, 2, 1)})))
	b.SetBytes(int64(stream.Len()))
	for b.Loop() {
		if _, err := ReadStream(bytes.NewReader(stream.Bytes()), DefaultLimits()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkArrange(b *testing.B) {
	for name, events := range map[string][]event.Event{
		"sorted": sorted(jumble(benchEvents, 2, 1)), "2cpus": jumble(benchEvents, 2, 1),
		"64cpus": jumble(benchEvents, 64, 1),
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
