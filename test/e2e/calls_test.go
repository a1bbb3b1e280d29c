package e2e

import (
	"testing"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/cudasim"
	"github.com/inferscope/inferscope/internal/record"
)

// script calls something of every group.
var script = []string{
	"wait", "launch 1000 grid=7,3,2 block=128,2,1 shared=4096", "launch 50 ex", "launch 20 coop",
	"stream-new", "launch 100 stream=1", "h2d 1048576 x10", "h2d 4096 x5 async stream=1", "h2d 65536 x4 async pinned stream=1",
	"d2h 2048 x7", "d2d 8192 x3", "memset 512 x6", "malloc 1000000 x4", "free 4", "sync", "ssync stream=1",
	"event-record 1 stream=1", "event-sync 1", "graph 5 stream=1", "graph-launch 9", "sync",
}

func TestCallsEqualTheTruth(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     cudasim.Options
		flags []string
	}{
		{"driver 580, session", cudasim.Options{Lib: "driver"}, []string{"--probe-mode", "session"}},
		{"driver 535, session", cudasim.Options{Lib: "driver", Shape: cudasim.Shape535}, []string{"--probe-mode", "session"}},
		{"driver 535, multi", cudasim.Options{Lib: "driver", Shape: cudasim.Shape535}, []string{"--probe-mode", "multi"}},
		{"driver 535, perf", cudasim.Options{Lib: "driver", Shape: cudasim.Shape535}, []string{"--probe-mode", "perf"}},
		{"runtime 580", cudasim.Options{Lib: "runtime"}, nil},
		{"runtime 535, per-thread streams", cudasim.Options{Lib: "runtime", Shape: cudasim.Shape535, Args: []string{"--ptds"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := cudasim.Start(t, c.o, append(script, "print done", "wait")...)
			d := startDaemon(t, v.PID, c.flags...)
			began := now()
			v.Go()
			v.WaitLine("done")
			rec := d.recording(v.PID)
			truth := v.Truth()
			compareCounts(t, seen(rec, v.PID), happened(truth, began, byDefault))
			compareArguments(t, rec, truth, began)
			noLosses(t, rec)
			for _, l := range rec.Meta.Libraries {
				if l.Cheap != l.Points || l.Points == 0 {
					t.Errorf("%s: %d of %d points are cheap", l.Path, l.Cheap, l.Points)
				}
			}
			d.stop()
			v.Go()
			v.Finish()
		})
	}
}

// compareArguments compares, call by call in order of time for each thread and
// row, what was seen of the arguments and the duration with the truth.
func compareArguments(t *testing.T, rec *record.Recording, truth *cudasim.Truth, since uint64) {
	t.Helper()
	type key struct {
		tid uint32
		row row
	}
	decoder := cuda.NewDecoder(rec.Meta.Functions)
	type call struct {
		cuda.Call
		dur uint64
	}
	got := map[key][]call{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == 1 {
			f := rec.Meta.Functions[e.Func]
			k := key{e.TID, row{cuda.Library(f.Library), f.Base}}
			got[k] = append(got[k], call{decoder.Decode(e), e.Dur})
		}
	}
	compared := 0
	for _, want := range truth.Calls {
		r, known := cuda.Match(want.Name)
		k := key{want.TID, row{r.Library, r.Name}}
		if want.Enter < since || !known || len(got[k]) == 0 {
			continue
		}
		first := got[k][0]
		got[k] = got[k][1:]
		compareCall(t, want, first.Call, first.dur)
		compared++
	}
	if compared < 1000 {
		t.Errorf("only %d calls were compared", compared)
	}
}

func compareCall(t *testing.T, want cudasim.Call, got cuda.Call, dur uint64) {
	t.Helper()
	switch got.Group {
	case cuda.Launch:
		if got.Grid != want.Grid || got.Block != want.Block || got.Shared != want.Shared {
			t.Errorf("%s: grid %v block %v shared %d, truly %v %v %d", want.Name, got.Grid, got.Block, got.Shared, want.Grid, want.Block, want.Shared)
		}
	case cuda.Copy, cuda.Set, cuda.Alloc:
		if want.Bytes != 0 && got.Bytes != want.Bytes {
			t.Errorf("%s: %d bytes, truly %d", want.Name, got.Bytes, want.Bytes)
		}
	}
	if got.Timed {
		// The probes stand around the call: they see it a little longer than it saw itself.
		truly := int64(want.Exit - want.Enter)
		if took := int64(dur); took < truly || took > truly+5_000_000 {
			t.Errorf("%s: took %d ns, truly %d", want.Name, took, truly)
		}
		if got.Result != want.Result {
			t.Errorf("%s: returned %d, truly %d", want.Name, got.Result, want.Result)
		}
	}
}
