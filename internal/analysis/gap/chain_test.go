package gap

import (
	"math"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// waiting is what a gap holds in which the launching thread waits for 18 ms, of which waking up takes 10 µs.
func waiting(id cause.ID) map[cause.ID]uint64 {
	return map[cause.ID]uint64{
		cause.HostSync: drained, cause.LaunchOverhead: launched, id: 18 * ms, cause.PythonWork: middle - 18*ms,
	}
}

func TestWorker(t *testing.T) {
	s := frame()
	pipe := blocked(sysRead, helper, s.Stack(native("read", "libc.so.6"), user))
	pipe.Inode, pipe.Type = 123, 1
	s.sampled(helper, python("collate", "/app/loader.py")).sampled(leader, user)
	st := of(t, s.off(pipe).want(t, waiting(cause.Worker)), cause.Worker)
	if st.Inner != cause.PythonWork || st.TID != helper || st.WaiterTID != leader || st.Sure != Seen {
		t.Errorf("step %+v, want the worker's Python code", st)
	}
}

// TestChain: the leader waits for the helper, that for a third thread, that for the disk.
func TestChain(t *testing.T) {
	s := frame().sampled(leader, user)
	s.off(blocked(sysFutex, helper, 0))
	next := blocked(sysFutex, third, 0)
	next.TID, next.TS, next.Dur, next.Blocked = helper, 1*ms, 17*ms, 17*ms-10*us
	s.off(next).sampled(helper, native("pack", "server"))
	s.off(recordtest.Off{TID: third, TS: 1 * ms, Dur: 15 * ms, Blocked: 15 * ms, Call: sysPread, Inode: 1, Type: 8}).
		sampled(third, native("unpack", "server"))
	steps := s.want(t, waiting(cause.Worker))
	inner := map[cause.ID]uint64{}
	for _, st := range steps {
		if st.Cause == cause.Worker {
			inner[st.Inner] += st.To - st.From
			if st.WaiterTID != leader {
				t.Errorf("step %+v: the leader waits", st)
			}
		}
	}
	if inner[cause.Disk] != 15*ms || inner[cause.NativeWork] != 3*ms {
		t.Errorf("the leader waited for %v", inner)
	}
}

// TestOnlyChild: who waits for a process of its own to end waits for what that one does, where there is only one.
func TestOnlyChild(t *testing.T) {
	const sysWait4, child = 61, leader + 500
	for children, want := range map[uint32]uint32{1: child, 2: leader} {
		s := frame().sampled(leader, user)
		s.off(recordtest.Off{Call: sysWait4, TS: 1 * ms, Dur: 18 * ms, Flags: event.Open})
		for i := range children {
			s.Meta.Processes = append(s.Meta.Processes, recording.Process{PID: child + i, Parent: leader, Born: 1, Comm: "engine"})
			s.Event(event.Event{
				TS: start + 2*ms, Dur: 3 * ms, PID: child + i, TID: child + i, Kind: event.OffCPU, Func: sysSleep, Flags: event.Timed,
				Args: [4]uint64{3 * ms},
			})
		}
		st := of(t, s.want(t, waiting(cause.Worker)), cause.Worker)
		if st.TID != want || st.PID != want || (children == 1) != (st.WaiterTID == leader) {
			t.Errorf("of %d children: %+v, want thread %d", children, st, want)
		}
	}
}

// TestIdleServer: whoever waits for a thread that waits for clients has nothing to do.
func TestIdleServer(t *testing.T) {
	s := frame().sampled(leader, user)
	s.off(blocked(sysFutex, helper, 0))
	s.off(recordtest.Off{
		TID: helper, TS: 500 * us, Dur: 18 * ms, Blocked: 18 * ms, Call: sysAccept, Flags: event.FromIRQ,
	}).sampled(helper, user)
	steps := s.want(t, map[cause.ID]uint64{
		cause.HostSync: drained, cause.LaunchOverhead: launched, cause.NoWork: 17_500 * us, cause.Worker: 500 * us,
		cause.PythonWork: middle - 18*ms,
	})
	if st := of(t, steps, cause.NoWork); st.TID != helper || st.WaiterTID != leader || st.Inner != cause.Unknown {
		t.Errorf("step %+v", st)
	}
}

// TestNobodyAsks: where no request is in progress, whoever waits has nothing to do, whatever the thread does that it
// waits for; unless the GPU works then as well.
func TestNobodyAsks(t *testing.T) {
	for _, test := range []struct {
		name   string
		first  uint64 // when the first request ends, ns
		last   uint64 // and the last one
		noWork uint64
	}{
		{"no request for 10 ms", 4 * ms, 990 * ms, 10 * ms},
		{"always one", 19 * ms, 990 * ms, 0},
		{"the GPU works for none", 4 * ms, 18 * ms, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := frame().sampled(leader, user)
			s.off(blocked(sysFutex, helper, 0))
			s.sampled(helper, user)
			for i := range uint64(8) {
				r := recording.Request{PID: leader, Received: start, End: start + test.first}
				if i > 0 {
					r.Received, r.End = start+16*ms, start+test.last
				}
				s.Meta.Requests = append(s.Meta.Requests, r)
			}
			_, w := s.build(t)
			var took uint64
			for _, st := range w.Steps {
				if st.Cause == cause.NoWork {
					took += st.To - st.From
				}
			}
			if took != test.noWork {
				t.Errorf("nobody asked for %d ns, want %d: %+v", took, test.noWork, w.Steps)
			}
		})
	}
}

