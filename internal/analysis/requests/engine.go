package requests

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// engine is what the inference engine behind the server told its API server: exact numbers of tokens, steps and
// batches, and when each request waited. Times are from the messages between the two.
type engine struct {
	Steps        int     `json:"steps"` // with output
	OutputTokens uint64  `json:"output_tokens"`
	MeanBatch    float64 `json:"mean_batch"` // requests with output in a step
	MaxBatch     int     `json:"max_batch"`
	MeanWaiting  float64 `json:"mean_waiting"` // requests in the engine's queue, over steps that told it
	MaxWaiting   int     `json:"max_waiting"`
	MaxKVUsage   float64 `json:"max_kv_usage"` // share of the KV cache

	Requests    int `json:"requests"` // that ended in the window, whether or not their HTTP request was seen
	Matched     int `json:"matched"`  // HTTP requests whose engine request is known
	Aborted     int `json:"aborted"`
	Preemptions int `json:"preemptions"` // in the window
	Preempted   int `json:"preempted"`   // requests that were, of those that ended

	Step    *Quantiles `json:"step,omitempty"`       // from one message to the next, while requests had output
	Queue   *Quantiles `json:"queue,omitempty"`      // from the API server's message to the first place in a batch
	Prefill *Quantiles `json:"prefill,omitempty"`    // from there to the first token
	Decode  *Quantiles `json:"decode,omitempty"`     // from the first to the last token
	Before  *Quantiles `json:"api_before,omitempty"` // from the read of the HTTP request to the message to the engine
	After   *Quantiles `json:"api_after,omitempty"`  // from the engine's first token to its write to the client
	// StepsCut is how many steps are cut where the GPU had copied their tokens out, and Lag from there to their
	// messages. Where GPU time is given, other steps are cut at the messages.
	StepsCut int        `json:"steps_cut_at_copies,omitempty"`
	Lag      *Quantiles `json:"copy_to_message,omitempty"`
	// StepsUncut is how many of these others have copies of which it is not certain that they are theirs.
	StepsUncut int `json:"steps_uncertain,omitempty"`
	// Slots is the share of the time in queues in which the engine made steps and said that requests waited.
	Slots float64 `json:"queue_while_busy"`
}

// EngineRow is where the engine's time went for one HTTP request, in ns.
type EngineRow struct {
	Before      uint64  `json:"api_before_ns"` // in the API server, to the message to the engine
	Queue       uint64  `json:"queue_ns"`      // to its first place in a batch
	Prefill     uint64  `json:"prefill_ns"`    // to its first token
	Decode      uint64  `json:"decode_ns"`     // to its last token
	After       uint64  `json:"api_after_ns"`  // from the engine's first token to the client's
	Tokens      uint32  `json:"tokens"`
	Cached      uint32  `json:"cached_tokens,omitempty"`
	Steps       int     `json:"steps"` // that the engine made from its first to its last token
	MeanBatch   float64 `json:"mean_batch"`
	MaxBatch    int     `json:"max_batch"`
	Preemptions uint32  `json:"preemptions,omitempty"`
	// For so long requests waited in the queue before its first token, where the engine does not say when it was
	// scheduled.
	QueueAtMost uint64 `json:"queue_at_most_ns,omitempty"`
	// GPUs worked so long in those steps, all of it and the request's share; absent where not recorded throughout.
	GPUExposed *uint64 `json:"gpu_exposed_ns,omitempty"`
	GPUShared  *uint64 `json:"gpu_shared_ns,omitempty"`
	StepsCut   int     `json:"steps_cut_at_copies,omitempty"` // of them, where the GPU had copied their tokens out
	// In so many of the steps gpu_shared_ns is by the tokens that were computed for each request, in the others it is
	// the same for each.
	StepsByTokens int `json:"steps_shared_by_tokens,omitempty"`
}

// queued is for how long a request waited in the engine's queue, as far as that is known.
func (e *EngineRow) queued() uint64 { return cmp.Or(e.Queue, e.QueueAtMost) }

