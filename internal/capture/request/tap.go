package request

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/request/engine"
	"github.com/inferscope/inferscope/internal/capture/request/exchange"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of what is kept of engines.
const (
	maxTaps  = 1024
	maxSteps = 131_072

	maxSuffix = 16 // bytes of what an engine puts behind the id that the client is told: a choice and something random
)

// tapping is what is known of the engines behind the servers.
type tapping struct {
	conns   map[uint64]*tap // by socket
	open    map[string]*ongoing
	ended   []recording.EngineRequest
	steps   []recording.Step
	stepped bool     // a step was read
	strange []uint64 // sockets that are no connection to an engine that is known
	gaveUp  uint64   // how many there were
	shape   bool     // messages of a known kind had an unknown shape
	cut     uint64   // messages that were too long, of sockets that are gone
	left    uint64   // steps and requests that were let go of too early
}

func newTapping() tapping {
	return tapping{conns: map[uint64]*tap{}, open: map[string]*ongoing{}}
}

// ongoing is a request that is not over.
type ongoing struct {
	recording.EngineRequest
	missed bool // messages that may have told of it were lost
}

// tap is one direction of a connection between an API server and an engine.
type tap struct {
	*engine.Conn
	all     *tapping
	pid     uint32
	stepped bool   // it has told of steps
	besides bool   // it has told of something else
	missed  bool   // messages were lost, and no step came since
	last    uint64 // ns, its last step
}

// record takes what was sent to an engine, or by one.
func (t *tapping) record(r *bpf.RequestRequestRecord, data []byte) {
	c := t.conns[r.Socket]
	if c == nil {
		if len(t.conns) >= maxTaps {
			t.forget(func(c *tap) bool { return c.Known() == 0 })
		}
		if len(t.conns) >= maxTaps {
			return
		}
		c = &tap{all: t, pid: r.Pid}
		c.Conn = engine.New(c)
		t.conns[r.Socket] = c
	}
	if r.Flags&flagGap != 0 {
		c.miss()
	}
	c.Sent(r.Ts, data[:min(int(r.Head), len(data))], int(r.Bytes))
	t.shape = t.shape || c.Misshapen()
	if c.Strange() {
		t.gaveUp++
		t.strange = append(t.strange, r.Socket)
		delete(t.conns, r.Socket)
	}
}

// miss notes that something that was sent before is not known: what the requests at work have is not either, where it
// may have been an engine's word on them.
func (c *tap) miss() {
	c.Lost()
	if c.besides && !c.stepped {
		return
	}
	c.missed = true
	for _, q := range c.all.open {
		if q.PID == 0 || q.PID == c.pid {
			q.missed = true
		}
	}
}

// forget lets go of connections.
func (t *tapping) forget(which func(*tap) bool) {
	for socket, c := range t.conns {
		if which(c) {
			t.cut += c.Cut()
			delete(t.conns, socket)
		}
	}
}

// Request notes that a server has given a request to its engine.
func (c *tap) Request(r *engine.Request) {
	c.besides = true
	if q := c.all.request(r.ID); q != nil && q.Asked == 0 {
		q.Asked, q.InputTokens = r.TS, r.Prompt
	}
}

// request returns a request that goes on; nil: it has no name, or there are too many.
func (t *tapping) request(id string) *ongoing {
	q := t.open[id]
	if q == nil && id != "" {
		if len(t.open) >= maxRequests {
			t.left++
			return nil
		}
		q = &ongoing{EngineRequest: recording.EngineRequest{ID: id}}
		t.open[id] = q
	}
	return q
}

// Abort notes that a server has asked for the end of a request. The engine may still tell of it.
func (c *tap) Abort(ts uint64, id string) {
	c.besides = true
	if q := c.all.open[id]; q != nil {
		q.Finish, q.Last = finishAborted, max(q.Last, ts)
	}
}

// finishAborted is the finish of a request whose client left.
const finishAborted = "abort"

// recentlyEnded is how many of the requests that ended last may still have their last text before them.
const recentlyEnded = 1024

