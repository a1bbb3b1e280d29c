package recording_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

func runsOf(runs ...[]event.Event) iter.Seq[[]event.Event] { return slices.Values(runs) }

// write returns the stream of a recording, its events in one run.
func write(t testing.TB, rec *recording.Recording) []byte {
	t.Helper()
	var b bytes.Buffer
	must.NoError(t, recording.WriteStream(&b, rec.Meta, runsOf(rec.Events)))
	return b.Bytes()
}

func read(stream []byte) (*recording.Recording, error) {
	return recording.ReadStream(bytes.NewReader(stream), recording.DefaultLimits())
}

// sample is a recording with something in every table.
func sample() *recording.Recording {
	b := recordtest.New()
	launch := b.Function(recording.Function{Name: "cuLaunchKernel", Library: "driver", Group: "launch"})
	sync := b.Function(recording.Function{Name: "cuCtxSynchronize", Library: "driver", Group: "sync", Timed: true})
	b.Thread(recordtest.PID, 1240, "worker, \"one\"")
	b.Library(recording.Library{
		PID:    recordtest.PID,
		Path:   "/usr/lib/libcuda.so.1",
		Kind:   "driver",
		Found:  2,
		Points: 2,
		Cheap:  2,
		Mode:   "session",
	})
	b.Loss(loss.Loss{Reason: loss.RingFull, Count: 3, CPU: loss.CPUOf(1), Where: "cpu 1"})
	for i := range uint64(10) {
		b.Call(recordtest.PID, launch, 1_000_000_000+i*1000, 1, 2, 3, 4)
	}
	b.Timed(1240, sync, 1_000_000_500, 70_000, -1)
	return b.Recording()
}

func TestStreamRoundTrip(t *testing.T) {
	want := sample()
	got, err := read(write(t, want))
	must.NoError(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-sent +received\n%s", diff)
	}
}

func TestStreamWithoutEvents(t *testing.T) {
	want := recordtest.New().Recording()
	got, err := read(write(t, want))
	if err != nil || len(got.Events) != 0 || got.Meta.Target != recordtest.PID {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestStreamManyRuns sends long and short runs mixed: what arrives is sorted by
// time, and events of one time keep their order.
func TestStreamManyRuns(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var runs [][]event.Event
	var all []event.Event
	for range 60 {
		run := make([]event.Event, 1+rnd.IntN(1<<(1+rnd.IntN(15))))
		for i := range run {
			run[i] = event.Event{
				TS:   1_000_000_000 + rnd.Uint64N(2000),
				PID:  uint32(len(all) + i),
				Args: [4]uint64{rnd.Uint64()},
			}
		}
		runs, all = append(runs, run), append(all, run...)
	}
	var b bytes.Buffer
	must.NoError(t, recording.WriteStream(&b, recordtest.New().Meta, runsOf(runs...)))
	got, err := read(b.Bytes())
	must.NoError(t, err)
	slices.SortStableFunc(all, func(a, b event.Event) int { return int(a.TS) - int(b.TS) })
	if !slices.Equal(got.Events, all) {
		t.Errorf("%d events arrived of %d, or in another order", len(got.Events), len(all))
	}
}

func TestStreamLeavesOutWhatIsOutsideOfTheWindow(t *testing.T) {
	b := recordtest.New().Window(1000, 2000)
	f := b.Function(recording.Function{Name: "cuMemcpyDtoH_v2", Timed: true})
	b.Timed(1, f, 800, 199, 0) // ends before
	b.Timed(1, f, 900, 100, 0) // ends just in it
	b.Call(1, f, 1500)
	b.Timed(1, f, 2000, 50, 0) // begins just in it
	b.Call(1, f, 2001)
	got, err := read(write(t, b.Recording()))
	must.NoError(t, err)
	var ts []uint64
	for _, e := range got.Events {
		ts = append(ts, e.TS)
	}
	if want := []uint64{900, 1500, 2000}; !slices.Equal(ts, want) {
		t.Errorf("got %v, want %v", ts, want)
	}
}

func TestTruncatedStream(t *testing.T) {
	stream := write(t, sample())
	for n := range stream {
		if _, err := read(stream[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut off after %d of %d bytes: %v", n, len(stream), err)
		}
	}
}

// TestDamagedStream flips a bit of each byte: none may go unnoticed.
func TestDamagedStream(t *testing.T) {
	stream := write(t, sample())
	for i := range stream {
		bit := i % 8
		stream[i] ^= 1 << bit
		if _, err := read(stream); err == nil {
			t.Fatalf("bit %d of byte %d of %d was flipped and the stream accepted", bit, i, len(stream))
		}
		stream[i] ^= 1 << bit
	}
}

// frame appends a frame that claims length bytes.
func frame(stream []byte, kind, length uint32, payload ...byte) []byte {
	stream = binary.LittleEndian.AppendUint32(stream, kind)
	stream = binary.LittleEndian.AppendUint32(stream, length)
	return append(stream, payload...)
}

func begin(schema uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte("ISCOPE\r\n"), schema)
}

// withMeta returns the beginning of a stream with a meta of the given JSON.
func withMeta(text string) []byte {
	return frame(begin(1), 1, uint32(len(text)), []byte(text)...)
}

func TestHostileStreams(t *testing.T) {
	good := slices.Clip(withMeta(`{"schema":1,"to_ns":100}`))
	one := make([]byte, event.Size)
	endless := make([]byte, event.Size)
	for i := range 16 {
		endless[i] = 0xff
	}
	for name, tc := range map[string]struct {
		stream []byte
		says   string
	}{
		"no recording":      {[]byte("<html><body>404</body>"), "not a recording"},
		"newer framing":     {begin(2), "use a newer inferscope"},
		"schema 0":          {begin(0), "schema 0"},
		"newer meta":        {withMeta(`{"schema":2}`), "use a newer inferscope"},
		"negative schema":   {withMeta(`{"schema":-1}`), "schema -1"},
		"broken meta":       {withMeta(`{"schema":`), "decode its meta"},
		"wrong type":        {withMeta(`{"schema":"one"}`), "decode its meta"},
		"deep meta":         {withMeta(strings.Repeat("[", 100_000)), "decode its meta"},
		"many values":       {withMeta("[" + strings.Repeat("0,", 1<<20) + "0]"), "over the limit"},
		"window backwards":  {withMeta(`{"schema":1,"from_ns":2,"to_ns":1}`), "before its start"},
		"huge meta":         {frame(begin(1), 1, 1<<31), "over the limit"},
		"two metas":         {append(good, good[12:]...), "two metas"},
		"events first":      {frame(begin(1), 2, 64, one...), "instead of its meta"},
		"odd events":        {frame(good, 2, 65), "no multiple of 64"},
		"too many events":   {frame(good, 2, 1<<31), "the limit"},
		"no clock":          {frame(good, 2, 64, endless...), "no clock"},
		"wrong count":       {frame(good, 3, 12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), "0 events arrived of 1"},
		"wrong sum":         {frame(good, 3, 12, make([]byte, 12)...), "checksum"},
		"short end":         {frame(good, 3, 4, 0, 0, 0, 0), "its end has 4 bytes"},
		"endless unknown":   {frame(good, 99, 1<<31), "unknown types"},
		"unknown before it": {frame(begin(1), 99, 0), "instead of its meta"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(tc.stream)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want something about %q", err, tc.says)
			}
			if errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%v blames the length", err)
			}
		})
	}
}

