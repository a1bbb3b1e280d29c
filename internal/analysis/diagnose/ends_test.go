package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// turns lets the program do 20 iterations of 20 ms from 400 ms on: a kernel of 5 ms, a synchronization, and 15 ms of
// Python.
func turns(s *scene) {
	for i := range uint64(20) {
		at := 400 + 20*i
		s.kernel(at, at+5)
		s.Do("cuStreamSynchronize", int64((at+1)*ms), 4*ms, 4)
		s.step(at+5, at+20, cause.PythonWork)
	}
	s.step(0, 400, cause.Compilation)
	s.step(800, 1000, cause.NativeWork)
}

// lives says when the process began and ended, ms after the beginning of the recording; none: it did not end. Where it
// began long before, all else happens a minute later.
func (s *scene) lives(born, died int64) {
	if s.later = 0; born < -900 {
		s.later = 60_000 * ms
		born += 60_000
	}
	s.Meta.Processes[0].Born = uint64(int64(start) + born*int64(ms))
	if died >= 0 {
		s.Meta.Processes[0].Died = start + s.later + uint64(died)*ms
	}
}

// TestStartAndEnd: what a program does before its first iteration and after its last is told apart from them where the
// recording proves it, and is idle time like any other where it does not.
func TestStartAndEnd(t *testing.T) {
	const none = -1
	for _, c := range []struct {
		name       string
		born, died int64
		change     func(s *scene)
		start, end [2]uint64 // ms; 0: there is none
	}{
		{"both", 0, 980, nil, [2]uint64{0, 405}, [2]uint64{785, 980}},
		{"it waited at a gate", -400, none, nil, [2]uint64{0, 405}, [2]uint64{}},
		{"it ran before", -60_500, none, nil, [2]uint64{}, [2]uint64{}},
		{"only the end", -60_500, 1000, nil, [2]uint64{}, [2]uint64{785, 1000}},
		{"work that nobody recognises as iterations", 0, 980, func(s *scene) {
			for i := range uint64(3) {
				s.kernel(100+40*i, 110+40*i)
				s.kernel(850+40*i, 855+40*i)
			}
		}, [2]uint64{0, 140}, [2]uint64{895, 980}},
		{"a scope that is there all the time", 0, none, func(s *scene) {
			s.Meta.GPU.Ranges = []string{"request"}
			for i := range uint64(10) {
				s.Event(event.Event{TS: start + (500+30*i)*ms, Dur: 20 * ms, PID: recordtest.PID, TID: recordtest.PID, Kind: event.Range, Func: event.ScopeRange, Ret: 1, Flags: event.Timed})
			}
		}, [2]uint64{0, 420}, [2]uint64{}}, // no later: there was more work than that of one of them
		{"hardly anything between", 0, 1000, func(s *scene) {
			s.lives(0, 425)
			s.Meta.To = start + 430*ms
		}, [2]uint64{}, [2]uint64{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			turns(s)
			s.lives(c.born, c.died)
			if c.change != nil {
				c.change(s)
			}
			s.predict = func(cause.ID) (diagnose.Gain, bool) {
				return diagnose.Gain{Speedup: 1.5, Low: 1.4, High: 1.6}, true
			}
			d := s.diagnose()
			in := s.within
			if from, to := start+s.later+c.start[1]*ms, start+s.later+c.end[0]*ms; d.Verdict != diagnose.NotEnough &&
				(in.From != from || c.end[0] > 0 && in.To != to) {
				t.Errorf("gains are predicted of %d to %d µs, want them of what is neither start nor end",
					(in.From-start)/us, (in.To-start)/us)
			}
			for name, x := range map[string]struct {
				got  *diagnose.Phase
				want [2]uint64
			}{"start": {d.Start, c.start}, "end": {d.End, c.end}} {
				if (x.got != nil) != (x.want != [2]uint64{}) {
					t.Fatalf("%s: %+v, want %v", name, x.got, x.want)
				}
				if x.got != nil &&
					(x.got.From != start+s.later+x.want[0]*ms || x.got.To != start+s.later+x.want[1]*ms) {
					t.Errorf("%s: %d to %d µs, want %v ms", name, (x.got.From-start)/us, (x.got.To-start)/us, x.want)
				}
			}
			if d.Start != nil && partOf(d.Breakdown, "compilation") > 0 && c.change == nil {
				t.Errorf("the start is in the breakdown: %+v", d.Breakdown.Parts)
			}
			once := (c.start[1] - c.start[0] + c.end[1] - c.end[0]) * ms
			f := d.Findings[len(d.Findings)-1]
			if (f.Cause == "start-end") != (once > 0) ||
				once > 0 && (f.Cost != once || !strings.Contains(f.Title, "The program takes")) {
				t.Errorf("the last finding is %q of %d ns, want one of %d", f.Title, f.Cost, once)
			}
			if f := d.Findings[0]; f.Cause == "start-end" {
				t.Errorf("what is paid once comes first")
			}
		})
	}
}

// TestAServerIsReadyBeforeItsFirstRequest: from when it waits for requests on it does not start any more, and while it
// still waits for one it does not end.
func TestAServerIsReadyBeforeItsFirstRequest(t *testing.T) {
	s := newScene(t)
	turns(s)
	s.lives(0, 1000)
	s.kernel(0, 1) // warm-up; and nothing that ran before is in doubt
	s.Meta.Objects = []recording.Object{{PID: recordtest.PID, Inode: 5, Name: "socket:[5]", Role: recording.Listening}}
	const accept = 43
	s.waits(accept, 100, 395)
	s.waits(accept, 801, 950)
	tl := timeline.Build(s.Recording())
	d := diagnose.New(tl, gap.Build(tl), gpu.Summarize(tl), cpu.Summarize(s.Recording()), nil)
	if d.Start == nil || d.Start.To != start+100*ms || d.End == nil || d.End.From != start+950*ms {
		t.Fatalf("start %+v, end %+v", d.Start, d.End)
	}
	if n := partOf(d.Breakdown, "no-work"); n < 400*ms {
		t.Errorf("nobody asked for anything for %d ms of 444", n/ms)
	}
}

// waits lets the main thread be in a system call from one time to another, ms, until something comes from outside.
func (s *scene) waits(call uint16, from, to uint64) {
	s.Off(recordtest.Off{
		TID:     recordtest.PID,
		TS:      start + from*ms,
		Dur:     (to - from) * ms,
		Blocked: (to-from)*ms - 10*us,
		Call:    call,
		Flags:   event.FromIRQ,
	})
}
