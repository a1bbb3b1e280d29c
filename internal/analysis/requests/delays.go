package requests

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// Delay is one thing that holds requests up.
type Delay struct {
	Cause    string  `json:"cause"`                      // key in the table of causes of requests
	Time     uint64  `json:"ns"`                         // summed over requests
	Share    float64 `json:"share"`                      // of the time of all requests that it can be told of
	First    float64 `json:"share_of_first_token"`       // of their time to the first token, as far as it is part of that
	P50      uint64  `json:"p50_ns"`                     // of a request
	P99      uint64  `json:"p99_ns"`                     // likewise
	Requests int     `json:"requests"`                   // that it can be told of
	Before   uint64  `json:"before_engine_ns,omitempty"` // of an API server: part of Time before the engine
	Token    uint64  `json:"first_token_ns,omitempty"`   // likewise, in which it had the first token and did not write it
	Waiting  int     `json:"max_waiting,omitempty"`      // requests in the queue, or held in front of it
	Batch    int     `json:"max_batch,omitempty"`        // requests at a time that had tokens
	KVUsage  float64 `json:"max_kv_usage,omitempty"`     // share of the KV cache
	Preempts int     `json:"preemptions,omitempty"`
	Steps    int     `json:"long_steps,omitempty"` // of the engine, in which others had their first token
	Gaps     int     `json:"long_gaps,omitempty"`  // in streams, at whose end others had their first token
	Thread   string  `json:"thread,omitempty"`     // of the API server that ran most meanwhile
	Running  float64 `json:"running,omitempty"`    // share of the delays for which it ran, or waited for a CPU
	Place    string  `json:"place,omitempty"`      // in which code

	Without *FirstToken `json:"first_token_without,omitempty"` // absent where it holds up no first token

	untilFirst uint64 // of prefills: part of Time before first tokens
}

// FirstToken is the time to the first token as it was, and as it would be if nothing were left of a delay and all else
// took as long as before: at best. In ns, of the requests of which the delay can be told.
type FirstToken struct {
	Was50 uint64 `json:"was_p50_ns"`
	Was99 uint64 `json:"was_p99_ns"`
	P50   uint64 `json:"p50_ns"`
	P99   uint64 `json:"p99_ns"`
}

// without sets what the time to the first token would be without so much of it, by request.
func (d *Delay) without(was, less []uint64) {
	then := make([]uint64, len(was))
	for i := range was {
		then[i] = was[i] - min(was[i], less[i])
	}
	if a, b := quantilesOf(slices.Clone(was)), quantilesOf(then); a != nil && b.P99 < a.P99 {
		d.Without = &FirstToken{a.P50, a.P99, b.P50, b.P99}
	}
}

// firsts returns the times to the first token, and what a delay has of them, of those requests that have one.
func firsts(list []told, delays []uint64) (was, of []uint64) {
	for i := range list {
		if r := list[i].row; r.TTFT > 0 {
			was, of = append(was, r.TTFT), append(of, delays[i])
		}
	}
	return was, of
}

// Ran is what a process did in some stretches of time.
type Ran struct {
	Thread  string         // that ran most, or would have with a CPU
	Running float64        // share of the stretches for which it ran, or waited for a CPU
	Place   string         // the function in which most of its samples are; "": they are too few
	Starved timeline.Spans // of the stretches: the process waited for a CPU
}

type ran func(pid uint32, within timeline.Spans) Ran

// Bounds of what counts as a delay.
const (
	leastDelay     = 0.1          // of the time of requests,
	leastOfFirst   = 0.25         // or of the time to the first token,
	leastOfEach    = uint64(5e6)  // which is then at least so much for each request, ns
	fewestDelayed  = 3            // requests
	leastPart      = 0.25         // of a delay that has several causes
	leastSlots     = 0.5          // of the time in queues in which the engine made steps and told of requests that wait
	fullCache      = 800          // permille of the KV cache from which on the next request may not fit
	slowTail       = 5            // how many times the tails of other requests that of a slow client is
	idleAPI        = 0.5          // share of tails below which the API server is not what they wait for
	leastTail      = uint64(20e6) // ns
	longestPrefill = uint64(30e9) // ns: from when on a pause between two messages is no step with a prompt
	shortPrompt    = 10           // times as long is another's prompt in the same step, at least
	full           = 0.7          // share of the waits for a first token in which as many streams as ever had tokens
	fewestHeld     = 5            // requests that waited so for most of the time to their first token
	byChance       = 2.0          // times as often as others, steps with prefills are long, or stalls end in one
	mostlyPrefill  = 0.5          // of the stalls
)

