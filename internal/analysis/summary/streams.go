package summary

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
)

// streams makes the table per stream.
type streams struct {
	t    *timeline.Timeline
	rows map[streamKey]*Stream
	near [64]nearStream // the rows of late, by a hash
}

type nearStream struct {
	streamKey
	row *Stream
}

type streamKey struct {
	process int32
	handle  uint64
}

func newStreams(t *timeline.Timeline) *streams {
	return &streams{t: t, rows: map[streamKey]*Stream{}}
}

// count counts a call that began in the window, if it names a stream or works on the default one.
func (s *streams) count(o *op) {
	if !o.call.HasStream {
		return
	}
	r := s.row(o)
	r.Count++
	switch o.kind {
	case launchKind:
		r.Kernels++
	case graphLaunchKind:
		r.Graphs++
	case copyKind:
		r.Copies++
		if !o.failed() {
			r.Bytes += o.call.Bytes
		}
	case syncKind:
		r.Syncs++
		r.Sync += o.Dur
	}
}

// row finds the stream of o.
func (s *streams) row(o *op) *Stream {
	key := streamKey{o.process, o.call.Stream}
	near := &s.near[(key.handle>>4^key.handle>>10^uint64(key.process)*7)&63]
	if near.row != nil && near.streamKey == key {
		return near.row
	}
	r := s.rows[key]
	if r == nil {
		r = &Stream{PID: s.t.Processes[o.process].PID, Handle: key.handle}
		switch key.handle {
		case cuda.LegacyStream:
			r.Name = "default"
		case cuda.PerThreadStream:
			r.Name = "per-thread default"
		}
		s.rows[key] = r
	}
	*near = nearStream{key, r}
	return r
}

func (s *streams) result() []Stream {
	out := []Stream{}
	for _, r := range s.rows {
		out = append(out, *r)
	}
	weight := func(r *Stream) uint64 { return r.Kernels + r.Graphs + r.Copies }
	slices.SortFunc(out, func(x, y Stream) int {
		return cmp.Or(cmp.Compare(weight(&y), weight(&x)), cmp.Compare(y.Count, x.Count),
			cmp.Compare(x.PID, y.PID), cmp.Compare(x.Handle, y.Handle))
	})
	return out
}