// Text notes that the last text of a request is with the server.
func (c *tap) Text(ts uint64, id string) {
	c.besides = true
	ended := c.all.ended[max(0, len(c.all.ended)-recentlyEnded):]
	for i := len(ended) - 1; i >= 0; i-- {
		if q := &ended[i]; q.ID == id && id != "" {
			q.Detokenized = cmp.Or(q.Detokenized, ts)
			return
		}
	}
}

// Step notes what an engine has done.
func (c *tap) Step(s *engine.Step) {
	c.last = max(s.TS, c.last+1) // of several in one transfer none has the time of another
	step := recording.Step{
		TS: c.last, Made: s.Clock, PID: c.pid, Engine: s.Engine, Stats: s.Stats, Running: s.Running, Waiting: s.Waiting,
		KVPermille: uint32(math.Round(1000 * min(1, max(0, s.Cache)))), Missed: c.missed,
	}
	c.stepped, c.missed = true, false
	for i := range s.Outputs {
		c.output(&step, &s.Outputs[i])
	}
	if len(s.Outputs) == 0 && !s.Stats {
		c.missed = step.Missed
		return
	}
	t := c.all
	t.stepped = true
	if len(t.steps) >= maxSteps {
		t.left += maxSteps / 8
		t.steps = append(t.steps[:0], t.steps[maxSteps/8:]...)
	}
	t.steps = append(t.steps, step)
}

func (c *tap) output(step *recording.Step, o *engine.Output) {
	t := c.all
	q := t.request(o.ID)
	if o.Sums {
		since(o, q)
	}
	if o.Tokens > 0 || o.Unseen {
		step.Requests++
		step.Tokens += uint32(o.Tokens)
	}
	step.Preempts += o.Preempted
	if o.Finish != "" {
		step.Finished++
	}
	if q == nil {
		return
	}
	q.PID, q.Engine = c.pid, step.Engine
	q.Queued, q.Scheduled = cmp.Or(q.Queued, o.Queued), cmp.Or(q.Scheduled, o.Scheduled)
	q.InputTokens, q.CachedTokens = cmp.Or(q.InputTokens, o.Prompt), cmp.Or(q.CachedTokens, o.Cached)
	q.Computed = cmp.Or(q.Computed, o.Computed)
	q.Preemptions += o.Preempted
	if o.Tokens > 0 {
		// Who was decoding when the tap began has had its first token before.
		// Where sums are told, one that is not streamed may have had it in a step before that was not told.
		q.missed = q.missed && o.Queued == 0
		if q.OutputTokens == 0 && (q.Asked > 0 || q.Queued > 0) && (!o.Sums || o.Total == 1) && !q.missed {
			q.First = step.TS
			step.Firsts++
		}
		q.OutputTokens += uint32(o.Tokens)
	}
	if o.Tokens > 0 || o.Unseen {
		q.Steps++
		q.Last = step.TS
	}
	if o.Finish == "" {
		return
	}
	if o.Unseen || q.missed {
		q.OutputTokens = 0 // not known
	}
	q.Finish, q.Last = string(o.Finish), step.TS
	delete(t.open, o.ID)
	if len(t.ended) >= maxRequests {
		t.left += maxRequests / 8
		t.ended = append(t.ended[:0], t.ended[maxRequests/8:]...)
	}
	t.ended = append(t.ended, q.EngineRequest)
}

// since makes of an output with sums one of what is new. Of a request that began before the tap, of one of
// which messages were lost, and of one that is not kept, one token is: it has one at least.
func since(o *engine.Output, q *ongoing) {
	if q == nil || q.Asked == 0 && q.Steps == 0 || q.missed {
		o.Tokens = int(min(o.Total, 1))
		if q != nil {
			q.OutputTokens, q.Preemptions, q.missed = o.Total-uint32(o.Tokens), o.Preempts, q.missed && o.Unseen
		}
		return
	}
	o.Tokens = int(o.Total - min(q.OutputTokens, o.Total))
	o.Preempted = o.Preempts - min(q.Preemptions, o.Preempts)
}

// tokensOfEngine is the source of numbers of tokens that the engine told.
const tokensOfEngine = "engine"

