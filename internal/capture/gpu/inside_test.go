package gpu

import (
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestNobodySubscribesTooEarly: threads lose their CPU behind the callback in which CUPTI went, for longer than it is
// until the next window. In the simulated CUPTI, as in the real one, they follow a freed node where somebody has
// subscribed by then (test/gpu/inside.c kills the simulated process in that order). With graphs a thread of the target
// finalizes, without the agent's, while others are in callbacks of their own.
func TestNobodySubscribesTooEarly(t *testing.T) {
	for what, script := range map[string][]string{
		"graphs": {
			"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
			"until { graph-launch stream=1; ssync stream=1; launch 3 kernel=k_us5; sleep 1ms }",
		},
		"eager": {"until { launch 5 kernel=k_us5; sync; sleep 1ms }"},
		"threads": {
			"thread 3 nowait { stream-new nonblocking; repeat 10000000 { launch 3 kernel=k_us5 stream=1; ssync " +
				"stream=1; sleep 300us } }; until { sleep 50ms }",
		},
	} {
		t.Run(what, func(t *testing.T) {
			opts := simOptions(t, Windows)
			opts.On, opts.Period, opts.Gate = 10*time.Millisecond, 20*time.Millisecond, gates(t)
			v := cudasim.Start(
				t,
				cudasim.Options{
					Level: "counts",
					Env:   []string{"CUDASIM_CUPTI_STALL_NS=60000000", "CUDASIM_KERNEL_SLOTS=8"},
				},
				script...)
			s := newTestSource(t, opts)
			p := watch(t, s, v)
			var got collector
			drain(t, s, &got, "ten windows", func() bool {
				if !p.Alive() {
					t.Fatal("the target died")
				}
				a := s.Agents()
				return len(a) > 0 && a[0].Windows >= 10
			})
			if a := s.Agents()[0]; a.Disabled > 0 {
				t.Errorf("%d of %d windows were not ended by a finalize", a.Disabled, a.Windows)
			}
			if n := v.Truth().FailedCount("cuLaunchKernel") + v.Truth().FailedCount("cuGraphLaunch"); n > 0 {
				t.Errorf("%d launches failed", n)
			}
		})
	}
}

// TestNobodyIsInsideWhenItGoes: threads lose their CPU in CUPTI's own work at a call, asleep or running, of which no
// callback tells. The simulated process, as the real one, dies where CUPTI is finalized meanwhile. So it is finalized
// when every thread was seen outside, and is held before it goes in again.
func TestNobodyIsInsideWhenItGoes(t *testing.T) {
	for what, script := range map[string][]string{
		// No probe sees its calls return in this test: that it has left CUPTI shows while it sleeps.
		"eager": {"until { launch 20 kernel=k_us5; sync; sleep 200us }"},
		"threads": {
			"thread 3 nowait { stream-new nonblocking; repeat 10000000 { launch 3 kernel=k_us5 stream=1; ssync " +
				"stream=1; sleep 300us } }; until { sleep 50ms }",
		},
		"no wait": {
			"stream-new nonblocking",
			"until { launch 30 kernel=k_us5 stream=1; event-record 1 stream=1; query stream=1; sleep 1ms; query " +
				"stream=1 }",
		},
		"graphs": {
			"stream-new nonblocking; graph 8 stream=1 kernel=n_us1",
			"thread 2 nowait { repeat 10000000 { launch 3 kernel=k_us5; sleep 300us } }; until { graph-launch " +
				"stream=1; ssync stream=1; launch 3 kernel=k_us5; sleep 1ms }",
		},
	} {
		t.Run(what, func(t *testing.T) {
			opts := simOptions(t, Windows)
			opts.On, opts.Period, opts.Gate = 10*time.Millisecond, 20*time.Millisecond, gates(t)
			v := cudasim.Start(
				t,
				cudasim.Options{
					Level: "counts",
					Env: []string{
						"CUDASIM_CUPTI_WORK_NS=2000000",
						"CUDASIM_CUPTI_FINALIZE_NS=2000000",
						"CUDASIM_KERNEL_SLOTS=8",
					},
				},
				script...)
			s := newTestSource(t, opts)
			p := watch(t, s, v)
			var got collector
			// Where threads get no CPU, a window waits in vain for all of them to be outside, and ends otherwise.
			drain(t, s, &got, "ten windows that are finalized", func() bool {
				if !p.Alive() {
					t.Fatal("the target died")
				}
				a := s.Agents()
				return len(a) > 0 && a[0].Windows-a[0].Disabled-a[0].Kept >= 10
			})
			if n := v.Truth().FailedCount("cuLaunchKernel") + v.Truth().FailedCount("cuGraphLaunch"); n > 0 {
				t.Errorf("%d launches failed", n)
			}
		})
	}
}

// TestNeverWaits: programs that are left well after each window, though no thread of theirs waits for
// the GPU where it could be seen to.
func TestNeverWaits(t *testing.T) {
	for name, script := range map[string]string{
		// as JAX does
		"it asks whether the GPU is done": "launch 30 kernel=k_us5 stream=1; event-record 1 stream=1; query stream=1; " +
			"sleep 1ms; query stream=1",
		// the driver's thread that calls them has the name of the program, and sleeps inside of libcuda
		"host functions": "launch 30 kernel=k_us5 stream=1; hostfunc stream=1; sleep 2ms; query stream=1",
	} {
		t.Run(name, func(t *testing.T) {
			opts := simOptions(t, Windows)
			opts.On, opts.Period, opts.Gate = 30*time.Millisecond, 100*time.Millisecond, gates(t)
			v := cudasim.Start(t, cudasim.Options{Level: "counts"},
				"stream-new nonblocking", "until { "+script+" }")
			s := newTestSource(t, opts)
			watch(t, s, v)
			var got collector
			// On a busy machine a thread may get no CPU while a window waits for it to be out of CUPTI: that one is kept.
			drain(t, s, &got, "eight windows that end well", func() bool {
				a := s.Agents()
				return len(a) > 0 && a[0].Windows-a[0].Kept >= 8
			})
			if a := s.Agents()[0]; a.Disabled > 0 {
				t.Errorf("of %d windows %d were disabled", a.Windows, a.Disabled)
			}
		})
	}
}

// TestGraphsWithoutAWait: where the thread that launches graphs makes no call in which CUPTI could be left, no window
// opens, until it does.
func TestGraphsWithoutAWait(t *testing.T) {
	pr := startProducer(t)
	image, err := proc.Image(pr.p)
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]uint16{"cuGraphLaunch": 7, "cuStreamSynchronize": 8}
	s := newTestSource(t, Options{
		Inject: pr,
		Slots:  1024,
		Mode:   Continuous,
		Watch:  100 * time.Millisecond,
		Index:  func(name string) (uint16, bool) { n, ok := numbers[name]; return n, ok },
	})
	call := func(what string, at uint64) event.Event {
		return event.Event{
			TS:    at,
			Kind:  event.Call,
			Flags: event.Timed,
			PID:   pr.p.PID,
			TID:   pr.p.PID,
			Func:  numbers[what],
		}
	}
	s.begin(pr.p, image)
	s.Observe([]event.Event{call("cuGraphLaunch", clock.Monotonic())})
	eventually(
		t,
		"word of it",
		func() bool { return strings.Contains(detailOf(s, pr.p.PID), "makes no call that waits for the GPU") },
	)
	eventually(t, "no window", func() bool { mode, _ := modeIn(pr); return mode == modeOff })
	s.mu.Lock()
	if s.sessions[pr.p.ID()].orders.begun {
		t.Error("a window was opened before the thread was seen to wait")
	}
	s.mu.Unlock()
	s.Observe([]event.Event{call("cuStreamSynchronize", clock.Monotonic())})
	eventually(t, "a window", func() bool { mode, _ := modeIn(pr); return mode == modeContinuous })
}
