package requests_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// overlapped is an engine that launches each step before it tells of the last one. Request a is in steps 0 to 19 and b
// in steps 10 to 19; a step takes the GPU 4 ms, with b 9 ms, and its message comes a lag after its tokens.
func overlapped(lag uint64, sampled func(batch uint64) uint64, gpu ...recording.GPUWindow) *builder {
	const steps = 20
	b := newBuilder(1000 * ms)
	b.rec.Meta.GPU = &recording.GPU{Windows: gpu}
	copyOut := func(end, bytes uint64) {
		b.rec.Events = append(b.rec.Events, event.Event{
			TS: end - 1000, Dur: 1000, PID: 2, Kind: event.Copy, Flags: event.Timed, Ret: 2, Args: [4]uint64{2: bytes},
		})
	}
	var told []uint64
	at := 100 * ms
	for i := range uint64(steps) {
		batch, takes := uint64(1), 4*ms
		if i >= 10 {
			batch, takes = 2, 9*ms
		}
		b.rec.Events = append(b.rec.Events, event.Event{
			TS: at, Dur: takes - 1000, PID: 2, Kind: event.Kernel, Flags: event.Timed,
		})
		copyOut(at+ms, 1<<20) // what is too large for tokens
		at += takes
		copyOut(at, sampled(batch))
		told = append(told, at+lag)
		b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{
			TS: at + lag, PID: 2, Requests: uint32(batch), Tokens: uint32(batch),
		})
	}
	b.rec.Meta.Steps[steps-1].Finished = 2
	for _, r := range []struct {
		id        string
		first     int
		scheduled uint64
	}{{"a", 0, 100 * ms}, {"b", 10, 139 * ms}} { // b before the message of step 9, at 143 ms
		b.stream(90*ms, told[r.first:]...).ID = r.id
		b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
			ID: r.id, PID: 2, Asked: 90 * ms, Scheduled: r.scheduled, First: told[r.first], Last: told[steps-1],
			Finish: "length",
		})
	}
	return b
}

// TestStepsAreCutAtCopiesOfTokens: the GPU's time of a step is its own where the copy of its tokens is recorded, though
// the next step runs when the engine tells of it; elsewhere it is cut at the messages, and that is told.
func TestStepsAreCutAtCopiesOfTokens(t *testing.T) {
	whole := recording.GPUWindow{PID: 2, To: 1000 * ms, Activity: true}
	type row struct{ exposed, shared, cut uint64 }
	for _, test := range []struct {
		name string
		b    *builder
		cuts int
		want map[string]row
	}{
		{
			"whole", overlapped(3*ms, func(n uint64) uint64 { return 4 * n }, whole), 20,
			map[string]row{"a": {130 * ms, 85 * ms, 20}, "b": {90 * ms, 45 * ms, 10}},
		},
		{
			"tokens of speculative decoding", overlapped(3*ms, func(n uint64) uint64 { return 32 * n }, whole), 20,
			map[string]row{"b": {90 * ms, 45 * ms, 10}},
		},
		{ // 5 ms: the next step's are out then
			"messages of a slow engine", overlapped(5*ms, func(n uint64) uint64 { return 4 * n }, whole), 20,
			map[string]row{"a": {130 * ms, 85 * ms, 20}, "b": {90 * ms, 45 * ms, 10}},
		},
		{
			"a buffer for the largest batch", overlapped(5*ms, func(uint64) uint64 { return 128 }, whole), 20,
			map[string]row{"a": {130 * ms, 85 * ms, 20}, "b": {90 * ms, 45 * ms, 10}},
		},
		{ // from the schedule of b at 139 ms on, of which 1 ms was the last step's
			"no copies of tokens", overlapped(3*ms, func(n uint64) uint64 { return 4096 * n }, whole), 0,
			map[string]row{"b": {91 * ms, 45500 * ms / 1000, 0}},
		},
		{
			"recorded in part", overlapped(3*ms, func(n uint64) uint64 { return 4 * n },
				recording.GPUWindow{PID: 2, To: 170 * ms, Activity: true}), 13, nil,
		},
		{"not recorded", overlapped(3*ms, func(n uint64) uint64 { return 4 * n }), 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := test.b.summary()
			if s.Engine.StepsCut != test.cuts || test.cuts > 0 && s.Engine.Lag.P50 < 3*ms {
				t.Errorf("%d steps are cut, %+v", s.Engine.StepsCut, s.Engine.Lag)
			}
			for _, r := range s.Slow {
				want, ok := test.want[r.ID]
				if !ok {
					if test.want == nil && (r.Engine.GPUExposed != nil || r.Engine.StepsCut != 0) {
						t.Errorf("%s: %+v", r.ID, r.Engine)
					}
					continue
				}
				got := row{*r.Engine.GPUExposed, *r.Engine.GPUShared, uint64(r.Engine.StepsCut)}
				if off := int64(got.exposed-want.exposed) / 1e5; off != 0 || int64(got.shared-want.shared)/1e5 != 0 ||
					got.cut != want.cut {
					t.Errorf("%s: %+v, want %+v", r.ID, got, want)
				}
			}
		})
	}
}

