package requests_test

import (
	"fmt"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// TestLimitInFrontOfTheEngine: what holds requests that the engine would take is a limit only where each is let through
// when another one ends, the engine's queue is empty, and the API server has nothing to do meanwhile.
func TestLimitInFrontOfTheEngine(t *testing.T) {
	const each, tokens = 200 * ms, 20
	for _, test := range []struct {
		name    string
		running float64 // of the API server's thread while requests are held, and waiting for a CPU is part of it
		starved float64
		waiting uint32 // requests in the engine's queue
		alone   bool   // the engine has a long request all the while, and what is held goes beside it
		want    string
	}{
		{name: "a semaphore of two", running: 0.1, want: "low-batch"},
		{name: "a semaphore of two, on a full machine", running: 0.9, starved: 0.85, want: "low-batch"},
		{name: "a tokenizer that computes", running: 0.9, want: "api-server"},
		{name: "a tokenizer that computes, on a full machine", running: 0.95, starved: 0.5, want: "api-server"},
		{name: "an engine that is full too", running: 0.1, waiting: 3, want: "queueing"},
		{name: "each waits for itself", running: 0.1, alone: true, want: "api-server"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBuilder(4000 * ms)
			ask := func(id string, received, asked, last uint64) {
				b.stream(received, steady(asked+each/tokens, (last-asked)/tokens, tokens)...).ID = id
				b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
					ID: id, PID: 2, Asked: asked, Scheduled: asked + ms, First: asked + each/tokens, Last: last, Finish: "stop",
				})
			}
			for i := range uint64(8) {
				received, asked := uint64(0), i/2*(each+2*ms)+ms // two at a time, of eight that came at once
				if test.alone {
					received, asked = i*(each+3*ms), i*(each+3*ms)+each
				}
				last := asked + each
				if test.alone {
					last = asked + ms
				}
				ask(fmt.Sprint("cmpl-", i), received, asked, last)
			}
			if test.alone {
				ask("cmpl-long", 0, ms, 3500*ms)
			}
			for at := uint64(0); at < 3600*ms; at += 10 * ms {
				b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{
					TS: at, PID: 2, Requests: 2, Tokens: 2, Stats: true, Running: 2, Waiting: test.waiting,
				})
			}
			s := b.summary()
			s.FindDelays(&b.rec, func(_ uint32, within timeline.Spans) requests.Ran {
				var starved []timeline.Span
				for _, x := range within {
					starved = append(starved, timeline.Span{From: x.From, To: x.From + uint64(test.starved*float64(x.To-x.From))})
				}
				return requests.Ran{Thread: "python", Running: test.running, Starved: timeline.Join(starved)}
			})
			first := requests.Delay{}
			for _, d := range s.Delays {
				if d.Cause != "api-server-starved" {
					first = d
					break
				}
			}
			if first.Cause != test.want {
				t.Fatalf("%q, want %q: %+v", first.Cause, test.want, s.Delays)
			}
			if w := first.Without; test.want == "low-batch" && (first.Batch != 2 || first.Waiting != 6 || w == nil || w.P99 > w.Was99/5) {
				t.Errorf("%+v, without it %+v", first, w)
			}
		})
	}
}
