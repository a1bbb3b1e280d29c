// Package http2 follows the HTTP/2 requests of one connection, those of gRPC among them, from the server's side, as far
// as the frames of their streams go (RFC 9113, RFC 7541, and gRPC over HTTP/2). What was said before this was attached
// is not known and never guessed: of a connection that was in use, paths are unknown until the client has spelt them
// again. All bytes are hostile input: what is kept is bounded.
package http2

import (
	"bytes"
	"strconv"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
)

// Bounds of what is kept of one connection.
const (
	maxStreams = 4096
	maxStrange = 8 // frames that RFC 9113 does not allow, before it is taken for something else
)

// UnknownRoute is the route of a request whose path was not seen: names that were said before this was attached.
const UnknownRoute = "unknown"

// role is which side of the connection the process is.
type role uint8

const (
	unknown role = iota
	server
	client
)

// Conn is one connection.
type Conn struct {
	sink    exchange.Sink
	in, out direction
	role    role
	streams map[uint32]*stream
	wrote   []*stream // with parts in the present transfer
	now     uint64
	tid     uint32
	strange int
}

// stream is one request and its answer.
type stream struct {
	*exchange.Exchange
	asked    bool // the whole request is there
	answered bool // the header of the answer is
	grpc     bool
	untold   bool // what the answer is was not seen: its first bytes tell
	in, out  exchange.Body
	messages messages
	touched  bool // it is in wrote; what follows is of the present transfer
	parts    uint32
	ended    bool
	how      exchange.Outcome
}

// New makes a connection, which begins with the client's preface or was in use before.
func New(sink exchange.Sink) *Conn {
	c := &Conn{sink: sink, streams: map[uint32]*stream{}}
	c.in.conn, c.out.conn, c.out.sent = c, c, true
	c.wait()
	return c
}

// wait waits for transfers that begin with a frame.
func (c *Conn) wait() {
	c.in.reset()
	c.out.reset()
	c.in.lost, c.out.lost = true, true
}

// Idle reports whether nothing is going on.
func (c *Conn) Idle() bool { return len(c.streams) == 0 }

// Strange reports whether this is no connection on which the process serves requests over HTTP/2.
func (c *Conn) Strange() bool { return c.role == client || c.strange >= maxStrange }

// Received takes what the server has read.
func (c *Conn) Received(t exchange.Transfer) {
	if c.role == unknown && c.in.lost && bytes.HasPrefix(t.Head, []byte(preface[:min(len(preface), max(1, len(t.Head)))])) {
		c.role = server // it is the client that sends it
		c.in.lost, c.out.lost = false, false
		c.in.strip = len(preface)
	}
	c.take(&c.in, t)
}

// Sent takes what the server has written.
func (c *Conn) Sent(t exchange.Transfer) { c.take(&c.out, t) }

func (c *Conn) take(d *direction, t exchange.Transfer) {
	c.now, c.tid = t.TS, t.TID
	d.take(t)
	if !c.in.more && !c.out.more { // two threads may be at work
		c.flush()
	}
}

// flush tells of what the present transfer had.
func (c *Conn) flush() {
	for _, s := range c.wrote {
		// An answer that comes as a whole is no stream.
		if s.grpc && !s.Streamed && (!s.ended || s.Writes > 0 || s.Frames > 1) {
			s.Streamed = true
		}
		if !s.Streamed {
			s.Frames = 0 // a message that is the whole answer is no token
		}
		if s.parts > 0 && s.Streamed {
			s.WroteParts(c.now)
			c.sink.Wrote(s.Exchange, c.now, c.tid, s.parts)
		}
		s.parts, s.touched = 0, false
		if s.ended {
			c.end(s, s.how)
		}
	}
	c.wrote = c.wrote[:0]
}

// touch notes that the present transfer has something of a stream.
func (c *Conn) touch(s *stream) {
	if !s.touched {
		s.touched = true
		c.wrote = append(c.wrote, s)
	}
}

// finish ends a stream once the transfer has been read.
func (c *Conn) finish(id uint32, s *stream, how exchange.Outcome) {
	delete(c.streams, id)
	s.ended, s.how = true, how
	c.touch(s)
}

func (c *Conn) end(s *stream, how exchange.Outcome) {
	s.Finish(c.now, how)
	c.sink.End(s.Exchange)
}

// endAll ends what goes on.
func (c *Conn) endAll(how exchange.Outcome) {
	c.flush()
	for id, s := range c.streams {
		delete(c.streams, id)
		c.end(s, how)
	}
}

// PeerClosed is called when the client will send nothing any more: nearly always because it has left. Closed follows.
func (c *Conn) PeerClosed(ts uint64) {
	c.now = ts
	for _, s := range c.streams {
		s.Left = ts
	}
}

// Closed ends what goes on.
func (c *Conn) Closed(ts uint64) {
	c.now = ts
	c.endAll(exchange.Aborted)
}

// Lost is called where bytes of the connection have not been seen: what goes on has no end that is known.
func (c *Conn) Lost() {
	c.endAll(exchange.Unbounded)
	c.wait()
}

// Gap is called where transfers of the connection were lost, perhaps the rest of one: what comes next begins another.
func (c *Conn) Gap() {
	c.in.more, c.out.more = false, false
	c.Lost()
}

// missed is called where one direction lost its frames. Streams whose answers are not seen have no end that is known.
func (c *Conn) missed(sent bool) {
	if sent {
		c.endAll(exchange.Unbounded)
	}
}

