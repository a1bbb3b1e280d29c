package engine

import (
	"encoding/binary"
	"slices"
	"testing"
)

type seen struct {
	steps    []Step
	requests []Request
	aborts   []string
	texts    []string
}

func (s *seen) Step(x *Step)              { s.steps = append(s.steps, *x) }
func (s *seen) Request(r *Request)        { s.requests = append(s.requests, *r) }
func (s *seen) Abort(_ uint64, id string) { s.aborts = append(s.aborts, id) }
func (s *seen) Text(_ uint64, id string)  { s.texts = append(s.texts, id) }

// message is an EngineCoreOutputs of vLLM 0.24 with one output of three tokens, as msgspec encodes it.
func message() []byte {
	b := []byte{0x98, 0x02, 0x91, 0x9d, 0xa6}
	b = append(b, "cmpl-1"...)
	b = append(b, 0x93, 0xcd, 0x04, 0xd2, 0x05, 0xce, 0, 1, 0, 0, 0xc0, 0xc0, 0xc0, 0x01, 0xc0, 0x91, 0x82, 0xa4)
	b = append(b, "type"...)
	b = append(b, 0x03, 0xa9)
	b = append(b, "timestamp"...)
	b = append(b, 0xcb, 0x40, 0x24, 0, 0, 0, 0, 0, 0, 0xc0, 0xc0, 0x81, 0xb1)
	b = append(b, "num_cached_tokens"...)
	b = append(b, 0x10, 0xc0, 0x00, 0x82, 0xb0)
	b = append(b, "num_waiting_reqs"...)
	b = append(b, 0x07, 0xa7)
	b = append(b, "unknown"...)
	b = append(b, 0x91, 0xc4, 0x01, 0xff, 0xcb, 0x40, 0x59, 0, 0, 0, 0, 0, 0, 0xc0, 0xc0, 0xc0, 0xc0)
	return b
}

func framed(flags byte, body []byte) []byte {
	if len(body) < 256 {
		return append([]byte{flags, byte(len(body))}, body...)
	}
	b := binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body)))
	return append(b, body...)
}

func check(t *testing.T, s *seen, n int) {
	t.Helper()
	if len(s.steps) != n {
		t.Fatalf("%d steps", len(s.steps))
	}
	for _, x := range s.steps {
		if x.Engine != 2 || x.Waiting != 7 || x.Clock != 100e9 || len(x.Outputs) != 1 {
			t.Fatalf("%+v", x)
		}
		want := Output{ID: "cmpl-1", Tokens: 3, Finish: "length", Preempted: 1, Cached: 16}
		if x.Outputs[0] != want {
			t.Fatalf("%+v", x.Outputs[0])
		}
	}
}

// TestCuts: messages are read wherever a transfer ends.
func TestCuts(t *testing.T) {
	all := slices.Concat(
		framed(0, message()),
		framed(flagMore, message()),
		framed(0, make([]byte, 300)),
		framed(flagCommand, []byte("x")),
		framed(0, message()),
	)
	for cut := range all {
		var s seen
		c := New(&s)
		c.Sent(1, all[:cut], cut)
		c.Sent(2, all[cut:], len(all)-cut)
		check(t, &s, 3)
	}
}

// TestUnseen: what is missing at the end of a transfer costs only the messages in it, but what follows the time in
// them.
func TestUnseen(t *testing.T) {
	all := framed(0, message())
	for cut := range all {
		var s seen
		c := New(&s)
		c.Sent(1, all[:cut], len(all))
		c.Sent(2, all, len(all))
		want := 1
		if cut >= len(all)-4 {
			want = 2
		}
		check(t, &s, want)
	}
}

// TestRequest: of a request only the id and the number of tokens are read; the rest may be missing.
func TestRequest(t *testing.T) {
	body := append([]byte{0xdc, 0, 20, 0xa6}, "cmpl-1"...)
	body = append(body, 0xdc, 0x0f, 0xa0)
	body = append(body, make([]byte, 4000)...)
	all := append(framed(flagMore, []byte{0}), framed(0, body)...)
	var s seen
	c := New(&s)
	c.Sent(1, all[:100], 3000)
	c.Sent(1, nil, len(all)-3000)
	c.Sent(2, all, len(all))
	if len(s.requests) != 2 || s.requests[0] != (Request{1, "cmpl-1", 4000}) || s.requests[1].Prompt != 4000 {
		t.Errorf("%+v", s.requests)
	}
}

// TestStrange: what is no engine is given up.
func TestStrange(t *testing.T) {
	c := New(&seen{})
	for range maxStrange {
		c.Sent(1, framed(0, []byte("hello")), 7)
	}
	if !c.Strange() {
		t.Error("it goes on")
	}
}

func FuzzConn(f *testing.F) {
	f.Add(framed(0, message()), 3, 0)
	f.Add(append(framed(flagMore, []byte{0}), framed(0, message())...), 1, 100)
	f.Fuzz(func(t *testing.T, b []byte, cut, unseen int) {
		var s seen
		c := New(&s)
		cut = min(max(0, cut), len(b))
		c.Sent(1, b[:cut], cut)
		c.Sent(2, b[cut:], len(b)-cut+min(max(0, unseen), 1<<20))
		if len(c.frames.buffer) > maxFrame || len(s.steps) > len(b) {
			t.Errorf("%d bytes kept, %d steps", len(c.frames.buffer), len(s.steps))
		}
	})
}