// told is a request with what the engine told of it.
type told struct {
	row  *Row
	q    *recording.EngineRequest
	text uint64 // from the engine's last token to the message of a detokenizer process, ns; 0: there is none
	tail uint64 // from there, or else from the engine's last token, to the last write, ns
	head uint64 // of a stream without a detokenizer process: from the engine's first token to the client's, ns
}

// back is when the API server had the end of an answer.
func (t *told) back() uint64 { return t.q.Last + t.text }

// FindDelays says what holds requests up, that of most time first: once, after Summarize.
func (s *Summary) FindDelays(rec *recording.Recording, ran ran) {
	s.Delays = []Delay{}
	list := s.told(&rec.Meta)
	if len(list) >= fewestDelayed {
		limit, low := s.limitOf(&rec.Meta, list), (*Delay)(nil)
		if limit != nil {
			if low = limit.lowBatch(list, ran); low == nil {
				limit = nil
			}
		}
		s.add(low, list)
		s.add(s.queue(&rec.Meta, list, limit), list)
		s.add(s.preempted(list), list)
		s.add(s.prefills(&rec.Meta, list), list)
		s.add(detokenizer(list), list)
		client, parts := s.api(list, limit, ran)
		s.add(client, list)
		s.addParts(parts, list)
	}
	if s.Engine == nil {
		s.add(s.stalled(), nil)
	}
	if (s.Engine == nil || !tellsQueue(&rec.Meta)) && !s.has(cause.LowBatch) {
		s.add(s.slots(), nil)
	}
	slices.SortStableFunc(s.Delays, func(a, b Delay) int { return cmp.Compare(b.Time, a.Time) })
}

func (s *Summary) has(key string) bool {
	return slices.ContainsFunc(s.Delays, func(d Delay) bool { return d.Cause == key })
}

// tellsQueue reports whether an engine says how many requests wait.
func tellsQueue(meta *recording.Meta) bool {
	return slices.ContainsFunc(meta.Steps, func(s recording.Step) bool { return s.Stats })
}

// told returns the requests that were answered and that the engine told all of.
func (s *Summary) told(meta *recording.Meta) []told {
	byID := recording.ByID(meta.EngineRequests)
	var out []told
	for i := range s.all {
		r := &s.all[i]
		if q := byID[r.ID]; r.ID != "" && q != nil && r.Engine != nil && answered(r) && q.Asked > 0 && q.First > 0 &&
			q.Finish != "" {
			end := r.Received + r.Latency
			x := told{row: r, q: q, text: span(q.Last, min(q.Detokenized, end))}
			x.tail = span(x.back(), end)
			if r.TTFT > 0 && q.Detokenized == 0 {
				x.head = min(r.Engine.After, span(q.First, x.back()))
			}
			out = append(out, x)
		}
	}
	return out
}

// add keeps a delay that matters. Its shares are of all requests where the list is nil.
func (s *Summary) add(d *Delay, list []told) {
	if s.matters(d, list) {
		s.Delays = append(s.Delays, *d)
	}
}

// addParts keeps the parts of a delay that matters as a whole, if they matter alone or are not small in it.
func (s *Summary) addParts(parts []Delay, list []told) {
	whole := Delay{Cause: cause.APIServer, Requests: len(list)}
	for i := range parts {
		whole.Time, whole.Before = whole.Time+parts[i].Time, whole.Before+parts[i].Before
		whole.Token += parts[i].Token
	}
	if !s.matters(&whole, list) {
		return
	}
	for i := range parts {
		if d := &parts[i]; s.matters(d, list) || float64(d.Time) >= leastPart*float64(whole.Time) {
			s.Delays = append(s.Delays, *d)
		}
	}
}

