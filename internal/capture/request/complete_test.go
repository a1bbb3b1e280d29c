package request

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/request/engine"
	"github.com/inferscope/inferscope/internal/capture/request/exchange"
	"github.com/inferscope/inferscope/internal/recording"
)

// TestTokensOfTheEngine: an answer without an account of its tokens gets the engine's where that is whole, and no
// other.
func TestTokensOfTheEngine(t *testing.T) {
	whole := func(id string, tokens uint32) recording.EngineRequest {
		return recording.EngineRequest{
			ID: id, Asked: 110, First: 120, Last: 180, Finish: "stop",
			OutputTokens: tokens, InputTokens: 9, CachedTokens: 4,
		}
	}
	with := func(q recording.EngineRequest, change func(*recording.EngineRequest)) recording.EngineRequest {
		change(&q)
		return q
	}
	for _, test := range []struct {
		name    string
		source  string
		parts   uint32
		engine  []recording.EngineRequest
		tokens  uint32
		becomes string
	}{
		{"parts of a stream", "chunks", 5, []recording.EngineRequest{whole("cmpl-1-0-deadbeef", 7)}, 7, "engine"},
		{"no stream", "", 0, []recording.EngineRequest{whole("cmpl-1-0-deadbeef", 7)}, 7, "engine"},
		{"two choices", "chunks", 5, []recording.EngineRequest{whole("cmpl-1-0", 7), whole("cmpl-1-1", 8)}, 15, "engine"},
		{"the same id", "", 0, []recording.EngineRequest{whole("cmpl-1", 7)}, 7, "engine"},
		{"ids that begin alike", "", 0, []recording.EngineRequest{
			whole("cmpl-1-2", 8), whole("cmpl-1", 7),
			with(whole("cmpl-1-3", 9), func(q *recording.EngineRequest) { q.First = 0 }),
		}, 7, "engine"},
		{"its own account", "usage", 5, []recording.EngineRequest{whole("cmpl-1-0", 7)}, 5, "usage"},
		{"another request", "chunks", 5, []recording.EngineRequest{whole("cmpl-12-0", 7)}, 5, "chunks"},
		{"a long suffix", "chunks", 5, []recording.EngineRequest{whole("cmpl-1-0-deadbeefdeadbeef", 7)}, 5, "chunks"},
		{"fewer than there are parts", "chunks", 5, []recording.EngineRequest{whole("cmpl-1-0", 4)}, 5, "chunks"},
		{"an earlier one of the same id", "chunks", 5, []recording.EngineRequest{
			with(whole("cmpl-1-0", 7), func(q *recording.EngineRequest) { q.Asked, q.Last = 10, 20 }), whole("x", 1),
		}, 5, "chunks"},
		{"not seen from its beginning", "chunks", 5, []recording.EngineRequest{
			with(whole("cmpl-1-0", 7), func(q *recording.EngineRequest) { q.First = 0 }),
		}, 5, "chunks"},
		{"one of two is not over", "chunks", 5, []recording.EngineRequest{
			with(whole("cmpl-1-0", 7), func(q *recording.EngineRequest) { q.Finish = "" }), whole("cmpl-1-1", 8),
		}, 5, "chunks"},
	} {
		taps := newTapping()
		taps.ended = test.engine
		r := recording.Request{
			ID:           "cmpl-1",
			Received:     100,
			End:          200,
			TokenSource:  test.source,
			OutputTokens: test.parts,
		}
		taps.complete(&r)
		if r.OutputTokens != test.tokens || r.TokenSource != test.becomes {
			t.Errorf("%s: %d tokens by %q, want %d by %q",
				test.name, r.OutputTokens, r.TokenSource, test.tokens, test.becomes)
		}
		if test.becomes == "engine" && (r.InputTokens != 9 || r.CachedTokens != 4) {
			t.Errorf("%s: %d input tokens, %d of them cached", test.name, r.InputTokens, r.CachedTokens)
		}
	}
	r := recording.Request{Received: 100, End: 200}
	taps := newTapping()
	taps.ended = []recording.EngineRequest{whole("", 7), whole("-0", 7)}
	if taps.complete(&r); r.TokenSource != "" {
		t.Errorf("a request without an id has %+v", r)
	}
}