// ahead is an engine that launches each step before it tells of the last one, a lag after that one's tokens were out.
type ahead struct {
	*builder
	at, lag uint64
	steps   map[string]uint64 // ns on the GPU, by the request's id
	pairs   bool              // it copies numbers of tokens before the tokens
}

func newAhead(lag uint64, steps map[string]uint64) *ahead {
	a := &ahead{builder: newBuilder(2000 * ms), at: 100 * ms, lag: lag, steps: steps}
	a.rec.Meta.GPU = &recording.GPU{Windows: []recording.GPUWindow{{PID: 2, To: 2000 * ms, Activity: true}}}
	return a
}

// step has the GPU work for a step, after a pause.
func (a *ahead) step(takes, pause uint64) {
	a.at += pause
	a.rec.Events = append(a.rec.Events,
		event.Event{TS: a.at, Dur: takes - 1000, PID: 2, Kind: event.Kernel, Flags: event.Timed},
		event.Event{
			TS: a.at + takes - 1000, Dur: 1000, PID: 2, Kind: event.Copy, Flags: event.Timed, Ret: 2,
			Args: [4]uint64{2: 4},
		})
	if a.pairs {
		first := a.rec.Events[len(a.rec.Events)-1]
		first.TS, first.Args[2] = first.TS-50_000, 8
		a.rec.Events = slices.Insert(a.rec.Events, len(a.rec.Events)-1, first)
	}
	a.at += takes
}

// request has the engine work on a request of so many steps, each after a pause. It was scheduled before the engine
// told of the last step of the one before.
func (a *ahead) request(id string, n int, pause uint64, finish string) {
	var told []uint64
	began := a.at
	for k := range n {
		a.step(a.steps[id], pause)
		told = append(told, a.at+a.lag)
		x := recording.Step{TS: a.at + a.lag, PID: 2, Requests: 1, Tokens: 1, Stats: true, Running: 1}
		if k == n-1 {
			x.Finished = 1
		}
		a.rec.Meta.Steps = append(a.rec.Meta.Steps, x)
	}
	a.stream(began-ms, told...).ID = id
	a.rec.Meta.EngineRequests = append(a.rec.Meta.EngineRequests, recording.EngineRequest{
		ID: id, PID: 2, Asked: began - ms, Scheduled: began, First: told[0], Last: told[n-1], Finish: finish,
	})
}

// idle has the engine wait for the next request, which comes after it has told of all.
func (a *ahead) idle() { a.at += 50 * ms }

// from leaves out what was before.
func (a *ahead) from(at uint64) {
	a.rec.Meta.GPU.Windows[0].From, a.rec.Meta.From = at, at
	a.rec.Meta.Steps = slices.DeleteFunc(a.rec.Meta.Steps, func(s recording.Step) bool { return s.TS < at })
	a.rec.Events = slices.DeleteFunc(a.rec.Events, func(e event.Event) bool {
		return e.Kind != event.RequestChunk && e.TS < at
	})
}