// matters sets a delay's shares and reports whether it is worth a word.
func (s *Summary) matters(d *Delay, list []told) bool {
	if d == nil || d.Time == 0 || d.Requests == 0 {
		return false
	}
	all, first := uint64(0), uint64(0)
	take := func(r *Row) { all, first = all+r.Latency, first+r.TTFT }
	for i := range list {
		take(list[i].row)
	}
	if list == nil {
		for i := range s.all {
			if answered(&s.all[i]) {
				take(&s.all[i])
			}
		}
	}
	part := func(n, of uint64) float64 {
		if of == 0 {
			return 0
		}
		return min(1, float64(n)/float64(of))
	}
	d.Share = part(d.Time, all)
	switch d.Cause {
	case cause.APIServer, cause.APIServerStarved:
		d.First = part(d.Before+d.Token, first)
	case cause.Queueing, cause.KVCache, cause.LowBatch:
		d.First = part(d.Time, first)
	case cause.PrefillBlocksDecode:
		d.First = part(d.untilFirst, first)
	}
	return d.Share >= leastDelay || d.First >= leastOfFirst && d.Time/uint64(d.Requests) >= leastOfEach
}

// sum sets a delay's time and quantiles.
func (d *Delay) sum(values []uint64) *Delay {
	d.Time = 0
	for _, v := range values {
		d.Time += v
	}
	if q := quantilesOf(values); q != nil {
		d.P50, d.P99 = q.P50, q.P99
	}
	d.Requests = len(values)
	return d
}

// queue is the time in the engine's queue: for a place in the batch, or for the KV cache. What a limit holds in front
// of that queue while others are in it would be there without the limit.
func (s *Summary) queue(meta *recording.Meta, list []told, limit *limit) *Delay {
	e := s.Engine
	if e.MaxWaiting == 0 || e.Slots < leastSlots {
		return nil
	}
	values := make([]uint64, len(list))
	for i := range list {
		values[i] = list[i].row.Engine.queued()
		if limit != nil {
			values[i] += limit.queued[i]
		}
	}
	waiting, cramped := uint64(0), uint64(0)
	for i := 1; i < len(meta.Steps); i++ {
		a, b := &meta.Steps[i-1], &meta.Steps[i]
		if !a.Stats || a.Waiting == 0 || b.TS <= a.TS || b.TS-a.TS > maxStep || b.Missed {
			continue
		}
		waiting += b.TS - a.TS
		if a.KVPermille >= fullCache {
			cramped += b.TS - a.TS
		}
	}
	d := &Delay{
		Cause:    cause.Queueing,
		Waiting:  e.MaxWaiting,
		Batch:    e.MaxBatch,
		KVUsage:  e.MaxKVUsage,
		Preempts: e.Preemptions,
	}
	if e.Preemptions > 0 || 2*cramped > waiting {
		d.Cause = cause.KVCache
	}
	d.without(firsts(list, values))
	return d.sum(values)
}

// preempted is for how long requests that were taken out of the batch had no token, at least: their longest gap.
func (s *Summary) preempted(list []told) *Delay {
	if s.Gaps == nil {
		return nil
	}
	d := &Delay{Cause: cause.Preemption, KVUsage: s.Engine.MaxKVUsage}
	values := make([]uint64, len(list))
	for i := range list {
		if n := list[i].q.Preemptions; n > 0 {
			values[i] = list[i].row.LongestGap - min(list[i].row.LongestGap, s.Gaps.P50)
			d.Preempts += int(n)
		}
	}
	return d.sum(values)
}

// prefillStep is a step of an engine, for what others wait for while it computes prompts.
type prefillStep struct {
	key      engineKey
	from, to uint64
	others   uint32 // requests in it that decode
	firsts   uint32 // requests in it that have their first token
	longest  uint32 // tokens of the longest prompt of these, as far as is known
}

