package archive_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// decode makes seconds of a recording like that of an eager GPT-2 decode on an H200: a launch
// each 22 µs of some 60 different kernels in a fixed order, each run by the GPU 8 µs later for 2 to 6 µs; a copy, a
// synchronization and two short sleeps for each token of 220 launches; 99 samples a second of one thread.
func decode(seconds int) *recording.Recording {
	const perToken, gap = 220, 22_000
	r := rand.New(rand.NewPCG(1, 2))
	b := recordtest.New()
	launch := b.Function(recording.Function{Name: "cuLaunchKernel", Library: "driver", Group: "launch"})
	sync := b.Function(recording.Function{Name: "cuStreamSynchronize", Library: "driver", Group: "sync", Timed: true})
	move := b.Function(recording.Function{Name: "cuMemcpyHtoDAsync_v2", Library: "driver", Group: "copy", Timed: true})
	b.Meta.GPU = &recording.GPU{
		Mode:    "continuous",
		Agents:  []recording.Agent{},
		Windows: []recording.GPUWindow{{PID: recordtest.PID, To: 1 << 62, Activity: true, Calls: true}},
	}
	for i := range 60 {
		b.Meta.GPU.Kernels = append(b.Meta.GPU.Kernels, recording.Kernel{Name: "kernel" + string(rune('A'+i))})
	}
	type shape struct{ handle, grid, block, length uint64 }
	var token []shape
	for range perToken {
		k := r.Uint64N(60)
		token = append(token, shape{0x7f0000001000 + k*0x1340, 1 + k*7, 128 << (k % 3), 2000 + r.Uint64N(4000)})
	}
	var stacks []uint64
	for i := range 300 {
		stacks = append(stacks, b.Stack(recordtest.Native("f"+string(rune(i)), "libtorch.so"),
			recordtest.Python("forward", "model.py", uint32(i%40)),
			recordtest.Python("main", "infer.py", 3)))
	}
	at, end := b.Meta.From, b.Meta.From+uint64(seconds)*1_000_000_000
	b.Window(at, end)
	correlation, gpuFree := uint64(1000), at
	jitter := func(n uint64) uint64 { return uint64(max(0, r.NormFloat64()*float64(n)/4+float64(n))) }
	for nextSample := at; at < end; {
		for _, s := range token {
			at += jitter(gap)
			correlation++
			b.Event(event.Event{
				TS:    at,
				PID:   recordtest.PID,
				TID:   recordtest.PID,
				Func:  launch,
				Kind:  event.Call,
				Flags: event.Correlated,
				Ret:   int32(correlation),
				Args:  [4]uint64{s.handle, 0, s.grid | 1<<32 | 1<<48, s.block | 1<<11 | 1<<22},
			})
			start := max(at+jitter(8000), gpuFree+600)
			length := (s.length + jitter(150)) / 32 * 32 // the GPU's clock ticks each 32 ns
			b.Event(event.Event{
				TS:    start,
				Dur:   length,
				PID:   recordtest.PID,
				TID:   7,
				Func:  1 << 8,
				Kind:  event.Kernel,
				Flags: event.Timed,
				Ret:   int32(s.handle-0x7f0000001000)/0x1340 + 1,
				Args:  [4]uint64{correlation, 0, s.grid | 1<<32 | 1<<48, s.block | 1<<11 | 1<<22},
			})
			gpuFree = start + length
			if at > nextSample {
				nextSample += 10_101_010
				b.Sample(recordtest.PID, at, stacks[r.IntN(len(stacks))], event.Whole)
			}
		}
		at += jitter(5000)
		b.Timed(recordtest.PID, move, at, jitter(9000), 0, 0x7f1200000000, 0x7f3300000000, 8, 0)
		at += jitter(20_000)
		b.Timed(recordtest.PID, sync, at, jitter(60_000), 0, 0)
		at += jitter(60_000)
		for range 2 {
			at += jitter(30_000)
			d := jitter(50_000)
			b.Off(recordtest.Off{
				TID:     recordtest.PID + r.Uint32N(8),
				TS:      at,
				Dur:     d,
				Blocked: d - d/8,
				Call:    202,
				By:      [2]uint32{recordtest.PID, recordtest.PID},
				Arg:     0x7f5511110000 + uint64(r.IntN(8))*64,
				Inode:   128,
				CPUs:    [2]uint16{uint16(r.IntN(16)), uint16(r.IntN(16))},
			})
		}
	}
	rec := b.Window(b.Meta.From, at).Recording()
	return rec
}

// BenchmarkBytesPerEvent prints what each table takes on the disk.
func BenchmarkBytesPerEvent(b *testing.B) {
	rec := decode(10)
	for b.Loop() {
		dir := filepath.Join(b.TempDir(), "a.isc")
		must.NoError(b, archive.Write(dir, rec, nil))
		in, err := archive.Inspect(dir, false)
		must.NoError(b, err)
		for _, t := range in.Tables {
			if t.Event {
				b.ReportMetric(float64(t.Bytes)/float64(t.Rows), t.Name+"-B/event")
			}
		}
		b.ReportMetric(float64(in.Bytes)/float64(len(rec.Events)), "B/event")
	}
}

func BenchmarkWrite(b *testing.B) {
	rec := decode(10)
	for b.Loop() {
		must.NoError(b, archive.Write(filepath.Join(b.TempDir(), "a.isc"), rec, nil))
	}
	b.ReportMetric(float64(len(rec.Events))*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkRead(b *testing.B) {
	rec := decode(10)
	dir := filepath.Join(b.TempDir(), "a.isc")
	must.NoError(b, archive.Write(dir, rec, nil))
	for b.Loop() {
		got, err := archive.Read(dir, archive.DefaultLimits())
		if err != nil || !slices.Equal(got.Events, rec.Events) {
			b.Fatal("not what was written", err)
		}
	}
	b.ReportMetric(float64(len(rec.Events))*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
