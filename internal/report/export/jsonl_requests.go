package export

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// row is a line that is of no event: a request, a step of an engine, or a request of an engine.
type row struct {
	ts      uint64
	request *recording.Request
	step    *recording.Step
	engine  *recording.EngineRequest
}

// rowsOf returns the lines that are of no event, in the order of time.
func rowsOf(m *recording.Meta) []row {
	var out []row
	for i := range m.Requests {
		out = append(out, row{ts: m.Requests[i].Received, request: &m.Requests[i]})
	}
	for i := range m.Steps {
		out = append(out, row{ts: m.Steps[i].TS, step: &m.Steps[i]})
	}
	for i := range m.EngineRequests {
		q := &m.EngineRequests[i]
		out = append(out, row{ts: cmp.Or(q.Asked, q.Queued, q.Scheduled, q.First, q.Last), engine: q})
	}
	slices.SortStableFunc(out, func(a, b row) int { return cmp.Compare(a.ts, b.ts) })
	return out
}

// until writes the rows up to a time, and returns the rest.
func (l *lines) until(rows []row, ts uint64) []row {
	for len(rows) > 0 && rows[0].ts <= ts {
		switch r := &rows[0]; {
		case r.request != nil:
			l.request(r.request)
		case r.step != nil:
			l.step(r.step)
		default:
			l.engine(r.ts, r.engine)
		}
		rows = rows[1:]
	}
	return rows
}

// count writes a number that is known.
func (l *lines) count(key string, n uint64) {
	if n > 0 {
		l.number(key, n)
	}
}

// name writes a text that is not empty.
func (l *lines) name(key, s string) {
	if s != "" {
		l.string(key, s)
	}
}

// after writes a time between two that are known, in µs.
func (l *lines) after(key string, from, to uint64) {
	if from > 0 && to >= from {
		l.text(`,"` + key + `":`)
		l.decimal(to-from, 3)
	}
}

func (l *lines) request(r *recording.Request) {
	l.begin(&event.Event{TS: r.Received, PID: r.PID}, "request", r.Route)
	l.number("request", r.Number)
	l.string("method", r.Method)
	l.name("model", r.Model)
	l.name("id", r.ID)
	l.name("traceparent", r.Trace)
	l.string("outcome", r.Outcome)
	l.count("status", uint64(r.Status))
	l.count("port", uint64(r.Port))
	if r.Streamed {
		l.text(`,"streamed":true`)
	}
	if r.Unreadable {
		l.text(`,"partial":true`)
	}
	l.count("input_tokens", uint64(r.InputTokens))
	l.count("cached_input_tokens", uint64(r.CachedTokens))
	l.count("output_tokens", uint64(r.OutputTokens))
	l.name("token_source", r.TokenSource)
	l.after("read_us", r.Received, r.Asked)
	l.after("ttft_us", r.Received, r.FirstToken)
	if ns := r.TPOT(); ns > 0 {
		l.text(`,"tpot_us":`)
		l.decimal(ns, 3)
	}
	l.after("dur_us", r.Received, r.End)
	l.count("retry", uint64(r.Retry))
	l.name("prompt", r.Prompt)
	l.name("answer", r.Answer)
	l.text("}\n")
}

func (l *lines) step(s *recording.Step) {
	l.begin(&event.Event{TS: s.TS, PID: s.PID}, "engine_step", "engine step")
	l.after("sent_us", s.Made, s.TS)
	l.number("engine", uint64(s.Engine))
	l.number("requests", uint64(s.Requests))
	l.number("tokens", uint64(s.Tokens))
	l.number("firsts", uint64(s.Firsts))
	l.number("finished", uint64(s.Finished))
	l.count("preempted", uint64(s.Preempts))
	if s.Stats {
		l.number("running", uint64(s.Running))
		l.number("waiting", uint64(s.Waiting))
		l.number("kv_permille", uint64(s.KVPermille))
	}
	if s.Missed {
		l.text(`,"missed":true`)
	}
	l.text("}\n")
}

func (l *lines) engine(ts uint64, q *recording.EngineRequest) {
	l.begin(&event.Event{TS: ts, PID: q.PID}, "engine_request", "engine request")
	l.number("engine", uint64(q.Engine))
	l.string("id", q.ID)
	l.name("finish", q.Finish)
	l.count("input_tokens", uint64(q.InputTokens))
	l.count("cached_input_tokens", uint64(q.CachedTokens))
	l.count("computed_input_tokens", uint64(q.Computed))
	l.count("output_tokens", uint64(q.OutputTokens))
	l.count("steps", uint64(q.Steps))
	l.count("preemptions", uint64(q.Preemptions))
	l.after("handed_us", q.Asked, q.Queued) // the engine looks for requests between steps
	l.after("queue_us", cmp.Or(q.Asked, q.Queued), q.Scheduled)
	l.after("prefill_us", q.Scheduled, q.First)
	l.after("decode_us", q.First, q.Last)
	l.text("}\n")
}
