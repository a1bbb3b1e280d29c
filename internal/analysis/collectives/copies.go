package collectives

import "github.com/inferscope/inferscope/internal/analysis/timeline"

// copies adds the copies of copy engines to the calls that launched them.
func (s *summing) copies() {
	type set struct {
		call   int32
		stream uint64
		key    key
	}
	spans := map[set]timeline.Span{}
	for _, x := range s.t.Exchanges {
		a, call := &s.t.Activities[x.Activity], &s.t.Rec.Events[x.Call]
		of := thread{call.PID, call.TID}
		list := s.calls[of]
		calls := copied(list, call.TS, x.Stream)
		if len(calls) == 0 {
			continue
		}
		o := s.see(of, calls)
		o.Copies++
		k := set{x.Call, x.Stream, list[calls[0]].key}
		span, known := spans[k]
		if !known {
			o.Copied += uint64(len(calls))
			span = timeline.Span{From: a.Start, To: a.End}
		}
		spans[k] = timeline.Span{From: min(span.From, a.Start), To: max(span.To, a.End)}
	}
	for k, span := range spans {
		s.ops[k.key].Copy += span.To - span.From
	}
}

// copied returns which calls of a thread launched copies into a stream at a time. Those of a group are the calls on the
// one communicator that uses the stream, where these are of one operation: NCCL launches the work of a communicator
// into one of the streams that its calls in a group name.
func copied(list []call, at, stream uint64) []int {
	all, comm := together(list, at), uint64(0)
	for _, i := range all {
		switch c := &list[i]; {
		case c.stream != stream || c.key.comm == comm:
		case comm != 0:
			return nil
		default:
			comm = c.key.comm
		}
	}
	var out []int
	for _, i := range all {
		if list[i].key.comm == comm {
			out = append(out, i)
		}
	}
	return ofOneKey(list, out)
}
