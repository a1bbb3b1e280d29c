package engine

import (
	"bytes"
	"slices"
)

// Messages of SGLang by class (sglang/srt/managers/io_struct.py): objects of Python's pickle, or, from 0.5.15 on, where
// SGLANG_USE_PICKLE_IPC is off, arrays of msgpack that begin with the class.
const (
	sglangModule = "sglang."

	classRequest  = "TokenizedGenerateReqInput"
	classRequests = "BatchTokenizedGenerateReqInput"
	classAbort    = "AbortReq"
	classStep     = "BatchTokenIDOutput"
	classStepOld  = "BatchTokenIDOut" // up to 0.5.4
	classText     = "BatchStrOutput"
	classTextOld  = "BatchStrOut"
)

// Positions in msgpack. What follows moves between versions.
const (
	positionID         = 1 // of a request or an abort
	positionIDs        = 1
	positionFinished   = 3
	positionPrompt     = 11 // of a step
	positionCompletion = 13
	positionCached     = 14
)

// sglang reads a message of SGLang; false: it is none.
func (c *Conn) sglang(body []byte, whole bool) bool {
	switch {
	case len(body) > 2 && body[0] == 0x80 && body[1] >= 2 && body[1] <= 5:
		c.pickled(body, whole)
		return true
	case len(body) > 3 && (body[0] >= 0x92 && body[0] <= 0x9f || body[0] == 0xdc):
		r := reader{b: body}
		n, _ := r.array()
		class := r.next()
		if class.kind != kindString {
			return false
		}
		c.tagged(&r, n, string(class.s), whole)
		return true
	}
	return false
}

// pickled reads a message that is a pickle.
func (c *Conn) pickled(body []byte, whole bool) {
	p := pickle{b: body}
	p.read()
	class, fields := p.message()
	if p.bad || class == nil || !bytes.HasPrefix(class.module, []byte(sglangModule)) {
		c.strange++
		return
	}
	known := true
	switch string(class.s) {
	case classRequest:
		known = c.asks(fields)
	case classRequests:
		for _, one := range fields.field("batch").list() {
			known = known && c.asks(one.state)
		}
	case classAbort:
		if id := fields.field("rid"); id != nil {
			c.sink.Abort(c.ts, name(id.s))
		}
	case classStep, classStepOld:
		known = c.batch(fields, p.cut)
	case classText, classTextOld:
		known = c.texts(fields)
	default:
		return // of another kind
	}
	c.judge(known, whole && !p.cut)
}

// judge counts a message whose kind is known.
func (c *Conn) judge(known, whole bool) {
	switch {
	case known:
		c.known++
	case whole:
		c.strange, c.shape = c.strange+1, c.shape+1
	}
	if !whole {
		c.cut++
	}
}

// asks reads a TokenizedGenerateReqInput. Its prompt is a list of numbers, or an array.array; where it is cut, how long
// it is comes with the first token.
func (c *Conn) asks(fields *pickled) bool {
	id := fields.field("rid")
	if id == nil || id.kind != kindString {
		return false
	}
	c.sink.Request(&Request{TS: c.ts, ID: name(id.s)})
	return true
}

// batch reads a BatchTokenIDOutput: lists with an element for each request.
func (c *Conn) batch(fields *pickled, cut bool) bool {
	rids := fields.field("rids")
	ids := rids.list()
	if rids == nil || rids.kind != kindArray || len(ids) > maxOutputs {
		return false
	}
	if len(ids) == 0 { // a step without requests, for the sake of other engines
		return true
	}
	at := func(field string) func(i int) *pickled {
		list := fields.field(field).list()
		return func(i int) *pickled {
			if i < len(list) {
				return list[i]
			}
			return nil
		}
	}
	total, prompt, cached := at("completion_tokens"), at("prompt_tokens"), at("cached_tokens")
	finished, retracted, stats := at("finished_reasons"), at("retraction_counts"), at("time_stats")
	entry, waited := at("forward_entry_time"), at("queue_time")
	s := Step{TS: c.ts}
	for i, id := range ids {
		n := total(i)
		if id.kind != kindString || n == nil && !cut {
			return false
		}
		o := Output{
			ID: name(id.s), Sums: true, Total: count(n.float()), Unseen: n == nil, Finish: finishOf(finished(i)),
			Prompt: count(prompt(i).float()), Cached: count(cached(i).float()), Preempts: count(retracted(i).float()),
		}
		if cached(i) != nil {
			o.Computed = o.Prompt - min(o.Cached, o.Prompt)
		}
		o.times(stats(i), entry(i).float(), waited(i).float())
		s.Outputs = append(s.Outputs, o)
	}
	if load := fields.field("load"); load != nil && load.kind == kindObject {
		all, waiting := count(load.state.field("num_reqs").float()), count(load.state.field("num_waiting_reqs").float())
		s.Stats, s.Running, s.Waiting = true, all-min(all, waiting), waiting
	}
	c.sink.Step(&s)
	return true
}