// check compares the GPU's time of requests with what their steps took. Of those with no steps it must not be known
// by copies.
func (a *ahead) check(t *testing.T, uncut int, steps map[string]int) {
	t.Helper()
	s := a.summary()
	cut := len(a.rec.Meta.Steps) - uncut
	for i := range a.rec.Meta.Steps {
		if a.rec.Meta.Steps[i].Requests == 0 {
			cut--
		}
	}
	if s.Engine.StepsCut != cut || s.Engine.StepsUncut != uncut {
		t.Errorf("%d steps are cut and %d are not, want %d and %d", s.Engine.StepsCut, s.Engine.StepsUncut, cut, uncut)
	}
	if l := s.Engine.Lag; l != nil && (l.P50 != a.lag || l.Max != a.lag) {
		t.Errorf("%+v", l)
	}
	for _, r := range s.Slow {
		want := uint64(steps[r.ID]) * a.steps[r.ID]
		if want == 0 {
			if r.Engine.StepsCut > 0 {
				t.Errorf("%s: %+v", r.ID, r.Engine)
			}
			continue
		}
		if r.Engine.GPUExposed == nil || (*r.Engine.GPUExposed+ms/10)/ms != want/ms {
			t.Errorf("%s: %+v", r.ID, r.Engine)
		}
	}
}

// TestNextRequestIsLaunchedAhead: request c comes while b's last step runs, and d while c's does. Their first tokens
// are out before the engine tells that the one before has ended.
func TestNextRequestIsLaunchedAhead(t *testing.T) {
	a := newAhead(8*ms, map[string]uint64{"a": 4 * ms, "b": 5 * ms, "c": 6 * ms, "d": 7 * ms})
	a.request("a", 6, 0, "length")
	a.idle()
	for _, id := range []string{"b", "c", "d"} {
		a.request(id, 6, 0, "length")
	}
	a.check(t, 0, map[string]int{"a": 6, "b": 6, "c": 6, "d": 6})
}

// TestFirstStepsOfARecording: the recording begins while b is at work, whose end is handed over to c, and with b's end
// already out, of which the engine tells later.
func TestFirstStepsOfARecording(t *testing.T) {
	for _, steps := range []int{1, 2, 6} { // of b, that are told of
		a := newAhead(8*ms, map[string]uint64{"a": 4 * ms, "b": 5 * ms, "c": 6 * ms, "d": 7 * ms})
		a.request("b", 6, 0, "length")
		from := a.rec.Meta.Steps[6-steps].TS
		a.request("c", 6, 0, "length")
		a.idle()
		a.request("d", 6, 0, "length")
		a.from(from)
		copies := 0
		for _, e := range a.rec.Events {
			if e.Kind == event.Copy {
				copies++
			}
		}
		want := map[string]int{"d": 6}
		if steps == 6 {
			want["c"] = 6 // else it has begun before the recording
		}
		a.check(t, len(a.rec.Meta.Steps)-copies, want)
	}
}

// TestUncertainCopies: where an engine that is slower than the GPU is never at rest, copies are not told apart: two are
// out when it tells of the first.
func TestUncertainCopies(t *testing.T) {
	slow := func() *ahead { return newAhead(8*ms, map[string]uint64{"a": 3 * ms, "b": 3 * ms}) }
	a := slow()
	a.request("a", 12, 3*ms, "length")
	a.rec.Meta.EngineRequests[0].Finish = "" // it goes on
	a.from(a.rec.Meta.Steps[2].TS)
	a.check(t, 10, nil)
	// Another request joins its batch: the sizes tell.
	a = slow()
	a.request("a", 12, 3*ms, "length")
	a.rec.Meta.EngineRequests[0].Finish = ""
	copies := 0
	for i := range a.rec.Events {
		if e := &a.rec.Events[i]; e.Kind == event.Copy {
			if copies >= 7 {
				e.Args[2], a.rec.Meta.Steps[copies].Requests = 8, 2
			}
			copies++
		}
	}
	a.from(a.rec.Meta.Steps[2].TS)
	a.check(t, 2, map[string]int{}) // two were out before the recording
	// A message without output may have a copy or not.
	a.rec.Meta.Steps = slices.Insert(a.rec.Meta.Steps, 4,
		recording.Step{TS: a.rec.Meta.Steps[3].TS + 1, PID: 2, Stats: true})
	a.check(t, 10, nil)
	// Another request tells how long it takes.
	a = slow()
	a.request("a", 12, 3*ms, "length")
	a.rec.Meta.Steps[8].Missed = true
	a.idle()
	a.request("b", 12, 3*ms, "length")
	a.from(a.rec.Meta.Steps[4].TS)
	a.rec.Meta.EngineRequests[0].Finish = "stop"
	a.check(t, 2, map[string]int{"b": 12}) // two were out before the recording
	// The GPU makes its steps long: the last copy is the step's.
	a = newAhead(2*ms, map[string]uint64{"a": 3 * ms})
	a.request("a", 40, 0, "length")
	a.rec.Meta.EngineRequests[0].Finish = ""
	a.from(a.rec.Meta.Steps[2].TS)
	a.check(t, 1, nil) // whose copy was out before the recording
}