// TestUnknownFramesAreSkipped: an older reader reads what a newer writer of the same schema adds.
func TestUnknownFramesAreSkipped(t *testing.T) {
	var b bytes.Buffer
	must.NoError(t, recording.WriteStream(&b, sample().Meta, runsOf(sample().Events)))
	// An empty frame leaves the checksum as it is.
	stream := slices.Insert(b.Bytes(), 12+8+metaLength(b.Bytes()), frame(nil, 77, 0)...)
	got, err := read(stream)
	if err != nil || len(got.Events) != len(sample().Events) {
		t.Errorf("%v", err)
	}
}

func metaLength(stream []byte) int { return int(binary.LittleEndian.Uint32(stream[16:])) }

// TestClaimsTakeNoMemory: a stream that claims much and sends little costs little.
func TestClaimsTakeNoMemory(t *testing.T) {
	good := slices.Clip(withMeta(`{"schema":1}`))
	for name, stream := range map[string][]byte{
		"events": frame(good, 2, 1<<30-1<<20),
		"meta":   frame(begin(1), 1, 64<<20),
		"other":  frame(good, 50, 1<<30-100),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := read(stream)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
			t.Errorf("%s: %d bytes of memory for a stream of %d bytes", name, n, len(stream))
		}
	}
}

// brokenPipe fails after some bytes.
type brokenPipe struct{ left int }

func (p *brokenPipe) Write(b []byte) (int, error) {
	if p.left -= len(b); p.left < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

func TestWriteStops(t *testing.T) {
	rec := recordtest.New().Recording()
	run := make([]event.Event, 1000)
	asked := 0
	err := recording.WriteStream(&brokenPipe{left: 200_000}, rec.Meta, func(yield func([]event.Event) bool) {
		for asked = 1; asked < 1000 && yield(run); asked++ {
		}
	})
	if !errors.Is(err, io.ErrClosedPipe) || asked > 10 {
		t.Errorf("%v after %d runs", err, asked)
	}
	rec.Meta.Schema = 7
	if err := recording.WriteStream(io.Discard, rec.Meta, runsOf()); err == nil {
		t.Error("a meta of schema 7 is written")
	}
}