// holds returns for how long a request waited for the step, of which usual is what one takes without a prompt: it
// decodes; or its own prompt is short beside another's in the step; or it came meanwhile, or so shortly before that it
// was not in the batch, and was in the next one.
func (x *prefillStep) holds(t *told, usual uint64) uint64 {
	q := t.q
	switch {
	case (engineKey{q.PID, q.Engine}) != x.key || q.Last < x.to:
		return 0
	case q.First <= x.from, q.First == x.to && t.row.InputTokens > 0 && t.row.InputTokens <= x.longest/shortPrompt:
		return x.to - x.from - usual
	case q.Asked+usual > x.from && q.Asked < x.to && q.First > x.to && q.Scheduled <= x.to+usual:
		return x.to - max(q.Asked, x.from)
	}
	return 0
}

// prefillSteps returns the steps of engines, and how long those without a prompt took. A step begins where the one
// before ended; where that left nobody to go on with, it begins when the first request that has its first token in it
// was scheduled. So does a step after a long pause: those that were to go on may have been aborted.
func prefillSteps(meta *recording.Meta, list []told) (steps []prefillStep, usual []uint64) {
	type first struct {
		key engineKey
		at  uint64
	}
	scheduled, longest := map[first]uint64{}, map[first]uint32{}
	for i := range list {
		if q := list[i].q; q.Scheduled > 0 && q.Preemptions == 0 {
			k := first{engineKey{q.PID, q.Engine}, q.First}
			longest[k] = max(longest[k], list[i].row.InputTokens)
			if at, ok := scheduled[k]; !ok || q.Scheduled < at {
				scheduled[k] = q.Scheduled
			}
		}
	}
	last := map[engineKey]*recording.Step{}
	for i := range meta.Steps {
		x := &meta.Steps[i]
		if x.Requests == 0 {
			continue
		}
		k := engineKey{x.PID, x.Engine}
		before, from := last[k], uint64(0)
		last[k] = x
		begin := scheduled[first{k, x.TS}]
		switch goesOn := before != nil && before.Finished < before.Requests && !x.Missed; {
		case goesOn && x.TS-before.TS <= maxStep:
			from = before.TS
		case goesOn && begin > 0:
			from = max(before.TS, begin)
		case x.Firsts > 0:
			from = begin
		}
		if from == 0 || x.TS <= from || x.TS-from > longestPrefill {
			continue
		}
		others := x.Requests - min(x.Requests, x.Firsts)
		steps = append(steps, prefillStep{k, from, x.TS, others, x.Firsts, longest[first{k, x.TS}]})
		if x.Firsts == 0 {
			usual = append(usual, x.TS-from)
		}
	}
	return steps, usual
}

// prefills is for how long requests waited for steps in which others had their first token, beyond a usual step.
func (s *Summary) prefills(meta *recording.Meta, list []told) *Delay {
	steps, usual := prefillSteps(meta, list)
	q := quantilesOf(usual)
	if q == nil || len(usual) < fewestGaps {
		return nil
	}
	d := &Delay{Cause: cause.PrefillBlocksDecode}
	values, untilFirst := make([]uint64, len(list)), make([]uint64, len(list))
	long := 0 // steps in which nobody had a first token
	with := 0 // steps in which somebody had one while others decoded
	byAsked := make([]int, len(list))
	for i := range byAsked {
		byAsked[i] = i
	}
	slices.SortFunc(byAsked, func(a, b int) int { return cmp.Compare(list[a].q.Asked, list[b].q.Asked) })
	slices.SortStableFunc(steps, func(a, b prefillStep) int { return cmp.Compare(a.to, b.to) })
	var open []int // requests that had been asked when a step ended, and had not ended before
	for _, x := range steps {
		length := x.to - x.from
		if x.firsts == 0 && length >= stallFactor*q.P50 {
			long++
		}
		if x.firsts == 0 {
			continue
		}
		for len(byAsked) > 0 && list[byAsked[0]].q.Asked < x.to {
			open, byAsked = append(open, byAsked[0]), byAsked[1:]
		}
		open = slices.DeleteFunc(open, func(i int) bool { return list[i].q.Last < x.to })
		held := false
		for _, i := range open {
			if n := x.holds(&list[i], min(q.P50, length)); n > 0 {
				held = true
				if length >= stallFactor*q.P50 {
					values[i] += n
					if list[i].q.First > x.from {
						untilFirst[i] += n
					}
				}
			}
		}
		if held || x.others > 0 {
			with++
			if length >= stallFactor*q.P50 {
				d.Steps++
			}
		}
	}
	// An engine that waits for a CPU has long steps of both kinds.
	if float64(d.Steps*len(usual)) <= byChance*float64(long*with) {
		return nil
	}
	was, of := firsts(list, untilFirst)
	for _, n := range of {
		d.untilFirst += n
	}
	d.without(was, of)
	return d.sum(values)
}

