package recording

import (
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// tiny is a recorder of 16 segments of 512 bytes, 12 of them live.
func tiny(keep uint64) *Recorder {
	r, err := newRecorder(16*512, time.Duration(keep), 512)
	if err != nil {
		panic(err)
	}
	r.maxLive = 12
	return r
}

func collect(runs iter.Seq[[]event.Event]) []event.Event {
	var all []event.Event
	for run := range runs {
		all = append(all, run...)
	}
	return all
}

// model is the recorder as nobody would build it: it keeps everything.
type model struct{ all []event.Event }

// held is what the recorder still should have.
func (m *model) held(s Stats) []event.Event { return m.all[s.Overwritten+s.Expired:] }

func within(events []event.Event, from, to uint64) []event.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool { return !overlaps(&e, from, to) })
}

// walk appends and snapshots at random and compares with the model at each step.
type walk struct {
	t     *testing.T
	rand  *rand.Rand
	rec   *Recorder
	model model
	now   uint64
	open  []openSnapshot
}

// openSnapshot is a snapshot with what it must go on showing.
type openSnapshot struct {
	snap *Snapshot
	want []event.Event
}

func (w *walk) append() {
	batch := make([]event.Event, w.rand.IntN(40))
	for i := range batch {
		w.now += w.rand.Uint64N(20)
		dur := w.rand.Uint64N(200) >> w.rand.IntN(8)
		batch[i] = event.Event{
			TS:   w.now - min(w.now, dur),
			Dur:  dur,
			Func: uint16(w.rand.IntN(4)),
			Kind: event.Call,
			PID:  uint32(len(w.model.all) + i),
		}
	}
	w.rec.Append(batch...)
	w.model.all = append(w.model.all, batch...)
	clear(batch) // the recorder must have copied them
}

func (w *walk) snapshot() {
	from := w.now - min(w.now, w.rand.Uint64N(4000))
	to := from + w.rand.Uint64N(4000)
	snap, stats := w.rec.Snapshot(from, to), w.rec.Stats()
	got, want := collect(snap.Events(nil)), within(w.model.held(stats), from, to)
	if w.rec.pinned == w.rec.maxPinned { // snapshots hold the memory: only what is newer counts
		want = slices.DeleteFunc(want,
			func(e event.Event) bool { return !slices.Contains(got, e) && e.TS < snap.Since() })
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("snapshot of [%d, %d]: %d events, want %d", from, to, len(got), len(want))
	}
	w.open = append(w.open, openSnapshot{snap, got})
}

// check compares everything that can be compared between two steps.
func (w *walk) check(keep uint64) {
	s := w.rec.Stats()
	held := w.model.held(s)
	if s.Used > s.Budget || s.Events != uint64(len(held)) || s.Appended != uint64(len(w.model.all)) {
		w.t.Fatalf("stats %+v with %d of %d events held", s, len(held), len(w.model.all))
	}
	for _, e := range w.model.all[:len(w.model.all)-len(held)] {
		if e.TS >= s.Since {
			w.t.Fatalf("an event of %d was let go, complete since %d", e.TS, s.Since)
		}
		if s.Overwritten == 0 && keep > 0 && e.End()+keep >= s.Newest {
			w.t.Fatalf("an event that ended at %d expired at %d", e.End(), s.Newest)
		}
	}
	for _, o := range w.open {
		if got := collect(o.snap.Events(nil)); !slices.Equal(got, o.want) {
			w.t.Fatalf("a snapshot changed: %d events of %d", len(got), len(o.want))
		}
	}
}

func (w *walk) release() {
	if len(w.open) > 0 {
		i := w.rand.IntN(len(w.open))
		w.open[i].snap.Release()
		w.open = slices.Delete(w.open, i, i+1)
	}
}

func TestRecorderEqualsModel(t *testing.T) {
	for seed := range uint64(20) {
		keep := []uint64{0, 300, 2000}[seed%3]
		w := &walk{t: t, rand: rand.New(rand.NewPCG(seed, 1)), rec: tiny(keep), now: 1000}
		for range 300 {
			switch w.rand.IntN(8) {
			case 0, 1:
				w.snapshot()
			case 2:
				w.release()
			default:
				w.append()
			}
			w.check(keep)
		}
		for len(w.open) > 0 {
			w.release()
		}
		w.checkReleased()
	}
}

