package whatif

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

func ofWorkers(n int) Edit {
	return Edit{Verb: Without, Pattern: "worker", Cause: cause.Worker, Workers: n}
}

// asked is a step of 6 ms: a helper works for 3 ms while the leader waits for it, and then the GPU for 2.9 ms.
func (s *scene) asked(at uint64, helper uint32) {
	s.Off(recordtest.Off{
		TID: leader, TS: start + at, Dur: 3 * ms, Blocked: 3 * ms, Call: sysFutex, By: [2]uint32{leader, helper},
	})
	s.run(event.Kernel, "cuLaunchKernel", 7, at+3*ms+20*us, at+3*ms+30*us, at+5930*us, 0)
	s.wait(at+3*ms+30*us, at+5950*us)
}

// TestOperatorsLetGoOfTheLock: each operator of PyTorch releases the lock, so that Python work beside the launching
// delays it, and doing that work ahead brings nothing. It may bring all where the GPU is waited for meanwhile.
func TestOperatorsLetGoOfTheLock(t *testing.T) {
	const each = 6 * ms
	answers := func(framework string) Prediction {
		sc := newScene()
		stack := sc.Stack(recordtest.Python("answer", "/app/serve.py", 7))
		sc.Stack(recordtest.Native("launch", framework))
		for i := range uint64(calltest.Second / each) {
			at := i * each
			for k := range uint64(6) {
				sc.Sample(helper, start+at+k*500*us+250*us, stack, event.Whole)
			}
			sc.Off(recordtest.Off{
				TID: helper, TS: start + at + 3*ms, Dur: 3 * ms, Blocked: 3 * ms, Call: sysFutex,
				By: [2]uint32{leader, leader},
			})
			sc.asked(at, helper)
		}
		return sc.study(t).Predict(ofWorkers(1))
	}
	if p := answers("libserve.so"); p.Speedup < 1.8 {
		t.Errorf("who launches keeps the lock: %+v", p)
	}
	p := answers("libtorch_python.so")
	if p.Speedup > 1.05 || p.High < 1.8 || !strings.Contains(p.Limit, "GIL") {
		t.Errorf("PyTorch: %+v", p)
	}
}

// TestHelpersThatAreStarted: a helper that is started for each step can be started ahead. One at a time takes its 3 ms.
func TestHelpersThatAreStarted(t *testing.T) {
	const each = 6 * ms
	sc := newScene()
	for i := range uint64(calltest.Second / each) {
		at, id := i*each, helper+1+uint32(i)
		sc.Thread(leader, id, "")
		mark := func(when uint64, what event.OffCPUMark) {
			sc.Event(event.Event{
				TS: start + when, PID: leader, TID: id, Kind: event.OffCPU, Func: uint16(what), Flags: event.Mark,
			})
		}
		mark(at, event.Born)
		mark(at+3*ms+5*us, event.Died)
		sc.asked(at, id)
	}
	s := sc.study(t)
	predicts(t, s.Predict(ofWorkers(1)), 2)
	predicts(t, s.Predict(ofWorkers(0)), 2)
}

// TestWorkerBehindARelay: results of a pool come by a thread that waits for them. One worker, asked ahead, takes its
// 4 ms of each step of 6.
func TestWorkerBehindARelay(t *testing.T) {
	const each, relay, worker = 6 * ms, helper, helper + 1
	sc := newScene()
	sc.Thread(leader, worker, "")
	for i := range uint64(calltest.Second / each) {
		at := i * each
		for _, off := range []struct {
			tid, by  uint32
			from, to uint64
		}{{relay, worker, 0, 3990 * us}, {leader, relay, 0, 4 * ms}, {worker, leader, 4 * ms, 5990 * us}} {
			sc.Off(recordtest.Off{
				TID: off.tid, TS: start + at + off.from, Dur: off.to - off.from, Blocked: off.to - off.from,
				Call: sysFutex, By: [2]uint32{leader, off.by},
			})
		}
		sc.run(event.Kernel, "cuLaunchKernel", 7, at+4*ms+20*us, at+4*ms+30*us, at+5930*us, 0)
		sc.wait(at+4*ms+30*us, at+5950*us)
	}
	s := sc.study(t)
	one := s.Predict(ofWorkers(1))
	predicts(t, one, 1.5)
	if !strings.Contains(one.Limit, "each worker") {
		t.Errorf("limited by %q", one.Limit)
	}
	if two := s.Predict(ofWorkers(2)); two.Speedup < 1.2*one.Speedup {
		t.Errorf("two workers: %+v", two)
	}
}

