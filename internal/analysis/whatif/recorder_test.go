package whatif

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/observer"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

func TestOfRecorder(t *testing.T) {
	for _, c := range []struct {
		frame recording.Frame
		want  bool
	}{
		{recordtest.Native("ring_write", "memfd:inferscope-agent-12-345"), true},
		{recordtest.Native("on_api", "/usr/local/cuda/lib64/libcupti.so.13"), true},
		{recordtest.Kernel("uprobe_notify_resume"), true},
		{recordtest.Kernel("asm_exc_int3"), true},
		{recordtest.Kernel("asm_exc_page_fault"), false},
		{recordtest.Native("launch", "libcuda.so.1"), false},
		{recordtest.Native("serve", "inferscope-agent"), false},
		{recordtest.Python("uprobe", "/app/libcupti.so.py", 1), false},
	} {
		if got := ofRecorder(&c.frame); got != c.want {
			t.Errorf("%s (%s): %v", c.frame.Name, c.frame.File, got)
		}
	}
}

// recorded is stepwise with an allocation of 1 ms in each step, of whose six samples two are in CUPTI, and with the
// agent's code in the last 800 µs of the step.
func recorded() *scene {
	s := stepwise()
	own := s.Stack(recordtest.Native("cuMemAlloc_v2", "libcuda.so.1"), recordtest.Python("encode", "/app/infer.py", 7))
	agent := s.Stack(recordtest.Native("on_call", "memfd:inferscope-agent-1-2"),
		recordtest.Python("encode", "/app/infer.py", 7))
	within := s.Stack(recordtest.Native("on_api", "libcupti.so.13"),
		recordtest.Native("cuMemAlloc_v2", "libcuda.so.1"), recordtest.Python("encode", "/app/infer.py", 7))
	for i := range uint64(steps) {
		at := i * period
		s.call("cuMemAlloc_v2", at+1400*us, ms)
		for k := range 4 {
			stack := own
			if k < 2 {
				stack = within
			}
			s.Sample(leader, start+at+1500*us+uint64(k)*200*us, stack, event.Whole)
		}
		for k := range uint64(6) {
			s.Sample(leader, start+at+3300*us+k*100*us, agent, event.Whole)
		}
	}
	return s
}

// TestWithoutRecorder: a third of an allocation of 1 ms of a step of 4 ms is CUPTI's, and 800 µs are the agent's:
// without the daemon a step takes 2,867 µs, of which 667 are the allocation's. The replay without changes is of what
// was recorded all the same.
func TestWithoutRecorder(t *testing.T) {
	s := recorded().study(t)
	if got := s.Recording(); math.Abs(got-1133.0/4000) > 0.02 {
		t.Errorf("recording cost %.3f of the time", got)
	}
	p := s.Predict(edit(t, Without, "allocation"))
	if want := 2867.0 / 2200; math.Abs(p.Speedup/want-1) > 0.015 {
		t.Errorf("%.3f times as fast, want %.3f", p.Speedup, want)
	}
	if with := s.Predict(edit(t, Faster, "encode=1")); with.Speedup != 1 {
		t.Errorf("no change makes it %.3f times as fast", with.Speedup)
	}
	for _, m := range s.Marginals() {
		if m.Name == "on_call (memfd:inferscope-agent-1-2)" {
			t.Errorf("the recorder's code is offered to be made faster: %+v", m)
		}
	}
}

// watched makes the helper the agent's thread.
func (s *scene) watched() {
	for i := range s.Meta.Threads {
		if th := &s.Meta.Threads[i]; th.TID == helper {
			th.Name = "inferscope"
		}
	}
}

// TestSleepsOfTheRecorder: that the agent's thread sleeps is nothing that an edit of the program is about.
func TestSleepsOfTheRecorder(t *testing.T) {
	sc := stepwise()
	sc.watched()
	for i := range uint64(steps) {
		sc.Off(recordtest.Off{
			TID: helper, TS: start + i*period, Dur: 3 * ms, Blocked: 3 * ms, Call: sysSleep, Flags: event.FromIRQ,
		})
	}
	s := sc.study(t)
	if p := s.Predict(edit(t, Without, "sleep")); !p.Empty() || p.Because != ofNothing {
		t.Errorf("%+v", p)
	}
	if p := s.Predict(edit(t, Without, "sync"), edit(t, Without, "sleep")); len(p.Unmatched) != 1 {
		t.Errorf("%+v", p)
	}
}