// stays are the stretches of a request in which the API server has it: before the engine, with the first token that it
// has not written yet, and with the whole answer.
type stays struct{ before, token, after timeline.Span }

func (t *told) stays() stays {
	return stays{
		timeline.Span{From: t.row.Received, To: t.row.Received + t.row.Engine.Before},
		timeline.Span{From: t.q.First, To: t.q.First + t.head},
		timeline.Span{From: t.back(), To: t.back() + t.tail},
	}
}

// api is the time in the API server, before the engine and after it: what it worked and what it waited for a CPU.
// client is that of clients which read slowly; nil: there are none. What a limit holds is not the API server's work.
func (s *Summary) api(list []told, limit *limit, ran ran) (client *Delay, parts []Delay) {
	tails := make([]uint64, len(list))
	for i := range list {
		tails[i] = list[i].tail
	}
	usual := quantilesOf(slices.Clone(tails)).P50
	var slow []told
	of, spans := make([]stays, len(list)), map[uint32][]timeline.Span{}
	isSlow := func(x *told) bool { return x.tail >= leastTail && x.tail >= slowTail*usual }
	for i := range list {
		of[i] = list[i].stays()
		if limit != nil {
			of[i].before.From = max(of[i].before.From, limit.until[i])
		}
		if isSlow(&list[i]) {
			slow = append(slow, list[i])
		}
	}
	client = clients(slow, ran)
	for i := range list {
		if client != nil && isSlow(&list[i]) {
			of[i].after = timeline.Span{}
		}
		pid := list[i].row.PID
		spans[pid] = append(spans[pid], of[i].before, of[i].token, of[i].after)
	}
	busy, starved := Delay{Cause: cause.APIServer}, Delay{Cause: cause.APIServerStarved}
	pid, starving := busy.ran(spans, ran)
	n := len(list)
	worked, waits, workedFirst, waitsFirst := make([]uint64, n), make([]uint64, n), make([]uint64, n), make([]uint64, n)
	for i := range list {
		split := func(x timeline.Span) (work, wait uint64) {
			if list[i].row.PID == pid {
				wait = overlap(starving, x.From, x.To)
			}
			return x.To - x.From - wait, wait
		}
		workBefore, waitBefore := split(of[i].before)
		workToken, waitToken := split(of[i].token)
		workAfter, waitAfter := split(of[i].after)
		busy.Before, starved.Before = busy.Before+workBefore, starved.Before+waitBefore
		busy.Token, starved.Token = busy.Token+workToken, starved.Token+waitToken
		workedFirst[i], waitsFirst[i] = workBefore+workToken, waitBefore+waitToken
		worked[i], waits[i] = workedFirst[i]+workAfter, waitsFirst[i]+waitAfter
	}
	busy.sum(worked)
	starved.sum(waits)
	busy.without(firsts(list, workedFirst))
	starved.without(firsts(list, waitsFirst))
	return client, []Delay{busy, starved}
}

// detokenizer is the time from the engine's last token to the message of a detokenizer process with its text.
func detokenizer(list []told) *Delay {
	values := make([]uint64, len(list))
	for i := range list {
		values[i] = list[i].text
	}
	d := &Delay{Cause: cause.Detokenizer}
	return d.sum(values)
}