// checkReleased demands that no segment got lost: each is live, free or cold.
func (w *walk) checkReleased() {
	r := w.rec
	if r.pinned != 0 || r.live+len(r.free) != r.allocated || r.allocated+len(r.cold) != r.maxSegments {
		w.t.Errorf("%d pinned, %d live, %d free, %d cold of %d segments, %d with memory",
			r.pinned, r.live, len(r.free), len(r.cold), r.maxSegments, r.allocated)
	}
	for _, h := range r.histories {
		if h.retained != 0 || h.pinned != 0 {
			w.t.Errorf("%d segments of %s are retained, %d pinned", h.retained, h.owner, h.pinned)
		}
	}
}

// TestReadersNeverStopTheWriter pins all that can be pinned, and goes on.
func TestReadersNeverStopTheWriter(t *testing.T) {
	r := tiny(0)
	for i := range uint64(100_000) {
		r.Append(event.Event{TS: i})
		if i%500 == 0 {
			r.Snapshot(0, i) // never released
		}
	}
	s := r.Stats()
	if s.Used > s.Budget || s.Appended != 100_000 || s.Newest != 99_999 || s.Pinned != int64(r.maxPinned*r.perSegment) {
		t.Errorf("stats %+v", s)
	}
	// What is live still holds the newest events, though snapshots have no room left for them.
	h := r.histories[0]
	if tail := h.live[len(h.live)-1]; tail.span.last != 99_999 {
		t.Errorf("the newest event held is %d", tail.span.last)
	}
}

// TestSnapshotWithoutRoomSaysSo: with all of the memory in other hands, Since tells it.
func TestSnapshotWithoutRoomSaysSo(t *testing.T) {
	r := tiny(0)
	next := uint64(0)
	fill := func(segments int) { // appends until so many segments more have been begun
		h := r.histories[0]
		for begun := 0; begun < segments; next++ {
			before := len(h.live)
			var last *segment
			if before > 0 {
				last = h.live[before-1]
			}
			r.Append(event.Event{TS: next})
			if h.live[len(h.live)-1] != last {
				begun++
			}
		}
	}
	fill(12)
	first := r.Snapshot(0, 1<<62)
	if n := len(collect(first.Events(nil))); n != int(next) {
		t.Fatalf("the first snapshot shows %d events of %d", n, next)
	}
	fill(3) // the last two of them can still be pinned
	second := r.Snapshot(0, 1<<62)
	if got := collect(second.Events(nil)); len(got) == 0 || got[0].TS != second.Since() ||
		got[len(got)-1].TS != next-1 ||
		second.Since() <= first.Since() {
		t.Errorf("the second shows %d events and is complete since %d", len(got), second.Since())
	}
	fill(2)
	if third := r.Snapshot(0, 1<<62); len(collect(third.Events(nil))) != 0 || third.Since() != next {
		t.Errorf("the third shows something, or is complete since %d", third.Since())
	}
	first.Release()
	first.Release() // again: nothing
	if got := collect(r.Snapshot(0, 1<<62).Events(nil)); len(got) == 0 || got[len(got)-1].TS != next-1 {
		t.Errorf("after the release, a snapshot shows %d events", len(got))
	}
}

func TestSnapshotWindowAndFilter(t *testing.T) {
	r := tiny(0)
	for i := range uint64(40) {
		r.Append(event.Event{TS: 10 * i, Dur: 5, PID: uint32(i % 2)})
	}
	s := r.Snapshot(103, 200)
	defer s.Release()
	var ts []uint64
	for _, e := range collect(s.Events(func(e *event.Event) bool { return e.PID == 0 })) {
		ts = append(ts, e.TS)
	}
	// 100 is in: the call that began there ran until 105.
	if want := []uint64{100, 120, 140, 160, 180, 200}; !slices.Equal(ts, want) {
		t.Errorf("got %v, want %v", ts, want)
	}
	for range s.Events(nil) {
		break // a consumer may stop
	}
}

func TestSnapshotLosses(t *testing.T) {
	r := tiny(0)
	for i := range uint64(100_000) {
		r.Append(event.Event{TS: i})
	}
	since := r.Since()
	old, recent := r.Snapshot(0, 100_000), r.Snapshot(since, 100_000)
	if got := old.Losses(); len(got) != 1 || got[0].Reason != loss.Overwritten || got[0].Count != since {
		t.Errorf("a window with a hole reports %v, since is %d", got, since)
	}
	if got := recent.Losses(); got != nil {
		t.Errorf("a whole window reports %v", got)
	}
	if got := r.Losses(); len(got) != 1 || got[0].Count != since {
		t.Errorf("the recorder reports %v", got)
	}
}

