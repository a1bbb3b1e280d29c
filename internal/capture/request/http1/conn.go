// Package http1 follows the HTTP/1.1 requests of one connection from the server's side, of whose bytes some may be
// missing: the middle of long transfers is never seen. It keeps times, lengths, names and numbers of tokens, and
// nothing of what was asked or answered. All bytes are hostile input: what is kept is bounded.
package http1

import (
	"bytes"
	"strconv"
)

// Bounds of what is kept of one connection.
const (
	maxHeader  = 16 << 10 // bytes of a message's header
	maxLine    = 8 << 10  // bytes of one part of a streamed answer
	maxHead    = 4 << 10  // bytes of the beginning of a body
	maxTail    = 1 << 10  // bytes of its end
	maxPending = 64       // requests of one connection that have no answer yet
)

// outcome says how an exchange ended.
type outcome string

// The outcomes.
const (
	Open      outcome = "open"      // it goes on
	Complete  outcome = "complete"  // the answer was sent to its end
	Aborted   outcome = "aborted"   // the connection ended before the answer did: the client has left, or the server gave up
	unbounded outcome = "unbounded" // the answer ended somewhere in bytes that were not seen
)

// Exchange is one request and its answer. Times are in ns on the clock of the transfers; 0: it did not come to this,
// or is not known.
type Exchange struct {
	Received   uint64 // the server read the first bytes of the request
	Asked      uint64 // it read the last ones
	FirstByte  uint64 // it wrote the first bytes of the answer: its header
	FirstToken uint64 // it wrote the first part that carries content; streamed answers only
	LastToken  uint64 // the last such part
	End        uint64 // it wrote the last bytes, or the connection ended
	Method     string
	Route      string // the path without what may be somebody's
	Model      string
	ID         string // that the server gave to the answer
	Trace      string // traceparent, as the request had it
	Status     uint16 // 0: no answer
	Outcome    outcome

	AskedStream  bool
	Streamed     bool // the answer is a stream of parts
	Unreadable   bool // the answer is compressed, or bytes of a stream are missing: numbers are lower bounds
	InputTokens  uint32
	OutputTokens uint32
	CachedTokens uint32
	TokenSource  TokenSource // of OutputTokens
	Frames       uint32      // parts of a streamed answer that carry content
	Writes       uint32      // transfers with such parts

	inputSource TokenSource
	// Accounts that count cached tokens beside the others: llama.cpp's timings, and Anthropic's usage.
	evaluated, reused        uint32
	fresh, readBack, written uint32
	// Mark is the caller's.
	Mark uint64
}

// sink is told what happens.
type sink interface {
	// Begin is called when a request's header has been read.
	Begin(x *Exchange)
	// Wrote is called for a transfer with so many parts that carry content.
	Wrote(x *Exchange, ts uint64, tid uint32, frames uint32)
	// End is called when an exchange is over; it does not change any more.
	End(x *Exchange)
}

// Conn is one connection.
type Conn struct {
	sink    sink
	in      message
	out     message
	asking  *Exchange   // whose body is being read
	pending []*Exchange // without an answer, the oldest first
	writing *Exchange   // whose answer is being written
	now     uint64
	tid     uint32
	frames  uint32 // of the present transfer
}

// Transfer is what one system call read or wrote.
type Transfer struct {
	TS    uint64
	TID   uint32
	Bytes int    // in all
	Head  []byte // the first of them
	Tail  []byte // the last of those that are not in Head
}

// New makes a connection.
func New(sink sink) *Conn {
	c := &Conn{sink: sink}
	c.in.conn, c.out.conn, c.out.answer = c, c, true
	return c
}

// Idle reports whether nothing is going on.
func (c *Conn) Idle() bool { return c.asking == nil && len(c.pending) == 0 && c.writing == nil }

// Received takes what the server has read.
func (c *Conn) Received(t Transfer) {
	c.now = t.TS
	if c.in.lost && beginsRequest(t.Head) {
		c.in.reset()
	}
	c.in.take(t)
}

// Sent takes what the server has written.
func (c *Conn) Sent(t Transfer) {
	c.now, c.tid, c.frames = t.TS, t.TID, 0
	if bytes.HasPrefix(t.Head, []byte("HTTP/1.")) && (c.out.lost || c.out.phase == bodyToEnd) {
		if c.writing != nil {
			c.finish(c.writing, unbounded)
		}
		c.out.reset()
	}
	c.out.take(t)
	c.wrote(c.writing)
}

// wrote tells of the parts in the present transfer that are of one exchange.
func (c *Conn) wrote(x *Exchange) {
	if x == nil || c.frames == 0 {
		return
	}
	if x.FirstToken == 0 {
		x.FirstToken = c.now
	}
	x.LastToken = c.now
	x.Writes++
	c.sink.Wrote(x, c.now, c.tid, c.frames)
	c.frames = 0
}

// PeerClosed is called when the client will send nothing any more: nearly always because it has left.
func (c *Conn) PeerClosed(ts uint64) {
	c.now = ts
	if c.asking != nil {
		c.finish(c.asking, Aborted)
	}
}

// Closed ends what goes on.
func (c *Conn) Closed(ts uint64) {
	c.now = ts
	if x := c.writing; x != nil {
		if c.out.phase == bodyToEnd && !c.out.lost {
			c.out.endBody()
		} else {
			c.finish(x, Aborted)
		}
	}
	for _, x := range append([]*Exchange(nil), c.pending...) {
		c.finish(x, Aborted)
	}
	c.in.reset()
	c.out.reset()
}

