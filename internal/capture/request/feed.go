package request

import (
	"math"
	"sync"
	"unsafe"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/request/exchange"
	"github.com/inferscope/inferscope/internal/capture/request/http1"
	"github.com/inferscope/inferscope/internal/capture/request/http2"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

// feeding is what Feed works with.
type feeding struct {
	mu      sync.Mutex
	conns   map[connID]*conn
	beneath map[uint64]connID   // the connections over TLS, by socket
	open    map[uint64]*live    // by number
	fresh   []recording.Request // that ended since the ring was read last: an engine's last word may still come
	ended   []recording.Request
	ready   []event.Event
	number  uint64   // of the last request
	left    uint64   // requests that were let go of too early
	dropped uint64   // connections that were not followed
	strange []uint64 // sockets on which nobody is served over HTTP/2
	lost    uint64   // transfers that were lost when the ring was read last
	cut     uint64   // requests whose end was among them
	taps    tapping
	onEnd   []func(*recording.Request)

	content  Content
	text     int    // bytes of prompts and answers in ended
	textless uint64 // requests whose text was let go of too early
	retries  retries

	parents map[uint32]uint32 // of processes that are followed
	serving map[uint32]int    // inference requests that a process has open
}

func newFeeding(content Content) feeding {
	return feeding{
		content: content, retries: newRetries(),
		conns: map[connID]*conn{}, beneath: map[uint64]connID{}, open: map[uint64]*live{}, taps: newTapping(),
		parents: map[uint32]uint32{}, serving: map[uint32]int{},
	}
}

// connID is a socket; over TLS, OpenSSL's connection within its process.
type connID struct {
	at  uint64
	tls uint32 // the process; 0: no TLS
}

// protocol is a version of HTTP on one connection.
type protocol interface {
	Received(t exchange.Transfer)
	Sent(t exchange.Transfer)
	PeerClosed(ts uint64)
	Closed(ts uint64)
	Lost()
	Idle() bool
}

// conn is one connection. It implements exchange.Sink.
type conn struct {
	feed *feeding
	http protocol
	pid  uint32
	port uint16 // 0: not known so far

	tls    bool
	socket uint64 // beneath OpenSSL; 0: not known
}

// live is a request that is not over.
type live struct {
	*exchange.Exchange
	pid      uint32
	port     uint16
	number   uint64
	received uint64
	last     uint64 // ns, when the last chunk was written
	serving  bool   // counted in feeding.serving
}

// passedOn reports whether a process that an inference request has reached is one that a server has started to work for
// it, and that server has such a request open itself: Ollama, which passes each on to a runner by HTTP.
func (f *feeding) passedOn(pid uint32) bool {
	for range maxDepth {
		if pid = f.parents[pid]; pid == 0 {
			return false
		}
		if f.serving[pid] > 0 {
			return true
		}
	}
	return false
}

// maxDepth bounds how many processes are looked at above one.
const maxDepth = 8

// Begin is called when a request's header has been read. Only POST asks for work; health checks and metrics are left
// out, and what is passed on within the target. A method that is not known is one that HPACK has no short form of its
// own for.
func (c *conn) Begin(x *exchange.Exchange) {
	if x.Method != "POST" && x.Method != "" {
		return
	}
	inference := genai.Operation(x.Route) != genai.Other
	if inference && c.feed.passedOn(c.pid) {
		return
	}
	if inference {
		c.feed.serving[c.pid]++
	}
	if c.feed.content.on() {
		x.Content = exchange.NewContent(c.feed.content.bytes)
	}
	c.feed.number++
	x.Mark = c.feed.number
	c.feed.open[x.Mark] = &live{
		Exchange: x,
		pid:      c.pid,
		port:     c.port,
		number:   x.Mark,
		received: x.Received,
		last:     x.Received,
		serving:  inference,
	}
}

// Wrote makes the event of a transfer with content.
func (c *conn) Wrote(x *exchange.Exchange, ts uint64, tid uint32, frames uint32) {
	l := c.feed.open[x.Mark]
	if l == nil {
		return
	}
	c.feed.ready = append(c.feed.ready, event.Event{
		TS: l.last, Dur: ts - min(ts, l.last), PID: c.pid, TID: tid, Kind: event.RequestChunk,
		Flags: event.Timed, Args: [4]uint64{l.number, uint64(frames)},
	})
	l.last = ts
}

// End keeps what is known of a request.
func (c *conn) End(x *exchange.Exchange) {
	l := c.feed.open[x.Mark]
	if l == nil {
		return
	}
	delete(c.feed.open, x.Mark)
	if l.serving {
		if c.feed.serving[c.pid]--; c.feed.serving[c.pid] == 0 {
			delete(c.feed.serving, c.pid)
		}
	}
	r := l.describe()
	c.feed.content.describe(&r, x)
	r.Retry = c.feed.retries.ended(x)
	c.feed.fresh = append(c.feed.fresh, r)
}

// settle hands on the first n of the requests that have ended. Where their own account of tokens is missing, the
// engine's is theirs.
func (f *feeding) settle(n int) {
	for i := range f.fresh[:n] {
		r := &f.fresh[i]
		f.taps.complete(r)
		if len(f.ended) >= maxRequests {
			f.left += maxRequests / 8
			f.forget(maxRequests / 8)
		}
		f.ended = append(f.ended, *r)
		f.text += len(r.Prompt) + len(r.Answer)
		for _, told := range f.onEnd {
			told(r)
		}
	}
	f.fresh = append(f.fresh[:0], f.fresh[n:]...)
	f.limitText()
}

// forget lets go of the n requests that ended first.
func (f *feeding) forget(n int) {
	for i := range f.ended[:n] {
		f.text -= len(f.ended[i].Prompt) + len(f.ended[i].Answer)
	}
	f.ended = append(f.ended[:0], f.ended[n:]...)
}

// limitText lets go of the oldest prompts and answers where there are too many, and of some more, so that it is rarely
// done.
func (f *feeding) limitText() {
	if f.text <= maxText {
		return
	}
	for i := range f.ended {
		r := &f.ended[i]
		if f.text <= maxText/4*3 {
			return
		}
		if n := len(r.Prompt) + len(r.Answer); n > 0 {
			f.text -= n
			f.textless++
			r.Prompt, r.Answer = "", ""
		}
	}
}

func (l *live) describe() recording.Request {
	x := l.Exchange
	r := recording.Request{
		Number: l.number, PID: l.pid, Port: uint32(l.port),
		Received: x.Received, Asked: x.Asked, FirstByte: x.FirstByte,
		FirstToken: x.FirstToken, LastToken: x.LastToken, End: x.End,
		Method: x.Method, Route: x.Route, Model: x.Model, ID: x.ID,
		Trace: x.Trace, Status: uint32(x.Status), Outcome: string(x.Outcome),
		Streamed: x.Streamed, Unreadable: x.Unreadable,
		InputTokens: x.InputTokens, OutputTokens: x.OutputTokens,
		CachedTokens: x.CachedTokens, TokenSource: string(x.TokenSource),
		Parts: x.Frames, Writes: x.Writes,
	}
	if r.TokenSource == "" && r.Parts > 0 { // it goes on
		r.OutputTokens, r.TokenSource = r.Parts, string(exchange.Chunks)
	}
	return r
}

// expire lets go of requests that ended before the recorder's oldest event.
func (f *feeding) expire(held uint64) {
	f.taps.expire(held)
	n := 0
	for n < len(f.ended) && f.ended[n].End < held {
		n++
	}
	if n > len(f.ended)/4 {
		f.forget(n)
	}
}

// take reads the ring. The caller holds the lock.
func (s *Source) take() {
	before := len(s.feed.fresh)
	defer func() { s.feed.settle(before) }()
	if s.programs.reader != nil {
		lost := s.missed()
		s.programs.reader.Read(s.feed.record)
		s.fill.Store(math.Float64bits(s.programs.reader.Fill()))
		if s.missed() || lost {
			s.cut()
		}
		for _, socket := range append(s.feed.taps.strange, s.feed.strange...) {
			s.programs.ignore(socket)
		}
		s.feed.taps.strange, s.feed.strange = s.feed.taps.strange[:0], s.feed.strange[:0]
	}
}

// missed reports whether transfers were lost since it was asked last.
func (s *Source) missed() bool {
	n := s.programs.count(bpf.RequestRequestCountREQUEST_COUNT_LOST)
	if n == s.feed.lost {
		return false
	}
	s.feed.lost = n
	return true
}

// cut ends what goes on over those connections of which nothing has come since transfers were lost. Where something has
// come, that record tells.
func (s *Source) cut() {
	suspects := map[connID]*conn{}
	for id, c := range s.feed.conns {
		if s.programs.cut(id) {
			suspects[id] = c
		}
	}
	var taps []*tap
	for socket, c := range s.feed.taps.conns {
		if s.programs.cut(connID{at: socket}) {
			taps = append(taps, c)
		}
	}
	s.programs.reader.Read(s.feed.record) // what came before they were looked at
	for id, c := range suspects {
		if s.feed.conns[id] == c && s.programs.cut(id) {
			s.feed.gap(c)
		}
	}
	for _, c := range taps {
		c.miss()
	}
}

// gap ends what goes on over a connection of which transfers were lost.
func (f *feeding) gap(c *conn) {
	before := len(f.fresh)
	if h, ok := c.http.(*http2.Conn); ok {
		h.Gap()
	} else {
		c.http.Lost()
	}
	f.cut += uint64(len(f.fresh) - before)
}

// Flags of a record (bpf/request.bpf.c).
const (
	flagMore  = 1
	flagHTTP2 = 2
	flagGap   = 4
)

const (
	headBytes = int(unsafe.Sizeof(bpf.RequestRequestRecord{}))
	tailBytes = 1024 // REQUEST_TAIL: at the end of a record that has any
)

// record takes one transfer.
func (f *feeding) record(b []byte) {
	if len(b) < headBytes {
		return
	}
	r := (*bpf.RequestRequestRecord)(unsafe.Pointer(&b[0])) // records lie at multiples of 8 bytes
	data := b[headBytes:]
	id := connID{at: r.Socket}
	if r.Ssl != 0 {
		id = connID{at: r.Ssl, tls: r.Pid}
	} else if over, ok := f.beneath[r.Socket]; ok {
		id = over
	}
	c := f.conns[id]
	kind := bpf.RequestRequestKind(r.Kind)
	switch kind {
	case bpf.RequestRequestKindREQUEST_ENGINE_SENT:
		f.taps.record(r, data)
		return
	case bpf.RequestRequestKindREQUEST_PEER_CLOSED, bpf.RequestRequestKindREQUEST_CLOSED:
		if c == nil {
			return
		}
		if kind == bpf.RequestRequestKindREQUEST_PEER_CLOSED {
			c.http.PeerClosed(r.Ts)
			return
		}
		c.http.Closed(r.Ts)
		f.remove(id, c)
		return
	}
	if c == nil {
		if c = f.connect(id, r); c == nil {
			return
		}
	}
	if c.tls && r.Socket != 0 && c.socket != r.Socket {
		delete(f.beneath, c.socket)
		c.socket, c.port = r.Socket, r.Port
		f.beneath[r.Socket] = id
	}
	if r.Flags&flagGap != 0 {
		f.gap(c)
	}
	t := exchange.Transfer{
		TS:    r.Ts,
		TID:   r.Tid,
		Bytes: int(r.Bytes),
		Head:  data[:min(int(r.Head), len(data))],
		More:  r.Flags&flagMore != 0,
	}
	if r.Tail > 0 && len(data) >= tailBytes {
		t.Tail = data[len(data)-tailBytes:][:min(int(r.Tail), tailBytes)]
		t.Tail = t.Tail[max(0, len(t.Tail)-max(0, t.Bytes-len(t.Head))):] // without what the head has already
	}
	if kind == bpf.RequestRequestKindREQUEST_RECEIVED {
		c.http.Received(t)
	} else {
		c.http.Sent(t)
	}
	if h, ok := c.http.(*http2.Conn); ok && h.Strange() {
		h.Lost()
		if !c.tls {
			f.strange = append(f.strange, r.Socket)
		}
		f.remove(id, c)
	}
}

// connect makes a connection; nil: there are too many in use.
func (f *feeding) connect(id connID, r *bpf.RequestRequestRecord) *conn {
	if len(f.conns) >= maxConns {
		f.clear()
	}
	if len(f.conns) >= maxConns {
		f.dropped++
		return nil
	}
	c := &conn{feed: f, pid: r.Pid, port: r.Port, tls: id.tls != 0}
	if r.Flags&flagHTTP2 != 0 {
		c.http = http2.New(c)
	} else {
		c.http = http1.New(c)
	}
	f.conns[id] = c
	return c
}

func (f *feeding) remove(id connID, c *conn) {
	delete(f.conns, id)
	if c.socket != 0 {
		delete(f.beneath, c.socket)
	}
}

// clear forgets connections on which nothing goes on: unix sockets have no end that is seen.
func (f *feeding) clear() {
	for id, c := range f.conns {
		if c.http.Idle() {
			f.remove(id, c)
		}
	}
}

// end ends the requests of a process that is gone.
func (s *Source) end(pid uint32, at uint64) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take()
	s.feed.taps.end(pid)
	for id, c := range s.feed.conns {
		if c.pid == pid {
			c.http.Closed(at)
			s.feed.remove(id, c)
		}
	}
}
