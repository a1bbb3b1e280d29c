package diagnose_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestChangesForAProgramWithoutPython: nobody who wrote a server in C++ is told of DataLoaders, as long as there is
// anything else to say.
func TestChangesForAProgramWithoutPython(t *testing.T) {
	ofPython := regexp.MustCompile(`(?i)python|torch|import |loader`)
	for id := cause.PythonWork; id < cause.StartEnd; id++ {
		switch id {
		case cause.PythonWork,
			cause.GIL,
			cause.GC,
			cause.Serialization,
			cause.RemoteMemory: // Python's alone, and what is never dearest
			continue
		}
		s := newScene(t)
		s.Meta.Processes[0].Comm = "server"
		loop(s, 20, id)
		d := s.diagnose()
		if len(d.Findings) == 0 || len(d.Findings[0].Changes) < 2 {
			t.Errorf("%s: %q", id, causes(d))
			continue
		}
		for i, c := range d.Findings[0].Changes[:2] {
			if ofPython.MatchString(c.Text + c.Example) {
				t.Errorf("%s, change %d: %s\n%s", id, i+1, c.Text, c.Example)
			}
		}
	}
}

// TestChangesForAHost: no example asks for more threads than the machine has CPUs.
func TestChangesForAHost(t *testing.T) {
	numbers := regexp.MustCompile(`(?:NUM_THREADS=|num_workers=|set_num_threads\()(\d+)`)
	found := 0
	for id := cause.PythonWork; id < cause.StartEnd; id++ {
		s := newScene(t)
		s.Meta.Host.CPUs = 2
		loop(s, 20, id)
		for _, f := range s.diagnose().Findings {
			for _, c := range f.Changes {
				for _, m := range numbers.FindAllStringSubmatch(c.Example, -1) {
					if n, _ := strconv.Atoi(m[1]); n < 1 || n > 2 {
						t.Errorf("%s: %s", id, c.Example)
					}
					found++
				}
			}
		}
	}
	if found == 0 {
		t.Error("no example names a number of threads")
	}
}

// TestChangesByCall: the calls that the time is spent in decide what is said first.
func TestChangesByCall(t *testing.T) {
	for _, c := range []struct {
		call        string
		cause       cause.ID
		first, says string
	}{
		{"cuMemHostAlloc", cause.Allocation, "Pin host memory once", "cuMemHostAlloc holds up the GPU"},
		{"cuMemAlloc_v2", cause.Allocation, "Allocate from a pool", "cuMemAlloc holds up the GPU"},
		{"cuModuleLoadData", cause.Compilation, "Load modules and make graphs once", "cuModuleLoadData holds up the GPU"},
		{"cuLaunchHostFunc", cause.Dependency, "Keep functions on the host out", "Queued work waits"},
		{"cuStreamWaitEvent", cause.Dependency, "Find the event", "Queued work waits"},
	} {
		s := newScene(t)
		s.Meta.Processes[0].Comm = "server"
		s.Do(c.call, 0, 10*us, 1, 2)
		loop(s, 20, c.cause, func(x *gap.Step) { x.Op, x.PID, x.TID = 0, recordtest.PID, recordtest.PID })
		d := s.diagnose()
		if len(d.Findings) == 0 || !strings.HasPrefix(d.Findings[0].Changes[0].Text, c.first) ||
			!strings.HasPrefix(d.Headline, c.says) {
			t.Errorf("%s: %q", c.call, d.Headline)
			continue
		}
		if f := &d.Findings[0]; f.Confidence < 0.9 { // each was recorded: no sample could say more
			t.Errorf("%s: sure to %.2f, for %q", c.call, f.Confidence, f.Because)
		}
	}
}

// TestChangesByFormat: who writes JSON is told of an encoder, and who pickles of shared memory.
func TestChangesByFormat(t *testing.T) {
	for file, json := range map[string]bool{"/usr/lib/python3.12/json/encoder.py": true, "/usr/lib/python3.12/pickle.py": false} {
		s := newScene(t)
		stack := s.Stack(recordtest.Python("dumps", file, 1), recordtest.Python("answer", "/app/serve.py", 7))
		s.Meta.Processes[0].Comm = "python3"
		loop(s, 20, cause.Serialization,
			func(x *gap.Step) { x.PID, x.TID, x.Stack = recordtest.PID, recordtest.PID, stack })
		d := s.diagnose()
		if len(d.Findings) == 0 {
			t.Fatalf("%s: nothing is found", file)
		}
		if got := d.Findings[0].Changes[0].Text; strings.Contains(got, "JSON") != json {
			t.Errorf("%s: to change first: %s", file, got)
		}
	}
}