// TestOustedByRecorder: a thread computes for 2 ms and loses its CPU to the agent's thread for 2 ms; half of that is
// recording's. Where it loses it to another process nothing is.
func TestOustedByRecorder(t *testing.T) {
	for tid, want := range map[uint32]float64{helper: 0.25, 999: 0} {
		s := newScene()
		s.watched()
		stack := s.Stack(recordtest.Python("encode", "/app/infer.py", 7))
		for i := range uint64(steps) {
			at := start + i*period
			s.run(event.Kernel, "cuLaunchKernel", 7, i*period, i*period+10*us, i*period+110*us, 0)
			s.Sample(leader, at+ms, stack, event.Whole)
			s.Off(recordtest.Off{
				TID:   leader,
				TS:    at + 2*ms,
				Dur:   2 * ms,
				Flags: event.Preempted,
				By:    [2]uint32{leader, tid},
			})
		}
		if got := s.study(t).Recording(); math.Abs(got-want) > 0.02 {
			t.Errorf("ousted by %d: recording cost %.3f of the time, want %.3f", tid, got, want)
		}
	}
}

// TestOustedByRecorderAndOthers: the agent's thread takes a CPU away for 20 of 2,000 µs, and others have it then.
// A thread that never waits loses that in any case, and one that waits for a tenth of the time may not.
func TestOustedByRecorderAndOthers(t *testing.T) {
	for waits, want := range map[uint64]float64{0: 0.0025, 400 * us: 0.25} {
		s := newScene()
		s.watched()
		stack := s.Stack(recordtest.Python("encode", "/app/infer.py", 7))
		for i := range uint64(steps) {
			at := start + i*period
			s.run(event.Kernel, "cuLaunchKernel", 7, i*period, i*period+10*us, i*period+110*us, 0)
			s.Sample(leader, at+ms, stack, event.Whole)
			s.Off(recordtest.Off{
				TID: leader, TS: at + 2*ms, Dur: 2 * ms, Flags: event.Preempted, By: [2]uint32{leader, helper},
			})
			if waits > 0 {
				s.Off(recordtest.Off{
					TID: leader, TS: at + 200*us, Dur: waits, Blocked: waits, Call: sysSleep, Flags: event.FromIRQ,
				})
			}
			s.Off(recordtest.Off{
				TID: helper, TS: at + 2020*us, Dur: period - 20*us, Blocked: period - 20*us, Call: sysSleep,
				Flags: event.FromIRQ,
			})
		}
		if got := s.study(t).Recording(); math.Abs(got-want) > 0.02 {
			t.Errorf("waits %d ns: recording cost %.3f of the time, want %.4f", waits, got, want)
		}
	}
}

// TestQuota: what a quota takes away goes with the computing of all threads, and what others take away with the
// thread's own.
func TestQuota(t *testing.T) {
	g := &replay.Graph{
		Whats: []replay.What{
			{Kind: replay.Run, TID: 1},
			{Kind: replay.Run, TID: 2},
			{Kind: replay.Ready, TID: 1, Ousted: true, Cause: cause.Throttled},
			{Kind: replay.Ready, TID: 1, Ousted: true, Cause: cause.NoCPU},
		},
		Times: []replay.Time{{Own: 3 * ms}, {Own: ms}, {Own: ms}, {Own: ms}},
	}
	p := g.Unchanged()
	p.Changes[1].Scale = 0
	lessCrowded(g, p, nil)
	if got := p.Changes[2].Scale; got != 0.75 {
		t.Errorf("throttled: %v", got)
	}
	if got := p.Changes[3].Scale; got != 1 {
		t.Errorf("ousted: %v", got)
	}
}

