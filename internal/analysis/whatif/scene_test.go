package whatif

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	us     = calltest.Microsecond
	ms     = calltest.Millisecond
	start  = uint64(calltest.Start)
	leader = recordtest.PID
	helper = recordtest.PID + 1

	sysFutex, sysSleep = 202, 230
)

// scene is a recording of one process, made by hand, with an agent. Times are ns after start.
type scene struct {
	*calltest.Builder
	id uint32
}

func newScene() *scene {
	s := &scene{Builder: calltest.New(), id: 100}
	s.Meta.GPU = &recording.GPU{
		Mode: "continuous", Agents: []recording.Agent{{PID: leader, State: "running"}},
		Devices: []recording.Device{{PID: leader, ID: 0, Name: "NVIDIA L4", UUID: "GPU-0"}},
		Windows: []recording.GPUWindow{
			{PID: leader, From: start, To: start + calltest.Second, Activity: true, Calls: true, End: "open"},
		},
	}
	for _, tid := range []uint32{leader, helper} {
		s.Thread(leader, tid, "")
		s.Runs(tid, start)
	}
	s.As(leader, leader)
	return s
}

func (s *scene) call(name string, at, dur uint64) uint32 {
	s.id++
	s.Event(event.Event{
		TS:    start + at,
		Dur:   dur,
		PID:   s.PID,
		TID:   s.TID,
		Func:  s.Fn(name),
		Kind:  event.Call,
		Flags: event.Timed | event.Correlated,
		Ret:   int32(s.id),
	})
	return s.id
}

// run launches what a GPU does from one time to another.
func (s *scene) run(kind event.Kind, name string, stream uint32, at, from, to uint64, ret int32) {
	id := s.call(name, at, 3*us)
	s.Event(event.Event{
		TS:    start + from,
		Dur:   to - from,
		PID:   s.PID,
		TID:   stream,
		Func:  1 << 8,
		Kind:  kind,
		Flags: event.Timed,
		Ret:   ret,
		Args:  [4]uint64{uint64(id), 0, 1 << 20},
	})
}

// wait is a synchronization of the stream.
func (s *scene) wait(at, to uint64) { s.Do("cuStreamSynchronize", int64(at), to-at, 7) }

func (s *scene) study(t *testing.T) *Study {
	t.Helper()
	tl := timeline.Build(s.Recording())
	if err := tl.Check(); err != nil {
		t.Fatal(err)
	}
	st := New(tl, tl.Index.Threads())
	if !st.Any() || math.Abs(st.Error()) > 1e-6 {
		t.Fatalf("the replay without changes is off by %v of %d ns", st.Error(), st.Observed())
	}
	return st
}

const (
	steps  = 240
	period = 4 * ms
)

// stepwise launches a kernel of 1 ms in each step, waits for it, and computes in encode until the next: 10 µs before
// the kernel, and 10 µs until the synchronization has returned.
func stepwise() *scene {
	s := newScene()
	stack := s.Stack(recordtest.Python("encode", "/app/infer.py", 7))
	for i := range uint64(steps) {
		at := i * period
		s.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+1010*us, 0)
		s.wait(at+5*us, at+1020*us)
		for k := range uint64(5) {
			s.Sample(leader, start+at+1100*us+k*500*us, stack, event.Whole)
		}
	}
	return s
}

func edit(t *testing.T, v Verb, text string) Edit {
	t.Helper()
	e, err := Parse(v, text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// predicts checks a speed-up to within a percent and a half: the first and the last step are not whole.
func predicts(t *testing.T, p Prediction, want float64) {
	t.Helper()
	if math.Abs(p.Speedup/want-1) > 0.015 {
		t.Errorf("%s: %.4f times as fast, want %.4f", p.Plan, p.Speedup, want)
	}
	if p.Low > p.Speedup || p.High < p.Speedup {
		t.Errorf("%s: %.4f is not in %.4f to %.4f", p.Plan, p.Speedup, p.Low, p.High)
	}
}
