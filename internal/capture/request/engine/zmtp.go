// Package engine reads what an inference server's processes send each other: the frames of ZMTP (ZeroMQ RFC 23) on a
// unix socket, and in them vLLM's messages in msgpack and SGLang's, which are pickles or msgpack. It keeps times,
// numbers and names of requests, and nothing of what was asked or answered. All bytes are hostile input: what is kept
// is bounded.
package engine

import "encoding/binary"

// Flags of a frame; ZeroMQ RFC 23.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	maxFrame  = 128 << 10 // bytes of a frame that are kept
	maxHeader = 9
)

// frames cuts the bytes of one direction of a connection into frames. Bytes may be missing at the end of a transfer.
type frames struct {
	buffer  []byte // the beginning of the frame that is being read, with its header
	missing uint64 // bytes of the frame that are still to come and are not kept
	lost    bool   // where the next frame begins is not known
}

// take takes the first bytes of a transfer of so many, and yields whole frames. whole is false where a frame's end was
// not seen. It returns false where the bytes are no frames.
func (f *frames) take(head []byte, bytes int, yield func(flags byte, body []byte, whole bool)) bool {
	if f.lost {
		f.buffer, f.missing, f.lost = f.buffer[:0], 0, false
	}
	unseen := uint64(max(0, bytes-len(head)))
	for len(head) > 0 {
		if f.missing > 0 {
			n := min(f.missing, uint64(len(head)))
			head, f.missing = head[n:], f.missing-n
			continue
		}
		n, ok := f.more(head)
		if !ok {
			f.lost = true
			return false
		}
		f.buffer, head = append(f.buffer, head[:n]...), head[n:]
		f.end(yield)
	}
	if unseen == 0 {
		return true
	}
	f.skip(unseen, yield)
	return true
}

// more returns how many of these bytes belong to the frame that is being read.
func (f *frames) more(head []byte) (int, bool) {
	size, known, ok := f.size()
	if !ok {
		return 0, false
	}
	if !known {
		return 1, true
	}
	return int(min(size-uint64(len(f.buffer)), uint64(len(head)), uint64(max(1, maxFrame-len(f.buffer))))), true
}

// size returns the length of the present frame with its header.
func (f *frames) size() (size uint64, known, ok bool) {
	b := f.buffer
	if len(b) == 0 {
		return 0, false, true
	}
	if b[0] > flagMore|flagLong|flagCommand {
		return 0, false, false
	}
	if b[0]&flagLong == 0 {
		if len(b) < 2 {
			return 0, false, true
		}
		return uint64(b[1]) + 2, true, true
	}
	if len(b) < maxHeader {
		return 0, false, true
	}
	n := binary.BigEndian.Uint64(b[1:maxHeader])
	return n + maxHeader, true, n < 1<<40
}

// end yields the frame where all of it, or as much as is kept, is there.
func (f *frames) end(yield func(flags byte, body []byte, whole bool)) {
	size, known, ok := f.size()
	if !known || !ok || uint64(len(f.buffer)) < min(size, maxFrame) {
		return
	}
	f.missing = size - uint64(len(f.buffer))
	f.yield(f.missing == 0, yield)
}

func (f *frames) yield(whole bool, yield func(flags byte, body []byte, whole bool)) {
	header := 2
	if f.buffer[0]&flagLong != 0 {
		header = maxHeader
	}
	yield(f.buffer[0], f.buffer[header:], whole)
	f.buffer = f.buffer[:0]
}

// skip passes over bytes that were not seen: what is left of the present frame, and where that is not enough, what
// comes after it.
func (f *frames) skip(unseen uint64, yield func(flags byte, body []byte, whole bool)) {
	if len(f.buffer) > 0 {
		size, known, ok := f.size()
		if !known || !ok {
			f.lost = true
			return
		}
		f.missing = size - uint64(len(f.buffer))
		f.yield(false, yield)
	}
	if unseen > f.missing {
		f.lost = true
		return
	}
	f.missing -= unseen
}
