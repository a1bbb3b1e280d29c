package gap

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// two is a scene with a kernel until 100 µs, and one from 20 ms on that was launched at a time by a call of 3 µs.
func two(launch uint64, more func(s *scene)) *scene {
	s := newScene()
	s.run(1*us, 9*us, 100*us)
	if more != nil {
		more(s)
	}
	s.run(launch, 20_000*us, 999_000*us)
	return s
}

// TestQueued: what ended the gap had been launched before the gap began.
func TestQueued(t *testing.T) {
	s := newScene()
	s.run(1*us, 9*us, 19_990*us).run(5*us, 20_000*us, 999_000*us)
	_, w := s.build(t)
	if len(w.Gaps) != 2 || w.sums()[cause.LaunchOverhead] != 10*us {
		t.Errorf("gaps %+v, sums %v: want 10 µs of starting", w.Gaps, w.sums())
	}
	st := of(t, two(50*us, nil).want(t, map[cause.ID]uint64{cause.Dependency: 19_900 * us}), cause.Dependency)
	if st.Sure != Inferred || st.Op == None {
		t.Errorf("step %+v", st)
	}
}

// TestHostFunction: the stream holds a function of the host.
func TestHostFunction(t *testing.T) {
	s := two(50*us, func(s *scene) { s.Do("cuLaunchHostFunc", int64(40*us), 0, 0, 0x77) })
	if st := of(t, s.want(t, map[cause.ID]uint64{cause.Dependency: 19_900 * us}), cause.Dependency); st.Sure != Seen {
		t.Errorf("step %+v", st)
	}
}

// TestOtherGPU: what ended the gap had to wait for an event of another GPU's stream; and a thread waits for another
// GPU.
func TestOtherGPU(t *testing.T) {
	s := two(50*us, func(s *scene) {
		s.Meta.GPU.Streams = []recording.Stream{{PID: leader, ID: 7, Context: 1}, {PID: leader, ID: 9, Context: 1}}
		s.on(event.Kernel, 1, 9, s.call("cuLaunchKernel", 10*us, 3*us, 1, 0x90), 20*us, 15_000*us, 0, 0)
		s.Do("cuEventRecord", int64(20*us), 0, 0xe1, 0x90)
		s.Do("cuStreamWaitEvent", int64(30*us), 0, 0, 0xe1)
	})
	_, w := s.build(t)
	var got [cause.Count]uint64
	for _, g := range w.Gaps {
		if g.Device == 0 && g.Next != None {
			for _, st := range w.Steps[g.First:g.Last] {
				got[st.Cause] += st.To - st.From
			}
		}
	}
	// The other GPU worked until 15 ms; why the kernel did not begin then is not known.
	if got[cause.PipelineBubble] != 14_900*us || got[cause.Dependency] != 5_000*us {
		t.Errorf("sums %v", got)
	}
}

// TestHandedOver: where no event is known a kernel that was launched in time and begins as another GPU ends waited for
// that; one that begins later did not.
func TestHandedOver(t *testing.T) {
	for _, end := range []uint64{19_990 * us, 19_900 * us} {
		s := two(50*us, func(s *scene) {
			s.on(event.Kernel, 1, 9, s.call("cuLaunchKernel", 10*us, 3*us, 1, 0), 20*us, end, 0, 0)
		})
		_, w := s.build(t)
		var got [cause.Count]uint64
		for _, g := range w.Gaps {
			if g.Device == 0 && g.Next != None {
				for _, st := range w.Steps[g.First:g.Last] {
					got[st.Cause] += st.To - st.From
				}
			}
		}
		want := map[bool][2]uint64{true: {19_890 * us, 0}, false: {0, 19_900 * us}}[end == 19_990*us]
		if got[cause.PipelineBubble] != want[0] || got[cause.Dependency] != want[1] {
			t.Errorf("until %d: sums %v", end, got)
		}
	}
}

