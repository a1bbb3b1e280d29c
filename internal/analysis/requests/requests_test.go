package requests_test

import (
	"slices"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

const ms = uint64(time.Millisecond)

// builder makes a recording of streamed requests on a server that works in steps.
type builder struct{ rec recording.Recording }

func newBuilder(length uint64) *builder {
	return &builder{recording.Recording{Meta: recording.Meta{Target: 1, From: 0, To: length}}}
}

// stream adds a request whose tokens are written at these times.
func (b *builder) stream(received uint64, tokens ...uint64) *recording.Request {
	n := uint64(len(b.rec.Meta.Requests) + 1)
	last := tokens[len(tokens)-1]
	b.rec.Meta.Requests = append(b.rec.Meta.Requests, recording.Request{
		Number: n, PID: 1, Received: received, Asked: received, FirstByte: received + 1,
		FirstToken: tokens[0], LastToken: last, End: last + ms,
		Method: "POST", Route: "/v1/chat/completions", Model: "m", Status: 200, Outcome: "complete", Streamed: true,
		InputTokens: 10, OutputTokens: uint32(len(tokens)), TokenSource: "usage", Parts: uint32(len(tokens)),
	})
	before := received
	for _, at := range tokens {
		b.rec.Events = append(b.rec.Events, event.Event{
			TS:    before,
			Dur:   at - before,
			PID:   1,
			Kind:  event.RequestChunk,
			Flags: event.Timed,
			Args:  [4]uint64{n, 1},
		})
		before = at
	}
	return &b.rec.Meta.Requests[n-1]
}

func (b *builder) summary() *requests.Summary {
	slices.SortStableFunc(b.rec.Events, func(x, y event.Event) int { return int(x.TS) - int(y.TS) })
	return requests.Summarize(&b.rec)
}

// steady is times of tokens, each a gap after the one before.
func steady(first, gap uint64, n int) (out []uint64) {
	for i := range n {
		out = append(out, first+uint64(i)*gap)
	}
	return out
}

func TestNone(t *testing.T) {
	if s := requests.Summarize(&recording.Recording{}); s != nil {
		t.Errorf("%+v", s)
	}
}

// TestQuantiles: a hundred requests whose first tokens take 1 to 100 ms.
func TestQuantiles(t *testing.T) {
	b := newBuilder(1000 * ms)
	for i := range uint64(100) {
		b.stream(i*ms, steady((2*i+1)*ms, 10*ms, 11)...)
	}
	s := b.summary()
	if s.Ended != 100 || s.TTFT.P50 != 50*ms || s.TTFT.P99 != 99*ms || s.TTFT.Max != 100*ms || s.TPOT.P50 != 10*ms ||
		s.TPOT.P99 != 10*ms ||
		s.Latency.P90 != 191*ms {
		t.Errorf("TTFT %+v, TPOT %+v, latency %+v", s.TTFT, s.TPOT, s.Latency)
	}
	if s.OutputTokens != 1100 || s.TokensPerSec != 1100 || s.PerSec != 100 || s.TokensCounted != 0 {
		t.Errorf("%+v", s)
	}
	s.Judge(requests.Objective{TTFT: 40 * ms, TPOT: 10 * ms})
	if s.Goodput.Met != 40 || s.Goodput.Of != 100 || s.Goodput.PerSec != 40 {
		t.Errorf("%+v", s.Goodput)
	}
	s.Judge(requests.Objective{TPOT: 9 * ms})
	if s.Goodput.Met != 0 {
		t.Errorf("%+v", s.Goodput)
	}
	if !s.Tail.Exact || s.Tail.Median.TTFT != 50*ms || s.Tail.Slow.TTFT != 99*ms || s.Slow[0].TTFT != 100*ms {
		t.Errorf("%+v", s.Tail)
	}
}

// TestWhatDoesNotCount: errors, aborted and open requests have no part in latencies.
func TestWhatDoesNotCount(t *testing.T) {
	b := newBuilder(1000 * ms)
	b.stream(0, steady(10*ms, ms, 10)...)
	b.stream(0, steady(500*ms, ms, 10)...).Status = 500
	b.stream(0, steady(20*ms, ms, 10)...).Outcome = "aborted"
	open := b.stream(0, steady(30*ms, ms, 10)...)
	open.End, open.Outcome = 0, "open"
	late := b.stream(900*ms, steady(990*ms, ms, 10)...)
	late.End = 1001 * ms
	b.rec.Meta.Requests = append(b.rec.Meta.Requests,
		recording.Request{Number: 99, Received: 5 * ms, End: 6 * ms, Status: 200, Outcome: "complete"})
	s := b.summary()
	if s.Count != 6 || s.Ended != 4 || s.Open != 2 || s.Failed != 1 || s.Aborted != 1 || s.Streamed != 3 ||
		s.TokensUnknown != 1 {
		t.Errorf("%+v", s)
	}
	if s.Latency.Count != 2 || s.Latency.Max != 20*ms || s.TPOT.Count != 1 {
		t.Errorf("latency %+v, TPOT %+v", s.Latency, s.TPOT)
	}
	if s.MaxConcurrency != 5 {
		t.Errorf("%d at a time", s.MaxConcurrency)
	}
}

// TestPrefillBlocksDecode: streams stop for as long as the prefill of another request takes.
func TestPrefillBlocksDecode(t *testing.T) {
	b := newBuilder(10_000 * ms)
	var tokens []uint64
	at := uint64(100) * ms
	for i := range 200 {
		if i%20 == 19 {
			b.stream(at, steady(at+80*ms, 10*ms, 5)...)
			at += 80 * ms
		} else {
			at += 10 * ms
		}
		tokens = append(tokens, at)
	}
	victim := b.stream(0, tokens...)
	s := b.summary()
	if s.Stalls.Stalls != 10 || s.Stalls.Time != 700*ms || s.Stalls.ByPrefill != 1 || s.Stalls.Chance > 0.2 {
		t.Errorf("%+v", s.Stalls)
	}
	if r := s.Slow[0]; r.Number != victim.Number || r.LongestGap != 80*ms || r.ByPrefill != 700*ms {
		t.Errorf("%+v", r)
	}
}

// TestStallsOfSomethingElse: what stops without another request is not put down to a prefill.
func TestStallsOfSomethingElse(t *testing.T) {
	b := newBuilder(10_000 * ms)
	var tokens []uint64
	at := uint64(100) * ms
	for i := range 100 {
		at += 10 * ms
		if i%20 == 19 {
			at += 80 * ms
		}
		tokens = append(tokens, at)
	}
	b.stream(0, tokens...)
	if s := b.summary(); s.Stalls.Stalls != 5 || s.Stalls.ByPrefill != 0 {
		t.Errorf("%+v", s.Stalls)
	}
}

// TestGPU: for how long the GPU worked is said only where it was recorded throughout.
func TestGPU(t *testing.T) {
	b := newBuilder(1000 * ms)
	b.rec.Meta.GPU = &recording.GPU{Windows: []recording.GPUWindow{{PID: 2, From: 0, To: 300 * ms, Activity: true}}}
	for _, k := range [][2]uint64{{10, 20}, {15, 10}, {100, 50}} {
		b.rec.Events = append(b.rec.Events,
			event.Event{TS: k[0] * ms, Dur: k[1] * ms, PID: 2, Kind: event.Kernel, Flags: event.Timed})
	}
	b.stream(0, 50*ms, 120*ms)
	b.stream(20*ms, 200*ms, 400*ms)
	s := b.summary()
	slow, quick := s.Slow[0], s.Slow[1]
	if quick.GPUFirst == nil || *quick.GPUFirst != 20*ms || *quick.GPUDecode != 20*ms {
		t.Errorf("%v %v", quick.GPUFirst, quick.GPUDecode)
	}
	if slow.GPUFirst == nil || *slow.GPUFirst != 60*ms || slow.GPUDecode != nil {
		t.Errorf("%v %v", slow.GPUFirst, slow.GPUDecode)
	}
}

func TestParseObjective(t *testing.T) {
	o, err := requests.ParseObjective("ttft=200ms, tpot=30ms")
	if err != nil || *o != (requests.Objective{TTFT: 200 * ms, TPOT: 30 * ms}) {
		t.Error(o, err)
	}
	for _, bad := range []string{"", "ttft", "ttft=-1s", "x=1s", "ttft=200"} {
		if _, err := requests.ParseObjective(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestRatesOfWatchedTime: what is said per second is of the time in which the source was on, not of the whole window.
func TestRatesOfWatchedTime(t *testing.T) {
	b := newBuilder(10_000 * ms)
	for i := range uint64(20) { // one at a time, for 100 ms each, in the first 2 s; then the source is off
		b.stream(i*100*ms, steady(i*100*ms+9*ms, 10*ms, 10)...)
	}
	b.rec.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
		Name: recording.RequestsSource, Paused: []recording.Pause{{From: 2_000 * ms, To: 12_000 * ms}},
	}}}
	s := b.summary()
	if s.Watched != 2_000*ms || s.PerSec != 10 || s.TokensPerSec != 100 || s.MeanConcurrency < 0.9 {
		t.Errorf("watched %d, %v and %v a second, %v at a time", s.Watched, s.PerSec, s.TokensPerSec, s.MeanConcurrency)
	}
}