// TestCollectionsGoWithTheWork: what is collected while JSON is parsed is not collected where none is parsed, unless an
// edit says itself what becomes of collections.
func TestCollectionsGoWithTheWork(t *testing.T) {
	sc := stepwise()
	parse := recordtest.Python("raw_decode", "/usr/lib/python3.12/json/decoder.py", 7)
	parsing, collecting := sc.Stack(parse), sc.Stack(recordtest.Python("[garbage collection]", "", 0), parse)
	for i := range uint64(steps) {
		for k := range 25 {
			stack := parsing
			if k%5 == 4 {
				stack = collecting
			}
			sc.Sample(leader, start+i*period+1400*us+uint64(k)*100*us, stack, event.Whole)
		}
	}
	s := sc.study(t)
	less := s.Predict(edit(t, Faster, "serialization=1000000"))
	all := s.Predict(edit(t, Faster, "serialization=1000000"), edit(t, Faster, "gc=1000000"))
	some := s.Predict(edit(t, Faster, "serialization=1000000"), edit(t, Faster, "gc=1"))
	if less.Speedup < 0.99*all.Speedup || some.Speedup > 0.8*all.Speedup {
		t.Errorf("%.2f, with collections %.2f, without %.2f", less.Speedup, all.Speedup, some.Speedup)
	}
}

// TestGraphOfEachStep: capturing a graph and making it ready takes 3.4 ms of each step of 4 ms, with the delay of its
// kernel of 500 µs, which begins when the call has made it ready.
func TestGraphOfEachStep(t *testing.T) {
	sc := newScene()
	for i := range uint64(steps) {
		at := i * period
		sc.call("cudaStreamBeginCapture", at, 10*us)
		for k := range uint64(90) {
			sc.call("cuLaunchKernel", at+20*us+k*20*us, 5*us)
		}
		sc.call("cudaStreamEndCapture", at+1900*us, 50*us)
		sc.id++
		sc.Event(event.Event{
			TS: start + at + 2000*us, Dur: 1000 * us, PID: leader, TID: leader, Func: sc.Fn("cudaGraphLaunch"),
			Kind: event.Call, Flags: event.Timed | event.Correlated, Ret: int32(sc.id), Args: [4]uint64{i + 1},
		})
		sc.Event(event.Event{
			TS: start + at + 2950*us, Dur: 500 * us, PID: leader, TID: 7, Func: 1 << 8, Kind: event.Kernel,
			Flags: event.Timed, Args: [4]uint64{uint64(sc.id), 0, 1 << 20},
		})
		sc.wait(at+3010*us, at+3460*us)
	}
	p := sc.study(t).Predict(edit(t, Without, "compilation"))
	// the kernel with its launch and its end, and 540 µs of computing
	if want := 4000.0 / (500 + 8 + 10 + 590); p.Speedup < 0.93*want || p.Speedup > 1.05*want {
		t.Errorf("%.2f times as fast, want %.2f", p.Speedup, want)
	}
}

// encoders is a scene of three threads that encode in turns, with the stacks of a wait for the lock and of encoding.
func encoders() (sc *scene, all []uint32, take, encode uint64) {
	sc = newScene()
	third := uint32(helper + 1)
	sc.Thread(leader, third, "")
	sc.Runs(third, start)
	take = sc.Stack(recordtest.Kernel("futex_wait"), recordtest.Native("pthread_cond_timedwait", "libc.so.6"),
		recordtest.Native("take_gil", "python3.12"), recordtest.Python("encode", "/app/infer.py", 7))
	encode = sc.Stack(recordtest.Python("encode", "/app/infer.py", 7))
	return sc, []uint32{leader, helper, third}, take, encode
}