// TestNobodyAsksWithoutGPU: where nothing is recorded of GPUs, requests do not tell what these do.
func TestNobodyAsksWithoutGPU(t *testing.T) {
	for name, test := range map[string]struct {
		s    *scene
		want bool
	}{
		"a GPU":           {frame(), true},
		"nothing of GPUs": {newScene(), false},
	} {
		for range 8 {
			test.s.Meta.Requests = append(test.s.Meta.Requests,
				recording.Request{PID: leader, Received: start, End: start + 4*ms},
				recording.Request{PID: leader, Received: start + 16*ms, End: start + 990*ms})
		}
		got, known := unaskedOf(timeline.Build(test.s.Recording()))
		if known != test.want || (len(got) > 0) != test.want {
			t.Errorf("%s: nobody asks in %v, %v", name, got, known)
		}
	}
}

// TestLocks: futexes by the frames that went to sleep in them.
func TestLocks(t *testing.T) {
	loop := native("_PyEval_EvalFrameDefault", "python3.12")
	for name, c := range map[string]struct {
		stack []recording.Frame
		want  cause.ID
	}{
		"mutex": {
			[]recording.Frame{
				native("__lll_lock_wait", "libc.so.6"), native("pthread_mutex_lock", "libc.so.6"),
				native("push", "server"),
			},
			cause.Lock,
		},
		"rwlock": {
			[]recording.Frame{
				native("__pthread_rwlock_rdlock_full64", "libc.so.6"), native("pthread_rwlock_rdlock", "libc.so.6"),
				native("get", "server"),
			},
			cause.Lock,
		},
		"python lock": {
			[]recording.Frame{
				native("__futex_abstimed_wait_common64", "libc.so.6"),
				native("PyThread_acquire_lock_timed", "python3.12"), native("lock_PyThread_acquire_lock", "python3.12"),
				loop, user,
			},
			cause.Lock,
		},
		"python queue": {
			[]recording.Frame{
				native("PyThread_acquire_lock_timed", "python3.12"), loop,
				python("wait", "/usr/lib/python3.12/threading.py"), python("get", "/usr/lib/python3.12/queue.py"), user,
			},
			cause.Worker,
		},
		"condition": {
			[]recording.Frame{native("pthread_cond_wait", "libc.so.6"), native("pop", "server")}, cause.Worker,
		},
		"mutex in a cond": {
			[]recording.Frame{
				native("__lll_lock_wait", "libc.so.6"), native("pthread_mutex_lock", "libc.so.6"),
				native("pthread_cond_wait", "libc.so.6"), native("pop", "server"),
			},
			cause.Worker,
		},
		"openmp": {
			[]recording.Frame{native("gomp_team_barrier_wait_end", "libgomp.so.1"), user}, cause.Worker,
		},
		"gil": {
			[]recording.Frame{
				native("pthread_cond_timedwait", "libc.so.6"), native("take_gil", "python3.12"), loop, user,
			},
			cause.GIL,
		},
		"nothing is known": {nil, cause.Worker},
		"mp queue": {
			[]recording.Frame{
				native("semlock_acquire", "_multiprocessing.cpython-312-x86_64-linux-gnu.so"),
				python("get", "/usr/lib/python3.12/multiprocessing/queues.py"), user,
			},
			cause.Worker,
		},
		"mp lock": {
			[]recording.Frame{
				native("semlock_acquire", "_multiprocessing.cpython-312-x86_64-linux-gnu.so"),
				python("__enter__", "/usr/lib/python3.12/multiprocessing/synchronize.py"), user,
			},
			cause.Lock,
		},
		"gil, old and bare": {
			[]recording.Frame{
				native("pthread_cond_timedwait", "libc.so.6"), native("PyEval_RestoreThread", "python3.8"), user,
			},
			cause.GIL,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := frame().sampled(leader, user).sampled(helper, native("compute", "server"))
			steps := s.off(blocked(sysFutex, helper, s.Stack(c.stack...))).want(t, waiting(c.want))
			if st := of(t, steps, c.want); st.Inner != cause.NativeWork || st.TID != helper || st.WaiterTID != leader {
				t.Errorf("step %+v", st)
			}
		})
	}
}