// TestThreadWaitsForOtherGPU: a thread that waits for one GPU leaves another one idle until that has done its part;
// what it waits for longer is the price of waiting.
func TestThreadWaitsForOtherGPU(t *testing.T) {
	for _, busy := range []uint64{15_000 * us, 60 * us} {
		s := two(19_990*us, func(s *scene) {
			s.Meta.GPU.Streams = []recording.Stream{{PID: leader, ID: 7, Context: 1}, {PID: leader, ID: 9, Context: 1}}
			s.on(event.Kernel, 1, 9, s.call("cuLaunchKernel", 10*us, 3*us, 1, 0x90), 20*us, busy, 0, 0)
			s.Do("cuStreamSynchronize", int64(30*us), 19_900*us, 0x90)
		})
		_, w := s.build(t)
		var got [cause.Count]uint64
		for _, g := range w.Gaps {
			if g.Device == 0 && g.Next != None {
				for _, st := range w.Steps[g.First:g.Last] {
					got[st.Cause] += st.To - st.From
				}
			}
		}
		bubble := max(busy, 100*us) - 100*us
		if got[cause.PipelineBubble] != bubble || got[cause.HostSync] < 19_830*us-bubble {
			t.Errorf("busy for %d: sums %v", busy, got)
		}
	}
}

// TestCopies: the copy that ends the gap, by what its record says.
func TestCopies(t *testing.T) {
	for name, c := range map[string]struct {
		call  string
		kind  int32 // CUpti_ActivityMemcpyKind, source and destination
		bytes uint64
		want  cause.ID
	}{
		"pageable":          {"cuMemcpyHtoDAsync_v2", 1 | 1<<8 | 3<<16, 10 << 20, cause.SyncCopy},
		"pinned":            {"cuMemcpyHtoDAsync_v2", 1 | 2<<8 | 3<<16, 10 << 20, cause.LaunchOverhead},
		"synchronous":       {"cuMemcpyHtoD_v2", 1 | 2<<8 | 3<<16, 10 << 20, cause.SyncCopy},
		"item":              {"cuMemcpyDtoHAsync_v2", 2 | 3<<8 | 1<<16, 8, cause.HostSync},
		"result":            {"cuMemcpyDtoH_v2", 2 | 3<<8 | 1<<16, 10 << 20, cause.SyncCopy},
		"inside the device": {"cuMemcpyDtoD_v2", 8 | 3<<8 | 3<<16, 10 << 20, cause.LaunchOverhead},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.run(1*us, 9*us, 100*us)
			s.on(event.Copy, 0, 7, s.call(c.call, 80*us, 999_000*us, 1, 2, c.bytes, 0),
				150*us, 20_000*us, c.kind, c.bytes)
			_, w := s.build(t)
			for _, g := range w.Gaps {
				if g.From == start+100*us && w.Steps[g.First].Cause != c.want {
					t.Errorf("steps %+v, want %s", w.Steps[g.First:g.Last], c.want)
				}
			}
		})
	}
}

// TestRead: a copy of little into pinned memory whose thread waits for the GPU next is a look at a result; one after
// which it goes on launching is not, nor is one of much.
func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		next  string
		bytes uint64
		want  cause.ID
	}{
		"item":            {"cuStreamSynchronize", 8, cause.HostSync},
		"goes on":         {"cuLaunchKernel", 8, cause.LaunchOverhead},
		"brings a result": {"cuStreamSynchronize", 10 << 20, cause.LaunchOverhead},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.run(1*us, 9*us, 100*us)
			id := s.call("cuMemcpyDtoHAsync_v2", 110*us, 5*us, 1, 2, c.bytes, 0)
			s.on(event.Copy, 0, 7, id, 117*us, 119*us, 2|3<<8|2<<16, c.bytes)
			s.call(c.next, 118*us, 5*us, 1, 0)
			_, w := s.build(t)
			in := cause.Count
			for _, steps := range w.All() {
				for _, st := range steps {
					if st.From <= start+112*us && start+112*us < st.To {
						in = st.Cause
					}
				}
			}
			if in != c.want {
				t.Errorf("in the copy: %s, want %s", in, c.want)
			}
		})
	}
}