// complete gives a request that has ended the engine's numbers of tokens, where its answer has no account of its own:
// those of all engine requests whose id is that of the answer with a suffix, as several choices are several of them, or
// of the one whose id is just that of the answer.
func (t *tapping) complete(r *recording.Request) {
	if r.ID == "" || r.TokenSource != "" && r.TokenSource != string(exchange.Chunks) {
		return
	}
	output, input, cached := uint32(0), uint32(0), uint32(0)
	var of []*recording.EngineRequest
	for i := len(t.ended) - 1; i >= 0 && t.ended[i].Last >= r.Received; i-- {
		q := &t.ended[i]
		rest, ok := strings.CutPrefix(q.ID, r.ID)
		if !ok || rest != "" && rest[0] != '-' || len(rest) > maxSuffix || q.Asked < r.Received || q.Asked > r.End {
			continue
		}
		if of = append(of, q); rest == "" {
			of = of[len(of)-1:]
			break
		}
	}
	for _, q := range of {
		if q.Finish == "" || q.First == 0 || q.OutputTokens == 0 {
			return // it was not seen to its end, not from its beginning, or not throughout
		}
		output += q.OutputTokens
		input, cached = max(input, q.InputTokens), max(cached, q.CachedTokens)
	}
	if output == 0 || output < r.OutputTokens { // parts of the stream are a lower bound
		return
	}
	r.OutputTokens, r.TokenSource = output, tokensOfEngine
	if r.InputTokens == 0 {
		r.InputTokens, r.CachedTokens = input, cached
	}
}

// expire lets go of what is older than the recorder's oldest event.
func (t *tapping) expire(held uint64) {
	n, _ := slices.BinarySearchFunc(
		t.steps,
		held,
		func(s recording.Step, at uint64) int { return cmp.Compare(s.TS, at) },
	)
	if n > len(t.steps)/4 {
		t.steps = append(t.steps[:0], t.steps[n:]...)
	}
	n = 0
	for n < len(t.ended) && t.ended[n].Last < held {
		n++
	}
	if n > len(t.ended)/4 {
		t.ended = append(t.ended[:0], t.ended[n:]...)
	}
	for id, q := range t.open {
		if max(q.Asked, q.Last) < held { // aborted: the engine does not tell
			delete(t.open, id)
		}
	}
}

// end lets go of a process that is gone.
func (t *tapping) end(pid uint32) {
	t.forget(func(c *tap) bool { return c.pid == pid })
	for id, q := range t.open {
		if q.PID == pid {
			t.ended = append(t.ended, q.EngineRequest)
			delete(t.open, id)
		}
	}
}

// tooLong returns how many messages were not read to their ends.
func (t *tapping) tooLong() uint64 {
	n := t.cut
	for _, c := range t.conns {
		n += c.Cut()
	}
	return n
}

// detail says what is read of engines.
func (t *tapping) detail() string {
	if !t.stepped && (t.shape || t.gaveUp > 0) {
		return "messages between server and engine have an unknown shape: times are those of HTTP alone"
	}
	return ""
}

// Steps returns the steps of engines within [from, to] (ns), and the requests that they worked on then.
func (s *Source) Steps(from, to uint64) (steps []recording.Step, requests []recording.EngineRequest) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	t := &s.feed.taps
	for i := range t.steps {
		if at := t.steps[i].TS; at >= from && at <= to {
			steps = append(steps, t.steps[i])
		}
	}
	begins := func(q *recording.EngineRequest) uint64 { return cmp.Or(q.Asked, q.Queued, q.First, q.Last) }
	for i := range t.ended {
		if q := &t.ended[i]; q.Last >= from && begins(q) <= to {
			requests = append(requests, *q)
		}
	}
	for _, q := range t.open {
		if begins(&q.EngineRequest) <= to {
			requests = append(requests, q.EngineRequest)
		}
	}
	slices.SortFunc(requests, func(a, b recording.EngineRequest) int {
		return cmp.Or(cmp.Compare(begins(&a), begins(&b)), cmp.Compare(a.ID, b.ID))
	})
	slices.SortStableFunc(steps, func(a, b recording.Step) int { return cmp.Compare(a.TS, b.TS) })
	return steps, requests
}