// TestGILHolder: the wait timed out, as CPython's do every 5 ms, so that nobody woke the thread; samples say who ran.
func TestGILHolder(t *testing.T) {
	s := frame().sampled(leader, user).sampled(helper, python("encode", "/app/metrics.py"))
	o := blocked(sysFutex, 0,
		s.Stack(native("pthread_cond_timedwait", "libc.so.6"), native("take_gil", "python3.12"), user))
	o.Flags = event.FromIRQ
	if st := of(t, s.off(o).want(t, waiting(cause.GIL)), cause.GIL); st.TID != helper || st.Inner != cause.PythonWork {
		t.Errorf("step %+v", st)
	}
}

// TestCycle: threads that are said to have woken each other.
func TestCycle(t *testing.T) {
	s := frame().sampled(leader, user)
	s.off(blocked(sysFutex, helper, 0))
	back := blocked(sysFutex, leader, 0)
	back.TID = helper
	s.off(back)
	if st := of(t, s.want(t, waiting(cause.Worker)), cause.Worker); st.WaiterTID != leader || st.TID != helper {
		t.Errorf("step %+v", st)
	}
}

// TestLongChain: more threads wait for each other than are followed.
func TestLongChain(t *testing.T) {
	s := frame().sampled(leader, user)
	s.off(blocked(sysFutex, helper, 0))
	for i := range uint32(2 * maxChain) {
		o := blocked(sysFutex, helper+i+1, 0)
		o.TID = helper + i
		s.off(o)
	}
	s.want(t, waiting(cause.Worker))
}

// TestFutexesWithoutStacks: what the stacks of other waits at the same futex, or of the same thread, say.
func TestFutexesWithoutStacks(t *testing.T) {
	for name, c := range map[string]struct {
		address uint64 // of the wait that has a stack
		tid     uint32
		want    cause.ID
	}{
		"the same futex":            {0x7000, third, cause.Lock},
		"another one of the thread": {0x9000, leader, cause.Lock},
		"another one of another":    {0x9000, third, cause.Worker},
	} {
		t.Run(name, func(t *testing.T) {
			s := frame().sampled(leader, user).sampled(helper, native("compute", "server"))
			lock := s.Stack(kernel("futex_wait_queue"), kernel("futex_wait"), kernel("do_futex"),
				native("__lll_lock_wait", "libc.so.6"), native("pthread_mutex_lock", "libc.so.6"),
				native("push", "server"))
			s.Off(recordtest.Off{
				TID:     c.tid,
				TS:      start + 50*ms,
				Dur:     ms,
				Blocked: ms,
				Call:    sysFutex,
				Arg:     c.address,
				By:      [2]uint32{leader, helper},
				Stack:   lock,
			})
			o := blocked(sysFutex, helper, 0)
			o.Arg = 0x7000
			if st := of(t, s.off(o).want(t, waiting(c.want)), c.want); st.TID != helper ||
				st.Inner != cause.NativeWork {
				t.Errorf("step %+v", st)
			}
		})
	}
}

// TestMostStacksOfAFutexDecide: a stack that lacks the frame of the lock does not make its wait one for a worker.
func TestMostStacksOfAFutexDecide(t *testing.T) {
	for others, want := range map[uint64]cause.ID{0: cause.Worker, 2: cause.Lock} {
		s := frame().sampled(leader, user).sampled(helper, native("compute", "server"))
		inFutex := []recording.Frame{kernel("futex_wait_queue"), kernel("futex_wait"), kernel("do_futex")}
		lock := s.Stack(
			append(
				inFutex,
				native("__lll_lock_wait", "libc.so.6"),
				native("pthread_mutex_lock", "libc.so.6"),
				native("push", "server"),
			)...)
		for i := range others {
			s.Off(recordtest.Off{
				TID:     third,
				TS:      start + 50*ms + i*2*ms,
				Dur:     ms,
				Blocked: ms,
				Call:    sysFutex,
				Arg:     0x7000,
				By:      [2]uint32{leader, helper},
				Stack:   lock,
			})
		}
		o := blocked(sysFutex, helper, 0)
		o.Arg, o.Stack = 0x7000, s.Stack(append(inFutex, native("push", "server"))...)
		of(t, s.off(o).want(t, waiting(want)), want)
	}
}