// stepRun is the steps of one engine with output.
type stepRun struct {
	from, to []uint64 // of each step: the message before, and its own
	batch    []uint32
	missed   []bool // messages before its own were lost
	// When each step had not been launched, and all messages before had been sent; 0: there is no such time. The last
	// one is of what would come next.
	pause    []uint64
	byLength []bool   // who ended with it had as many tokens as asked for: no step was launched that came to nothing
	empty    []uint64 // messages without output
	stats    bool     // the engine has such: a step that came to nothing is told of
	recorded []bool   // what GPUs did is
	cuts     []uint64 // where each ends on the GPU, 0: not known; nil: of none
	uncut    int      // steps in which GPUs were recorded, of which it is not known though cuts are
	firsts   []uint32 // requests that had their first token
	plain    []bool   // no request had more than one token
	computed []uint64 // tokens in all, 0: not known; nil: of none
}

type engineKey struct{ pid, engine uint32 }

// maxStep is from when on a pause between two messages is no step.
const maxStep = uint64(1e9)

func runsOf(steps []recording.Step) map[engineKey]*stepRun {
	runs := map[engineKey]*stepRun{}
	for i := range steps {
		s := &steps[i]
		k := engineKey{s.PID, s.Engine}
		r := runs[k]
		if r == nil {
			r = &stepRun{}
			runs[k] = r
		}
		r.stats = r.stats || s.Stats
		if s.Requests == 0 {
			r.empty = append(r.empty, s.TS)
			continue
		}
		from := s.TS
		if n := len(r.to); n > 0 && s.TS-r.to[n-1] < maxStep && !s.Missed {
			from = r.to[n-1]
		}
		r.from, r.to, r.batch = append(r.from, from), append(r.to, s.TS), append(r.batch, s.Requests)
		r.missed, r.firsts = append(r.missed, s.Missed), append(r.firsts, s.Firsts)
		r.plain = append(r.plain, s.Tokens == s.Requests)
	}
	return runs
}

// engine makes sense of what engines told; nil: nothing.
func (s *Summary) engine(rec *recording.Recording, gpu *work, http []*recording.Request) {
	meta := &rec.Meta
	if len(meta.Steps) == 0 {
		return
	}
	e := &engine{}
	s.Engine = e
	e.count(meta)
	runs := runsOf(meta.Steps)
	e.cut(rec, runs, gpu)
	byID := recording.ByID(meta.EngineRequests)
	busy := busyOf(meta.Steps)
	var before, after []uint64
	for i := range s.all {
		row := &s.all[i]
		q := byID[row.ID]
		if q == nil || row.ID == "" {
			continue
		}
		e.Matched++
		r := engineRow(q, http[i])
		if run := runs[engineKey{q.PID, q.Engine}]; run != nil {
			run.describe(r, q, gpu)
		}
		if q.Scheduled == 0 && q.Asked > 0 && q.First > 0 {
			r.QueueAtMost = busy(q.Asked, q.First)
		}
		row.Engine = r
		if q.Asked > 0 {
			before = append(before, r.Before)
		}
		if q.First > 0 && row.TTFT > 0 {
			after = append(after, r.After)
		}
	}
	e.Before, e.After = quantilesOf(before), quantilesOf(after)
	e.phases(meta)
}

func engineRow(q *recording.EngineRequest, r *recording.Request) *EngineRow {
	row := &EngineRow{Tokens: q.OutputTokens, Cached: q.CachedTokens, Preemptions: q.Preemptions}
	if q.Asked > 0 {
		row.Before = span(r.Received, q.Asked)
	}
	begin := cmp.Or(q.Asked, q.Queued)
	if begin > 0 && q.Scheduled > 0 {
		row.Queue = span(begin, q.Scheduled)
	}
	if q.Scheduled > 0 && q.First > 0 {
		row.Prefill = span(q.Scheduled, q.First)
	}
	if q.First > 0 {
		row.Decode = span(q.First, q.Last)
		row.After = span(q.First, r.FirstToken)
	}
	return row
}

