package e2e

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// now returns CLOCK_MONOTONIC in ns, the clock of events and of the truth.
func now() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

// row names a row of the CUDA table: what truth and recording are compared by, for
// the truth names an address by its first name and a recording by its newest.
type row struct {
	library cuda.Library
	name    string
}

// seen counts the calls of pid in a recording by row.
func seen(rec *recording.Recording, pid int) map[row]int {
	counts := map[row]int{}
	for _, e := range rec.Events {
		if e.Kind == event.Call && int(e.PID) == pid {
			f := rec.Meta.Functions[e.Func]
			counts[row{cuda.Library(f.Library), f.Base}]++
		}
	}
	return counts
}

// happened counts the calls of the truth that began at or after since, of rows
// that were to be probed.
func happened(truth *cudasim.Truth, since uint64, probed func(cuda.Row) bool) map[row]int {
	counts := map[row]int{}
	for _, c := range truth.Calls {
		r, known := cuda.Match(c.Name)
		if c.Enter >= since && known && probed(r) {
			counts[row{r.Library, r.Name}]++
		}
	}
	return counts
}

// byDefault reports whether a row is probed without flags, where a driver library is.
func byDefault(r cuda.Row) bool { return !r.Hot && !r.Shadowed }

// core reports whether a row is probed by perf events.
func core(r cuda.Row) bool {
	switch r.Group {
	case cuda.Launch, cuda.Copy, cuda.Set, cuda.Alloc, cuda.Free, cuda.Sync:
		return !r.Narrow && !r.Hot
	}
	return r.Name == "cuGraphLaunch"
}

// compareCounts fails the test for each row in which the two differ.
func compareCounts(t testing.TB, got, want map[row]int) {
	t.Helper()
	if len(want) == 0 {
		t.Error("the truth holds no call: nothing was compared")
	}
	for r, n := range want {
		if got[r] != n {
			t.Errorf("%s %s: %d calls seen, %d made", r.library, r.name, got[r], n)
		}
	}
	for r, n := range got {
		if want[r] == 0 {
			t.Errorf("%s %s: %d calls seen, none made", r.library, r.name, n)
		}
	}
}

// noLosses fails the test if anything was lost that would make counts wrong.
func noLosses(t testing.TB, rec *recording.Recording) {
	t.Helper()
	for _, l := range rec.Meta.Losses {
		if loss.Describe(l.Reason).Severity != loss.Info {
			t.Errorf("lost: %+v", l)
		}
	}
}
