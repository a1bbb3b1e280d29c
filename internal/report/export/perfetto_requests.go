package export

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

// maxRequestTracks bounds the tracks of requests of one process: so many at a time are drawn.
const maxRequestTracks = 1024

// requests writes the requests that each process served: those that go on at the same time are on tracks of their own.
// What an engine told of its steps are counters of its process.
func (p *perfetto) requests() {
	m := &p.v.rec.Meta
	engines := recording.ByID(m.EngineRequests)
	byPID := map[uint32][]*recording.Request{}
	var pids []uint32
	for i := range m.Requests {
		r := &m.Requests[i]
		if byPID[r.PID] == nil {
			pids = append(pids, r.PID)
		}
		byPID[r.PID] = append(byPID[r.PID], r)
	}
	slices.Sort(pids)
	for _, pid := range pids {
		p.requestsOf(pid, byPID[pid], engines)
	}
	p.steps()
}

// requestEnd returns when a request ended, or the recording did.
func (p *perfetto) requestEnd(r *recording.Request) uint64 {
	return max(r.Received, cmp.Or(r.End, p.v.rec.Meta.To))
}

func (p *perfetto) requestsOf(pid uint32, list []*recording.Request, engines map[string]*recording.EngineRequest) {
	slices.SortStableFunc(list, func(a, b *recording.Request) int { return cmp.Compare(a.Received, b.Received) })
	var free []uint64 // by track: when its last request ended
	at := make([]int, len(list))
	left := 0
	for i, r := range list {
		at[i] = slices.IndexFunc(free, func(until uint64) bool { return until <= r.Received })
		switch {
		case at[i] >= 0:
			free[at[i]] = p.requestEnd(r)
		case len(free) < maxRequestTracks:
			at[i] = len(free)
			free = append(free, p.requestEnd(r))
		default:
			left++
		}
	}
	name := "requests"
	if left > 0 {
		name = fmt.Sprintf("requests (%d are left out: more than %d at a time)", left, maxRequestTracks)
	}
	group := p.named(p.roots[pid], name, 0)
	tracks := make([]uint64, len(free))
	for i := range tracks {
		tracks[i] = p.named(group, fmt.Sprintf("lane %d", i+1), uint64(i))
	}
	for i, r := range list {
		if at[i] < 0 {
			continue
		}
		var engine *recording.EngineRequest
		if r.ID != "" {
			engine = engines[r.ID]
		}
		p.request(tracks[at[i]], r, engine)
	}
}

func (p *perfetto) request(track uint64, r *recording.Request, engine *recording.EngineRequest) {
	p.begin(r.Received, track, typeBegin)
	name := r.Method + " " + r.Route
	if r.Model != "" {
		name += " " + r.Model
	}
	p.name(name, "request")
	p.string("id", r.ID)
	p.string("traceparent", r.Trace)
	p.string("operation", genai.Operation(r.Route))
	p.string("outcome", r.Outcome)
	p.string("token source", r.TokenSource)
	for _, n := range [...]struct {
		key string
		n   uint32
	}{
		{"status", r.Status},
		{"input tokens", r.InputTokens},
		{"cached input tokens", r.CachedTokens},
		{"output tokens", r.OutputTokens},
	} {
		if n.n > 0 {
			p.number(n.key, uint64(n.n))
		}
	}
	if engine != nil {
		p.number("tokens of the engine", uint64(engine.OutputTokens))
		p.number("preemptions", uint64(engine.Preemptions))
	}
	p.sendEvent()
	end := p.requestEnd(r)
	for _, f := range requests.Stages(r, engine, end) {
		p.begin(f.From, track, typeBegin)
		p.name(f.Name, "request phase")
		p.sendEvent()
		p.begin(f.To, track, typeEnd)
		p.sendEvent()
	}
	p.begin(end, track, typeEnd)
	p.sendEvent()
}

// steps writes what engines told of their steps.
func (p *perfetto) steps() {
	type key struct{ pid, engine uint32 }
	type counters struct{ batch, waiting, cache uint64 }
	known := map[key]*counters{}
	for i := range p.v.rec.Meta.Steps {
		s := &p.v.rec.Meta.Steps[i]
		k := key{s.PID, s.Engine}
		c := known[k]
		if c == nil {
			name := fmt.Sprintf("engine %d: ", s.Engine)
			root := p.roots[s.PID]
			c = &counters{
				batch:   p.counter(root, name+"batch", "requests", "requests with output in a step"),
				waiting: p.counter(root, name+"queue", "requests", "requests that wait for a place in the batch"),
				cache:   p.counter(root, name+"KV cache in use", "%", ""),
			}
			known[k] = c
		}
		p.value(c.batch, s.TS, float64(s.Requests))
		if s.Stats {
			p.value(c.waiting, s.TS, float64(s.Waiting))
			p.value(c.cache, s.TS, float64(s.KVPermille)/10)
		}
	}
}