// cut finds where steps end on the GPU.
func (e *engine) cut(rec *recording.Recording, runs map[engineKey]*stepRun, gpu *work) {
	copies := tokenCopiesOf(rec)
	engines := map[uint32]bool{}
	for k := range runs {
		engines[k.pid] = true
	}
	var lags []uint64
	for k, run := range runs {
		run.pauses(k, &rec.Meta)
		run.cut(k.pid, engines, copies, gpu)
		if len(runs) == 1 { // else what GPUs did for which engine is not known
			run.count(rec.Meta.EngineRequests, gpu)
		}
		lags = append(lags, run.lags()...)
		e.StepsUncut += run.uncut
	}
	e.StepsCut, e.Lag = len(lags), quantilesOf(lags)
}

// pauses finds when all messages before a step had been sent and it was not launched: when a request that is in it was
// scheduled. So it is behind the last one where no request goes on.
func (run *stepRun) pauses(k engineKey, meta *recording.Meta) {
	n := len(run.to)
	run.pause, run.byLength = make([]uint64, n+1), make([]bool, n)
	if n == 0 {
		return
	}
	for i := range run.byLength {
		run.byLength[i] = true
	}
	run.pause[n] = run.before(n)
	for i := range meta.EngineRequests {
		q := &meta.EngineRequests[i]
		if q.PID != 0 && (engineKey{q.PID, q.Engine}) != k {
			continue
		}
		begin := cmp.Or(q.Scheduled, q.Asked)
		at, ok := slices.BinarySearch(run.to, q.First)
		if ok && begin > run.before(at) && !run.missed[at] && (at > 0 || q.Asked > meta.From) {
			run.pause[at] = max(run.pause[at], begin)
		}
		if q.Finish == "" && begin <= run.before(n) {
			run.pause[n] = 0
		}
		if q.Finish == "length" {
			continue
		}
		at, _ = slices.BinarySearch(run.to, q.Last)
		for i := max(0, at-1); i < min(at+1, n); i++ { // an abort comes between two
			run.byLength[i] = false
		}
	}
}

// describe adds which batches a request met.
func (run *stepRun) describe(row *EngineRow, q *recording.EngineRequest, gpu *work) {
	if q.First == 0 {
		return
	}
	first, end := run.of(q)
	sum, exposed, shared, cuts, known := uint64(0), uint64(0), uint64(0), 0, true
	for i := first; i < end; i++ {
		row.Steps++
		sum += uint64(run.batch[i])
		row.MaxBatch = max(row.MaxBatch, int(run.batch[i]))
		from, to, cut := run.gpuSpan(i)
		ahead := cut && run.follows(i) && q.Scheduled <= run.from[i] // it was launched before the last step was told of
		if i == first && q.Scheduled > 0 && !ahead {
			from = min(q.Scheduled, to)
		}
		if known = known && (i == first || !run.missed[i]); !known {
			continue
		}
		if cut {
			cuts++
		}
		if n := gpu.within(q.PID, from, to); n != nil {
			exposed += *n
			if tokens, all := run.tokens(i, i == first, q); all > 0 {
				row.StepsByTokens++
				shared += uint64(float64(*n) * float64(tokens) / float64(all))
			} else {
				shared += *n / uint64(run.batch[i])
			}
		} else {
			known = false
		}
	}
	if row.Steps == 0 {
		return
	}
	row.MeanBatch = float64(sum) / float64(row.Steps)
	if known {
		row.GPUExposed, row.GPUShared, row.StepsCut = &exposed, &shared, cuts
	} else {
		row.StepsByTokens = 0
	}
}

// of returns the first step of a request and the one behind its last. Of steps that were told in one transfer, which
// have one time, as many are its own as it has.
func (run *stepRun) of(q *recording.EngineRequest) (first, end int) {
	first, _ = slices.BinarySearch(run.to, q.First)
	end, _ = slices.BinarySearch(run.to, q.Last+1)
	for more := end - first - int(q.Steps); q.Steps > 0 && more > 0 && end-first > 1; more-- {
		switch {
		case run.to[end-1] == run.to[end-2]:
			end--
		case run.to[first] == run.to[first+1]:
			first++
		}
	}
	return first, end
}

