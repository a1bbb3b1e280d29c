package recording

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Limits bound what ReadStream takes from a stream, which may come from anybody.
type Limits struct {
	Meta   int64 // bytes of meta
	Events int64 // bytes of events, at most 256 GiB, and as many again of frames of unknown types
}

// DefaultLimits returns 64 MiB of meta and 1 GiB of events: more than a minute of 250,000 a
// second, and what a Snapshot shows at most.
func DefaultLimits() Limits { return Limits{Meta: 64 << 20, Events: maxStreamed} }

const maxStreamed = 1 << 30 // bytes

// Bounds that keep small input from becoming large memory.
const (
	metaStep  = 64 << 10
	maxValues = 1 << 20 // in meta; each takes at most some 200 bytes
)

// ReadStream reads a recording as WriteStream writes it, sorts its events by TS
// and leaves out those outside of its window. Memory grows with the bytes that
// really arrive, never with a length that the stream claims. Errors: a stream
// that ends early wraps io.ErrUnexpectedEOF; others say what is wrong and where,
// and that a newer program is needed where the schema is newer.
func ReadStream(r io.Reader, limits Limits) (*Recording, error) {
	s := &streamReader{r: r, sum: crc32.New(crc32.MakeTable(crc32.Castagnoli)), limits: limits}
	rec, err := s.read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("the recording is cut off after %d events: %w", s.events.count, err)
		}
		return nil, fmt.Errorf("read recording: %w", err)
	}
	return rec, nil
}

// streamReader reads the frames of one stream.
type streamReader struct {
	r       io.Reader
	sum     hash.Hash32
	limits  Limits
	meta    *Meta
	events  arrival
	skipped int64 // bytes of unknown frames, headers included
}

func (s *streamReader) read() (*Recording, error) {
	if err := s.preamble(); err != nil {
		return nil, err
	}
	for {
		kind, length, err := s.header()
		if err != nil {
			return nil, err
		}
		if s.meta == nil && kind != frameMeta {
			return nil, fmt.Errorf("it begins with a frame of type %d instead of its meta", kind)
		}
		if kind == frameEnd {
			if err := s.end(length); err != nil {
				return nil, err
			}
			return &Recording{Meta: *s.meta, Events: s.events.arrange(s.meta.From, s.meta.To)}, nil
		}
		if err := s.frame(kind, length); err != nil {
			return nil, err
		}
	}
}

func (s *streamReader) frame(kind uint32, length int64) error {
	switch kind {
	case frameMeta:
		return s.readMeta(length)
	case frameEvents:
		return s.readEvents(length)
	}
	return s.skip(length)
}

// preamble reads magic and version.
func (s *streamReader) preamble() error {
	var b [len(magic) + 4]byte
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return err
	}
	if string(b[:len(magic)]) != magic {
		return errors.New("this is not a recording of InferScope")
	}
	return checkSchema(binary.LittleEndian.Uint32(b[len(magic):]))
}

func checkSchema(v uint32) error {
	switch {
	case v > SchemaVersion:
		return fmt.Errorf("it has schema %d and this program knows schemas up to %d: use a newer inferscope",
			v, SchemaVersion)
	case v == 0:
		return errors.New("it has schema 0, which does not exist")
	}
	return nil
}

func (s *streamReader) header() (kind uint32, length int64, err error) {
	var b [frameHeader]byte
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return 0, 0, err
	}
	return binary.LittleEndian.Uint32(b[0:]), int64(binary.LittleEndian.Uint32(b[4:])), nil
}

// readMeta reads the meta frame, of which there is one.
func (s *streamReader) readMeta(length int64) error {
	if s.meta != nil {
		return errors.New("it has two metas")
	}
	if length > s.limits.Meta {
		return fmt.Errorf("its meta of %d bytes is over the limit of %d", length, s.limits.Meta)
	}
	var buf bytes.Buffer
	buf.Grow(int(min(length, metaStep)))
	if _, err := io.CopyN(&buf, s.r, length); err != nil {
		return err
	}
	if n := countValues(buf.Bytes()); n > maxValues {
		return fmt.Errorf("its meta holds %d values, over the limit of %d", n, maxValues)
	}
	s.sum.Write(buf.Bytes())
	meta := new(Meta)
	if err := json.Unmarshal(buf.Bytes(), meta); err != nil {
		return fmt.Errorf("decode its meta: %w", err)
	}
	return s.setMeta(meta)
}

