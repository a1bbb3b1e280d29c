// Package exchange makes sense of what an HTTP request asks and what its answer says, whichever version of HTTP carries
// them. It keeps times, lengths, names and numbers of tokens, and nothing of what was asked or answered unless a sink
// asks for it.
package exchange

import (
	"bytes"
	"strconv"
)

// Outcome says how an exchange ended.
type Outcome string

// The outcomes.
const (
	Open      Outcome = "open"      // it goes on
	Complete  Outcome = "complete"  // the answer was sent to its end
	Aborted   Outcome = "aborted"   // the connection or stream ended before the answer did: the client has left, or the server gave up
	Unbounded Outcome = "unbounded" // the answer ended somewhere in bytes that were not seen
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
	Name       string // that the client gave to the request: an idempotency key, or an id
	Resent     uint32 // how often the client says that it has sent the request before
	Digest     uint64 // of the body of the request, as far as it was seen; 0: there is none
	Left       uint64 // ns, when the client closed the connection before the answer's end
	Status     uint16 // 0: no answer
	Outcome    Outcome

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
	// Content is where text of the request and of its answer goes; nil: nowhere. A sink may set it in Begin.
	Content *Content
}

// Sink is told what happens.
type Sink interface {
	// Begin is called when a request's header has been read.
	Begin(x *Exchange)
	// Wrote is called for a transfer with so many parts that carry content.
	Wrote(x *Exchange, ts uint64, tid uint32, frames uint32)
	// End is called when an exchange is over; it does not change any more.
	End(x *Exchange)
}

// Transfer is what one system call read or wrote.
type Transfer struct {
	TS    uint64
	TID   uint32
	Bytes int    // in all
	Head  []byte // the first of them
	Tail  []byte // the last of those that are not in Head
	More  bool   // the next transfer is of the same system call
}

// Part takes one line of a streamed answer and reports whether it carries content.
func (x *Exchange) Part(line []byte) bool {
	if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		line = bytes.TrimLeft(rest, " ")
	}
	if len(line) == 0 || line[0] != '{' || !x.frame(line) { // a comment, another field of SSE, [DONE]
		return false
	}
	x.Frames++
	return true
}

// WroteParts notes that a transfer at ts had parts with content.
func (x *Exchange) WroteParts(ts uint64) {
	if x.FirstToken == 0 {
		x.FirstToken = ts
	}
	x.LastToken = ts
	x.Writes++
}

// Finish notes the end. Without an account of tokens, parts are counted.
func (x *Exchange) Finish(ts uint64, how Outcome) {
	x.Outcome, x.End = how, ts
	if x.TokenSource == tokensUnknown && x.Frames > 0 {
		x.OutputTokens, x.TokenSource = x.Frames, Chunks
	}
}

// Retry takes what the header of a request says of whether it was sent before: an idempotency key, or else an id, and
// the count that SDKs of OpenAI and Anthropic send.
func (x *Exchange) Retry(key, id, count []byte) {
	if len(key) == 0 {
		key = id
	}
	x.Name = Printable(key)
	if n, err := strconv.ParseUint(string(count), 10, 16); err == nil {
		x.Resent = uint32(n)
	}
}

// IsLines reports whether a body of this content type is a stream of lines: Server-Sent Events or NDJSON.
func IsLines(contentType []byte) bool {
	t := bytes.ToLower(contentType)
	return bytes.HasPrefix(t, []byte("text/event-stream")) || bytes.HasPrefix(t, []byte("application/x-ndjson")) ||
		bytes.HasPrefix(t, []byte("application/jsonl"))
}
