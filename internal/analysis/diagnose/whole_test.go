package diagnose_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

var seeds = flag.Bool("seeds", false, "write the seeds of FuzzWhole anew")

// FuzzWhole takes a recording the way from the stream that carries it to the reports: whatever is in it, what
// is accepted has a timeline without a broken invariant, a breakdown that sums, and three reports. Its input is the
// meta and the events; no fuzzer would guess the checksum of a stream.
func FuzzWhole(f *testing.F) {
	f.Add([]byte(`{"schema":1,"from_ns":0,"to_ns":100}`), make([]byte, 2*event.Size))
	fuzzing.Run(f, func(t *testing.T, text, raw []byte) {
		var meta recording.Meta
		if len(raw) > 2000*event.Size || json.Unmarshal(text, &meta) != nil || meta.Schema != recording.SchemaVersion {
			return
		}
		rec, err := carried(meta, eventsOf(raw))
		if err != nil {
			return
		}
		hang := time.AfterFunc(20*time.Second, func() { panic("it hangs") })
		defer hang.Stop()
		holds(t, rec)
	})
}

// carried returns what arrives of a recording at the end of a stream.
func carried(meta recording.Meta, events []event.Event) (*recording.Recording, error) {
	var stream bytes.Buffer
	if err := recording.WriteStream(&stream, meta, one(events)); err != nil {
		return nil, fmt.Errorf("write the stream: %w", err)
	}
	return recording.ReadStream(&stream, recording.Limits{Meta: 1 << 20, Events: 1 << 26})
}

func one(events []event.Event) iter.Seq[[]event.Event] {
	return func(yield func([]event.Event) bool) { yield(events) }
}

// eventsOf makes events of their memory.
func eventsOf(raw []byte) []event.Event {
	out := make([]event.Event, len(raw)/event.Size)
	if len(out) > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), len(out)*event.Size), raw)
	}
	return out
}

// bytesOf is the reverse.
func bytesOf(events []event.Event) []byte {
	if len(events) == 0 {
		return nil
	}
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&events[0])), len(events)*event.Size))
}

// holds checks what is true of every recording.
func holds(t *testing.T, rec *recording.Recording) {
	t.Helper()
	if err := timeline.Build(rec).Check(); err != nil {
		t.Fatal(err)
	}
	m := report.New(rec)
	check(t, &m.Diagnosis)
	var text, again bytes.Buffer
	if err := report.JSON(&text, m); err != nil {
		t.Fatal(err)
	}
	if err := report.JSON(&again, report.New(rec)); err != nil || !bytes.Equal(text.Bytes(), again.Bytes()) {
		t.Fatalf("two reports of one recording differ (%v)", err)
	}
	if !json.Valid(text.Bytes()) {
		t.Fatal("the report is no JSON")
	}
	if err := report.Markdown(io.Discard, m); err != nil {
		t.Fatal(err)
	}
	if err := report.Text(io.Discard, m, report.TextOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedRecordings holds the same of programs made by dice whose recordings were damaged afterwards: cut,
// shuffled, doubled, moved in time, with losses, and with tables that lack rows.
func TestDamagedRecordings(t *testing.T) {
	for seed := range uint64(80) {
		rng := rand.New(rand.NewPCG(seed, 11))
		rec := small(seed, 20*ms)
		for range 1 + rng.IntN(3) {
			damage(rec, rng)
		}
		if arrived, err := carried(rec.Meta, rec.Events); err == nil { // the reader refuses lengths that no clock can show
			holds(t, arrived)
		}
		holds(t, rec) // as it is: nothing sorts or checks it
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// small is a short program made by dice, with its threads on the CPU.
func small(seed, length uint64) *recording.Recording {
	rng := rand.New(rand.NewPCG(seed, 12))
	s := timelinetest.Random(
		timelinetest.Config{Seed: seed, Agent: seed%3 > 0, Both: seed%2 > 0, NoSyncs: seed%4 > 0, Length: length},
	)
	host(s.Builder.Builder, rng, length)
	rec := s.Run()
	rec.Meta.Processes = append(rec.Meta.Processes,
		recording.Process{PID: recordtest.PID, Comm: "again", Born: start + length/2})
	return rec
}

// damage does one kind of harm to a recording.
func damage(rec *recording.Recording, rng *rand.Rand) {
	n := len(rec.Events)
	if n < 4 {
		return
	}
	at := rng.IntN(n)
	switch rng.IntN(9) {
	case 0: // cut
		rec.Events = rec.Events[:at]
	case 1: // its beginning is lost
		rec.Events = rec.Events[at:]
	case 2: // a clock jumps
		jump := rng.Uint64N(100*ms) - 50*ms
		for i := at; i < n; i++ {
			rec.Events[i].TS += jump
		}
	case 3:
		rng.Shuffle(n, func(i, j int) { rec.Events[i], rec.Events[j] = rec.Events[j], rec.Events[i] })
	case 4: // doubled
		rec.Events = append(rec.Events, rec.Events[at:min(n, at+200)]...)
	case 5: // lost
		rec.Events = slices.DeleteFunc(rec.Events, func(event.Event) bool { return rng.IntN(4) == 0 })
	case 6: // everything lasts for ever, or overlaps
		for i := at; i < min(n, at+100); i++ {
			rec.Events[i].Dur = rng.Uint64() >> rng.IntN(64)
		}
	case 7: // a few words are noise
		for range 50 {
			e := &rec.Events[rng.IntN(n)]
			e.Args[rng.IntN(4)], e.Ret, e.Func = rng.Uint64(), int32(rng.Uint32()), uint16(rng.IntN(40))
		}
	case 8:
		tables(&rec.Meta, rng)
	}
}

// tables takes rows out of the tables, and moves the windows.
func tables(m *recording.Meta, rng *rand.Rand) {
	m.Functions = m.Functions[:rng.IntN(len(m.Functions)+1)]
	m.Stacks = m.Stacks[:rng.IntN(len(m.Stacks)+1)]
	m.Frames = m.Frames[:rng.IntN(len(m.Frames)+1)]
	m.Processes = m.Processes[:rng.IntN(len(m.Processes)+1)]
	m.From, m.To = m.From+rng.Uint64N(10*ms), m.To-rng.Uint64N(5*ms)
	for i := range m.GPU.Windows {
		m.GPU.Windows[i].From += rng.Uint64N(15 * ms)
		m.GPU.Windows[i].Dropped = rng.Uint64N(3)
	}
	m.GPU.Kernels, m.GPU.Streams = nil, nil
}

// TestSeeds writes the seeds of FuzzWhole where it is asked to, and holds that there are some.
func TestSeeds(t *testing.T) {
	dir := filepath.Join("testdata", "fuzz", "FuzzWhole")
	for seed := range uint64(6) {
		path := filepath.Join(dir, "program-"+strconv.FormatUint(seed, 10))
		if *seeds {
			rec := small(seed, ms/2)
			meta, err := json.Marshal(rec.Meta)
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n[]byte(%q)\n",
				meta, bytesOf(rec.Events[:min(len(rec.Events), 150)]))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%v; go test ./internal/analysis/diagnose -run TestSeeds -seeds writes it", err)
		}
	}
}
