package http2

import (
	"encoding/binary"

	"golang.org/x/net/http2/hpack"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
)

// Types of frames and their flags (RFC 9113, 6).
const (
	frameData         = 0
	frameHeaders      = 1
	framePriority     = 2
	frameReset        = 3
	frameSettings     = 4
	framePushPromise  = 5
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8
	frameContinuation = 9

	flagEndStream  = 0x1 // DATA, HEADERS
	flagEndHeaders = 0x4 // HEADERS, PUSH_PROMISE, CONTINUATION
	flagPadded     = 0x8
	flagPriority   = 0x20 // HEADERS
)

const (
	preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	headerBytes  = 9
	maxBlock     = 16 << 10 // bytes of a header block
	maxTable     = 64 << 10 // bytes of a dynamic table of HPACK
	usualTable   = 4096     // what both sides have without a setting
	entryBytes   = 32       // that HPACK counts for an entry beside its name and its value (RFC 7541, 4.1)
	maxFrame     = 1 << 20  // bytes; longer ones are taken for something else
	knownFrames  = frameContinuation
	maxExtension = 0x10 // ALTSVC, ORIGIN, PRIORITY_UPDATE
)

// direction reads the frames that go one way. Where bytes are missing, it waits for a transfer that begins with a
// frame.
type direction struct {
	conn  *Conn
	sent  bool // by the server
	lost  bool // where frames begin is not known
	more  bool // the next transfer goes on with the last one
	strip int  // bytes of the preface that are still to come

	buffer []byte // of a frame's header, or of a payload that is read as a whole
	frame  frame
	within bool // a payload: left bytes of it
	left   int
	pad    int // bytes at its end, of DATA

	block    []byte // of headers, that CONTINUATION goes on with
	blockOf  uint32 // its stream; 0: none is open
	blockEnd bool   // the stream ends with it
	promised bool   // it is one of PUSH_PROMISE
	headers  *hpack.Decoder
	fields   fields
}

type frame struct {
	length int
	kind   byte
	flags  byte
	stream uint32
}

func (f frame) has(flag byte) bool { return f.flags&flag != 0 }

// parseFrame reads the header of a frame. It reports false where RFC 9113 does not allow it.
func parseFrame(b []byte) (f frame, ok bool) {
	f = frame{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		kind:   b[3],
		flags:  b[4],
		stream: binary.BigEndian.Uint32(b[5:]),
	}
	if f.stream>>31 != 0 || f.length > maxFrame {
		return f, false
	}
	switch f.kind {
	case frameData, frameHeaders, frameContinuation, framePushPromise:
		return f, f.stream != 0
	case framePriority:
		return f, f.stream != 0 && f.length == 5
	case frameReset:
		return f, f.stream != 0 && f.length == 4
	case frameSettings:
		return f, f.stream == 0 && f.length%6 == 0
	case framePing:
		return f, f.stream == 0 && f.length == 8
	case frameGoAway:
		return f, f.stream == 0 && f.length >= 8
	case frameWindowUpdate:
		return f, f.length == 4
	}
	return f, f.kind <= maxExtension
}

// reset waits for a frame. What HPACK has said before is not known any more.
func (d *direction) reset() {
	*d = direction{conn: d.conn, sent: d.sent, more: d.more, buffer: d.buffer[:0], block: d.block[:0]}
	d.forgetTable()
}

// forgetTable begins with a table whose entries are not known, so that none of them is taken for another: HPACK counts
// from the newest entry, and what is added from now on is newer than all of these.
func (d *direction) forgetTable() {
	d.headers = hpack.NewDecoder(usualTable, func(f hpack.HeaderField) { d.fields.take(f.Name, f.Value) })
	d.headers.SetAllowedMaxDynamicTableSize(maxTable)
	d.headers.SetMaxStringLength(maxBlock)
	unknown := make([]byte, 0, 3*usualTable/entryBytes)
	for range usualTable / entryBytes {
		unknown = append(unknown, 0x40, 0, 0) // to be added: no name, no value
	}
	_, _ = d.headers.Write(unknown) // it is right
	_ = d.headers.Close()           // a new size of the table may stand only at the beginning of a block
}

// take reads one transfer.
func (d *direction) take(t exchange.Transfer) {
	begins := !d.more
	d.more = t.More
	head, tail := t.Head[:min(len(t.Head), t.Bytes)], t.Tail
	tail = tail[:min(len(tail), t.Bytes-len(head))]
	if d.lost && begins && len(head) >= headerBytes {
		if f, ok := parseFrame(head); ok && f.kind <= knownFrames && f.kind != frameContinuation {
			d.lost = false
		}
	}
	d.read(head)
	if missing := t.Bytes - len(head) - len(tail); missing > 0 {
		d.skip(missing)
	}
	d.read(tail)
}