func TestCounts(t *testing.T) {
	r := tiny(0)
	for i := range uint64(200) { // more than fits: totals do not forget
		r.Append(
			event.Event{TS: i, Kind: event.Call, Func: 3},
			event.Event{TS: i, Kind: event.Call, Func: 700, Flags: event.Timed, Dur: 5, Ret: int32(i % 2)},
			event.Event{TS: i, Kind: event.Exit, Func: 3},
		)
	}
	got := r.Counts(nil)
	if len(got) != 701 || got[3] != (Count{Calls: 200}) ||
		got[700] != (Count{Calls: 200, Timed: 200, Failed: 100, Nanos: 1000}) {
		t.Errorf("%d counts: %+v, %+v", len(got), got[3], got[len(got)-1])
	}
	if got[0] != (Count{}) {
		t.Errorf("function 0 was never called: %+v", got[0])
	}
}

func TestNewRecorderRefuses(t *testing.T) {
	if _, err := NewRecorder(MinBudget-1, time.Second); err == nil {
		t.Error("a budget below the minimum is accepted")
	}
	if _, err := NewRecorder(MinBudget, -time.Second); err == nil {
		t.Error("a negative time is accepted")
	}
	for _, budget := range []int64{MinBudget, 12_345_678, 100_000_000} {
		r, err := NewRecorder(budget, 0)
		must.NoError(t, err)
		if use := int64(r.maxSegments * r.perSegment); use > budget || use < budget*9/10 {
			t.Errorf("a budget of %d makes use of %d", budget, use)
		}
	}
}

// TestMemoryStaysWithinBudget wraps the recorder many times while snapshots come and go.
func TestMemoryStaysWithinBudget(t *testing.T) {
	const budget = 4_000_000
	before := heap()
	r, err := NewRecorder(budget, time.Hour)
	must.NoError(t, err)
	batch := make([]event.Event, 512)
	random := rand.NewPCG(1, 2)
	var held *Snapshot
	for i := range 6000 {
		for j := range batch { // that nobody could pack
			fill(&batch[j], random)
			batch[j].TS, batch[j].Dur, batch[j].Kind = uint64(i), 0, event.Sync
		}
		r.Append(batch...)
		if i%100 == 0 {
			if held != nil {
				held.Release()
			}
			held = r.Snapshot(0, 1<<62)
		}
	}
	if s := r.Stats(); s.Overwritten < 2_000_000 || s.Used < budget/2 || s.Used > budget {
		t.Errorf("%d events were overwritten, %d bytes are in use of %d", s.Overwritten, s.Used, budget)
	}
	held.Release()
	if n := testing.AllocsPerRun(200, func() { r.Append(batch...) }); n != 0 {
		t.Errorf("Append allocates %v times a batch", n)
	}
	inHeap := raceEnabled
	if grown := int64(heap()) - int64(before); grown > 200_000+int64(unsafe.Sizeof(state{})) && !inHeap {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(r)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestConcurrentSnapshots reads while the writer wraps: what a snapshot shows is
// one gapless stretch, and stays so until its release. The race detector looks on.
func TestConcurrentSnapshots(t *testing.T) {
	r, err := NewRecorder(MinBudget, time.Hour)
	must.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					checkGapless(t, r)
				}
			}
		})
	}
	batch := make([]event.Event, 100)
	for i := range uint64(2000) {
		for j := range batch {
			batch[j] = event.Event{TS: 100*i + uint64(j)}
		}
		r.Append(batch...)
		if i%64 == 0 {
			runtime.Gosched()
		}
	}
	close(stop)
	wg.Wait()
}

func checkGapless(t *testing.T, r *Recorder) {
	s := r.Snapshot(0, 1<<62)
	defer s.Release()
	first := collect(s.Events(nil))
	for i := range first {
		if first[i].TS != first[0].TS+uint64(i) {
			t.Errorf("event %d of a snapshot has TS %d after %d", i, first[i].TS, first[0].TS)
			return
		}
	}
	if len(first) > 0 && first[0].TS > s.Since() {
		t.Errorf("complete since %d, but it begins at %d", s.Since(), first[0].TS)
	}
	if !slices.Equal(first, collect(s.Events(nil))) {
		t.Error("a snapshot changed before its release")
	}
}

// TestClockThatStepsBack: an event that ended before it began, as a clock that is read without a lock may say, took no
// time, and does not make the recording unreadable.
func TestClockThatStepsBack(t *testing.T) {
	r := tiny(0)
	dur := uint64(1000)
	r.Append(event.Event{TS: 5000, Dur: 7}, event.Event{TS: 6000, Dur: dur - 2*dur}, event.Event{TS: 7000, Dur: 9})
	s := r.Snapshot(0, 10_000)
	defer s.Release()
	got := collect(s.Events(nil))
	want := []event.Event{{TS: 5000, Dur: 7}, {TS: 6000}, {TS: 7000, Dur: 9}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := checkEvents(got, 0); err != nil {
		t.Error(err)
	}
}
