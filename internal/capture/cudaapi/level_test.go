package cudaapi_test

import (
	"slices"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Of allocations in a loop that never rests few have events, and none is lost: with those that were only
// counted they are as many as were made, whatever the level, and whenever it is looked.
func TestFrequentCallsAreCounted(t *testing.T) {
	b, v := watch(t, cudaapi.Options{Launches: cudaapi.LaunchesOff}, "until { malloc 64 ; free ; sync }")
	v.Go()
	b.await("skipped calls",
		func() bool { return len(b.seen["cuMemAlloc"]) > 2000 && counted(b.seen["cuMemAlloc"]) > 20_000 })
	must.NoError(t, b.source.SetLevel(1))
	seen := len(b.seen["cuMemAlloc"])
	many := counted(b.seen["cuMemAlloc"])
	b.await("more of them", func() bool { return counted(b.seen["cuMemAlloc"]) > many+20_000 })
	if n := len(b.seen["cuMemAlloc"]) - seen; n > 10_000 {
		t.Errorf("%d of 20,000 allocations have events at the level that samples most", n)
	}
	v.Send("end")
	v.Finish()
	b.drain()
	names := b.source.Functions()
	for _, e := range b.source.Complete(now()) {
		b.seen[names[e.Func].Base] = append(b.seen[names[e.Func].Base], e)
	}
	truth := v.Truth()
	for base, made := range map[string]uint64{
		"cuMemAlloc": truth.Count("cuMemAlloc_v2"), "cuMemFree": truth.Count("cuMemFree_v2"),
		"cuCtxSynchronize": truth.Count("cuCtxSynchronize"),
	} {
		if got := counted(b.seen[base]); got != made {
			t.Errorf("%s: %d with those that were only counted, %d were made", base, got, made)
		}
	}
	for _, e := range b.seen["cuCtxSynchronize"] {
		if e.Kind != event.Call {
			t.Fatalf("a synchronization was only counted: %+v", e)
		}
	}
	b.analyzed(names, truth.Count("cuMemAlloc_v2"))
	if r := b.source.Runs(b.process.PID); r.Count != 0 {
		t.Errorf("%+v before anybody was shown an event", r)
	}
}

// analyzed checks what an analysis makes of all that was seen.
func (b *bench) analyzed(names []recording.Function, allocations uint64) {
	b.tb.Helper()
	rec := &recording.Recording{Meta: recording.Meta{To: now(), Functions: names}}
	for _, all := range b.seen {
		rec.Events = append(rec.Events, all...)
	}
	b.source.Observe(nil)
	s := summary.Summarize(timeline.Build(rec))
	for _, f := range s.Functions {
		if f.Name != "cuMemAlloc" {
			continue
		}
		if f.Count != allocations || f.Skipped == 0 || f.Skipped >= f.Count || f.Time < f.Count*f.P50/4 {
			b.tb.Errorf("the analysis has %+v of %d allocations", f, allocations)
		}
		if s.Memory.Skipped == 0 || s.Memory.Net != 0 || len(s.Memory.Kinds) != 1 ||
			s.Memory.Kinds[0].Count != allocations ||
			s.Memory.Kinds[0].Bytes != 64*allocations {
			b.tb.Errorf("memory: %+v", s.Memory)
		}
		return
	}
	b.tb.Error("the analysis has no allocations")
}

// counted returns how many calls events tell of.
func counted(events []event.Event) uint64 {
	n := uint64(0)
	for i := range events {
		if events[i].Kind == event.Skipped {
			n += events[i].Args[0] + events[i].Args[1]
		} else {
			n++
		}
	}
	return n
}

// Levels beyond sampling take probes off, and put them on again.
func TestLevelsTakeProbesOff(t *testing.T) {
	b, v := watchLibrary(t, "runtime", cudaapi.Options{Launches: cudaapi.LaunchesOff},
		"stream-new ; until { malloc 64 ; free ; h2d 64 async stream=1 ; ssync stream=1 ; sleep 1ms }")
	v.Go()
	const alloc, runtimeCopy, driverCopy, wait = "cuMemAlloc", "cudaMemcpyAsync", "cuMemcpyHtoDAsync", "cuStreamSynchronize"
	all := []string{alloc, runtimeCopy, driverCopy, wait}
	for _, c := range []struct {
		level int
		seen  []string
	}{
		{0, all},
		{2, []string{runtimeCopy, driverCopy, wait}},
		{3, []string{driverCopy, wait}},
		{4, []string{wait}},
		{5, nil},
		{0, all},
	} {
		if err := b.source.SetLevel(c.level); err != nil || b.source.Level() != c.level {
			t.Fatalf("level %d: %v", c.level, err)
		}
		b.drain()
		clear(b.seen)
		for _, name := range c.seen {
			b.await(name, func() bool { return len(b.seen[name]) > 20 })
		}
		if c.seen == nil { // there is nothing to wait for
			time.Sleep(50 * time.Millisecond)
			b.drain()
		}
		for _, name := range all {
			if got, want := len(b.seen[name]) > 0, slices.Contains(c.seen, name); got != want {
				t.Errorf("level %d: %s is seen: %v", c.level, name, got)
			}
		}
	}
	if err := b.source.SetLevel(6); err == nil {
		t.Error("there is no level 6")
	}
	v.Send("end")
	v.Finish()
}

// What a source says it would take at a level that takes probes off is what it takes there, for each call of the loop.
func TestLevelsAreForeseen(t *testing.T) {
	b, v := watchLibrary(t, "runtime", cudaapi.Options{Launches: cudaapi.LaunchesOff},
		"stream-new ; until { malloc 64 ; free ; h2d 64 async stream=1 ; ssync stream=1 ; sleep 1ms }")
	b.observes = true
	v.Go()
	// perLoop returns what each loop took at the level in force, and would have at the others, in ns.
	perLoop := func() (took float64, at []float64) {
		b.drain()
		loops, before := len(b.seen["cuStreamSynchronize"]), b.source.Runs(b.process.PID)
		b.await("loops", func() bool { return len(b.seen["cuStreamSynchronize"]) > loops+200 })
		after := b.source.Runs(b.process.PID)
		n := float64(len(b.seen["cuStreamSynchronize"]) - loops)
		for i := range after.At {
			at = append(at, float64(after.At[i]-before.At[i])/n)
		}
		return float64(after.NS-before.NS) / n, at
	}
	b.await("a call that is counted", func() bool { return len(b.source.Runs(b.process.PID).At) > 0 })
	_, foreseen := perLoop()
	for level := range 5 {
		must.NoError(t, b.source.SetLevel(level))
		perLoop() // what was made before is over
		took, _ := perLoop()
		t.Logf("level %d: %.0f ns a loop, %.0f foreseen", level, took, foreseen[level])
		if level != 1 && (took < 0.9*foreseen[level] || took > 1.1*foreseen[level]) {
			t.Errorf("level %d takes %.0f ns a loop, %.0f were foreseen", level, took, foreseen[level])
		}
	}
	if foreseen[5] != 0 {
		t.Errorf("%.0f ns a loop are foreseen where all is off", foreseen[5])
	}
}