// TestCopiesOfVLLM: as recorded of vLLM 0.24, a step copies twice, what the GPU did is recorded up to its last work,
// which is before the messages of the last steps, and two messages without output come behind the end of all requests.
func TestCopiesOfVLLM(t *testing.T) {
	a := newAhead(14*ms, map[string]uint64{"a": 1 * ms, "b": 2 * ms})
	a.pairs = true
	for _, id := range []string{"a", "b"} {
		a.request(id, 8, 9*ms, "length")
		for i := range uint64(2) {
			a.rec.Meta.Steps = append(a.rec.Meta.Steps, recording.Step{TS: a.at + a.lag + ms + i, PID: 2, Stats: true})
		}
		a.rec.Meta.GPU.Windows[0].To = a.at + ms/10
		a.idle()
	}
	a.check(t, 0, map[string]int{"a": 8, "b": 8})
	for i := range a.rec.Meta.Steps { // what the GPU did for a is not recorded
		if x := &a.rec.Meta.Steps[i]; x.Requests == 0 {
			a.rec.Meta.GPU.Windows[0].From = x.TS
			break
		}
	}
	a.rec.Events = slices.DeleteFunc(a.rec.Events, func(e event.Event) bool {
		return e.Kind != event.RequestChunk && e.TS < a.rec.Meta.GPU.Windows[0].From
	})
	if s := a.summary(); s.Engine.StepsCut != 8 || s.Engine.StepsUncut != 0 {
		t.Errorf("%d steps are cut, %d are not", s.Engine.StepsCut, s.Engine.StepsUncut)
	}
}

// TestStepsThatComeToNothing: a request ends by a token, when its next step is launched already. The engine tells of
// that step without output.
func TestStepsThatComeToNothing(t *testing.T) {
	a := newAhead(8*ms, map[string]uint64{"a": 4 * ms, "b": 5 * ms, "c": 6 * ms})
	for _, id := range []string{"a", "b", "c"} {
		a.request(id, 6, 2*ms, "stop")
		a.step(a.steps[id], 2*ms)
		a.rec.Meta.Steps = append(a.rec.Meta.Steps, recording.Step{TS: a.at + a.lag, PID: 2, Stats: true})
		a.idle()
	}
	a.check(t, 0, map[string]int{"a": 6, "b": 6, "c": 6})
	// An engine without statistics does not.
	a.rec.Meta.Steps = slices.DeleteFunc(a.rec.Meta.Steps, func(s recording.Step) bool { return s.Requests == 0 })
	for i := range a.rec.Meta.Steps {
		a.rec.Meta.Steps[i].Stats = false
	}
	a.check(t, 0, map[string]int{"a": 6, "b": 6, "c": 6})
}

