package engine

import "math"

// Step is what an engine tells its API server after a step: vLLM's EngineCoreOutputs, SGLang's BatchTokenIDOutput.
type Step struct {
	TS      uint64 // the engine sent it, CLOCK_MONOTONIC ns
	Clock   uint64 // the engine made it, likewise; 0: not told
	Engine  uint32 // its index
	Stats   bool   // what follows was told
	Running uint32 // requests in the batch
	Waiting uint32 // requests in the queue
	Cache   float64
	Outputs []Output
}

// Output is what a step did for one request: vLLM's EngineCoreOutput.
type Output struct {
	ID        string
	Tokens    int
	Finish    finish
	Queued    uint64 // CLOCK_MONOTONIC ns; 0: not in this step
	Scheduled uint64
	Preempted uint32 // times
	Prompt    uint32 // tokens; 0: not told
	Cached    uint32 // of them
	Computed  uint32 // of them; 0: not told

	// Where an engine tells sums since the beginning of a request: Tokens and Preempted are not set.
	Sums     bool
	Total    uint32 // tokens
	Unseen   bool   // Total was told, but not seen
	Preempts uint32
}

// finish says why a request ended.
type finish string

// finishes are vLLM's, by number.
var finishes = []finish{"stop", "length", "abort", "error", "repetition"}

// Request is a request as the API server gives it to the engine: vLLM's EngineCoreRequest.
type Request struct {
	TS     uint64
	ID     string
	Prompt uint32 // tokens
}

// sink is told what was read.
type sink interface {
	Step(s *Step)
	Request(r *Request)
	Abort(ts uint64, id string) // the API server asked for the end of a request
	Text(ts uint64, id string)  // a detokenizer sent the last text of a request
}

// Types of events of a request; vllm/v1/engine/__init__.py, EngineCoreEventType.
const (
	eventQueued    = 1
	eventScheduled = 2
	eventPreempted = 3
)

const (
	maxOutputs  = 4096 // of one step
	maxStrange  = 16   // messages of unknown shape, without one that is known, until a socket is given up
	fewOutputs  = 8    // fields of EngineCoreOutputs
	fewOutput   = 7    // of EngineCoreOutput
	fewRequest  = 10   // of EngineCoreRequest
	mostFields  = 48
	finishOld   = 4 // index of finish_reason in an EngineCoreOutput of 7 fields (0.8)
	finishField = 5 // and of more
)

// Conn is one direction of a connection between an API server and an engine.
type Conn struct {
	sink    sink
	frames  frames
	ts      uint64
	asked   bool // the frame before tells that a request follows
	abort   bool // the frame before tells that names of requests to end follow
	more    bool // the present frame belongs to the message of the one before
	known   uint64
	strange uint64
	shape   uint64 // of these, messages whose kind is known
	cut     uint64
}

// New makes a connection.
func New(sink sink) *Conn { return &Conn{sink: sink} }

// Strange reports whether nothing that was sent is understood: it is no connection to an engine, or of an engine whose
// messages have another shape.
func (c *Conn) Strange() bool { return c.known == 0 && c.strange >= maxStrange }

// Misshapen reports whether messages were seen whose kind is known and whose shape is not.
func (c *Conn) Misshapen() bool { return c.shape > 0 }

// Known returns how many messages were understood.
func (c *Conn) Known() uint64 { return c.known }

// Cut returns how many messages of steps were too long to be read, or lost their ends.
func (c *Conn) Cut() uint64 { return c.cut }

// Lost leaves out the message of which the rest was lost: the next transfer begins another one.
func (c *Conn) Lost() {
	if len(c.frames.buffer) > 0 && !c.frames.lost {
		c.cut++
	}
	c.frames.lost = true
	c.asked, c.abort, c.more = false, false, false
}

// Sent takes the first bytes of a transfer of so many.
func (c *Conn) Sent(ts uint64, head []byte, bytes int) {
	c.ts = ts
	if !c.frames.take(head, bytes, c.frame) {
		c.strange++
		c.asked, c.abort, c.more = false, false, false
	}
}

func (c *Conn) frame(flags byte, body []byte, whole bool) {
	first := !c.more
	asked, abort := c.asked, c.abort
	c.more, c.asked, c.abort = flags&flagMore != 0, false, false
	switch {
	case flags&flagCommand != 0:
		c.more = !first
	case first && len(body) == 1 && c.more:
		c.asked, c.abort = body[0] == 0, body[0] == 1
		if body[0] > 3 {
			c.strange++
		}
	case asked:
		c.request(body)
	case abort:
		c.aborts(body)
	case first && c.sglang(body, whole):
	case first && len(body) > 0:
		c.outputs(body, whole)
	}
}