// TestSleepsUntilAnotherIsDone: a thread that wakes a helper and sleeps for 2.9 ms, in which the helper computes for
// 1 ms, waits for the helper where it does not sleep, or at best for nothing, as where a timer wakes the helper.
func TestSleepsUntilAnotherIsDone(t *testing.T) {
	for _, asked := range []bool{true, false} {
		sc, _, _, encode := encoders()
		wait := sc.Stack(recordtest.Kernel("futex_wait"), recordtest.Native("sem_wait", "libc.so.6"),
			recordtest.Python("get", "/usr/lib/python3.12/queue.py", 7))
		for i := range uint64(steps) {
			at := i * period
			sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+1010*us, 0)
			sc.wait(at+5*us, at+1020*us)
			sc.Samples(helper, start+at+1100*us, start+at+2100*us, 5, encode, event.Whole)
			off := recordtest.Off{
				TID: helper, TS: start + at + 2100*us, Dur: period - ms, Blocked: period - ms,
				Call: sysFutex, Stack: wait, By: [2]uint32{leader, leader},
			}
			if !asked {
				off.By, off.Flags = [2]uint32{}, event.FromIRQ
			}
			sc.Off(off)
			sc.Off(recordtest.Off{
				TID: leader, TS: start + at + 1110*us, Dur: period - 1120*us, Blocked: period - 1120*us, Call: sysSleep,
				Flags: event.FromIRQ,
			})
		}
		const none = 4000.0 / (4000 - 2880)
		p := sc.study(t).Predict(edit(t, Without, "sleep"))
		if asked {
			predicts(t, p, 4000.0/2110)
		} else {
			predicts(t, p, none)
		}
		if p.High < none {
			t.Errorf("asked %v: it may be %.2f, but is %.2f at most", asked, none, p.High)
		}
	}
}

// TestLocksMetByChance: a helper that encodes all of the time, for a leader that waits for it, waits for 3.5% of it
// until the leader lets go of the lock. If it encodes twice as fast, it need not come to that point as late as before.
func TestLocksMetByChance(t *testing.T) {
	sc, _, take, encode := encoders()
	wait := sc.Stack(recordtest.Kernel("futex_wait"), recordtest.Native("sem_wait", "libc.so.6"),
		recordtest.Python("get", "/usr/lib/python3.12/queue.py", 7))
	handle := sc.Stack(recordtest.Python("handle", "/app/infer.py", 9))
	for i := range uint64(steps) {
		at := i * period
		sc.run(event.Kernel, "cuLaunchKernel", 7, at, at+10*us, at+510*us, 0)
		sc.Samples(leader, start+at+10*us, start+at+1500*us, 6, handle, event.Whole)
		sc.Samples(helper, start+at, start+at+1360*us, 6, encode, event.Whole)
		sc.Off(recordtest.Off{
			TID: helper, TS: start + at + 1360*us, Dur: 140 * us, Blocked: 140 * us, Call: sysFutex, Arg: 64,
			Stack: take, By: [2]uint32{leader, leader},
		})
		sc.Samples(helper, start+at+1500*us, start+at+period, 10, encode, event.Whole)
		sc.Off(recordtest.Off{
			TID: leader, TS: start + at + 1510*us, Dur: period - 1510*us, Blocked: period - 1510*us, Call: sysFutex,
			Stack: wait, By: [2]uint32{leader, helper},
		})
	}
	if p := sc.study(t).Predict(edit(t, Faster, "encode=2")); p.Speedup < 1.85 || p.Speedup > 2 {
		t.Errorf("encode twice as fast: %.2f", p.Speedup)
	}
}