// TestEnginesAreCutAtTheirOwnCopies: of two engines, each with a GPU, the steps of one end where its own tokens were
// copied, though the other's copies are as good.
func TestEnginesAreCutAtTheirOwnCopies(t *testing.T) {
	b := overlapped(3*ms, func(n uint64) uint64 { return 4 * n },
		recording.GPUWindow{PID: 2, To: 1000 * ms, Activity: true},
		recording.GPUWindow{PID: 3, To: 1000 * ms, Activity: true})
	for _, e := range b.rec.Events {
		if e.Kind == event.Copy {
			e.PID, e.TS = 3, e.TS+2*ms
			b.rec.Events = append(b.rec.Events, e)
		}
	}
	for _, x := range b.rec.Meta.Steps {
		x.PID, x.TS = 3, x.TS+2*ms
		b.rec.Meta.Steps = append(b.rec.Meta.Steps, x)
	}
	slices.SortFunc(b.rec.Meta.Steps, func(x, y recording.Step) int { return cmp.Compare(x.TS, y.TS) })
	e := b.summary().Engine
	if e.StepsCut != 40 || e.Lag.P50 < 3*ms || e.Lag.P99 > 3*ms+1000 {
		t.Errorf("%d steps are cut, %+v", e.StepsCut, e.Lag)
	}
}

// TestStrayCopies: where hardly any copy is like those of tokens, no step is cut, though GPUs were recorded in one step
// only.
func TestStrayCopies(t *testing.T) {
	b := overlapped(3*ms, func(n uint64) uint64 { return 4096 * n },
		recording.GPUWindow{PID: 2, To: 1000 * ms, Activity: true})
	w := &b.rec.Meta.GPU.Windows[0]
	w.From, w.To = b.rec.Meta.Steps[4].TS, b.rec.Meta.Steps[5].TS
	for _, i := range []int{2, 8} {
		b.rec.Events = append(b.rec.Events, event.Event{
			TS: b.rec.Meta.Steps[i].TS - ms, Dur: 1000, PID: 2, Kind: event.Copy, Flags: event.Timed, Ret: 2,
			Args: [4]uint64{2: 4},
		})
	}
	if n := b.summary().Engine.StepsCut; n != 0 {
		t.Errorf("%d steps are cut", n)
	}
}

// TestAnyOrder: no steps, requests, copies and windows, however they lie, are too much; and no step is cut behind its
// message.
func TestAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	at := func() uint64 { return uint64(random.IntN(40)) * ms }
	for range 5000 {
		b := newBuilder(50 * ms)
		b.rec.Meta.GPU = &recording.GPU{}
		for range random.IntN(3) {
			b.rec.Meta.GPU.Windows = append(b.rec.Meta.GPU.Windows,
				recording.GPUWindow{PID: 2, From: at() / 2, To: 20*ms + at(), Activity: true})
		}
		for range random.IntN(12) {
			b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{
				TS: at(), PID: 2, Requests: uint32(random.IntN(3)), Tokens: 1, Stats: random.IntN(2) == 0,
				Firsts: uint32(random.IntN(2)), Missed: random.IntN(8) == 0,
			})
		}
		slices.SortFunc(b.rec.Meta.Steps, func(x, y recording.Step) int { return cmp.Compare(x.TS, y.TS) })
		for i := range random.IntN(5) {
			q := recording.EngineRequest{
				ID: string(rune('a' + i)), PID: 2, Asked: at(), Scheduled: at(), First: at(), Last: at(), Computed: 9,
				Steps: uint32(random.IntN(9)), Finish: []string{"", "length", "stop", "abort"}[random.IntN(4)],
			}
			b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, q)
			b.stream(at(), at(), at()).ID = q.ID
		}
		for range random.IntN(20) {
			b.rec.Events = append(b.rec.Events, event.Event{
				TS: at(), Dur: 1000, PID: 2, Kind: []event.Kind{event.Copy, event.Kernel}[random.IntN(2)], Ret: 2,
				Flags: event.Timed, Args: [4]uint64{2: uint64(4 + 4*random.IntN(3))},
			})
		}
		slices.SortFunc(b.rec.Events, func(x, y event.Event) int { return cmp.Compare(x.TS, y.TS) })
		if s := b.summary(); s != nil && s.Engine != nil && s.Engine.Lag != nil && s.Engine.Lag.Max > 50*ms {
			t.Fatalf("%+v", s.Engine)
		}
	}
}
