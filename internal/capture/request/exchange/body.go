package exchange

import (
	"bytes"
	"hash/maphash"
)

// Bounds of what is kept of one body.
const (
	maxLine = 8 << 10 // bytes of one part of a streamed answer
	maxHead = 4 << 10 // bytes of the beginning of a body
	maxTail = 1 << 10 // bytes of its end
)

// seed makes digests say nothing to anybody else.
var seed = maphash.MakeSeed()

// Body keeps what is read of a body: the line it is at, of one that is a stream of lines; else its beginning and its
// end.
type Body struct {
	Lines bool

	line       []byte
	head, tail []byte
	gap        bool // tail does not follow head
}

// Take takes the next bytes, and calls line with each line that ends in them.
func (b *Body) Take(p []byte, line func([]byte)) {
	if b.Lines {
		b.split(p, line)
		return
	}
	if !b.gap && len(b.head) < maxHead {
		n := min(len(p), maxHead-len(b.head))
		b.head = append(b.head, p[:n]...)
		p = p[n:]
	}
	if len(p) == 0 {
		return
	}
	b.gap = true
	if len(p) >= maxTail {
		b.tail = append(b.tail[:0], p[len(p)-maxTail:]...)
		return
	}
	if over := len(b.tail) + len(p) - maxTail; over > 0 {
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	b.tail = append(b.tail, p...)
}

func (b *Body) split(p []byte, line func([]byte)) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		b.line = append(b.line, part[:min(len(part), maxLine-len(b.line))]...)
		if i < 0 {
			return
		}
		p = p[i+1:]
		line(bytes.TrimRight(b.line, "\r"))
		b.line = b.line[:0]
	}
}

// Skip passes bytes that were not seen.
func (b *Body) Skip() { b.gap = true }

// CutLine forgets the line that the body is at: what follows does not belong to it.
func (b *Body) CutLine() { b.line = b.line[:0] }

// EndQuestion reads the body of a request at its end.
func (b *Body) EndQuestion(x *Exchange) {
	x.question(b.head)
	if len(b.head) > 0 {
		var h maphash.Hash
		h.SetSeed(seed)
		_, _ = h.Write(b.head) // it has no error
		_, _ = h.Write(b.tail)
		x.Digest = h.Sum64()
	}
	if x.Content != nil && b.gap {
		x.Content.Prompt.Cut = true
	}
}

// EndAnswer reads the body of an answer at its end: its last line, or all of it.
func (b *Body) EndAnswer(x *Exchange, line func([]byte)) {
	switch {
	case !b.Lines:
		x.document(b.head, b.tail)
		if x.Content != nil && b.gap {
			x.Content.Answer.Cut = true
		}
	case len(b.line) > 0:
		line(b.line)
	}
}

// Reset forgets everything.
func (b *Body) Reset() { *b = Body{line: b.line[:0], head: b.head[:0], tail: b.tail[:0]} }