// times reads when a request waited: seconds of CLOCK_MONOTONIC, which versions from 0.5.5 on tell where metrics are
// on.
func (o *Output) times(stats *pickled, entry, waited float64) {
	if stats != nil && stats.kind == kindObject {
		o.Queued = nanoseconds(stats.state.field("wait_queue_entry_time").float())
		entry = stats.state.field("forward_entry_time").float()
	}
	o.Scheduled = nanoseconds(entry)
	if o.Queued == 0 && o.Scheduled > 0 && waited > 0 {
		o.Queued = o.Scheduled - min(nanoseconds(waited), o.Scheduled)
	}
	if o.Scheduled > 0 && o.Queued > o.Scheduled {
		o.Queued, o.Scheduled = 0, 0
	}
}

// finishOf reads why a request has ended: a map with a type.
func finishOf(reason *pickled) finish {
	if kind := reason.field("type"); kind != nil {
		return finishNamed(kind.s)
	}
	return ""
}

func finishNamed(kind []byte) finish {
	if f := finish(kind); slices.Contains(finishes, f) {
		return f
	}
	return "stop"
}

// texts reads from a BatchStrOutput which requests have their last text. Texts are passed over.
func (c *Conn) texts(fields *pickled) bool {
	ids, finished := fields.field("rids").list(), fields.field("finished_reasons").list()
	if len(ids) == 0 {
		return false
	}
	for i, id := range ids {
		if i < len(finished) && finishOf(finished[i]) != "" {
			c.sink.Text(c.ts, name(id.s))
		}
	}
	return true
}

// tagged reads a message of msgpack of n fields, the first of which is its class.
func (c *Conn) tagged(r *reader, n uint64, class string, whole bool) {
	var known bool
	switch class {
	case classRequest, classAbort:
		id := r.next()
		if known = !r.bad && id.kind == kindString; known && class == classRequest {
			c.sink.Request(&Request{TS: c.ts, ID: name(id.s)})
		} else if known {
			c.sink.Abort(c.ts, name(id.s))
		}
	case classStep, classText:
		known = c.columns(r, n, class, whole)
	case classRequests:
		return
	default:
		c.strange++
		return
	}
	c.judge(known, whole)
}

// columns reads the lists of a BatchTokenIDOutput or a BatchStrOutput.
func (c *Conn) columns(r *reader, n uint64, class string, whole bool) bool {
	if n <= positionCached {
		return false
	}
	s := Step{TS: c.ts}
	for at := uint64(positionIDs); at <= positionCached && !r.bad; at++ {
		switch at {
		case positionIDs, positionFinished, positionPrompt, positionCompletion, positionCached:
			if class == classText && at > positionFinished {
				break
			}
			if !s.column(r, at) {
				return false
			}
			continue
		}
		r.skip()
	}
	if len(s.Outputs) == 0 || r.bad && whole {
		return false
	}
	if class == classStep {
		c.sink.Step(&s)
		return true
	}
	for i := range s.Outputs {
		if s.Outputs[i].Finish != "" {
			c.sink.Text(c.ts, s.Outputs[i].ID)
		}
	}
	return true
}

// column reads one list, which has an element for each request.
func (s *Step) column(r *reader, at uint64) bool {
	n, ok := r.array()
	if !ok {
		return r.bad
	}
	if n > maxOutputs || at != positionIDs && n != uint64(len(s.Outputs)) {
		return false
	}
	for i := uint64(0); i < n && !r.bad; i++ {
		switch at {
		case positionIDs:
			if id := r.next(); id.kind == kindString {
				s.Outputs = append(s.Outputs, Output{ID: name(id.s), Sums: true, Unseen: true})
			} else {
				return r.bad
			}
		case positionFinished:
			s.Outputs[i].ends(r)
		default:
			s.Outputs[i].count(at, r)
		}
	}
	return true
}

// ends reads why a request has ended: nil, or a map with a type.
func (o *Output) ends(r *reader) {
	r.fields(func(key string) {
		if key != "type" {
			r.skip()
			return
		}
		if kind := r.next(); kind.kind == kindString {
			o.Finish = finishNamed(kind.s)
		} else {
			r.inner(kind, maxDepth)
		}
	})
}

func (o *Output) count(at uint64, r *reader) {
	n := count(r.float())
	if r.bad {
		return
	}
	switch at {
	case positionPrompt:
		o.Prompt = n
	case positionCompletion:
		o.Total, o.Unseen = n, false
	case positionCached:
		o.Cached, o.Computed = n, o.Prompt-min(n, o.Prompt)
	}
}