// Lost is called where bytes of the connection have not been seen: what goes on has no end that is known.
func (c *Conn) Lost() {
	if c.writing != nil {
		c.finish(c.writing, unbounded)
	}
	for _, x := range append([]*Exchange(nil), c.pending...) {
		c.finish(x, unbounded)
	}
	c.in.reset()
	c.out.reset()
	c.in.lost, c.out.lost = true, true
}

// finish ends an exchange.
func (c *Conn) finish(x *Exchange, how outcome) {
	if x.Outcome != Open {
		return
	}
	x.Outcome, x.End = how, c.now
	if x.TokenSource == tokensUnknown && x.Frames > 0 {
		x.OutputTokens, x.TokenSource = x.Frames, Chunks
	}
	if c.asking == x {
		c.asking = nil
	}
	if c.writing == x {
		c.writing = nil
	}
	for i, p := range c.pending {
		if p == x {
			c.pending = append(c.pending[:i], c.pending[i+1:]...)
			break
		}
	}
	c.sink.End(x)
}

func beginsRequest(b []byte) bool {
	for _, m := range []string{"POST ", "GET ", "PUT ", "HEAD ", "DELETE ", "OPTIONS ", "PATCH "} {
		if bytes.HasPrefix(b, []byte(m)) {
			return true
		}
	}
	return false
}

// requested begins an exchange at the end of a request's header.
func (c *Conn) requested(h *header) {
	x := &Exchange{
		Received: c.in.began,
		Outcome:  Open,
		Method:   printable(h.method),
		Route:    route(h.target),
		Trace:    printable(h.trace),
	}
	if len(c.pending) >= maxPending {
		c.finish(c.pending[0], unbounded)
	}
	c.pending = append(c.pending, x)
	c.asking = x
	c.sink.Begin(x)
}

// answered takes the header of an answer; false: it is one that another follows (100 Continue).
func (c *Conn) answered(h *header) bool {
	if h.status >= 100 && h.status < 200 {
		return false
	}
	if c.writing != nil {
		c.finish(c.writing, unbounded)
	}
	if len(c.pending) == 0 {
		return true
	}
	x := c.pending[0]
	c.pending = c.pending[1:]
	c.writing = x
	x.Status, x.FirstByte, x.Streamed, x.Unreadable = h.status, c.out.began, h.lines, h.encoded
	if x.ID == "" {
		x.ID = printable(h.id)
	}
	return true
}

// line takes one line of a streamed answer.
func (c *Conn) line(b []byte) {
	x := c.writing
	if x == nil {
		return
	}
	if rest, ok := bytes.CutPrefix(b, []byte("data:")); ok {
		b = bytes.TrimLeft(rest, " ")
	}
	if len(b) == 0 || b[0] != '{' {
		return // a comment, another field of SSE, [DONE]
	}
	if x.frame(b) {
		x.Frames++
		c.frames++
	}
}

// bodyEnded is called at the end of a message's body.
func (c *Conn) bodyEnded(m *message) {
	if !m.answer {
		if x := c.asking; x != nil {
			x.Asked = c.now
			x.question(m.head)
			c.asking = nil
		}
		return
	}
	x := c.writing
	if x == nil {
		return
	}
	if m.lines {
		if len(m.line) > 0 {
			c.line(m.line)
		}
		c.wrote(x)
	} else {
		x.document(m.head, m.tail)
	}
	c.finish(x, Complete)
}

// header is what is read of a message's header.
type header struct {
	method, target []byte
	status         uint16
	length         int64 // -1: not given
	chunked        bool
	lines          bool // text/event-stream or NDJSON
	encoded        bool
	trace, id      []byte
}

// parseHeader reads a header, without the empty line at its end.
func parseHeader(b []byte, answer bool) (h header, ok bool) {
	h.length = -1
	first, rest, _ := bytes.Cut(b, []byte("\r\n"))
	parts := bytes.SplitN(first, []byte(" "), 3)
	if len(parts) < 2 {
		return h, false
	}
	if answer {
		n, err := strconv.ParseUint(string(parts[1]), 10, 16)
		if err != nil || !bytes.HasPrefix(parts[0], []byte("HTTP/1.")) {
			return h, false
		}
		h.status = uint16(n)
	} else {
		if !beginsRequest(b) || len(parts) < 3 || !bytes.HasPrefix(parts[2], []byte("HTTP/1.")) {
			return h, false
		}
		h.method, h.target = parts[0], parts[1]
	}
	for len(rest) > 0 {
		var line []byte
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, v, found := bytes.Cut(line, []byte(":"))
		if !found {
			continue
		}
		h.field(bytes.ToLower(name), bytes.TrimSpace(v))
	}
	return h, true
}

func (h *header) field(name, v []byte) {
	switch string(name) {
	case "content-length":
		if n, err := strconv.ParseInt(string(v), 10, 63); err == nil && n >= 0 {
			h.length = n
		}
	case "transfer-encoding":
		h.chunked = bytes.HasSuffix(bytes.ToLower(v), []byte("chunked"))
	case "content-type":
		t := bytes.ToLower(v)
		h.lines = bytes.HasPrefix(t, []byte("text/event-stream")) ||
			bytes.HasPrefix(t, []byte("application/x-ndjson")) ||
			bytes.HasPrefix(t, []byte("application/jsonl"))
	case "content-encoding":
		h.encoded = !bytes.EqualFold(v, []byte("identity"))
	case "traceparent":
		h.trace = v
	case "x-request-id", "request-id":
		h.id = v
	}
}
