package requests_test

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// TestEngine: two requests whose steps meet; the second waited in the queue while the first was decoded.
func TestEngine(t *testing.T) {
	b := newBuilder(1000 * ms)
	b.stream(0, steady(52*ms, 10*ms, 10)...).ID = "cmpl-a"
	b.stream(10*ms, steady(122*ms, 10*ms, 3)...).ID = "cmpl-b"
	b.stream(20*ms, steady(300*ms, 10*ms, 3)...).ID = "cmpl-unknown"
	b.rec.Meta.GPU = &recording.GPU{Windows: []recording.GPUWindow{{PID: 2, From: 0, To: 1000 * ms, Activity: true}}}
	for i := range uint64(12) {
		n := uint32(1)
		if i == 7 || i == 8 || i == 9 {
			n = 2
		}
		at := (50 + 10*i) * ms
		waiting := uint32(0)
		if i < 7 {
			waiting = 1
		}
		b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{
			TS: at, PID: 2, Requests: n, Tokens: n, Stats: true, Running: n, Waiting: waiting, KVPermille: 500,
		})
		b.rec.Events = append(b.rec.Events,
			event.Event{TS: at - 6*ms, Dur: 4 * ms, PID: 2, Kind: event.Kernel, Flags: event.Timed})
	}
	b.rec.Meta.EngineRequests = []recording.EngineRequest{
		{
			ID:           "cmpl-a-0-deadbeef",
			PID:          2,
			Asked:        3 * ms,
			Scheduled:    5 * ms,
			First:        50 * ms,
			Last:         140 * ms,
			Finish:       "length",
			OutputTokens: 10,
		},
		{
			ID:           "cmpl-b-0-deadbeef",
			PID:          2,
			Asked:        20 * ms,
			Scheduled:    112 * ms,
			First:        120 * ms,
			Last:         140 * ms,
			Finish:       "length",
			OutputTokens: 3,
		},
	}
	s := b.summary()
	e := s.Engine
	if e == nil || e.Steps != 12 || e.Matched != 2 || e.Requests != 2 || e.OutputTokens != 15 || e.MaxBatch != 2 ||
		e.MaxWaiting != 1 {
		t.Fatalf("%+v", e)
	}
	if e.Queue.Max != 92*ms || e.Before.Max != 10*ms || e.After.Max != 2*ms || e.Slots < 0.6 || e.Slots > 0.8 {
		t.Errorf("queue %+v, before %+v, after %+v, %v in slots", e.Queue, e.Before, e.After, e.Slots)
	}
	found := 0
	for _, row := range s.Slow {
		r := row.Engine
		if r == nil {
			continue
		}
		found++
		switch row.ID {
		case "cmpl-a":
			if r.Queue != 2*ms || r.Prefill != 45*ms || r.Steps != 10 || r.MaxBatch != 2 || *r.GPUExposed != 40*ms ||
				*r.GPUShared != 34*ms {
				t.Errorf("%+v, GPU %d and %d", r, *r.GPUExposed, *r.GPUShared)
			}
		case "cmpl-b":
			if r.Queue != 92*ms || r.Steps != 3 || r.MeanBatch != 2 || *r.GPUExposed != 12*ms || *r.GPUShared != 6*ms {
				t.Errorf("%+v, GPU %d and %d", r, *r.GPUExposed, *r.GPUShared)
			}
		default:
			t.Errorf("%s has an engine request", row.ID)
		}
	}
	if found != 2 {
		t.Errorf("%d rows", found)
	}
}

// TestMissedSteps: where messages of an engine were lost, no time from one to the next is a step, and of requests that
// went on then the GPU's time is not known.
func TestMissedSteps(t *testing.T) {
	b := overlapped(3*ms, func(n uint64) uint64 { return 4096 * n },
		recording.GPUWindow{PID: 2, To: 1000 * ms, Activity: true})
	b.rec.Meta.Steps = slices.Delete(b.rec.Meta.Steps, 5, 8)
	b.rec.Meta.Steps[5].Missed = true
	s := b.summary()
	if s.Engine.Step.Count != 15 || s.Engine.Step.Max != 9*ms {
		t.Errorf("%+v", s.Engine.Step)
	}
	for _, r := range s.Slow {
		if known := r.Engine.GPUExposed != nil; known != (r.ID == "b") {
			t.Errorf("%s: %+v", r.ID, r.Engine)
		}
	}
}

// TestStepsOfOneTransfer: of two steps that have one time, because older recordings have that of their transfer, each
// request has as many as it was told of.
func TestStepsOfOneTransfer(t *testing.T) {
	b := overlapped(3*ms, func(n uint64) uint64 { return 4 * n },
		recording.GPUWindow{PID: 2, To: 1000 * ms, Activity: true})
	last := b.rec.Meta.Steps[19].TS
	b.rec.Meta.Steps[18].TS = last
	for i, q := range []struct {
		last  uint64
		steps uint32
	}{{last, 19}, {last, 10}} {
		b.rec.Meta.EngineRequests[i].Last, b.rec.Meta.EngineRequests[i].Steps = q.last, q.steps
	}
	for _, r := range b.summary().Slow {
		if want := map[string]int{"a": 19, "b": 10}[r.ID]; r.Engine.Steps != want {
			t.Errorf("%s: %+v", r.ID, r.Engine)
		}
	}
}
