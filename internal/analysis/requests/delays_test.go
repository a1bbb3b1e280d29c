package requests_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// delays returns what holds up the requests of a builder, where nobody knows what the server's threads did.
func (b *builder) delays(t *testing.T) (keys []string) {
	t.Helper()
	s := b.summary()
	s.FindDelays(&b.rec, func(uint32, timeline.Spans) requests.Ran { return requests.Ran{} })
	for _, d := range s.Delays {
		keys = append(keys, d.Cause)
	}
	return keys
}

// TestDelaysWithoutEngine: what is told from the HTTP requests alone.
func TestDelaysWithoutEngine(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(b *builder)
		want string
	}{
		{"two slots", func(b *builder) { // eight requests at once, of which two at a time have tokens
			for i := range uint64(8) {
				b.stream(0, steady((20+i/2*320)*ms, 10*ms, 31)...)
			}
		}, "queueing"},
		{"all at once, and a long prefill", func(b *builder) {
			for range 8 {
				b.stream(0, steady(900*ms, 10*ms, 31)...)
			}
		}, ""},
		{"one after the other", func(b *builder) {
			for i := range uint64(8) {
				b.stream(i*200*ms, steady((i*200+60)*ms, 10*ms, 10)...)
			}
		}, ""},
		{"each while others decode, with places for all", func(b *builder) {
			for i := range uint64(8) {
				b.stream(i*50*ms, steady((i*50+40)*ms, 10*ms, 100)...)
			}
		}, ""},
		{"a prefill every 200 ms", func(b *builder) {
			var times []uint64
			for i := range uint64(10) {
				times = append(times, steady((i*200)*ms+100*ms, 5*ms, 20)...) // and 105 ms without a token
			}
			b.stream(50*ms, times...)
			b.stream(50*ms, times...)
			for i := range uint64(9) {
				b.stream((i*200+200)*ms, (i*200+300)*ms)
			}
		}, "prefill-blocks-decode"},
		{"the same gaps, and nobody begins", func(b *builder) {
			var times []uint64
			for i := range uint64(10) {
				times = append(times, steady((i*200)*ms+100*ms, 5*ms, 20)...)
			}
			b.stream(50*ms, times...)
			b.stream(50*ms, times...)
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBuilder(4000 * ms)
			test.make(b)
			found := append(b.delays(t), "")
			if found[0] != test.want || test.want == "" && len(found) > 1 {
				t.Errorf("%q, want %q", found, test.want)
			}
		})
	}
}

// TestDelayNeedsAnIdleServer: an answer that is written long after the engine made it is a client's fault only where
// the thread of the server did not run meanwhile.
func TestDelayNeedsAnIdleServer(t *testing.T) {
	for _, test := range []struct {
		running float64
		want    string
	}{{0.1, "slow-client"}, {0.9, "api-server"}} {
		b := newBuilder(4000 * ms)
		for i := range uint64(6) {
			from := i * 300 * ms
			end := from + 60*ms
			if i == 2 {
				end += 900 * ms
			}
			r := b.stream(from, from+10*ms, end)
			r.ID = string(rune('a' + i))
			b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
				ID: r.ID, PID: 2, Asked: from + ms, Scheduled: from + 2*ms, First: from + 9*ms, Last: from + 59*ms, Finish: "stop", OutputTokens: 2,
			})
			b.rec.Meta.Steps = append(
				b.rec.Meta.Steps,
				recording.Step{TS: from + 9*ms, PID: 2, Requests: 1, Tokens: 1, Firsts: 1},
				recording.Step{TS: from + 59*ms, PID: 2, Requests: 1, Tokens: 1, Finished: 1},
			)
		}
		s := b.summary()
		s.FindDelays(&b.rec, func(uint32, timeline.Spans) requests.Ran {
			return requests.Ran{Thread: "python", Running: test.running, Place: "encode"}
		})
		if len(s.Delays) == 0 || s.Delays[0].Cause != test.want {
			t.Errorf("running for %v: %+v, want %s first", test.running, s.Delays, test.want)
		}
	}
}

