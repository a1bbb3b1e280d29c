package recording

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// mix is a stretch of the events of a program on the simulated CUDA, as they came out of the rings.
type mix struct {
	name   string
	events []event.Event
}

// mixes returns those of testdata/mixes (README.md there). The simulated GPU keeps perfect time, so that it would be
// too easy to pack: here kernels take 2% more or less, at random, and calls of the driver 1 to 3 µs in place of 0.1.
func mixes(tb testing.TB) []mix {
	tb.Helper()
	files, err := filepath.Glob("testdata/mixes/*.zst")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no mixes of events: %v", err)
	}
	unpack, err := zstd.NewReader(nil)
	must.NoError(tb, err)
	defer unpack.Close()
	var all []mix
	for _, file := range files {
		packed, err := os.ReadFile(file)
		must.NoError(tb, err)
		raw, err := unpack.DecodeAll(packed, nil)
		must.NoError(tb, err)
		events := make([]event.Event, len(raw)/event.Size)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&events[0])), len(raw)), raw)
		if !littleEndian() {
			decodeEvents(events)
		}
		roughen(events)
		all = append(all, mix{strings.TrimSuffix(filepath.Base(file), ".zst"), events})
	}
	return all
}

// roughen makes the times of a simulated GPU's work as irregular as those of a real one, and shifts what comes after.
func roughen(events []event.Event) {
	r := rand.New(rand.NewPCG(1, 1))
	later := uint64(0)
	for i := range events {
		e := &events[i]
		e.TS += later
		extra := uint64(0)
		switch {
		case e.Kind == event.Kernel, e.Kind == event.Copy, e.Kind == event.Set:
			extra = r.Uint64N(e.Dur/25 + 64)
		case e.Kind == event.Call && e.Flags&event.Correlated != 0:
			extra = 1000 + r.Uint64N(2000)
		}
		e.Dur += extra
		later += extra
	}
}