// TestUntimedCall: a call whose return was not seen lasts until what it launched begins where its thread hardly ran
// meanwhile; where it ran, what was launched waited for something else.
func TestUntimedCall(t *testing.T) {
	throttled := recordtest.Off{TS: 130 * us, Dur: 19_850 * us, Call: event.NoSyscall, Flags: event.Preempted}
	byRecorder := recordtest.Off{
		TS: 130 * us, Dur: 19_850 * us, Blocked: 19_840 * us, Call: sysFutex, By: [2]uint32{leader, helper},
	}
	ofRecorder := throttled
	ofRecorder.TID, ofRecorder.TS, ofRecorder.Dur = helper, 50*us, 19_900*us
	for name, c := range map[string]struct {
		off  []recordtest.Off
		want cause.ID
	}{
		"no CPU":                       {[]recordtest.Off{throttled}, cause.Throttled},
		"recorder's thread has no CPU": {[]recordtest.Off{byRecorder, ofRecorder}, cause.Throttled},
		"ran":                          {nil, cause.Dependency},
		"ran for half of it": {
			[]recordtest.Off{{TS: 130 * us, Dur: 9_000 * us, Call: event.NoSyscall, Flags: event.Preempted}}, cause.Dependency,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			for i := range s.Meta.Threads {
				if th := &s.Meta.Threads[i]; th.TID == helper {
					th.Name = "inferscope"
				}
			}
			s.run(1*us, 9*us, 100*us)
			const id = 99
			s.Event(event.Event{
				TS: start + 110*us, PID: leader, TID: leader, Func: s.Fn("cuMemsetD8Async"), Kind: event.Call,
				Flags: event.Correlated, Ret: id,
			})
			s.on(event.Set, 0, 7, id, 20_000*us, 999_000*us, 0, 4)
			for _, off := range c.off {
				s.off(off)
			}
			_, w := s.build(t)
			var most cause.ID
			took := map[cause.ID]uint64{}
			for _, steps := range w.All() {
				for _, st := range steps {
					if took[st.Cause] += st.To - st.From; took[st.Cause] > took[most] {
						most = st.Cause
					}
				}
			}
			if most != c.want || took[most] < 19*ms {
				t.Errorf("%v, want %s", took, c.want)
			}
		})
	}
}

// TestOtherThread: the thread that launched what ended the gap counts, not the one that launched before.
func TestOtherThread(t *testing.T) {
	s := newScene()
	s.run(1*us, 9*us, 100*us)
	s.by(helper).run(19_990*us, 20_000*us, 999_000*us)
	s.sampled(leader, user).sampled(helper, native("decode_image", "server"))
	s.want(t, map[cause.ID]uint64{cause.Preprocessing: 19_890 * us, cause.LaunchOverhead: 10 * us})
}

// TestUnlinked: nothing says which call asked for the kernel that ended the gap.
func TestUnlinked(t *testing.T) {
	s := newScene()
	s.run(1*us, 9*us, 100*us)
	s.on(event.Kernel, 0, 7, 0, 20_000*us, 999_000*us, 0, 0)
	s.sampled(leader, user).sampled(helper, native("decode_image", "server"))
	_, w := s.build(t)
	found := false
	for _, st := range w.Steps {
		if st.Cause == cause.PythonWork && st.TID == leader {
			found = true
		}
		if st.Cause == cause.Preprocessing {
			t.Errorf("step %+v of a thread that launches nothing", st)
		}
	}
	if !found {
		t.Errorf("steps %+v: want the work of the only thread that launches", w.Steps)
	}
	for i := range w.Gaps {
		g := &w.Gaps[i]
		if g.Next == None || g.From < start+100*us {
			continue
		}
		for _, st := range w.Steps[g.First:g.Last] {
			if st.Sure != Guessed {
				t.Errorf("step %+v is sure", st)
			}
		}
	}
}

// TestEnd: the gap at the end of a window is explained by the thread that launched before.
func TestEnd(t *testing.T) {
	s := newScene()
	s.run(1*us, 9*us, 100*us)
	s.Samples(leader, start+ms, start+999*ms, 90, s.Stack(user), event.Whole)
	s.Samples(helper, start+ms, start+999*ms, 90, s.Stack(native("decode_image", "server")), event.Whole)
	_, w := s.build(t)
	g := w.Gaps[len(w.Gaps)-1]
	if g.Next != None || g.Prev == None || w.sums()[cause.PythonWork] < 998*ms {
		t.Errorf("gap %+v, sums %v", g, w.sums())
	}
}