// TestQueueIsNotTheGIL: an idle thread waits at a lock that threading.Condition has just made, and no stack shows it.
// Stacks of the thread's waits for the GIL, which is at one address, say nothing of that.
func TestQueueIsNotTheGIL(t *testing.T) {
	s := frame().sampled(leader, user).sampled(helper, native("compute", "server"))
	take := s.Stack(kernel("futex_wait_queue"), kernel("futex_wait"),
		native("pthread_cond_timedwait", "libc.so.6"), native("take_gil", "python3.12"), user)
	s.Off(recordtest.Off{
		TID: leader, TS: start + 50*ms, Dur: ms, Blocked: ms, Call: sysFutex, Arg: 0x9000,
		By: [2]uint32{leader, helper}, Stack: take,
	})
	o := blocked(sysFutex, helper, 0)
	o.Arg = 0x7000
	if st := of(t, s.off(o).want(t, waiting(cause.Worker)), cause.Worker); st.TID != helper || st.Stack == take {
		t.Errorf("step %+v", st)
	}
}

// TestGILWithoutSamples: who let the GIL go in the end held it while the thread asked in vain.
func TestGILWithoutSamples(t *testing.T) {
	s := frame().sampled(leader, user)
	take := s.Stack(kernel("futex_wait_queue"), kernel("futex_wait"),
		native("pthread_cond_timedwait", "libc.so.6"), native("take_gil", "python3.12"), user)
	for i := range uint64(3) {
		o := recordtest.Off{
			TS:      1*ms + i*5*ms,
			Dur:     5*ms - 1,
			Blocked: 5*ms - 1,
			Call:    sysFutex,
			Arg:     0x7000 + i%2*4,
			Flags:   event.FromIRQ,
			Stack:   take,
		}
		if i == 2 {
			o.Flags, o.By = 0, [2]uint32{leader, helper}
		}
		s.off(o)
	}
	_, w := s.build(t)
	held := uint64(0)
	for _, st := range w.Steps {
		if st.Cause == cause.GIL && st.TID == helper {
			held += st.To - st.From
		}
	}
	if held != 15*ms-3 {
		t.Errorf("the helper held the GIL for %d ns, want 15 ms", held)
	}
}

// TestDid: what a thread did in a stretch of time has the causes that a gap there has, whenever and in whatever order
// it is asked for.
func TestDid(t *testing.T) {
	s := frame()
	s.off(recordtest.Off{
		Call:    sysPread,
		Blocked: 18*ms - 10*us,
		Inode:   777,
		Type:    8,
		Flags:   event.Uninterruptible | event.FromIRQ,
	})
	tl := timeline.Build(s.Recording())
	w := Build(tl)
	for _, at := range [][2]uint64{{500 * us, 19 * ms}, {0, 300 * us}, {2 * ms, 3 * ms}} {
		var sum, disk uint64
		end := start + at[0]
		for _, st := range w.Did(leader, leader, start+at[0], start+at[1]) {
			if st.From != end {
				t.Errorf("%v: a step begins at %d, the one before ended at %d", at, st.From-start, end-start)
			}
			end = st.To
			sum += st.To - st.From
			if st.Cause == cause.Disk {
				disk += st.To - st.From
			}
		}
		want := min(at[1], 19*ms) - min(max(at[0], 1*ms), min(at[1], 19*ms))
		if sum != at[1]-at[0] || disk != want {
			t.Errorf("%v: steps of %d ns, of which %d are the disk's; want %d of %d", at, sum, disk, want, at[1]-at[0])
		}
	}
	if got := w.Did(1, 1, start, start+ms); got != nil {
		t.Errorf("a thread that nobody knows did %+v", got)
	}
}

// TestUnasked: the share of a recording in which nobody asks counts the time before the first request, and is known to
// be none where there always is a request.
func TestUnasked(t *testing.T) {
	for name, test := range map[string]struct {
		first, last uint64 // when requests are in progress, ns
		want        float64
	}{
		"always one":           {0, calltest.Second, 0},
		"none for 50 ms":       {0, 950 * ms, 0.049}, // but for settledAnswer
		"a first one at 900ms": {900 * ms, calltest.Second, 0.9},
	} {
		s := newScene()
		s.run(950*ms-50*us, 950*ms-40*us, 950*ms)
		for range fewestAsked {
			s.Meta.Requests = append(s.Meta.Requests,
				recording.Request{PID: leader, Received: start + test.first, End: start + test.last})
		}
		rec := s.Recording()
		rec.Meta.From, rec.Meta.To = start, start+calltest.Second
		if got, known := Unasked(timeline.Build(rec)); !known || math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %.4f, known %v, want %.4f", name, got, known, test.want)
		}
	}
}