// TestArrivalsBehindAPrefill: requests that come while an engine that did nothing before computes one long prompt, or
// that are in one step with it, wait for that prefill, and not for a place: nobody was in the queue when a step ended.
func TestArrivalsBehindAPrefill(t *testing.T) {
	for _, test := range []struct {
		prefill  uint64
		together uint32 // tokens of the long prompt, in one step with the others; 0: they are in the next one
		want     string
	}{
		{900 * ms, 0, "prefill-blocks-decode"},
		{4000 * ms, 0, "prefill-blocks-decode"},
		{10 * ms, 0, ""},
		{900 * ms, 4000, "prefill-blocks-decode"},
		{900 * ms, 20, ""}, // all are of much the same length
	} {
		const tokens, small = 60, 4
		b := newBuilder(60_000 * ms)
		add := func(id string, asked, scheduled uint64, times ...uint64) {
			b.stream(asked-ms/2, times...).ID = id
			b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
				ID: id, PID: 2, Asked: asked, Scheduled: scheduled, First: times[0], Last: times[len(times)-1],
				Finish: "stop", OutputTokens: uint32(len(times)),
			})
		}
		end := 10*ms + test.prefill
		add("huge", 10*ms, 10*ms, end, end+5*ms)
		after, scheduled := 5*ms, end
		if test.together > 0 {
			after, scheduled = 0, 10*ms
			b.rec.Meta.Requests[0].InputTokens = test.together
		}
		for i := range uint64(small) {
			add(fmt.Sprint("small-", i), 9*ms+i*ms, scheduled, steady(end+after, 5*ms, tokens)...)
		}
		step := func(at uint64, requests, firsts, finished uint32) {
			b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{
				TS: at, PID: 2, Requests: requests, Tokens: requests, Firsts: firsts, Finished: finished, Stats: true,
			})
		}
		if test.together == 0 {
			step(end, 1, 1, 0)
			step(end+5*ms, 1+small, small, 1)
		} else {
			step(end, 1+small, 1+small, 0)
			step(end+5*ms, 1+small, 0, 1)
		}
		for i := range uint64(tokens - 1) {
			step(end+(10+5*i)*ms, small, 0, uint32(i/(tokens-2)*small))
		}
		s := b.summary()
		s.FindDelays(&b.rec, func(uint32, timeline.Spans) requests.Ran { return requests.Ran{} })
		found := ""
		if len(s.Delays) > 0 {
			found = s.Delays[0].Cause
		}
		if found != test.want {
			t.Errorf("a prefill of %d ns: %q, want %q", test.prefill, found, test.want)
		}
		if found != "" && (s.Delays[0].First < 0.5 || s.Delays[0].Without == nil) {
			t.Errorf("a prefill of %d ns: %+v", test.prefill, s.Delays[0])
		}
	}
}

// TestLongStepsByChance: an engine of which every third step is long is not held up by the prefills that fall into some
// of them, but one of which only steps with prefills are.
func TestLongStepsByChance(t *testing.T) {
	const total, each, between = 200, 20, 4 // steps, of a request, and from one request to the next
	for _, chance := range []bool{true, false} {
		b := newBuilder(60_000 * ms)
		var ends []uint64
		at := 10 * ms
		for i := range uint64(total) {
			if chance && i%3 == 0 || !chance && i%between == 0 {
				at += 195 * ms
			}
			at += 5 * ms
			ends = append(ends, at)
			step := recording.Step{TS: at, PID: 2, Requests: each / between, Tokens: each / between}
			if i%between == 0 {
				step.Firsts = 1
			}
			b.rec.Meta.Steps = append(b.rec.Meta.Steps, step)
		}
		for i := between; i+each <= total; i += between {
			id, of := fmt.Sprint("cmpl-", i), ends[i:i+each]
			b.stream(ends[i-1], of...).ID = id
			b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
				ID: id, PID: 2, Asked: ends[i-1], Scheduled: ends[i-1], First: of[0], Last: of[each-1], Finish: "stop",
				OutputTokens: each,
			})
		}
		if found := slices.Contains(b.delays(t), "prefill-blocks-decode"); found == chance {
			t.Errorf("long steps by chance: %t; prefills are named: %t", chance, found)
		}
	}
}

