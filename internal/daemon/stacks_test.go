package daemon

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// fakeStacker knows every stack but number 9, and remembers what it was asked for.
type fakeStacker struct{ asked []uint64 }

func (f *fakeStacker) Stacks(numbers []uint64) ([]recording.Frame, []recording.Node, map[uint64]uint64) {
	f.asked = numbers
	at := map[uint64]uint64{}
	for i, n := range numbers {
		if n != 9 {
			at[n] = uint64(i) + 1
		}
	}
	return []recording.Frame{{Name: "f"}}, make([]recording.Node, len(numbers)), at
}

func samplesIn(t *testing.T, events []event.Event, want func(*event.Event) bool) *held {
	t.Helper()
	recorder, err := recording.NewRecorder(recording.MinBudget, 0)
	if err != nil {
		t.Fatal(err)
	}
	recorder.Append(events...)
	snap := recorder.Snapshot(0, 100)
	t.Cleanup(snap.Release)
	return &held{snapshot: snap, want: want}
}

// A recording carries the stacks of its own samples only, under numbers of its own;
// other events and the recorder's memory stay as they are.
func TestStacksOfARecording(t *testing.T) {
	const other = 2
	events := []event.Event{
		{TS: 1, PID: 1, Kind: event.Sample, Args: [4]uint64{70}},
		{TS: 2, PID: other, Kind: event.Sample, Args: [4]uint64{80}},
		{TS: 3, PID: 1, Kind: event.Call, Args: [4]uint64{70}},
		{TS: 4, PID: 1, Kind: event.Sample, Args: [4]uint64{9}},
		{TS: 5, PID: 1, Kind: event.Sample},
		{TS: 6, PID: 1, Kind: event.Sample, Args: [4]uint64{70}},
	}
	rec := samplesIn(t, events, func(e *event.Event) bool { return e.PID != other })
	stacker := &fakeStacker{}
	rec.nameStacks(stacker)
	if !slices.Equal(stacker.asked, []uint64{70, 9}) {
		t.Errorf("asked for %v: once for each stack of this target", stacker.asked)
	}
	if want := []loss.Loss{{Reason: loss.StackEvicted, Count: 1}}; !slices.Equal(rec.meta.Losses, want) {
		t.Errorf("losses are %+v, not %+v: one sample's stack is gone", rec.meta.Losses, want)
	}
	for range 2 { // the same again: nothing was changed in place
		var got []uint64
		for batch := range rec.Events() {
			for i := range batch {
				got = append(got, batch[i].Args[0])
			}
		}
		if want := []uint64{1, 70, 0, 0, 1}; !slices.Equal(got, want) {
			t.Errorf("Args[0] are %v, not %v", got, want)
		}
	}
	if len(rec.meta.Frames) != 1 || len(rec.meta.Stacks) != 2 {
		t.Errorf("tables are %v and %v", rec.meta.Frames, rec.meta.Stacks)
	}
}

func TestNoStacks(t *testing.T) {
	rec := samplesIn(t, []event.Event{{TS: 1, Kind: event.Call, Args: [4]uint64{5}}}, nil)
	stacker := &fakeStacker{}
	rec.nameStacks(stacker)
	rec.nameStacks(nil)
	if stacker.asked != nil || rec.stackAt != nil {
		t.Error("a recording without samples asks for stacks")
	}
}
