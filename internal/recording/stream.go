package recording

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"unsafe"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// A stream is the wire form of a recording; all numbers are little-endian:
//
//	magic    8 bytes, "ISCOPE\r\n": a transfer in text mode breaks it at once
//	version  u32, SchemaVersion
//	frames   type u32, length u32, then length bytes of payload
//
// The frames are meta (JSON of Meta) first, then any number of events (64 bytes
// each, as in bpf/event.h), then end. A reader skips types that it does not know.
const (
	magic = "ISCOPE\r\n"

	frameMeta   = 1
	frameEvents = 2
	frameEnd    = 3 // events u64, CRC-32C of all payloads before it u32

	frameHeader = 8
	endBytes    = 12
)

// maxFrameEvents bounds an events frame to 1 MiB, so that neither side ever needs more at once.
const maxFrameEvents = 1 << 14

// smallRun is the number of events below which a run is gathered with others into
// one frame: the copy costs less than a frame of its own.
const smallRun = 256

// WriteStream writes a recording to w: meta, then events in any order (ReadStream
// sorts them). Long runs go out of the memory they lie in. The error is that of w,
// or says that meta has a schema of its own; what was written is then unusable.
func WriteStream(w io.Writer, meta Meta, events iter.Seq[[]event.Event]) error {
	if meta.Schema != SchemaVersion {
		return fmt.Errorf("write recording: meta has schema %d, this program writes %d", meta.Schema, SchemaVersion)
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return fmt.Errorf("write recording: encode its meta: %w", err)
	}
	s := newStreamWriter(w)
	s.write([]byte(magic))
	s.write(binary.LittleEndian.AppendUint32(nil, SchemaVersion))
	s.frame(frameMeta, text)
	for run := range events {
		if s.events(run); s.err != nil {
			break
		}
	}
	if err := s.finish(); err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}

// streamWriter writes frames; the first error stays.
type streamWriter struct {
	w     *bufio.Writer
	sum   hash.Hash32
	small []event.Event // short runs on their way into one frame
	count uint64
	err   error
}

func newStreamWriter(w io.Writer) *streamWriter {
	return &streamWriter{
		w:     bufio.NewWriterSize(w, 16<<10), // for headers and small frames; large writes pass it by
		sum:   crc32.New(crc32.MakeTable(crc32.Castagnoli)),
		small: make([]event.Event, 0, 2*smallRun),
	}
}

func (s *streamWriter) write(b []byte) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
}

func (s *streamWriter) frame(kind uint32, payload []byte) {
	if uint64(len(payload)) > math.MaxUint32 {
		s.err = fmt.Errorf("a frame of %d bytes is too long", len(payload))
		return
	}
	var header [frameHeader]byte
	binary.LittleEndian.PutUint32(header[0:], kind)
	binary.LittleEndian.PutUint32(header[4:], uint32(len(payload)))
	s.write(header[:])
	s.write(payload)
	s.sum.Write(payload)
}

func (s *streamWriter) events(run []event.Event) {
	s.count += uint64(len(run))
	if len(run) < smallRun {
		s.small = append(s.small, run...)
		if len(s.small) >= smallRun {
			s.flushSmall()
		}
		return
	}
	s.flushSmall() // keeps the order of arrival, which decides between equal times
	for len(run) > 0 {
		n := min(len(run), maxFrameEvents)
		s.frame(frameEvents, wireBytes(run[:n]))
		run = run[n:]
	}
}

func (s *streamWriter) flushSmall() {
	if len(s.small) > 0 {
		s.frame(frameEvents, wireBytes(s.small))
		s.small = s.small[:0]
	}
}

func (s *streamWriter) finish() error {
	s.flushSmall()
	end := binary.LittleEndian.AppendUint64(nil, s.count)
	end = binary.LittleEndian.AppendUint32(end, s.sum.Sum32())
	s.frame(frameEnd, end)
	if s.err != nil {
		return s.err
	}
	return s.w.Flush()
}

// bytesOf returns the memory of events.
func bytesOf(events []event.Event) []byte {
	if len(events) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&events[0])), len(events)*event.Size)
}

// wireBytes returns events as they stand in a stream: in place where the machine
// is little-endian like the stream, else as a copy.
func wireBytes(events []event.Event) []byte {
	if littleEndian() {
		return bytesOf(events)
	}
	return encodeEvents(make([]byte, 0, len(events)*event.Size), events)
}

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// encodeEvents appends the wire form of events to dst, field for field.
func encodeEvents(dst []byte, events []event.Event) []byte {
	le := binary.LittleEndian
	for i := range events {
		e := &events[i]
		dst = le.AppendUint64(dst, e.TS)
		dst = le.AppendUint64(dst, e.Dur)
		dst = le.AppendUint32(dst, e.PID)
		dst = le.AppendUint32(dst, e.TID)
		dst = le.AppendUint16(dst, e.Func)
		dst = append(dst, byte(e.Kind), byte(e.Flags))
		dst = le.AppendUint32(dst, uint32(e.Ret))
		for _, arg := range e.Args {
			dst = le.AppendUint64(dst, arg)
		}
	}
	return dst
}

// decodeEvents turns the wire form in the memory of events into events, in place.
func decodeEvents(events []event.Event) {
	le := binary.LittleEndian
	for i := range events {
		b := bytesOf(events[i : i+1])
		e := event.Event{
			TS: le.Uint64(b[0:]), Dur: le.Uint64(b[8:]),
			PID: le.Uint32(b[16:]), TID: le.Uint32(b[20:]), Func: le.Uint16(b[24:]),
			Kind: event.Kind(b[26]), Flags: event.Flags(b[27]), Ret: int32(le.Uint32(b[28:])),
		}
		for j := range e.Args {
			e.Args[j] = le.Uint64(b[32+8*j:])
		}
		events[i] = e
	}
}
