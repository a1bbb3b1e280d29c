package e2e

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// script calls something of every group.
var script = []string{
	"wait", "launch 1000 grid=7,3,2 block=128,2,1 shared=4096", "launch 50 ex", "launch 20 coop", "stream-new",
	"launch 100 stream=1", "h2d 1048576 x10", "h2d 4096 x5 async stream=1",
	"h2d 65536 x4 async pinned stream=1", "d2h 2048 x7", "d2d 8192 x3", "memset 512 x6", "malloc 1000000 x4",
	"free 4", "sync", "ssync stream=1", "event-record 1 stream=1", "event-sync 1", "graph 5 stream=1",
	"graph-launch 9", "sync",
}

func TestCallsEqualTheTruth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		o     cudasim.Options
		flags []string
	}{
		{"driver 580, session", cudasim.Options{Lib: "driver"}, []string{"--probe-mode", "session"}},
		{
			"driver 535, session",
			cudasim.Options{Lib: "driver", Shape: cudasim.Shape535},
			[]string{"--probe-mode", "session"},
		},
		{
			"driver 535, multi",
			cudasim.Options{Lib: "driver", Shape: cudasim.Shape535},
			[]string{"--probe-mode", "multi"},
		},
		{"driver 535, perf", cudasim.Options{Lib: "driver", Shape: cudasim.Shape535}, []string{"--probe-mode", "perf"}},
		{"runtime 580", cudasim.Options{Lib: "runtime"}, nil},
		{
			"runtime 535, per-thread streams",
			cudasim.Options{Lib: "runtime", Shape: cudasim.Shape535, Args: []string{"--ptds"}},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := cudasim.Start(t, c.o, append(script, "print done", "wait")...)
			d := startDaemon(t, v.PID, append(c.flags, probesOnly...)...)
			began := now()
			v.Go()
			v.WaitLine("done")
			rec := d.recording(v.PID)
			truth := v.Truth()
			perf := slices.Contains(c.flags, "perf")
			probed := byDefault
			if perf {
				probed = core
			}
			compareCounts(t, seen(rec, v.PID), happened(truth, began, probed))
			compareArguments(t, rec, truth, began)
			noLosses(t, rec)
			if said := slices.ContainsFunc(rec.Meta.Sources, func(s recording.Source) bool {
				return s.State == "running" && strings.Contains(s.Detail, "not probed") &&
					strings.Contains(s.Detail, "cuMemAllocManaged")
			}); said != perf {
				t.Errorf("functions are said to be not probed: %v, want %v: %+v", said, perf, rec.Meta.Sources)
			}
			for _, l := range rec.Meta.Libraries {
				if l.Cheap != l.Points || l.Points == 0 {
					t.Errorf("%s: %d of %d points are cheap", l.Path, l.Cheap, l.Points)
				}
			}
			if !perf { // each perf event takes the kernel a grace period to remove: most of a minute
				d.stop()
			}
			v.Go()
			v.Finish()
		})
	}
}

// key tells the calls apart that are compared in order of time.
type key struct {
	tid uint32
	row row
}

// observed is a call as it was seen, with when it was seen to begin and end.
type observed struct {
	cuda.Call
	from, until uint64
}

// compareArguments compares, call by call in order of time for each thread and
// row, what was seen of the arguments and the time with the truth.
func compareArguments(t *testing.T, rec *recording.Recording, truth *cudasim.Truth, since uint64) {
	t.Helper()
	decoder := cuda.NewDecoder(rec.Meta.Functions)
	got := map[key][]observed{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Call {
			f := rec.Meta.Functions[e.Func]
			k := key{e.TID, row{cuda.Library(f.Library), f.Base}}
			got[k] = append(got[k], observed{decoder.Decode(e), e.TS, e.End()})
		}
	}
	compared := 0
	next := nextOuter(truth)
	for i, want := range truth.Calls {
		r, known := cuda.Match(want.Name)
		k := key{want.TID, row{r.Library, r.Name}}
		if want.Enter < since || !known || len(got[k]) == 0 {
			continue
		}
		compareCall(t, want, got[k][0], next[i])
		got[k] = got[k][1:]
		compared++
	}
	if compared < 1000 {
		t.Errorf("only %d calls were compared", compared)
	}
}

// nextOuter returns for each call when the next outermost call of its thread began.
func nextOuter(truth *cudasim.Truth) []uint64 {
	next := make([]uint64, len(truth.Calls))
	begins := map[uint32]uint64{}
	for i := len(truth.Calls) - 1; i >= 0; i-- {
		c := truth.Calls[i]
		next[i] = math.MaxUint64
		if at, ok := begins[c.TID]; ok {
			next[i] = at
		}
		if c.Depth == 0 {
			begins[c.TID] = c.Enter
		}
	}
	return next
}

func compareCall(t *testing.T, want cudasim.Call, got observed, next uint64) {
	t.Helper()
	switch got.Group {
	case cuda.Launch:
		if got.Grid != want.Grid || got.Block != want.Block || got.Shared != want.Shared {
			t.Errorf("%s: grid %v block %v shared %d, truly %v %v %d",
				want.Name, got.Grid, got.Block, got.Shared, want.Grid, want.Block, want.Shared)
		}
	case cuda.Copy, cuda.Set, cuda.Alloc:
		if want.Bytes != 0 && got.Bytes != want.Bytes {
			t.Errorf("%s: %d bytes, truly %d", want.Name, got.Bytes, want.Bytes)
		}
	}
	if !got.Timed {
		return
	}
	// The probes stand around the call, and before whatever the thread does next.
	if got.from > want.Enter || got.until < want.Exit || got.until > next {
		t.Errorf("%s: seen from %d to %d, truly %d to %d, the next at %d",
			want.Name, got.from, got.until, want.Enter, want.Exit, next)
	}
	if got.Result != want.Result {
		t.Errorf("%s: returned %d, truly %d", want.Name, got.Result, want.Result)
	}
}

// TestAgentsCallsAreNotThePrograms: the agent's thread calls the driver before each window, in it and to leave CUPTI.
// A recording holds the calls of the program's only thread alone.
func TestAgentsCallsAreNotThePrograms(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{}, "until { launch 3; sync; sleep 1ms }")
	d := startDaemon(t, v.PID, inWindows("30ms", "100ms", "--overhead-budget", "0", "--all-calls")...)
	rec := d.waitWindows(v.PID, 5)
	own := 0
	for i := range rec.Events {
		e := &rec.Events[i]
		switch {
		case e.Kind != event.Call || int(e.PID) != v.PID:
		case int(e.TID) == v.PID:
			own++
		default:
			t.Errorf("a call of thread %d: %s", e.TID, rec.Meta.Functions[e.Func].Name)
		}
	}
	if own < 50 {
		t.Errorf("only %d calls of the program's own", own)
	}
	d.stop()
	unharmed(t, v)
}
