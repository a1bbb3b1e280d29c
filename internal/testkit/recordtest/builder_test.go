package recordtest_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

func TestBuilderSortsAndCopies(t *testing.T) {
	b := recordtest.New().Window(0, 100)
	launch := b.Function(recording.Function{Name: "cuLaunchKernel"})
	sync := b.Function(recording.Function{Name: "cuCtxSynchronize", Timed: true})
	b.Call(1, launch, 50, 7, 8).Timed(2, sync, 10, 30, -1)
	rec := b.Recording()
	want := []event.Event{
		{TS: 10, Dur: 30, PID: recordtest.PID, TID: 2, Func: sync, Kind: event.Call, Flags: event.Timed, Ret: -1},
		{TS: 50, PID: recordtest.PID, TID: 1, Func: launch, Kind: event.Call, Args: [4]uint64{7, 8}},
	}
	if len(rec.Events) != 2 || rec.Events[0] != want[0] || rec.Events[1] != want[1] {
		t.Errorf("got %+v, want %+v", rec.Events, want)
	}
	if rec.Meta.Functions[launch].Base != "cuLaunchKernel" || rec.Meta.Schema != recording.SchemaVersion {
		t.Errorf("meta %+v", rec.Meta)
	}
	b.Thread(recordtest.PID, 9, "late").Call(1, launch, 5)
	if len(rec.Events) != 2 || len(rec.Meta.Threads) != 1 {
		t.Error("the builder changes a recording that it has handed out")
	}
}