// TestLostPieces: a step of whose message the last pieces are lost is counted, and the next one is read, which tells
// that some were lost before it.
func TestLostPieces(t *testing.T) {
	const outputs, piece = 1000, 4096
	body := []byte{0x98, 0, 0xdc, outputs >> 8, outputs & 0xff}
	for i := range outputs { // one token each
		body = fmt.Appendf(body, "\x97\xa4%04d\x91\x05\xc0\xc0\xc0\xc0\xc0", i)
	}
	body = append(body, "\xc0\xc0\xc0\xc0\xc0\xc0"...)
	message := append(binary.BigEndian.AppendUint64([]byte{2}, uint64(len(body))), body...)
	for pieces := 1; pieces*piece < len(message); pieces++ {
		taps := newTapping()
		send := func(ts uint64, pieces int, flags uint16) {
			for left := message; len(left) > 0 && pieces > 0; pieces-- {
				n := min(len(left), piece)
				r := bpf.RequestRequestRecord{
					Ts: ts, Socket: 1, Pid: 7, Head: uint16(n), Bytes: uint32(n), Flags: flags,
				}
				if n < len(left) {
					r.Flags |= flagMore
				}
				taps.record(&r, left[:n])
				left, flags = left[n:], 0
			}
		}
		send(1, pieces, 0)
		send(2, math.MaxInt, flagGap)
		send(3, math.MaxInt, 0)
		if len(taps.steps) != 2 || taps.steps[0].TS != 2 || taps.steps[0].Tokens != outputs || taps.tooLong() != 1 ||
			!taps.steps[0].Missed || taps.steps[1].Missed {
			t.Errorf("after %d pieces: %d messages lost, steps %+v", pieces, taps.tooLong(), taps.steps)
		}
	}
}

// TestMissedMessages: where messages of an engine were lost, what its requests have is not known, but for those that
// begin in what is seen, and those of an engine that tells sums.
func TestMissedMessages(t *testing.T) {
	taps := newTapping()
	vllm, sglang, server := &tap{all: &taps, pid: 7}, &tap{all: &taps, pid: 8}, &tap{all: &taps, pid: 9}
	for _, c := range []*tap{vllm, sglang, server} {
		c.Conn = engine.New(c)
	}
	ask := func(ids ...string) {
		for _, id := range ids {
			server.Request(&engine.Request{TS: 100, ID: id})
		}
	}
	step := func(c *tap, ts uint64, outputs ...engine.Output) { c.Step(&engine.Step{TS: ts, Outputs: outputs}) }
	ask("running", "late", "begins", "sums", "ended")
	step(vllm, 200, engine.Output{ID: "running", Tokens: 1, Queued: 110})
	step(sglang, 200, engine.Output{ID: "sums", Sums: true, Total: 1}, engine.Output{ID: "ended", Sums: true, Total: 1})
	vllm.miss()
	sglang.miss()
	server.miss()
	ask("new")
	step(sglang, 300, engine.Output{ID: "sums", Sums: true, Total: 8})
	step(sglang, 310, engine.Output{ID: "sums", Sums: true, Total: 9, Finish: "stop"})
	step(vllm, 300, engine.Output{ID: "running", Tokens: 1}, engine.Output{ID: "late", Tokens: 1},
		engine.Output{ID: "begins", Tokens: 1, Queued: 210}, engine.Output{ID: "new", Tokens: 1, Queued: 250})
	last := func(id string) engine.Output { return engine.Output{ID: id, Tokens: 1, Finish: "stop"} }
	step(vllm, 310, last("running"), last("late"), last("begins"), last("new"))
	type row struct {
		first  uint64
		tokens uint32
	}
	want := map[string]row{"running": {200, 0}, "late": {0, 0}, "begins": {300, 2}, "new": {300, 2}, "sums": {200, 9}}
	for _, q := range taps.ended {
		if got := (row{q.First, q.OutputTokens}); got != want[q.ID] {
			t.Errorf("%s: %+v, want %+v", q.ID, got, want[q.ID])
		}
		delete(want, q.ID)
	}
	if len(want) > 0 || len(taps.open) != 1 {
		t.Errorf("want %v too, open are %v", want, taps.open)
	}
	var missed []uint64
	tokens := uint32(0)
	for _, s := range taps.steps {
		if tokens += s.Tokens; s.Missed {
			missed = append(missed, s.TS)
		}
	}
	if !slices.Equal(missed, []uint64{300, 300}) || tokens != 1+2+1+1+4+4 {
		t.Errorf("messages were lost before %v, %d tokens", missed, tokens)
	}
	r := recording.Request{ID: "running", Received: 90, End: 400, TokenSource: "chunks", OutputTokens: 2}
	if taps.complete(&r); r.TokenSource != "chunks" {
		t.Errorf("%+v", r)
	}
}

// TestStepsOfOneTransfer: two steps of which an engine tells in one transfer have times of their own.
func TestStepsOfOneTransfer(t *testing.T) {
	taps := newTapping()
	c := &tap{all: &taps, pid: 7}
	c.Request(&engine.Request{TS: 100, ID: "a"})
	for _, o := range []engine.Output{{ID: "a", Tokens: 1}, {ID: "a", Tokens: 1, Finish: "stop"}} {
		c.Step(&engine.Step{TS: 200, Outputs: []engine.Output{o}})
	}
	if len(taps.steps) != 2 || taps.steps[0].TS != 200 || taps.steps[1].TS != 201 || len(taps.ended) != 1 ||
		taps.ended[0].First != 200 || taps.ended[0].Last != 201 {
		t.Errorf("%+v, %+v", taps.steps, taps.ended)
	}
}

