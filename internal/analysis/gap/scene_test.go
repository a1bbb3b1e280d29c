package gap

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// The units of times, ns.
const (
	us = calltest.Microsecond
	ms = calltest.Millisecond
)

// start is the beginning of the window of a scene.
const start = uint64(calltest.Start)

// The threads of scenes.
const (
	leader = recordtest.PID
	helper = recordtest.PID + 1
	third  = recordtest.PID + 2
)

// System calls of the recordings' machine (amd64).
const (
	sysRead, sysPoll, sysFutex, sysSleep, sysAccept, sysRecv, sysPread, sysConnect = 0, 7, 202, 230, 43, 45, 17, 42
)

// scene is a recording with an agent, made by hand. All times are ns after start.
type scene struct {
	*calltest.Builder
	id uint32
}

func newScene() *scene {
	s := &scene{Builder: calltest.New(), id: 100}
	s.Meta.GPU = &recording.GPU{
		Mode: "continuous", Agents: []recording.Agent{{PID: leader, State: "running"}},
		Devices: []recording.Device{
			{PID: leader, ID: 0, Name: "NVIDIA H200", UUID: "GPU-0"},
			{PID: leader, ID: 1, Name: "NVIDIA H200", UUID: "GPU-1"},
		},
		Windows: []recording.GPUWindow{
			{PID: leader, From: start, To: start + calltest.Second, Activity: true, Calls: true, End: "open"},
		},
	}
	for _, tid := range []uint32{leader, helper, third} {
		s.Thread(leader, tid, "")
		s.Runs(tid, start)
	}
	return s
}

// by makes what follows the doing of a thread.
func (s *scene) by(tid uint32) *scene {
	s.As(leader, tid)
	return s
}

// call adds a call that the agent saw, with an id of its own.
func (s *scene) call(name string, at, dur uint64, args ...uint64) uint32 {
	s.id++
	e := event.Event{
		TS:    start + at,
		Dur:   dur,
		PID:   s.PID,
		TID:   s.TID,
		Func:  s.Fn(name),
		Kind:  event.Call,
		Flags: event.Timed | event.Correlated,
		Ret:   int32(s.id),
	}
	copy(e.Args[:], args)
	s.Event(e)
	return s.id
}

// on adds an activity.
func (s *scene) on(kind event.Kind, device uint8, stream, id uint32, from, to uint64, ret int32, bytes uint64) {
	s.Event(event.Event{
		TS: start + from, Dur: to - from, PID: s.PID, TID: stream, Func: uint16(device) | 1<<8, Kind: kind,
		Flags: event.Timed, Ret: ret,
		Args: [4]uint64{uint64(id), 0, bytes},
	})
}

// run launches a kernel at a time, which runs from one to another.
func (s *scene) run(at, from, to uint64) *scene {
	s.on(event.Kernel, 0, 7, s.call("cuLaunchKernel", at, 3*us, 1, 0), from, to, 0, 0)
	return s
}

// frame is a scene with one gap, from 100 µs to 20 ms: after a synchronization that returned at 110 µs, and before a
// kernel that was launched at 19,990 µs by a call of 3 µs. The first kernel is launched at the beginning, so that
// nothing is in doubt.
func frame() *scene {
	s := newScene()
	s.run(1*us, 9*us, 100*us)
	s.Do("cuStreamSynchronize", 20_000, 90*us, 0)
	s.run(19_990*us, 20_000*us, 999_000*us)
	return s
}

func (s *scene) build(tb testing.TB) (*timeline.Timeline, *Walk) {
	tb.Helper()
	t := timeline.Build(s.Recording())
	if err := t.Check(); err != nil {
		tb.Fatal(err)
	}
	return t, checked(tb, t)
}

// want compares how long each cause took with what is expected, ns.
func (s *scene) want(t *testing.T, want map[cause.ID]uint64) []Step {
	t.Helper()
	tl, w := s.build(t)
	from, to := start+100*us, start+20_000*us
	var got [cause.Count]uint64
	var steps []Step
	for i := range w.Steps {
		st := &w.Steps[i]
		if st.To > from && st.From < to {
			got[st.Cause] += min(st.To, to) - max(st.From, from)
			steps = append(steps, *st)
		}
	}
	_ = tl
	for id := range cause.Count {
		if got[id] != want[id] {
			t.Errorf("%s took %d ns, want %d", id, got[id], want[id])
		}
	}
	if t.Failed() {
		for _, st := range steps {
			t.Logf("%8d..%8d %s/%s sure %d by %d, waiter %d",
				st.From-start, st.To-start, st.Cause, st.Inner, st.Sure, st.TID, st.WaiterTID)
		}
	}
	return steps
}

// of returns the first step of a cause.
func of(t *testing.T, steps []Step, id cause.ID) Step {
	t.Helper()
	for _, s := range steps {
		if s.Cause == id {
			return s
		}
	}
	t.Fatalf("no step is %s", id)
	return Step{}
}

// The parts of the gap of frame that are the same whatever the thread does: the return of the synchronization
// and what is granted after it, and the launch.
const (
	drained  = 10*us + maxLaunchInterval
	launched = 10 * us
	middle   = 19_900*us - drained - launched // what is left between them
)

func python(name, file string) recording.Frame { return recordtest.Python(name, file, 7) }
func native(name, file string) recording.Frame { return recordtest.Native(name, file) }
func kernel(name string) recording.Frame       { return recordtest.Kernel(name) }

var user = recording.Frame{
	Kind: recording.PythonFrame,
	Name: "generate",
	File: "/app/infer.py",
	Line: 31,
} //nolint:gochecknoglobals // a constant but for its type

// sampled adds samples of a thread in the middle of the gap.
func (s *scene) sampled(tid uint32, frames ...recording.Frame) *scene {
	s.Samples(tid, start+200*us, start+19_900*us, 3, s.Stack(frames...), event.Whole)
	return s
}

// off lets a thread be off its CPU, from 1 ms to 19 ms unless the interval says otherwise.
func (s *scene) off(o recordtest.Off) *scene {
	if o.TS == 0 {
		o.TS, o.Dur = 1*ms, 18*ms
	}
	if o.TID == 0 {
		o.TID = leader
	}
	o.TS += start
	s.Off(o)
	return s
}

// blocked is off for a wait that a thread ended, after all of it but 10 µs.
func blocked(call uint16, by uint32, stack uint64) recordtest.Off {
	o := recordtest.Off{Call: call, Blocked: 18*ms - 10*us, Stack: stack}
	if by != 0 {
		o.By = [2]uint32{leader, by}
	}
	return o
}