// TestQuotaOfRecorder: what the recorder computes takes of a quota, unless steps inside and outside of windows show
// that it does not; what the program computes does in both cases.
func TestQuotaOfRecorder(t *testing.T) {
	g := &replay.Graph{
		Whats: []replay.What{
			{Kind: replay.Run, TID: 1},
			{Kind: replay.Run, TID: 2, Recorder: true},
			{Kind: replay.Ready, TID: 1, Cause: cause.Throttled},
		},
		Times: []replay.Time{{Own: ms}, {Own: 3 * ms}, {Own: 4 * ms}},
	}
	r := &recorder{}
	for _, tt := range []struct {
		apart   *recorder
		program float64 // share of its computing that stays
		want    float64
	}{{nil, 1, 0.25}, {r, 1, 1}, {nil, 0.5, 0.125}, {r, 0.5, 0.5}} {
		p := g.Unchanged()
		p.Changes[0].Scale = tt.program
		r.leaveOut(g, p)
		lessCrowded(g, p, tt.apart)
		if got := p.Changes[2].Scale; got != tt.want {
			t.Errorf("of %v of the program's computing, recorder apart: %v: throttled for %v, want %v",
				tt.program, tt.apart != nil, got, tt.want)
		}
	}
	shown := &observer.Effect{Steps: observer.Share{Mean: 0.03, Low: 0.02, High: 0.04}}
	if !r.contradicts(shown, 0.65) || r.contradicts(shown, 0.09) || r.contradicts(nil, 0.65) ||
		r.contradicts(&observer.Effect{}, 0.65) {
		t.Error("what windows show is believed where they show something else, and only there")
	}
}

// TestInterruptedLaunch: of a step of 5 ms the thread has no CPU for 4, in the middle of its launch. With a CPU the
// step takes 1 ms.
func TestInterruptedLaunch(t *testing.T) {
	s := newScene()
	const long = 5 * ms
	for i := range uint64(steps - 50) {
		at := i * long
		s.id++
		id := s.id
		s.Event(event.Event{
			TS:    start + at,
			Dur:   4*ms + 100*us,
			PID:   s.PID,
			TID:   s.TID,
			Func:  s.Fn("cuLaunchKernel"),
			Kind:  event.Call,
			Flags: event.Timed | event.Correlated,
			Ret:   int32(id),
		})
		s.Off(recordtest.Off{
			TID:   leader,
			TS:    start + at + 50*us,
			Dur:   4 * ms,
			Flags: event.Preempted,
			By:    [2]uint32{4242, 4242},
		})
		s.Event(event.Event{
			TS:    start + at + 4060*us,
			Dur:   800 * us,
			PID:   s.PID,
			TID:   7,
			Func:  1 << 8,
			Kind:  event.Kernel,
			Flags: event.Timed,
			Args:  [4]uint64{uint64(id), 0, 1 << 20},
		})
		s.wait(at+4150*us, at+4900*us)
	}
	predicts(t, s.study(t).Predict(edit(t, Without, "no-cpu")), 5)
}

// TestNodesOfGraphs: steps of 300 graph nodes of 1 µs take 11% longer in windows, 0.1 µs for each node that the GPU
// takes between two of them. That is left out; where nothing was compared, it is in the interval of what leaves them.
func TestNodesOfGraphs(t *testing.T) {
	const step = 400 * us
	sc := newScene()
	for i := range uint64(steps) {
		at := i * step
		id := sc.call("cudaGraphLaunch", at, 3*us)
		for k := range uint64(300) {
			sc.Event(event.Event{
				TS: start + at + 10*us + k*1200, Dur: 1000, PID: leader, TID: 7, Func: 1 << 8, Kind: event.Kernel,
				Flags: event.Timed, Args: [4]uint64{uint64(id), 0, 1 << 20},
			})
		}
		sc.wait(at+5*us, at+375*us)
	}
	tl := timeline.Build(sc.Recording())
	study := func(windows *observer.Effect) *Study {
		return Some(tl, tl.Index.Threads(), nil, timeline.Span{From: tl.From, To: tl.To}, math.MaxInt, windows)
	}
	share := 30. / 400 // of 300 nodes, 0.1 µs each
	compared := study(&observer.Effect{Steps: observer.Share{Mean: share, Low: share - 0.01, High: share + 0.01}})
	if got := compared.Recording(); math.Abs(got-share) > 0.01 {
		t.Errorf("recording cost %.3f of the time, want %.3f", got, share)
	}
	unknown := study(nil)
	if got := unknown.Recording(); got != 0 {
		t.Errorf("nothing was compared, and recording cost %.3f", got)
	}
	e := []Edit{edit(t, Without, "host-sync")}
	if off := unknown.lighter(e, usual()); off == 0 {
		t.Error("recorded nodes widen nothing")
	}
}