// clients is the time in which an API server had all of an answer, and its thread hardly ran; nil where it ran.
func clients(slow []told, ran ran) *Delay {
	if len(slow) == 0 {
		return nil
	}
	d := &Delay{Cause: cause.SlowClient}
	values, spans := make([]uint64, 0, len(slow)), map[uint32][]timeline.Span{}
	for _, x := range slow {
		values = append(values, x.tail)
		spans[x.row.PID] = append(spans[x.row.PID], timeline.Span{From: x.back(), To: x.back() + x.tail})
	}
	if d.ran(spans, ran); d.Running >= idleAPI {
		return nil
	}
	d.Place = ""
	return d.sum(values)
}

// ran says what the process of most of the stretches did in them, and returns when it waited for a CPU.
func (d *Delay) ran(spans map[uint32][]timeline.Span, ran ran) (process uint32, starved timeline.Spans) {
	pid, most := uint32(0), uint64(0)
	var within timeline.Spans
	for p, list := range spans {
		joined := timeline.Join(list)
		if n := joined.Total(); n > most || n == most && p < pid {
			pid, most, within = p, n, joined
		}
	}
	if most > 0 && ran != nil {
		r := ran(pid, within)
		d.Thread, d.Running, d.Place = r.Thread, r.Running, r.Place
		return pid, r.Starved
	}
	return 0, nil
}

// slots is the time for which requests waited for a first token while as many streams as there ever were had tokens,
// though more requests were in progress. Only streams tell.
func (s *Summary) slots() *Delay {
	type change struct {
		at uint64
		by int
	}
	var changes []change
	for i := range s.all {
		if r := &s.all[i]; r.Phases != nil && r.Phases.Decode > 0 {
			first := r.Received + r.TTFT
			changes = append(changes, change{first, 1}, change{first + r.Phases.Decode, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	most, n := 0, 0
	for _, c := range changes {
		n += c.by
		most = max(most, n)
	}
	var fullFrom []timeline.Span
	n = 0
	for i, c := range changes {
		if n += c.by; n == most && i+1 < len(changes) {
			fullFrom = append(fullFrom, timeline.Span{From: c.at, To: changes[i+1].at})
		}
	}
	if most == 0 || s.MaxConcurrency <= most {
		return nil
	}
	at := timeline.Join(fullFrom)
	d := &Delay{Cause: cause.Queueing, Batch: most}
	var values, was []uint64
	waits, held := uint64(0), 0
	for i := range s.all {
		r := &s.all[i]
		if r.TTFT == 0 || !answered(r) {
			continue
		}
		n := overlap(at, r.Received, r.Received+r.TTFT)
		if 2*n > r.TTFT {
			held++
		}
		waits += r.TTFT
		values, was = append(values, n), append(was, r.TTFT)
		if r.Ahead >= most {
			d.Waiting = max(d.Waiting, r.Ahead-most+1)
		}
	}
	d.without(was, values)
	if d.sum(values); held < fewestHeld || float64(d.Time) < full*float64(waits) {
		return nil
	}
	return d
}

// overlap returns how much of [from, to) spans hold.
func overlap(spans timeline.Spans, from, to uint64) uint64 {
	n := uint64(0)
	for i := spans.At(from); i < len(spans) && spans[i].From < to; i++ {
		n += min(to, spans[i].To) - max(from, spans[i].From)
	}
	return n
}

// stalled is the time in long gaps of streams at whose end others had their first token.
func (s *Summary) stalled() *Delay {
	st := s.Stalls
	if st == nil || st.ByPrefill < mostlyPrefill || st.ByPrefill <= byChance*st.Chance {
		return nil
	}
	d := &Delay{Cause: cause.PrefillBlocksDecode, Gaps: st.Stalls}
	var values []uint64
	for i := range s.all {
		if r := &s.all[i]; r.Phases != nil && answered(r) {
			values = append(values, r.ByPrefill)
		}
	}
	return d.sum(values)
}
