package otlp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// identity is the trace and the parent of a span.
type identity struct {
	trace, span [16]byte // of span only the first 8 bytes
	parent      []byte   // nil: there is none
	sampled     bool     // the parent is
}

// identify takes trace and parent from the request's traceparent. Without one it makes them of what no other request of
// this machine has, so that a span has the same ids each time it is made.
func identify(r *recording.Request) identity {
	var seed [28]byte
	binary.BigEndian.PutUint64(seed[0:], r.Received)
	binary.BigEndian.PutUint64(seed[8:], r.Number)
	binary.BigEndian.PutUint32(seed[16:], r.PID)
	binary.BigEndian.PutUint64(seed[20:], r.End)
	sum := sha256.Sum256(seed[:])
	id := identity{trace: [16]byte(sum[:16])}
	copy(id.span[:8], sum[16:24])
	id.span[0] |= 1 // neither may be zero
	id.trace[0] |= 1
	if trace, parent, flags, ok := parseParent(r.Trace); ok {
		id.trace, id.parent, id.sampled = trace, parent, flags&1 != 0
	}
	return id
}

// parseParent reads a traceparent header of W3C Trace Context: version-trace-parent-flags in lower-case hexadecimal.
func parseParent(text string) (trace [16]byte, parent []byte, flags byte, ok bool) {
	const length = len("00-") + 32 + 1 + 16 + 1 + 2
	if len(text) < length || text[2] != '-' || text[35] != '-' || text[52] != '-' || strings.ToLower(text) != text {
		return trace, nil, 0, false
	}
	version, err := hex.DecodeString(text[:2])
	if err != nil || version[0] == 0xff || version[0] == 0 && len(text) != length ||
		len(text) > length && text[length] != '-' {
		return trace, nil, 0, false
	}
	ids, err := hex.DecodeString(text[3:35] + text[36:52] + text[53:55])
	if err != nil || zero(ids[:16]) || zero(ids[16:24]) {
		return trace, nil, 0, false
	}
	return [16]byte(ids[:16]), ids[16:24], ids[24], true
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// Sampled reports whether the span of a request is to be sent on, as OpenTelemetry's sampler parentbased_traceidratio
// decides it: as the client did for its own, and of requests without a traceparent the given share, 0 to 1.
func Sampled(r *recording.Request, share float64) bool {
	id := identify(r)
	if id.parent != nil {
		return id.sampled
	}
	bound := share * (1 << 63)
	return share >= 1 || float64(binary.BigEndian.Uint64(id.trace[8:])>>1) < math.Max(0, bound)
}