// TestFirstTokenWithout: what the queue took is taken off each request's time to its first token.
func TestFirstTokenWithout(t *testing.T) {
	find := func(b *builder, key string) *requests.Delay {
		s := b.summary()
		s.FindDelays(&b.rec, func(uint32, timeline.Spans) requests.Ran { return requests.Ran{} })
		for i := range s.Delays {
			if s.Delays[i].Cause == key {
				return &s.Delays[i]
			}
		}
		t.Fatalf("%s is not found: %+v", key, s.Delays)
		return nil
	}
	// By the engine: request i waits 20 + 40 i ms in the queue, and has its first token 10 ms after it.
	b := newBuilder(4000 * ms)
	for i := range uint64(6) {
		from := i * 500 * ms
		queue := (20 + 40*i) * ms
		r := b.stream(from, from+queue+12*ms, from+queue+100*ms)
		r.ID = string(rune('a' + i))
		b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
			ID: r.ID, PID: 2, Asked: from + ms, Scheduled: from + ms + queue, First: from + queue + 11*ms,
			Last: from + queue + 99*ms, Finish: "stop", OutputTokens: 2,
		})
		for at := from; at < from+queue+100*ms; at += 5 * ms {
			b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{
				TS: at, PID: 2, Requests: 1, Tokens: 1, Stats: true, Running: 1, Waiting: 1,
			})
		}
	}
	d := find(b, "queueing")
	if w := d.Without; w == nil || w.Was50 != 112*ms || w.Was99 != 232*ms || w.P50 != 12*ms || w.P99 != 12*ms {
		t.Errorf("%+v", d.Without)
	}
	// By the streams: two places, of which each is taken for 300 ms.
	b = newBuilder(4000 * ms)
	for i := range uint64(8) {
		b.stream(0, steady((20+i/2*320)*ms, 10*ms, 31)...)
	}
	d = find(b, "queueing")
	if w := d.Without; w == nil || w.Was50 != 340*ms || w.Was99 != 980*ms || w.P50 != 40*ms || w.P99 != 80*ms {
		t.Errorf("%+v", d.Without)
	}
	// Prefills hold up tokens behind the first one.
	b = newBuilder(4000 * ms)
	var times []uint64
	for i := range uint64(10) {
		times = append(times, steady((i*200)*ms+100*ms, 5*ms, 20)...)
	}
	b.stream(50*ms, times...)
	b.stream(50*ms, times...)
	for i := range uint64(9) {
		b.stream((i*200+200)*ms, (i*200+300)*ms)
	}
	if d = find(b, "prefill-blocks-decode"); d.Without != nil {
		t.Errorf("%+v", d.Without)
	}
}

// TestStarvedServer: what an API server waits for a CPU is not taken for its own work.
func TestStarvedServer(t *testing.T) {
	for _, c := range []struct {
		starved uint64 // ms of the 40 before the engine has a request
		want    []string
	}{{0, []string{"api-server"}}, {38, []string{"api-server-starved"}}} {
		b := newBuilder(4000 * ms)
		var starved []timeline.Span
		for i := range uint64(6) {
			at, id := (100+500*i)*ms, fmt.Sprint("cmpl-", i)
			b.stream(at, steady(at+52*ms, 10*ms, 10)...).ID = id
			b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
				ID: id, PID: 2, Asked: at + 40*ms, Scheduled: at + 41*ms, First: at + 51*ms, Last: at + 141*ms, Finish: "stop", OutputTokens: 10,
			})
			b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{TS: at + 51*ms, PID: 2, Requests: 1, Tokens: 1})
			starved = append(starved, timeline.Span{From: at, To: at + c.starved*ms})
		}
		s := b.summary()
		s.FindDelays(&b.rec, func(uint32, timeline.Spans) requests.Ran { return requests.Ran{Starved: timeline.Join(starved)} })
		var keys []string
		for _, d := range s.Delays {
			keys = append(keys, d.Cause)
		}
		if !slices.Equal(keys, c.want) {
			t.Errorf("%d ms: %v, want %v", c.starved, keys, c.want)
		}
	}
}