// countValues counts the members and elements of JSON text, which bound the
// memory that decoding takes: "[0,0,0]" becomes three structs. A comma inside a
// string counts for nothing, because a process chooses its own command line.
func countValues(text []byte) int {
	n, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted, c == '[' && !quoted:
			n++
		}
	}
	return n
}

func (s *streamReader) setMeta(meta *Meta) error {
	if meta.Schema < 0 || int64(meta.Schema) > math.MaxUint32 {
		return fmt.Errorf("its meta has schema %d, which does not exist", meta.Schema)
	}
	if err := checkSchema(uint32(meta.Schema)); err != nil {
		return err
	}
	if meta.From > meta.To {
		return fmt.Errorf("its window ends at %d ns, before its start at %d ns", meta.To, meta.From)
	}
	s.meta = meta
	return nil
}

// readEvents reads an events frame straight into the memory of the events.
func (s *streamReader) readEvents(length int64) error {
	if length%event.Size != 0 {
		return fmt.Errorf("an events frame has %d bytes, which is no multiple of %d", length, event.Size)
	}
	if have := int64(s.events.count) * event.Size; length > s.limits.Events-have {
		return fmt.Errorf("it has more than %d bytes of events, the limit", s.limits.Events)
	}
	for left := int(length / event.Size); left > 0; {
		part := s.events.room(left)
		if _, err := io.ReadFull(s.r, bytesOf(part)); err != nil {
			return err
		}
		s.sum.Write(bytesOf(part))
		if !littleEndian() {
			decodeEvents(part)
		}
		if err := checkEvents(part, s.events.count); err != nil {
			return err
		}
		s.events.fill(len(part))
		left -= len(part)
	}
	return nil
}

// checkEvents refuses what no kernel can have sent, so that whoever adds times
// downstream need not fear an overflow.
func checkEvents(events []event.Event, first int) error {
	for i := range events {
		if e := &events[i]; e.Dur > math.MaxInt64 || e.TS > math.MaxInt64-e.Dur {
			return fmt.Errorf("event %d begins at %d ns and takes %d ns, which no clock can show", first+i, e.TS, e.Dur)
		}
	}
	return nil
}

// skip reads over a frame of a type that this program does not know.
func (s *streamReader) skip(length int64) error {
	s.skipped += length + frameHeader
	if s.skipped > s.limits.Events {
		return fmt.Errorf("it has more than %d bytes of unknown types, the limit", s.limits.Events)
	}
	_, err := io.CopyN(s.sum, s.r, length)
	return err
}

// end compares what arrived with what was sent.
func (s *streamReader) end(length int64) error {
	if length != endBytes {
		return fmt.Errorf("its end has %d bytes instead of %d", length, endBytes)
	}
	var b [endBytes]byte
	sum := s.sum.Sum32()
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b[0:]); n != uint64(s.events.count) {
		return fmt.Errorf("%d events arrived of %d that were sent: ask for it again", s.events.count, n)
	}
	if want := binary.LittleEndian.Uint32(b[8:]); sum != want {
		return fmt.Errorf(
			"its checksum is %08x instead of %08x, so it was damaged on the way: ask for it again",
			sum,
			want,
		)
	}
	return nil
}

// span is the time that a set of events covers, in ns of CLOCK_MONOTONIC.
type span struct {
	first, last uint64 // earliest and latest beginning
	end         uint64 // latest end
}

func emptySpan() span { return span{first: math.MaxUint64} }

func (s *span) add(e *event.Event) {
	s.first = min(s.first, e.TS)
	s.last = max(s.last, e.TS)
	s.end = max(s.end, e.End())
}

// touches reports whether some event of the span may overlap [from, to].
func (s *span) touches(from, to uint64) bool { return s.first <= to && s.end >= from }

// within reports whether every event of the span overlaps [from, to].
func (s *span) within(from, to uint64) bool { return s.first >= from && s.last <= to }

// overlaps reports whether a moment of e lies in [from, to], both included. A call
// that was running when the window opened is part of it: its rest took time there.
func overlaps(e *event.Event, from, to uint64) bool { return e.TS <= to && e.End() >= from }