// TestChangesOfParsers: who parses JSON is told so, of a parser first, and of nothing that writes JSON; who does not,
// of no JSON.
func TestChangesOfParsers(t *testing.T) {
	for file, json := range map[string]bool{"/usr/lib/python3.12/json/decoder.py": true, "/usr/lib/python3.12/pickle.py": false} {
		s := newScene(t)
		stack := s.Stack(recordtest.Python("loads", file, 1), recordtest.Python("answer", "/app/serve.py", 7))
		s.Meta.Processes[0].Comm = "python3"
		loop(s, 20, cause.Serialization, func(x *gap.Step) {
			x.PID, x.TID, x.Stack = recordtest.PID, recordtest.PID, stack
		})
		d := s.diagnose()
		if len(d.Findings) == 0 {
			t.Fatalf("%s: nothing is found", file)
		}
		f := &d.Findings[0]
		if strings.HasPrefix(f.Title, "Parsing JSON") != json {
			t.Errorf("%s: %s", file, f.Title)
		}
		for i, c := range f.Changes {
			if strings.Contains(c.Text, "JSON") != (json && i == 0) {
				t.Errorf("%s: change %d: %s", file, i+1, c.Text)
			}
		}
	}
}

// TestChangesAreSaidOnce: what holds in two languages is one piece of advice.
func TestChangesAreSaidOnce(t *testing.T) {
	s := newScene(t)
	loop(s, 20, cause.Lock)
	said := map[string]bool{}
	for _, c := range s.diagnose().Findings[0].Changes {
		if said[c.Text] {
			t.Errorf("%q twice", c.Text)
		}
		said[c.Text] = true
	}
}

// TestManySmallCopies: who makes many small copies in each iteration is told to make one of them; of large ones, or of
// few, nobody is.
func TestManySmallCopies(t *testing.T) {
	for _, c := range []struct {
		each, bytes uint64
		want        bool
	}{{20, 16 << 10, true}, {20, 1 << 20, false}, {3, 16 << 10, false}} {
		s := newScene(t)
		for i := range uint64(20) {
			at := i * 50
			s.kernel(at, at+2)
			for k := range c.each {
				s.id++
				from := start + (at+5+2*k)*ms
				s.Event(event.Event{
					TS: from, Dur: ms, PID: recordtest.PID, TID: recordtest.PID, Func: s.Fn("cuMemcpyHtoD_v2"),
					Kind: event.Call, Flags: event.Correlated | event.Timed, Ret: int32(s.id),
				})
				s.Event(event.Event{
					TS: from + 500*us, Dur: 10 * us, PID: recordtest.PID, TID: 7, Func: 1 << 8, Kind: event.Copy,
					Flags: event.Timed, Ret: h2dPageable, Args: [4]uint64{uint64(s.id), 0, c.bytes},
				})
			}
			s.Event(event.Event{
				TS: start + (at+1)*ms, Dur: ms, PID: recordtest.PID, TID: recordtest.PID,
				Func: s.Fn("cuStreamSynchronize"), Kind: event.Call, Flags: event.Timed, Args: [4]uint64{7},
			})
			s.step(at+2, at+50, cause.SyncCopy)
		}
		s.predict = func(cause.ID) (diagnose.Gain, bool) { return diagnose.Gain{Speedup: 1.3, Low: 1.2, High: 1.4}, true }
		s.also = func(remedies ...cause.Remedy) (diagnose.Gain, bool) {
			return diagnose.Gain{Speedup: 2.6, Low: 2.3, High: 2.9}, c.want && remedies[0].Merge
		}
		d := s.diagnose()
		if causes(d) != "sync-copy" {
			t.Fatalf("%d copies: findings %q", c.each, causes(d))
		}
		if g := d.Findings[0].Merge; (g != nil) != c.want || c.want && g.Speedup != 2.6 {
			t.Errorf("%d copies: one of them brings %+v", c.each, g)
		}
		list := d.Findings[0].Changes
		want := fmt.Sprintf("Make one copy of the %d in each iteration", c.each)
		if got := strings.HasPrefix(list[1].Text, want); got != c.want {
			t.Errorf("%d copies of %d bytes: %q", c.each, c.bytes, list[1].Text)
		}
	}
}

// TestOwnCode: only work that takes time is advised to be taken out, not waits below a program's own native code.
func TestOwnCode(t *testing.T) {
	for id, want := range map[cause.ID]bool{cause.NativeWork: true, cause.Sleep: false, cause.Lock: false, cause.Network: false} {
		s := newScene(t)
		stack := s.Stack(recordtest.Native("main.work", "server"))
		loop(s, 30, id, func(x *gap.Step) { x.Stack = stack })
		advised, found := false, false
		for _, f := range s.diagnose().Findings {
			for _, c := range f.Changes {
				found = found || f.Cause == id.String()
				advised = advised || f.Cause == id.String() && strings.Contains(c.Text, "Take work out")
			}
		}
		if !found || advised != want {
			t.Errorf("%s: found %v, advised to take work out: %v", id, found, advised)
		}
	}
}