// TestCovered: a device that two processes use is idle where both were seen, and neither ran anything.
func TestCovered(t *testing.T) {
	const other = 2001
	s := newScene()
	s.run(1*us, 9*us, 100*ms)
	s.Process(recording.Process{PID: other, Comm: "worker", Born: 1})
	s.Meta.GPU.Devices = append(s.Meta.GPU.Devices, recording.Device{PID: other, ID: 0, UUID: "GPU-0"})
	s.Meta.GPU.Windows = append(s.Meta.GPU.Windows,
		recording.GPUWindow{PID: other, From: start + 50*ms, To: start + 500*ms, Activity: true, Calls: true})
	s.As(other, other)
	s.on(event.Kernel, 0, 7, s.call("cuLaunchKernel", 60*ms, 3*us), 60_010*us, 200*ms, 0, 0)
	tl, w := s.build(t)
	if len(tl.Devices) != 1 {
		t.Fatalf("%d devices", len(tl.Devices))
	}
	c := w.Covered[0]
	if len(c) != 1 || c[0].To != start+500*ms || c[0].From < start+50*ms {
		t.Errorf("covered %+v", c)
	}
	if len(w.Gaps) != 1 || w.Gaps[0].From != start+200*ms || w.Gaps[0].To != start+500*ms {
		t.Errorf("gaps %+v", w.Gaps)
	}
}

// TestPausesAreNotCovered: what threads did while a source was reduced is not known, unless it was off nearly all of
// the time.
func TestPausesAreNotCovered(t *testing.T) {
	for _, tt := range []struct {
		paused uint64 // ns from 10 ms on
		covers bool
	}{{100 * ms, false}, {990 * ms, true}} {
		s := frame()
		s.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
			Name:   recording.SamplesSource,
			Paused: []recording.Pause{{From: start + 10*ms, To: start + 10*ms + tt.paused}},
		}}}
		tl, w := s.build(t)
		if got := w.Covered[0].Holds(start + 60*ms); got != tt.covers {
			t.Errorf("paused for %d ms of %d: covered: %v", tt.paused/ms, (tl.To-tl.From)/ms, w.Covered[0])
		}
	}
}

// TestUnrecordedCallsAreNotCovered: while calls were not recorded a synchronization would pass for slow launching; what
// is left out is the time of that, unless little else is left.
func TestUnrecordedCallsAreNotCovered(t *testing.T) {
	for _, tt := range []struct {
		paused uint64 // ns from 10 ms on
		covers bool
	}{{600 * ms, false}, {950 * ms, true}} {
		s := frame()
		s.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
			Name:   recording.CallsSource,
			Paused: []recording.Pause{{From: start + 10*ms, To: start + 10*ms + tt.paused}},
		}}}
		_, w := s.build(t)
		if got := w.Covered[0].Holds(start + 60*ms); got != tt.covers {
			t.Errorf("paused for %d ms: covered: %v", tt.paused/ms, w.Covered[0])
		}
	}
}

// TestLossyIsNoGap: what lies in a window that lost records is not called idle.
func TestLossyIsNoGap(t *testing.T) {
	s := frame()
	s.Meta.GPU.Windows[0].Dropped = 3
	if _, w := s.build(t); len(w.Gaps) != 0 || w.Covered[0].Total() != 0 {
		t.Errorf("gaps %+v", w.Gaps)
	}
}

// TestOneLostRecord: a launch without an activity says when the one record ran that was lost, which is all that is not
// known; where the calls do not account for what was lost, nothing is.
func TestOneLostRecord(t *testing.T) {
	lose := func(dropped uint64, more func(s *scene)) timeline.Spans {
		s := newScene()
		s.run(1*us, 9*us, 100*us)
		s.call("cuLaunchKernel", 5_000*us, 3*us, 1, 0) // its record is lost
		s.run(19_990*us, 20_000*us, 30_000*us)
		more(s)
		s.run(899_990*us, 900_000*us, 999_000*us)
		s.Meta.GPU.Windows[0].Dropped = dropped
		_, w := s.build(t)
		return w.Covered[0]
	}
	nothing := func(*scene) {}
	want := timeline.Spans{{From: start + 9*us, To: start + 5_000*us}, {From: start + 20_000*us, To: start + 1000*ms}}
	if got := lose(1, nothing); !slices.Equal(got, want) {
		t.Errorf("covered %+v, want %+v", got, want)
	}
	for name, got := range map[string]timeline.Spans{
		"two were lost": lose(2, nothing),
		"the stream has no other record": lose(2, func(s *scene) {
			s.call("cuLaunchKernel", 40_000*us, 3*us, 1, 0x99<<8)
		}),
		"a twentieth is not known": lose(1+1, func(s *scene) { s.call("cuLaunchKernel", 40_000*us, 3*us, 1, 0) }),
		"a call more than records": lose(1, func(s *scene) { s.call("cuLaunchKernel", 40_000*us, 3*us, 1, 0) }),
	} {
		if got.Total() != 0 {
			t.Errorf("%s: covered %+v", name, got)
		}
	}
	whose := timeline.Spans{{From: start + 9*us, To: start + 5_000*us}, {From: start + 20_000*us, To: start + 1000*ms}}
	got := lose(2, func(s *scene) { s.on(event.Kernel, 0, 7, 7777, 50_000*us, 60_000*us, 0, 0) }) // its call is lost
	if !slices.Equal(got, whose) {
		t.Errorf("a call was lost, too: covered %+v, want %+v", got, whose)
	}
}

