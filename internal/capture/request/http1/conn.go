// Package http1 follows the HTTP/1.1 requests of one connection from the server's side, of whose bytes some may be
// missing: the middle of long transfers is never seen. It keeps times, lengths, names and numbers of tokens, and
// nothing of what was asked or answered. All bytes are hostile input: what is kept is bounded.
package http1

import (
	"bytes"
	"strconv"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
)

// Bounds of what is kept of one connection.
const (
	maxHeader  = 16 << 10 // bytes of a message's header
	maxPending = 64       // requests of one connection that have no answer yet
)

// Conn is one connection.
type Conn struct {
	sink    exchange.Sink
	in      message
	out     message
	asking  *exchange.Exchange   // whose body is being read
	pending []*exchange.Exchange // without an answer, the oldest first
	writing *exchange.Exchange   // whose answer is being written
	now     uint64
	tid     uint32
	frames  uint32 // of the present transfer
}

// New makes a connection.
func New(sink exchange.Sink) *Conn {
	c := &Conn{sink: sink}
	c.in.conn, c.out.conn, c.out.answer = c, c, true
	return c
}

// Idle reports whether nothing is going on.
func (c *Conn) Idle() bool { return c.asking == nil && len(c.pending) == 0 && c.writing == nil }

// Received takes what the server has read.
func (c *Conn) Received(t exchange.Transfer) {
	c.now = t.TS
	if c.in.lost && beginsRequest(t.Head) {
		c.in.reset()
	}
	c.in.take(t)
}

// Sent takes what the server has written.
func (c *Conn) Sent(t exchange.Transfer) {
	c.now, c.tid, c.frames = t.TS, t.TID, 0
	if bytes.HasPrefix(t.Head, []byte("HTTP/1.")) && (c.out.lost || c.out.phase == bodyToEnd) {
		if c.writing != nil {
			c.finish(c.writing, exchange.Unbounded)
		}
		c.out.reset()
	}
	c.out.take(t)
	c.wrote(c.writing)
}

// wrote tells of the parts in the present transfer that are of one exchange.
func (c *Conn) wrote(x *exchange.Exchange) {
	if x == nil || c.frames == 0 {
		return
	}
	x.WroteParts(c.now)
	c.sink.Wrote(x, c.now, c.tid, c.frames)
	c.frames = 0
}

// PeerClosed is called when the client will send nothing any more: nearly always because it has left.
func (c *Conn) PeerClosed(ts uint64) {
	c.now = ts
	if c.writing != nil {
		c.writing.Left = ts
	}
	for _, x := range c.pending {
		x.Left = ts
	}
	if c.asking != nil {
		c.finish(c.asking, exchange.Aborted)
	}
}

// Closed ends what goes on.
func (c *Conn) Closed(ts uint64) {
	c.now = ts
	if x := c.writing; x != nil {
		if c.out.phase == bodyToEnd && !c.out.lost {
			c.out.endBody()
		} else {
			c.finish(x, exchange.Aborted)
		}
	}
	for _, x := range append([]*exchange.Exchange(nil), c.pending...) {
		c.finish(x, exchange.Aborted)
	}
	c.in.reset()
	c.out.reset()
}

// Lost is called where bytes of the connection have not been seen: what goes on has no end that is known.
func (c *Conn) Lost() {
	if c.writing != nil {
		c.finish(c.writing, exchange.Unbounded)
	}
	for _, x := range append([]*exchange.Exchange(nil), c.pending...) {
		c.finish(x, exchange.Unbounded)
	}
	c.in.reset()
	c.out.reset()
	c.in.lost, c.out.lost = true, true
}

// finish ends an exchange.
func (c *Conn) finish(x *exchange.Exchange, how exchange.Outcome) {
	if x.Outcome != exchange.Open {
		return
	}
	x.Finish(c.now, how)
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
	x := &exchange.Exchange{
		Received: c.in.began,
		Outcome:  exchange.Open,
		Method:   exchange.Printable(h.method),
		Route:    exchange.Route(h.target),
		Trace:    exchange.Printable(h.trace),
	}
	x.Retry(h.key, h.id, h.resent)
	if len(c.pending) >= maxPending {
		c.finish(c.pending[0], exchange.Unbounded)
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
		c.finish(c.writing, exchange.Unbounded)
	}
	if len(c.pending) == 0 {
		return true
	}
	x := c.pending[0]
	c.pending = c.pending[1:]
	c.writing = x
	x.Status, x.FirstByte, x.Streamed, x.Unreadable = h.status, c.out.began, h.lines, h.encoded
	if x.ID == "" {
		x.ID = exchange.Printable(h.id)
	}
	return true
}

// line takes one line of a streamed answer.
func (c *Conn) line(b []byte) {
	if x := c.writing; x != nil && x.Part(b) {
		c.frames++
	}
}

// bodyEnded is called at the end of a message's body.
func (c *Conn) bodyEnded(m *message) {
	if !m.answer {
		if x := c.asking; x != nil {
			x.Asked = c.now
			m.content.EndQuestion(x)
			c.asking = nil
		}
		return
	}
	x := c.writing
	if x == nil {
		return
	}
	m.content.EndAnswer(x, c.line)
	c.wrote(x)
	c.finish(x, exchange.Complete)
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
	key, resent    []byte
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
		h.lines = exchange.IsLines(v)
	case "content-encoding":
		h.encoded = !bytes.EqualFold(v, []byte("identity"))
	case "traceparent":
		h.trace = v
	case "x-request-id", "request-id":
		h.id = v
	case "idempotency-key":
		h.key = v
	case "x-stainless-retry-count":
		h.resent = v
	}
}
