package daemon

import (
	"context"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// fakeDumper notes which processes it was asked for.
type fakeDumper struct{ pids []uint32 }

func (f *fakeDumper) Take(_ context.Context, pid uint32, processes []*proc.Process) (*dump.Dump, error) {
	f.pids = nil
	for _, p := range processes {
		f.pids = append(f.pids, p.PID)
	}
	return dump.New("test", pid), nil
}

func TestDumpsShowNobodyElsesProcesses(t *testing.T) {
	w := newWorld(t)
	child, other, dead := process(11, 10, second), process(12, 10, second), process(13, 10, second)
	d, _ := w.start(Options{}, process(10, 0, second))
	main := d.follower.roots[0].main()
	other.Owner, dead.Died = main.Owner+1, 2*second // its real user is the same: a setuid program
	for _, p := range []proc.Process{child, other, dead} {
		d.follower.note(&p)
	}
	owner := api.Asker{UID: main.Owner}
	dumper := &fakeDumper{}
	d.parts.Dumper = dumper
	for _, tt := range []struct {
		name    string
		request api.DumpRequest
		want    []uint32
	}{
		{"the process alone", api.DumpRequest{PID: 10, Asker: owner}, []uint32{10}},
		{"the owner's children", api.DumpRequest{PID: 10, Children: true, Asker: owner}, []uint32{10, 11}},
		{"root's view", api.DumpRequest{PID: 10, Children: true, Asker: api.Asker{Any: true}}, []uint32{10, 11, 12}},
	} {
		if _, err := d.Dump(context.Background(), tt.request); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if !slices.Equal(dumper.pids, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, dumper.pids, tt.want)
		}
	}
	dumper.pids = nil
	_, err := d.Dump(context.Background(), api.DumpRequest{PID: 10, Asker: api.Asker{UID: main.Owner + 7}})
	if clierror.CodeOf(err) != clierror.NoProcess || dumper.pids != nil {
		t.Errorf("a stranger's dump: %v of %v", err, dumper.pids)
	}
	_, err = d.Dump(context.Background(), api.DumpRequest{PID: 99, Asker: api.Asker{Any: true}})
	if clierror.CodeOf(err) != clierror.NoProcess {
		t.Errorf("not a target: %v", err)
	}
	d.parts.Dumper = nil
	_, err = d.Dump(context.Background(), api.DumpRequest{PID: 10, Asker: api.Asker{Any: true}})
	if clierror.CodeOf(err) != clierror.Unsupported {
		t.Errorf("without a dumper: %v", err)
	}
}

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
	must.NoError(t, err)
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