// TestShared: stretches shorter than the time between two samples share them.
func TestShared(t *testing.T) {
	const n, period = 1000, 900 * us
	s := newScene()
	s.Window(start, start+n*period)
	s.Meta.GPU.Windows[0].To = start + n*period
	parse, work := s.Stack(native("parse_table", "server")), s.Stack(user)
	for i := range uint64(n) {
		at := i * period
		s.run(at+1*us, at+9*us, at+100*us)
		s.Do("cuStreamSynchronize", int64(at+20*us), 90*us, 0)
		if i%13 == 5 { // 77 samples, three quarters of them in parse_table
			s.Sample(leader, start+at+300*us+i%400*us, []uint64{parse, parse, work, parse}[i%4], event.Whole)
		}
	}
	_, w := s.build(t)
	sums := w.sums()
	all, share := sums[cause.Preprocessing]+sums[cause.PythonWork], 0.0
	if all > 0 {
		share = float64(sums[cause.Preprocessing]) / float64(all)
	}
	if all < n*740*us || share < 0.73 || share > 0.77 {
		t.Errorf("%.1f%% of %d ns are preprocessing, want 75%%", 100*share, all)
	}
	inferred := 0
	for _, st := range w.Steps {
		if st.Cause == cause.Preprocessing && st.Sure == Inferred && st.Stack == parse {
			inferred++
		}
	}
	if inferred < n/2 {
		t.Errorf("%d steps are inferred", inferred)
	}
}

// TestNothingButLaunches: neither samples nor scheduling were recorded.
func TestNothingButLaunches(t *testing.T) {
	s := frame()
	rec := s.Recording()
	kept := rec.Events[:0]
	for _, e := range rec.Events {
		if e.Kind != event.OffCPU {
			kept = append(kept, e)
		}
	}
	rec.Events = kept
	w := checked(t, timeline.Build(rec))
	for _, st := range w.Steps {
		if st.Cause == cause.Unknown && st.Sure != Guessed {
			t.Errorf("step %+v", st)
		}
	}
	if sums := w.sums(); sums[cause.Unknown] < middle || sums[cause.PythonWork]+sums[cause.NativeWork] > 0 {
		t.Errorf("sums %v", w.sums())
	}
}

// TestMain: without a GPU, the main thread's window is explained.
func TestMain(t *testing.T) {
	s := frame()
	s.Meta.GPU = nil
	s.off(recordtest.Off{TS: 100 * ms, Dur: 400 * ms, Blocked: 400 * ms, Call: sysSleep, Flags: event.FromIRQ})
	s.Samples(leader, start+500*ms, start+999*ms, 50, s.Stack(native("simulate", "server")), event.Whole)
	rec := s.Recording()
	kept := rec.Events[:0]
	for _, e := range rec.Events {
		if e.Kind != event.Kernel {
			kept = append(kept, e)
		}
	}
	rec.Events = kept
	w := checked(t, timeline.Build(rec))
	if w.Main == nil || len(w.Gaps) != 0 {
		t.Fatalf("main %+v, gaps %v", w.Main, w.Gaps)
	}
	if sums := w.sums(); sums[cause.Sleep] != 400*ms || sums[cause.NativeWork] < 590*ms ||
		sums[cause.HostSync] > maxLaunchInterval {
		t.Errorf("sums %v: want sleep, native work, and no accusation of what waits for a GPU that was not seen", sums)
	}
}