// TestFirstTokenHeldBack: a first token that the API server has and does not write is its delay, though all of the
// answer is written in time.
func TestFirstTokenHeldBack(t *testing.T) {
	for _, held := range []uint64{0, 90} { // ms
		b := newBuilder(4000 * ms)
		for i := range uint64(6) {
			at, id := (100+500*i)*ms, fmt.Sprint("cmpl-", i)
			b.stream(at, steady(at+(12+held)*ms, 3*ms, 30)...).ID = id
			b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
				ID: id, PID: 2, Asked: at + ms, Scheduled: at + 2*ms, First: at + 12*ms, Last: at + (99+held)*ms,
				Finish: "stop", OutputTokens: 30,
			})
			b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{TS: at + 12*ms, PID: 2, Requests: 1, Tokens: 1})
		}
		s := b.summary()
		s.FindDelays(&b.rec, func(uint32, timeline.Spans) requests.Ran {
			return requests.Ran{Thread: "python", Running: 1, Place: "audit"}
		})
		if held == 0 {
			if len(s.Delays) > 0 {
				t.Errorf("nothing is held back: %+v", s.Delays)
			}
			continue
		}
		if len(s.Delays) != 1 || s.Delays[0].Cause != "api-server" || s.Delays[0].Token != 6*held*ms ||
			s.Delays[0].First < 0.85 || s.Delays[0].Without == nil || s.Delays[0].Without.P50 != 11*ms {
			t.Errorf("%+v", s.Delays)
		}
	}
}

// TestPauseAfterAnAbort: where the last running request is aborted, of which no message with tokens tells, the time
// until the next request comes is no prefill that the arrivals behind that wait for.
func TestPauseAfterAnAbort(t *testing.T) {
	b := newBuilder(60_000 * ms)
	step := func(at uint64, requests, firsts, finished uint32) {
		b.rec.Meta.Steps = append(b.rec.Meta.Steps, recording.Step{
			TS: at, PID: 2, Requests: requests, Tokens: requests, Firsts: firsts, Finished: finished,
		})
	}
	add := func(id string, asked, scheduled uint64, times ...uint64) {
		b.stream(asked-ms/2, times...).ID = id
		b.rec.Meta.EngineRequests = append(b.rec.Meta.EngineRequests, recording.EngineRequest{
			ID: id, PID: 2, Asked: asked, Scheduled: scheduled, First: times[0], Last: times[len(times)-1],
			Finish: "stop", OutputTokens: uint32(len(times)),
		})
	}
	const tokens, small = 3, 4
	at := 10 * ms
	for range 5 {
		for i := range uint32(20) { // and the client leaves
			firsts := uint32(0)
			if i == 0 {
				firsts = 1
			}
			step(at, 1, firsts, 0)
			at += 5 * ms
		}
		at += 3000 * ms
		end := at + 8*ms
		add(fmt.Sprint("first-", at), at, at, end, end+5*ms)
		for i := range uint64(small) {
			add(fmt.Sprint("small-", at, i), at+ms+i*ms, end, steady(end+5*ms, 5*ms, tokens)...)
		}
		step(end, 1, 1, 0)
		step(end+5*ms, 1+small, small, 1)
		for i := range uint64(tokens - 1) {
			step(end+(10+5*i)*ms, small, 0, uint32(i/(tokens-2)*small))
		}
		at = end + 5*(tokens+10)*ms
	}
	if found := b.delays(t); len(found) > 0 {
		t.Errorf("%q", found)
	}
}