// header takes the headers or the trailers of a stream.
func (c *Conn) header(id uint32, h *fields, sent bool) {
	if c.role == unknown && (h.asks || h.status > 0) {
		c.role = client
		if h.asks != sent {
			c.role = server
		}
	}
	if c.role != server {
		return
	}
	s := c.streams[id]
	switch {
	case !sent && s == nil:
		c.request(id, h)
	case sent && s != nil && !s.answered:
		if h.status < 100 || h.status >= 200 {
			c.answer(s, h)
		}
		if h.grpcStatus > 0 { // without an answer: headers and trailers in one
			s.Status = grpcStatus(h.grpcStatus)
		}
	case sent && s != nil && h.grpcStatus > 0:
		s.Status = grpcStatus(h.grpcStatus)
	}
}

// request begins a stream.
func (c *Conn) request(id uint32, h *fields) {
	if !h.asks || id&1 == 0 || len(c.streams) >= maxStreams {
		return
	}
	x := &exchange.Exchange{
		Received: c.now,
		Outcome:  exchange.Open,
		Method:   exchange.Printable(h.method),
		Route:    UnknownRoute,
		Trace:    exchange.Printable(h.trace),
	}
	x.Retry(h.key, h.id, h.resent)
	if len(h.path) > 0 {
		x.Route = exchange.Route(h.path)
	}
	c.streams[id] = &stream{Exchange: x, grpc: h.grpc}
	c.sink.Begin(x)
}

// answer takes the header of an answer.
func (c *Conn) answer(s *stream, h *fields) {
	s.answered = true
	s.Status, s.FirstByte = h.status, c.now
	s.grpc = s.grpc || h.grpc
	s.Unreadable = h.encoded && !s.grpc // messages of gRPC are compressed each for itself
	s.Streamed, s.out.Lines = h.lines, h.lines && !h.encoded
	s.untold = h.unknown && !h.typed && !s.grpc
	if s.ID == "" {
		s.ID = exchange.Printable(h.id)
	}
}

// tell says what the body of an answer is, where its header uses names that were said before this was attached: a
// message of gRPC begins with a byte that no text begins with, and an event with the name of a field.
func (s *stream) tell(b []byte) {
	s.untold = false
	s.grpc = b[0] <= 1
	for _, field := range []string{"data:", "event:", "id:", "retry:", ":"} {
		if bytes.HasPrefix(b, []byte(field)) {
			s.Streamed, s.out.Lines = true, true
		}
	}
}

// data takes bytes of a body; there is at least one.
func (c *Conn) data(id uint32, b []byte, sent bool) {
	s := c.streams[id]
	if s != nil && sent && s.untold {
		s.tell(b)
	}
	switch {
	case s == nil:
	case !sent:
		if !s.grpc {
			s.in.Take(b, func([]byte) {})
		}
	case s.grpc:
		if n := s.messages.take(b); n > 0 {
			s.Frames += n
			s.parts += n
			c.touch(s)
		}
	default:
		s.out.Take(b, func(line []byte) { c.line(s, line) })
	}
}

func (c *Conn) line(s *stream, b []byte) {
	if s.Part(b) {
		s.parts++
		c.touch(s)
	}
}

// skipped takes bytes of a body that were not seen.
func (c *Conn) skipped(id uint32, n int, sent bool) {
	s := c.streams[id]
	switch {
	case s == nil:
	case !sent:
		s.in.Skip()
	case s.grpc:
		m, ok := s.messages.skip(n)
		s.Unreadable = s.Unreadable || !ok
		if m > 0 {
			s.Frames += m
			s.parts += m
			c.touch(s)
		}
	default:
		s.out.Skip()
		s.Unreadable = s.Unreadable || s.Streamed
	}
}

// endStream is called where one side has sent everything.
func (c *Conn) endStream(id uint32, sent bool) {
	s := c.streams[id]
	switch {
	case s == nil:
	case !sent:
		if !s.asked {
			s.asked, s.Asked = true, c.now
			s.in.EndQuestion(s.Exchange)
		}
	default:
		if !s.grpc && !s.Unreadable {
			s.out.EndAnswer(s.Exchange, func(line []byte) { c.line(s, line) })
		}
		c.finish(id, s, exchange.Complete)
	}
}

// resetStream is called where either side gives a stream up.
func (c *Conn) resetStream(id uint32) {
	if s := c.streams[id]; s != nil {
		c.finish(id, s, exchange.Aborted)
	}
}

// fields is what is read of a header block.
type fields struct {
	asks        bool // it has a pseudo-header of a request
	method      []byte
	path        []byte
	unknown     bool // the name of a field is
	status      uint16
	typed       bool // it has a content type
	lines       bool
	grpc        bool
	encoded     bool
	grpcStatus  int // plus 1; 0: not given
	trace, id   []byte
	key, resent []byte
}

func (h *fields) take(name, v string) {
	switch name {
	case "":
		h.unknown = true
	case ":method":
		h.asks, h.method = true, []byte(v)
	case ":path":
		h.asks, h.path = true, []byte(v)
	case ":scheme", ":authority":
		h.asks = true
	case ":status":
		if n, err := strconv.ParseUint(v, 10, 16); err == nil {
			h.status = uint16(n)
		}
	case "content-type":
		h.typed = true
		h.lines = exchange.IsLines([]byte(v))
		h.grpc = v == "application/grpc" || bytes.HasPrefix([]byte(v), []byte("application/grpc+"))
	case "content-encoding":
		h.encoded = v != "identity"
	case "grpc-status":
		if n, err := strconv.ParseUint(v, 10, 16); err == nil && n <= 16 {
			h.grpcStatus = int(n) + 1
		}
	case "traceparent":
		h.trace = []byte(v)
	case "x-request-id", "request-id":
		h.id = []byte(v)
	case "idempotency-key":
		h.key = []byte(v)
	case "x-stainless-retry-count":
		h.resent = []byte(v)
	}
}
