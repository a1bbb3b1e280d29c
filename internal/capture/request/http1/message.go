package http1

import (
	"bytes"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
)

// phase is where in a message the next byte lies.
type phase uint8

const (
	inHeader  phase = iota
	body            // left bytes of it
	chunkSize       // the line before a chunk
	chunkData       // left bytes of it
	chunkEnd        // the line end behind a chunk
	trailer         // lines behind the last chunk
	bodyToEnd       // until the connection ends
)

// message reads one direction of a connection.
type message struct {
	conn    *Conn
	answer  bool
	phase   phase
	lost    bool   // where messages begin is not known: wait for a transfer that begins with one
	began   uint64 // ns, when the first byte of the message came
	left    int64
	buffer  []byte // of a header, or of a line between chunks
	content exchange.Body
}

func (m *message) reset() {
	m.content.Reset()
	*m = message{conn: m.conn, answer: m.answer, buffer: m.buffer[:0], content: m.content}
}

// take reads one transfer.
func (m *message) take(t exchange.Transfer) {
	head, tail := t.Head[:min(len(t.Head), t.Bytes)], t.Tail
	tail = tail[:min(len(tail), t.Bytes-len(head))]
	if m.lost && m.answer && m.conn.writing != nil && m.resume(head) {
		m.lost = false
	}
	m.feed(head)
	if missing := t.Bytes - len(head) - len(tail); missing > 0 {
		m.skip(int64(missing))
	}
	m.feed(tail)
	if m.lost && m.answer && m.conn.writing != nil && bytes.HasSuffix(t.Head, []byte("0\r\n\r\n")) {
		m.conn.finish(m.conn.writing, exchange.Complete)
		m.reset()
	}
}

// resume finds into a chunked answer again, where a transfer begins with a chunk.
func (m *message) resume(b []byte) bool {
	line, _, found := bytes.Cut(b[:min(len(b), 20)], []byte("\r\n"))
	if _, ok := hex(line); !found || !ok {
		return false
	}
	m.phase, m.buffer = chunkSize, m.buffer[:0]
	m.content.CutLine()
	return true
}

// feed reads bytes.
func (m *message) feed(b []byte) {
	for len(b) > 0 && !m.lost {
		switch m.phase {
		case inHeader:
			b = m.header(b)
		case body, chunkData:
			n := int(min(int64(len(b)), m.left))
			m.content.Take(b[:n], m.conn.line)
			b = b[n:]
			m.left -= int64(n)
			m.ended()
		case bodyToEnd:
			m.content.Take(b, m.conn.line)
			return
		case chunkSize, chunkEnd, trailer:
			b = m.between(b)
		}
	}
}

// ended goes on where a body or chunk has ended.
func (m *message) ended() {
	if m.left > 0 {
		return
	}
	if m.phase == body {
		m.endBody()
	} else {
		m.phase = chunkEnd
	}
}

// skip passes bytes that were not seen.
func (m *message) skip(n int64) {
	if m.lost {
		return
	}
	switch m.phase {
	case body, chunkData:
		m.content.Skip()
		if x := m.conn.writing; m.answer && x != nil && m.content.Lines {
			x.Unreadable = true
		}
		if n <= m.left {
			m.left -= n
			m.ended()
			return
		}
	case bodyToEnd:
		m.content.Skip()
		return
	}
	m.lost = true
	if x := m.conn.writing; m.answer && x != nil {
		x.Unreadable = true
	}
}

// header reads up to the end of a header.
func (m *message) header(b []byte) []byte {
	if len(m.buffer) == 0 {
		for len(b) > 0 && (b[0] == '\r' || b[0] == '\n') {
			b = b[1:] // between messages
		}
		if len(b) == 0 {
			return nil
		}
		m.began = m.conn.now
	}
	before := len(m.buffer)
	m.buffer = append(m.buffer, b[:min(len(b), maxHeader-before)]...)
	end := bytes.Index(m.buffer[max(0, before-3):], []byte("\r\n\r\n"))
	if end < 0 {
		m.lost = len(m.buffer) >= maxHeader
		return nil
	}
	end += max(0, before-3)
	rest := b[end+4-before:]
	h, ok := parseHeader(m.buffer[:end], m.answer)
	m.buffer = m.buffer[:0]
	if !ok {
		m.lost = true
		return nil
	}
	m.begin(&h)
	return rest
}

// begin goes on behind a header.
func (m *message) begin(h *header) {
	m.content.Reset()
	if m.answer {
		if !m.conn.answered(h) {
			return // the answer proper follows
		}
		m.content.Lines = h.lines && !h.encoded
	} else {
		m.conn.requested(h)
	}
	switch {
	case m.answer && (h.status == 204 || h.status == 304 || m.conn.writing != nil && m.conn.writing.Method == "HEAD"):
		m.endBody()
	case h.chunked:
		m.phase = chunkSize
	case h.length > 0:
		m.phase, m.left = body, h.length
	case h.length == 0 || !m.answer:
		m.endBody()
	default:
		m.phase = bodyToEnd
	}
}

func (m *message) endBody() {
	m.phase = inHeader
	m.conn.bodyEnded(m)
	m.content = exchange.Body{} // an idle connection keeps no memory
}

// between reads a line between chunks.
func (m *message) between(b []byte) []byte {
	i := bytes.IndexByte(b, '\n')
	part := b
	if i >= 0 {
		part = b[:i]
	}
	if len(m.buffer)+len(part) > 256 {
		m.lost = true
		return nil
	}
	m.buffer = append(m.buffer, part...)
	if i < 0 {
		return nil
	}
	line := bytes.TrimRight(m.buffer, "\r")
	m.buffer = m.buffer[:0]
	switch m.phase {
	case chunkEnd:
		m.phase, m.lost = chunkSize, len(line) > 0
	case trailer:
		if len(line) == 0 {
			m.endBody()
		}
	case chunkSize:
		n, ok := hex(line)
		m.lost = !ok
		m.phase, m.left = chunkData, n
		if n == 0 {
			m.phase = trailer
		}
	}
	return b[i+1:]
}

// hex reads the size of a chunk.
func hex(b []byte) (n int64, ok bool) {
	b, _, _ = bytes.Cut(b, []byte(";"))
	b = bytes.TrimSpace(b)
	if len(b) == 0 || len(b) > 12 {
		return 0, false
	}
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int64(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | int64(c-'a'+10)
		case c >= 'A' && c <= 'F':
			n = n<<4 | int64(c-'A'+10)
		default:
			return 0, false
		}
	}
	return n, true
}