// outputs reads EngineCoreOutputs: [engine_index, outputs, scheduler_stats, timestamp, ...].
func (c *Conn) outputs(body []byte, whole bool) {
	r := reader{b: body}
	s := Step{TS: c.ts}
	fields, ok := r.array()
	index := r.next()
	n, isList := r.array()
	if !ok || fields < fewOutputs || fields > mostFields || index.kind != kindInt || !isList || n > maxOutputs {
		c.strange++
		return
	}
	s.Engine = uint32(index.n)
	for range n {
		o, ok := output(&r)
		if !ok {
			break
		}
		s.Outputs = append(s.Outputs, o)
	}
	if !r.bad {
		s.stats(&r)
		s.Clock = nanoseconds(r.float())
	}
	if r.bad {
		if !whole {
			c.cut++
		} else {
			c.strange++
		}
		return
	}
	c.known++
	c.sink.Step(&s)
}

func (s *Step) stats(r *reader) {
	r.fields(func(key string) {
		switch key {
		case "num_running_reqs":
			s.Running, s.Stats = count(r.float()), true
		case "num_waiting_reqs":
			s.Waiting += count(r.float())
		case "num_skipped_waiting_reqs":
			s.Waiting += count(r.float())
		case "kv_cache_usage":
			s.Cache = r.float()
		default:
			r.skip()
		}
	})
}

// output reads an EngineCoreOutput: [request_id, new_token_ids, ...]. What else there is, is told by its shape, but for
// finish_reason, whose place depends on the number of fields.
func output(r *reader) (o Output, ok bool) {
	fields, isArray := r.array()
	id := r.next()
	tokens, isList := r.array()
	if !isArray || fields < fewOutput || fields > mostFields || id.kind != kindString || !isList ||
		tokens > uint64(len(r.b)) {
		r.bad = true
		return o, false
	}
	o.ID, o.Tokens = name(id.s), int(tokens)
	for range tokens {
		if v := r.next(); v.kind != kindInt {
			r.bad = true
			return o, false
		}
	}
	finish := uint64(finishField)
	if fields == fewOutput {
		finish = finishOld
	}
	for at := uint64(2); at < fields && !r.bad; at++ {
		v := r.next()
		switch {
		case at == finish && v.kind == kindInt && v.n < uint64(len(finishes)):
			o.Finish = finishes[v.n]
		case at > finish && v.kind == kindArray:
			o.events(r, v.n)
		case at > finish && v.kind == kindMap:
			o.prefill(r, v.n)
		default:
			r.inner(v, maxDepth)
		}
	}
	return o, !r.bad
}

// events reads a list of {"type": t, "timestamp": s}.
func (o *Output) events(r *reader, n uint64) {
	for ; n > 0 && !r.bad; n-- {
		var what, at float64
		r.fields(func(key string) {
			switch key {
			case "type":
				what = r.float()
			case "timestamp":
				at = r.float()
			default:
				r.skip()
			}
		})
		switch what {
		case eventQueued:
			o.Queued = nanoseconds(at)
		case eventScheduled:
			if o.Scheduled == 0 {
				o.Scheduled = nanoseconds(at)
			}
		case eventPreempted:
			o.Preempted++
		}
	}
}

// prefill reads prefill_stats; other maps are passed over.
func (o *Output) prefill(r *reader, n uint64) {
	told := false
	for ; n > 0 && !r.bad; n-- {
		key := r.next()
		r.inner(key, maxDepth)
		switch string(key.s) {
		case "num_prompt_tokens":
			o.Prompt = count(r.float())
		case "num_cached_tokens":
			o.Cached, told = count(r.float()), true
		default:
			r.skip()
		}
	}
	if told {
		o.Computed = o.Prompt - min(o.Cached, o.Prompt)
	}
}

// request reads the beginning of an EngineCoreRequest: [request_id, prompt_token_ids, ...].
func (c *Conn) request(body []byte) {
	r := reader{b: body}
	fields, ok := r.array()
	id := r.next()
	tokens := r.next()
	if !ok || r.bad || fields < fewRequest || fields > mostFields || id.kind != kindString ||
		tokens.kind != kindArray && tokens.kind != kindNil {
		c.strange++
		return
	}
	c.known++
	c.sink.Request(&Request{TS: c.ts, ID: name(id.s), Prompt: count(float64(tokens.n))})
}

// aborts reads the names of requests to end: a list.
func (c *Conn) aborts(body []byte) {
	r := reader{b: body}
	n, ok := r.array()
	if !ok || n > maxOutputs {
		return
	}
	c.known++
	for ; n > 0 && !r.bad; n-- {
		if id := r.next(); id.kind == kindString {
			c.sink.Abort(c.ts, name(id.s))
		}
	}
}

// nanoseconds converts seconds of a clock; 0 where they are none.
func nanoseconds(s float64) uint64 {
	if !(s > 0 && s < 1e9) {
		return 0
	}
	return uint64(math.Round(s * 1e9))
}

func count(f float64) uint32 {
	if !(f > 0 && f < 1<<31) {
		return 0
	}
	return uint32(f)
}
