package http2

import "encoding/binary"

// messages counts the messages of one direction of a gRPC stream: each has a byte that says whether it is compressed,
// and 4 bytes of length (github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md).
type messages struct {
	prefix [5]byte
	have   int    // bytes of it
	left   uint32 // bytes of the message
	lost   bool
}

// take returns how many messages with content end in these bytes.
func (m *messages) take(b []byte) (n uint32) {
	for len(b) > 0 && !m.lost {
		if m.left > 0 {
			part := min(uint64(m.left), uint64(len(b)))
			m.left -= uint32(part)
			b = b[part:]
			if m.left == 0 {
				n++
			}
			continue
		}
		part := copy(m.prefix[m.have:], b)
		m.have += part
		b = b[part:]
		if m.have < len(m.prefix) {
			break
		}
		m.have, m.left = 0, binary.BigEndian.Uint32(m.prefix[1:])
		m.lost = m.prefix[0] > 1
	}
	return n
}

// skip passes bytes that were not seen; ok: they are of one message.
func (m *messages) skip(bytes int) (n uint32, ok bool) {
	if m.lost || uint64(bytes) > uint64(m.left) {
		m.lost = true
		return 0, false
	}
	m.left -= uint32(bytes)
	if m.left == 0 {
		n = 1
	}
	return n, true
}

// grpcStatuses are the HTTP statuses that stand for codes of gRPC (github.com/googleapis/googleapis,
// google/rpc/code.proto).
var grpcStatuses = [...]uint16{200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401}

// grpcStatus returns the HTTP status of a code plus one.
func grpcStatus(code int) uint16 { return grpcStatuses[code-1] }