// TestEndedAreHandedOnce: a request that has ended is told of once, after the ring was read once more, and is there all
// the time.
func TestEndedAreHandedOnce(t *testing.T) {
	s := &Source{programs: &programs{}, feed: newFeeding(Content{})}
	told := 0
	s.OnEnd(func(r *recording.Request) {
		if told++; r.TokenSource != "engine" {
			t.Errorf("%+v", *r)
		}
	})
	s.feed.fresh = []recording.Request{{ID: "cmpl-1", Received: 100, End: 200}}
	for range 3 {
		s.feed.taps.ended = []recording.EngineRequest{
			{ID: "cmpl-1-0", Asked: 110, First: 120, Last: 180, Finish: "stop", OutputTokens: 3},
		}
		if all := s.Requests(0, 1000); len(all) != 1 || all[0].OutputTokens != 3 {
			t.Fatalf("%+v", all)
		}
		s.take()
	}
	if told != 1 || len(s.feed.fresh) != 0 || len(s.feed.ended) != 1 {
		t.Errorf("told %d times, %d fresh, %d ended", told, len(s.feed.fresh), len(s.feed.ended))
	}
}

// TestPassedOn: a request that a server passes on to a process that it started is one request. One that comes to that
// process by itself, and what else the two are asked for, are others.
func TestPassedOn(t *testing.T) {
	f := newFeeding(Content{})
	f.parents[20], f.parents[30] = 10, 20
	ask := func(pid uint32, route string) (*conn, *exchange.Exchange) {
		c, x := &conn{feed: &f, pid: pid}, &exchange.Exchange{Method: "POST", Route: route}
		c.Begin(x)
		return c, x
	}
	var open []func()
	for _, c := range []struct {
		pid   uint32
		route string
		seen  bool
	}{
		{30, "/completion", true}, // nobody above has one
		{10, "/tokenize", true},
		{20, "/completion", true},
		{10, "/api/chat", true},
		{20, "/completion", false},
		{30, "/completion", false},
		{30, "/health", true},
		{10, "/api/chat", true},
	} {
		before := f.number
		conn, x := ask(c.pid, c.route)
		if seen := f.number > before; seen != c.seen {
			t.Errorf("%s of process %d: seen %v", c.route, c.pid, seen)
		}
		open = append(open, func() { conn.End(x) })
	}
	for _, end := range open {
		end()
	}
	if len(f.serving) != 0 || len(f.open) != 0 || len(f.fresh) != 6 {
		t.Errorf("%v are open, %d requests", f.serving, len(f.fresh))
	}
	if ask(30, "/completion"); len(f.open) != 1 {
		t.Error("a request to the child is not seen when the server has none")
	}
}

// transferOf is a record as the ring has it.
func transferOf(kind bpf.RequestRequestKind, flags uint16, data string) []byte {
	b := make([]byte, headBytes+len(data))
	*(*bpf.RequestRequestRecord)(unsafe.Pointer(&b[0])) = bpf.RequestRequestRecord{
		Ts: 100, Socket: 1, Pid: 1, Kind: uint32(kind), Bytes: uint32(len(data)), Head: uint16(len(data)), Flags: flags,
	}
	copy(b[headBytes:], data)
	return b
}

// TestGap: a record says that transfers before it were lost. What went on has no end that is known, though the bytes
// that are left look whole; the request behind the gap is seen.
func TestGap(t *testing.T) {
	const (
		received, sent = bpf.RequestRequestKindREQUEST_RECEIVED, bpf.RequestRequestKindREQUEST_SENT
		question       = "POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
		header         = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
		part           = "1c\r\ndata: {\"choices\":[{\"text\":1}]}\n\n\r\n"
		end            = "0\r\n\r\n"
	)
	f := newFeeding(Content{})
	for _, r := range []struct {
		kind  bpf.RequestRequestKind
		flags uint16
		data  string
	}{
		{received, 0, question},
		{sent, 0, header},
		{sent, flagGap, part},
		{sent, 0, end},
		{received, 0, question},
		{sent, 0, header},
		{sent, 0, end},
		{received, 0, question},
		{received, flagGap, question},
		{sent, 0, header},
		{sent, 0, end},
	} {
		f.record(transferOf(r.kind, r.flags, r.data))
	}
	var outcomes []string
	for i := range f.fresh {
		outcomes = append(outcomes, f.fresh[i].Outcome)
	}
	if want := []string{"unbounded", "complete", "unbounded", "complete"}; !slices.Equal(outcomes, want) || f.cut != 2 || len(f.open) != 0 {
		t.Errorf("%v, want %v; %d ends lost, %d open", outcomes, want, f.cut, len(f.open))
	}
}
