package requests_test

import (
	"cmp"
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
				recording.GPUWindow{PID: 2, To: 170 * ms, Activity: true}), 20, nil,
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

// TestNextRequestIsLaunchedAhead: request c comes while b's last step runs, and d while c's does. Their first tokens
// are out before the engine tells that the one before has ended.
func TestNextRequestIsLaunchedAhead(t *testing.T) {
	const each, lag = 6, 8 * ms
	steps := map[string]uint64{"a": 4 * ms, "b": 5 * ms, "c": 6 * ms, "d": 7 * ms}
	b := newBuilder(1000 * ms)
	b.rec.Meta.GPU = &recording.GPU{Windows: []recording.GPUWindow{{PID: 2, To: 1000 * ms, Activity: true}}}
	at := 100 * ms
	for _, id := range []string{"a", "b", "c", "d"} {
		step := steps[id]
		if id == "b" {
			at += 50 * ms
		}
		var told []uint64
		began := at
		for k := range each {
			b.rec.Events = append(b.rec.Events,
				event.Event{TS: at, Dur: step - 1000, PID: 2, Kind: event.Kernel, Flags: event.Timed},
				event.Event{
					TS: at + step - 1000, Dur: 1000, PID: 2, Kind: event.Copy, Flags: event.Timed, Ret: 2,
					Args: [4]uint64{2: 4},
				})
			at += step
			told = append(told, at+lag)
			x := recording.Step{TS: at + lag, PID: 2, Requests: 1, Tokens: 1}
			if k == each-1 {
				x.Finished = 1
			}
			b.rec.Meta.Steps = append(b.rec.Meta.Steps, x)
		}
		b.stream(began-ms, told...).ID = id
		b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
			ID: id, PID: 2, Asked: began - ms, Scheduled: began, First: told[0], Last: told[each-1], Finish: "length",
		})
	}
	s := b.summary()
	if s.Engine.StepsCut != 4*each {
		t.Errorf("%d of %d steps are cut", s.Engine.StepsCut, 4*each)
	}
	for _, r := range s.Slow {
		if r.Engine.GPUExposed == nil || (*r.Engine.GPUExposed+ms/10)/ms != each*steps[r.ID]/ms {
			t.Errorf("%s: %+v", r.ID, r.Engine)
		}
	}
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
