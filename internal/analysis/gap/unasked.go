package gap

import (
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of what requests say about a GPU's idle time.
const (
	fewestAsked   = 5         // requests
	mostUnasked   = 0.05      // of what GPUs do, in times without a request: else they work for something else as well
	settledAnswer = 1_000_000 // ns after an answer and before a request, in which a thread can still be at work for it
)

// unaskedOf returns when a server had no request in progress, from its first one on. known is false where requests do
// not tell what its GPUs do.
func unaskedOf(t *timeline.Timeline) (free timeline.Spans, known bool) {
	meta := &t.Rec.Meta
	if len(meta.Requests) < fewestAsked {
		return nil, false
	}
	var list []timeline.Span
	first := meta.To
	for i := range meta.Requests {
		r := &meta.Requests[i]
		end := r.End
		if end == 0 {
			end = meta.To
		}
		first = min(first, r.Received)
		list = append(list, timeline.Span{
			From: r.Received - min(r.Received, settledAnswer), To: max(end, r.Received) + settledAnswer,
		})
	}
	asked := timeline.Join(list)
	var unasked []timeline.Span
	for _, a := range meta.Overhead.Active(recording.RequestsSource, max(meta.From, first), meta.To) {
		at := a.From
		for i := asked.At(at); i < len(asked) && asked[i].From < a.To; i++ {
			if asked[i].From > at {
				unasked = append(unasked, timeline.Span{From: at, To: asked[i].From})
			}
			at = max(at, asked[i].To)
		}
		if at < a.To {
			unasked = append(unasked, timeline.Span{From: at, To: a.To})
		}
	}
	free = timeline.Join(unasked)
	all, without := uint64(0), uint64(0)
	for i := range t.Activities {
		a := &t.Activities[i]
		all += a.End - a.Start
		if free.Holds(a.Start) {
			without += a.End - a.Start
		}
	}
	if all == 0 || float64(without) > mostUnasked*float64(all) {
		return nil, false
	}
	return free, true
}

// Unasked returns the share of a recording in which a server had no request in progress, if requests were recorded in
// all of it and tell what its GPUs do. Up to the first request it had none, as far as is known.
func Unasked(t *timeline.Timeline) (share float64, known bool) {
	meta := &t.Rec.Meta
	free, known := unaskedOf(t)
	if !known || !meta.Overhead.Whole(recording.RequestsSource) {
		return 0, false
	}
	first := meta.To
	for i := range meta.Requests {
		first = min(first, max(meta.From, meta.Requests[i].Received))
	}
	return float64(first-meta.From+free.Total()) / float64(max(1, meta.To-meta.From)), true
}

// offers reports whether a wait for this can be one for a request: for a message, for another thread that waits for
// one, or between two looks at a queue.
func offers(c cause.ID) bool {
	return c == cause.Worker || c == cause.Network || c == cause.Sleep || c == cause.Unknown
}

// asked calls explain for those parts of a thread's wait in which somebody asked the server for something. In the
// others it had nothing to do.
func (w *walker) asked(th *thread, from, to uint64, explain func(from, to uint64)) {
	for i := w.unasked.At(from); i < len(w.unasked) && w.unasked[i].From < to; i++ {
		begin, end := max(w.unasked[i].From, from), min(w.unasked[i].To, to)
		explain(from, begin)
		w.emit(begin, end, cause.NoWork, detail{th: th, sure: Inferred})
		from = end
	}
	explain(from, to)
}