// count adds up the steps.
func (e *engine) count(meta *recording.Meta) {
	var lengths []uint64
	requests, told, waiting := uint64(0), 0, uint64(0)
	last := map[engineKey]*recording.Step{}
	for i := range meta.Steps {
		s := &meta.Steps[i]
		e.Preemptions += int(s.Preempts)
		if s.Stats {
			told++
			waiting += uint64(s.Waiting)
			e.MaxWaiting, e.MaxKVUsage = max(e.MaxWaiting, int(s.Waiting)),
				max(
					e.MaxKVUsage,
					float64(s.KVPermille)/1000,
				)
		}
		if s.Requests == 0 {
			continue
		}
		e.Steps++
		e.OutputTokens += uint64(s.Tokens)
		requests += uint64(s.Requests)
		e.MaxBatch = max(e.MaxBatch, int(s.Requests))
		k := engineKey{s.PID, s.Engine}
		if before := last[k]; before != nil && before.Finished < before.Requests && s.TS > before.TS && !s.Missed {
			lengths = append(lengths, s.TS-before.TS)
		}
		last[k] = s
	}
	if e.Steps > 0 {
		e.MeanBatch = float64(requests) / float64(e.Steps)
	}
	if told > 0 {
		e.MeanWaiting = float64(waiting) / float64(told)
	}
	e.Step = quantilesOf(lengths)
}

// phases takes the times of all requests that ended, whether or not their HTTP request was seen.
func (e *engine) phases(meta *recording.Meta) {
	var queue, prefill, decode []uint64
	waited, full := uint64(0), uint64(0)
	busy := busyOf(meta.Steps)
	for i := range meta.EngineRequests {
		q := &meta.EngineRequests[i]
		if q.Finish == "" || q.Last < meta.From || q.Last > meta.To {
			continue
		}
		e.Requests++
		if q.Finish == "abort" {
			e.Aborted++
		}
		if q.Preemptions > 0 {
			e.Preempted++
		}
		if begin := cmp.Or(q.Asked, q.Queued); begin > 0 && q.Scheduled > 0 {
			queue = append(queue, span(begin, q.Scheduled))
			waited += span(begin, q.Scheduled)
			full += busy(begin, q.Scheduled)
		} else if q.Asked > 0 && q.First > 0 {
			waited += busy(q.Asked, q.First)
			full += busy(q.Asked, q.First)
		}
		if q.Scheduled > 0 && q.First > 0 {
			prefill = append(prefill, span(q.Scheduled, q.First))
		}
		if q.First > 0 {
			decode = append(decode, span(q.First, q.Last))
		}
	}
	e.Queue, e.Prefill, e.Decode = quantilesOf(queue), quantilesOf(prefill), quantilesOf(decode)
	if waited > 0 {
		e.Slots = float64(full) / float64(waited)
	}
}

// busyOf returns a function that says for how long requests were in the queue of an engine that made steps.
func busyOf(steps []recording.Step) func(from, to uint64) uint64 {
	var from, to, sum []uint64
	total := uint64(0)
	for i := 1; i < len(steps); i++ {
		a, b := &steps[i-1], &steps[i]
		if b.Requests == 0 || !a.Stats || a.Waiting == 0 || b.TS <= a.TS || b.TS-a.TS > maxStep || b.Missed {
			continue
		}
		from, to, sum = append(from, a.TS), append(to, b.TS), append(sum, total)
		total += b.TS - a.TS
	}
	until := func(at uint64) uint64 {
		i, _ := slices.BinarySearch(from, at)
		if i == 0 {
			return 0
		}
		return sum[i-1] + min(at, to[i-1]) - from[i-1]
	}
	return func(a, b uint64) uint64 { return until(b) - until(a) }
}