// TestWaitsForTheGILThatTimeOut: three threads encode for 3 ms each in turns, so that each waits for the lock for 6 ms,
// and looks up after 5. If they encode three times as fast, each waits for 2 ms and no wait times out.
func TestWaitsForTheGILThatTimeOut(t *testing.T) {
	const hold = 3 * ms
	sc, all, take, encode := encoders()
	for i := range uint64(calltest.Second/hold) - 3 {
		at, tid, before := i*hold, all[i%3], all[(i+2)%3]
		sc.Samples(tid, start+at, start+at+hold, 6, encode, event.Whole)
		if tid == leader {
			sc.run(event.Kernel, "cuLaunchKernel", 7, at+hold-60*us, at+hold-50*us, at+hold+100*us, 0)
		}
		if i >= 2 {
			sc.Off(recordtest.Off{
				TID: tid, TS: start + at - 6*ms, Dur: 5 * ms, Blocked: 5 * ms, Call: sysFutex, Arg: 64, Stack: take,
			})
			sc.Off(recordtest.Off{
				TID: tid, TS: start + at - ms + 10*us, Dur: ms - 10*us, Blocked: ms - 10*us, Call: sysFutex, Arg: 64,
				Stack: take, By: [2]uint32{leader, before},
			})
		}
	}
	s := sc.study(t)
	if p := s.Predict(edit(t, Faster, "encode=3")); p.Speedup < 2.85 {
		t.Errorf("encode 3 times as fast: %+v", p)
	}
}

// TestHolderThatIsMadeToLetGo: a thread that counts for ever keeps the lock until it is asked for it, for 5 ms however
// fast it counts.
func TestHolderThatIsMadeToLetGo(t *testing.T) {
	const each = 7 * ms
	sc := newScene()
	take := sc.Stack(recordtest.Kernel("futex_wait"),
		recordtest.Native("pthread_cond_timedwait", "libc.so.6"), recordtest.Native("take_gil", "python3.12"),
		recordtest.Python("encode", "/app/infer.py", 7))
	count := sc.Stack(recordtest.Python("count", "/app/metrics.py", 7))
	for i := range uint64(calltest.Second/each) - 1 {
		at := i * each
		sc.Samples(helper, start+at, start+at+5*ms, 10, count, event.Whole)
		sc.Off(recordtest.Off{
			TID: leader, TS: start + at, Dur: 5 * ms, Blocked: 5 * ms, Call: sysFutex, Arg: 64, Stack: take,
		})
		sc.Off(recordtest.Off{
			TID: leader, TS: start + at + 5*ms + 10*us, Dur: 50 * us, Blocked: 50 * us, Call: sysFutex, Arg: 64, Stack: take,
			By: [2]uint32{leader, helper},
		})
		sc.Off(recordtest.Off{
			TID: helper, TS: start + at + 5*ms + 70*us, Dur: 1900 * us, Blocked: 1900 * us, Call: sysFutex, Arg: 64,
			Stack: take, By: [2]uint32{leader, leader},
		})
		sc.run(event.Kernel, "cuLaunchKernel", 7, at+5200*us, at+5210*us, at+6900*us, 0)
		sc.wait(at+5210*us, at+6920*us)
	}
	if p := sc.study(t).Predict(edit(t, Faster, "count=3")); p.Speedup > 1.1 {
		t.Errorf("count 3 times as fast: %+v", p)
	}
}

// TestLockThatIsFreeAfterATimeout: three threads encode for 2.5 ms each in turns. The leader's wait of 5 ms times out
// just as the lock is free, so that nobody wakes it; it waited for the two before it all the same.
func TestLockThatIsFreeAfterATimeout(t *testing.T) {
	const hold = 2500 * us
	sc, all, take, encode := encoders()
	for i := range uint64(calltest.Second/hold) - 3 {
		at, tid := i*hold, all[i%3]
		sc.Samples(tid, start+at, start+at+hold, 6, encode, event.Whole)
		wait := recordtest.Off{
			TID: tid, TS: start + at - 2*hold, Dur: 2 * hold, Blocked: 2 * hold, Call: sysFutex, Arg: 64, Stack: take,
		}
		if tid == leader {
			sc.run(event.Kernel, "cuLaunchKernel", 7, at+hold-60*us, at+hold-50*us, at+hold+100*us, 0)
		} else {
			wait.By = [2]uint32{leader, all[(i+2)%3]}
		}
		if i >= 2 {
			sc.Off(wait)
		}
	}
	if p := sc.study(t).Predict(edit(t, Faster, "encode=3")); p.Speedup < 2.5 {
		t.Errorf("encode 3 times as fast: %+v", p)
	}
}