func (d *direction) read(b []byte) {
	for len(b) > 0 && !d.lost {
		switch {
		case d.strip > 0:
			n := min(d.strip, len(b))
			at := len(preface) - d.strip
			if string(b[:n]) != preface[at:at+n] {
				d.lose()
				return
			}
			d.strip -= n
			b = b[n:]
		case !d.within:
			n := min(headerBytes-len(d.buffer), len(b))
			d.buffer = append(d.buffer, b[:n]...)
			b = b[n:]
			if len(d.buffer) == headerBytes {
				d.begin()
			}
		default:
			n := min(d.left, len(b))
			d.left -= n
			d.payload(b[:n])
			b = b[n:]
			d.endFrame()
		}
	}
}

// lose is called where frames cannot be followed.
func (d *direction) lose() {
	d.reset()
	d.lost = true
	d.conn.missed(d.sent)
}

// skip passes bytes that were not seen.
func (d *direction) skip(n int) {
	if d.lost {
		return
	}
	unpadded := d.frame.has(flagPadded) && d.left == d.frame.length // how long the padding is was not seen
	if !d.within || d.frame.kind != frameData || n > d.left || unpadded {
		d.lose()
		return
	}
	d.left -= n
	d.conn.skipped(d.frame.stream, max(0, n-max(0, d.pad-d.left)), d.sent)
	d.endFrame()
}

// begin begins a frame.
func (d *direction) begin() {
	f, ok := parseFrame(d.buffer)
	d.buffer = d.buffer[:0]
	if ok && d.blockOf != 0 { // nothing may come between the parts of a header block
		ok = f.kind == frameContinuation && f.stream == d.blockOf
	} else if f.kind == frameContinuation {
		ok = false
	}
	if !ok {
		d.conn.strange++
		d.lose()
		return
	}
	d.frame, d.left, d.pad, d.within = f, f.length, 0, true
	d.endFrame()
}

// payload takes bytes of a frame.
func (d *direction) payload(b []byte) {
	f := &d.frame
	switch f.kind {
	case frameData:
		if f.has(flagPadded) && d.left+len(b) == f.length { // its first byte
			d.pad = int(b[0])
			b = b[1:]
		}
		if n := len(b) - max(0, d.pad-d.left); n > 0 {
			d.conn.data(f.stream, b[:n], d.sent)
		}
	case frameHeaders, frameContinuation, framePushPromise:
		d.buffer = append(d.buffer, b[:min(len(b), maxBlock-len(d.buffer))]...)
	}
}

// endFrame goes on where a frame has ended.
func (d *direction) endFrame() {
	if d.left > 0 {
		return
	}
	d.within = false
	f := d.frame
	switch f.kind {
	case frameData:
		if f.has(flagEndStream) {
			d.conn.endStream(f.stream, d.sent)
		}
	case frameReset:
		d.conn.resetStream(f.stream)
	case frameHeaders, frameContinuation, framePushPromise:
		d.endPart()
	}
	d.buffer = d.buffer[:0]
}

// endPart takes a part of a header block.
func (d *direction) endPart() {
	f, b := d.frame, d.buffer
	short := len(b) < f.length
	if f.kind != frameContinuation {
		d.block, d.blockOf, d.blockEnd, d.promised = d.block[:0], f.stream, f.has(flagEndStream), f.kind == framePushPromise
		before, after := 0, 0
		if f.has(flagPadded) && len(b) > 0 {
			before, after = 1, int(b[0])
		}
		if f.kind == frameHeaders && f.has(flagPriority) {
			before += 5
		}
		if d.promised {
			before += 4
		}
		if before+after > len(b) {
			d.lose()
			return
		}
		b = b[before : len(b)-after]
	}
	if short || len(d.block)+len(b) > maxBlock {
		d.lose()
		return
	}
	d.block = append(d.block, b...)
	if f.has(flagEndHeaders) {
		d.endBlock()
	}
}

// endBlock reads a header block.
func (d *direction) endBlock() {
	stream, end, promised := d.blockOf, d.blockEnd, d.promised
	d.blockOf, d.fields = 0, fields{}
	_, err := d.headers.Write(d.block)
	if err == nil {
		err = d.headers.Close()
	}
	if err != nil { // it uses what was said before this was attached
		d.forgetTable()
	}
	if promised {
		return
	}
	d.conn.header(stream, &d.fields, d.sent)
	if end {
		d.conn.endStream(stream, d.sent)
	}
}
