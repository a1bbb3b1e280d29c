// Package requests says how long the HTTP requests took that a target served: time to first token, time per output
// token, latency, and where the time of slow ones went against that of usual ones.
package requests

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Rows and thresholds.
const (
	maxSlow     = 20
	maxGroups   = 20
	stallFactor = 3 // a gap of so many medians is a stall
	fewestGaps  = 20
)

// Quantiles are of durations in ns.
type Quantiles struct {
	Count int    `json:"count"`
	P50   uint64 `json:"p50_ns"`
	P90   uint64 `json:"p90_ns"`
	P99   uint64 `json:"p99_ns"`
	Max   uint64 `json:"max_ns"`
}

// Summary is what is known of the requests of a window. Times are as the server sees them: from its read of a request
// to its writes of the answer, without the network and without what waits in the kernel for the server to read it.
type Summary struct {
	Watched  uint64 `json:"watched_ns"` // of the window in which requests were watched; rates are of this time
	Count    int    `json:"count"`      // read in the window, or ended in it
	Ended    int    `json:"ended"`      // in the window; what follows is of these
	Open     int    `json:"open"`       // at its end
	Failed   int    `json:"failed"`     // answered with a status of 400 or more
	Aborted  int    `json:"aborted"`    // the connection ended before the answer did
	Streamed int    `json:"streamed"`
	Partial  int    `json:"partial"`                // parts of the stream were not seen, or it is compressed
	Retries  int    `json:"retries"`                // sent again after an error or a disconnect
	Content  int    `json:"with_content,omitempty"` // whose prompt or answer is in the recording

	TTFT    *Quantiles `json:"ttft,omitempty"`    // to the first part that carries content; of streamed answers
	TPOT    *Quantiles `json:"tpot,omitempty"`    // (last token - first token) / (output tokens - 1)
	Latency *Quantiles `json:"latency,omitempty"` // to the last byte; of all that were answered without an error
	Gaps    *Quantiles `json:"gaps,omitempty"`    // between writes of a stream that carry content

	PerSec          float64 `json:"per_second"` // that ended
	OutputTokens    uint64  `json:"output_tokens"`
	InputTokens     uint64  `json:"input_tokens"`
	CachedTokens    uint64  `json:"cached_input_tokens"`
	TokensPerSec    float64 `json:"output_tokens_per_second"`
	TokensCounted   int     `json:"tokens_counted"`   // requests whose tokens are the parts of their stream: a lower bound
	TokensUnknown   int     `json:"tokens_unknown"`   // requests of whose tokens nothing is known
	MeanConcurrency float64 `json:"mean_concurrency"` // requests at a time
	MaxConcurrency  int     `json:"max_concurrency"`

	Goodput *Goodput `json:"goodput,omitempty"` // absent where no objective was given
	Groups  []group  `json:"groups"`            // by route and model, the most frequent first
	Tail    *Tail    `json:"tail,omitempty"`    // absent where there are too few
	Stalls  *Stalls  `json:"stalls,omitempty"`  // absent where there are no streams
	Slow    []Row    `json:"slow"`              // the slowest first
	Delays  []Delay  `json:"delays"`            // what holds requests up, that of most time first
	Engine  *engine  `json:"engine,omitempty"`  // absent where the messages of an engine were not read
	Derived *derived `json:"derived,omitempty"` // steps without an engine's messages; absent where they are not told apart

	all []Row
}

// Objective is what a request should keep to, in ns; 0: anything.
type Objective struct {
	TTFT    uint64 `json:"ttft_ns,omitempty"`
	TPOT    uint64 `json:"tpot_ns,omitempty"`
	Latency uint64 `json:"latency_ns,omitempty"`
}

// Goodput is how many requests kept to an objective. One that failed or was aborted did not. One that lacks a time that
// the objective names, because its answer is not streamed, is left out.
type Goodput struct {
	Objective Objective `json:"objective"`
	Met       int       `json:"met"`
	Of        int       `json:"of"`
	PerSec    float64   `json:"per_second"` // that kept to it
}

// group is the requests of one route and model.
type group struct {
	Route   string     `json:"route"`
	Model   string     `json:"model,omitempty"`
	Count   int        `json:"count"`
	TTFT    *Quantiles `json:"ttft,omitempty"`
	TPOT    *Quantiles `json:"tpot,omitempty"`
	Latency *Quantiles `json:"latency,omitempty"`
}

// phases cut the time of a streamed request into four, in ns.
type phases struct {
	Read   uint64 `json:"read_ns"`        // reading the request
	First  uint64 `json:"first_token_ns"` // from there to the first token: queue and prefill
	Decode uint64 `json:"decode_ns"`      // to the last token
	Finish uint64 `json:"finish_ns"`      // to the last byte
}

// Row is one request.
type Row struct {
	Number       uint64     `json:"number"`
	ID           string     `json:"id,omitempty"`
	Route        string     `json:"route"`
	Model        string     `json:"model,omitempty"`
	PID          uint32     `json:"pid"`
	Received     uint64     `json:"received_ns"` // CLOCK_MONOTONIC
	Status       uint32     `json:"status"`
	Outcome      string     `json:"outcome"`
	Latency      uint64     `json:"latency_ns"`
	TTFT         uint64     `json:"ttft_ns,omitempty"` // 0: not known
	TPOT         uint64     `json:"tpot_ns,omitempty"` // likewise
	InputTokens  uint32     `json:"input_tokens,omitempty"`
	OutputTokens uint32     `json:"output_tokens,omitempty"`
	TokenSource  string     `json:"token_source,omitempty"`
	LongestGap   uint64     `json:"longest_gap_ns,omitempty"`
	Ahead        int        `json:"in_progress_at_arrival"`
	Phases       *phases    `json:"phases,omitempty"`             // of a streamed request
	GPUFirst     *uint64    `json:"gpu_first_ns,omitempty"`       // the GPUs worked so long before its first token; absent where not recorded throughout
	GPUDecode    *uint64    `json:"gpu_decode_ns,omitempty"`      // likewise from the first to the last token
	Stalled      uint64     `json:"stalled_ns,omitempty"`         // in gaps of at least three medians of all gaps, beyond a median each
	ByPrefill    uint64     `json:"stalled_prefill_ns,omitempty"` // of this, in gaps at whose end another request had its first token
	Engine       *EngineRow `json:"engine,omitempty"`             // absent where the engine's request is not known
	Retry        uint32     `json:"retry,omitempty"`              // how often it was sent before
	Prompt       string     `json:"prompt,omitempty"`             // its beginning, redacted; absent unless content was captured
	Answer       string     `json:"answer,omitempty"`             // likewise
}

// Tail compares the request at the 99th percentile of latency with the one at the median, among streamed requests.
type Tail struct {
	Of     int  `json:"of"` // streamed requests that were answered
	Median Row  `json:"median"`
	Slow   Row  `json:"slow"`
	Exact  bool `json:"exact"` // there are a hundred; else it is the slowest but one in so many
}

// Stalls are gaps of streams of at least three medians.
type Stalls struct {
	Gaps      int     `json:"gaps"`
	Stalls    int     `json:"stalls"`
	Time      uint64  `json:"time_ns"`      // in stalls, beyond a median each, over all streams
	Share     float64 `json:"share"`        // of the time between tokens, over all streams
	ByPrefill float64 `json:"by_prefill"`   // share of Time in gaps at whose end another request had its first token
	Chance    float64 `json:"chance"`       // share of the other gaps at whose end another request had its first token
	Threshold uint64  `json:"threshold_ns"` // from which on a gap is one
}

// Summarize makes sense of the requests of a recording; nil: there are none.
func Summarize(rec *recording.Recording) *Summary {
	meta := &rec.Meta
	if len(meta.Requests) == 0 {
		return nil
	}
	s := &Summary{Groups: []group{}, Slow: []Row{}}
	ended := s.count(meta)
	gaps := gapsOf(rec, ended)
	gpu := newWork(rec)
	arrivals := newCrowd(meta.Requests)
	for _, r := range ended {
		row := rowOf(r)
		row.Ahead = arrivals.before(r)
		if row.Phases != nil {
			row.GPUFirst = gpu.within(r.PID, r.Received, r.FirstToken)
			row.GPUDecode = gpu.within(r.PID, r.FirstToken, r.LastToken)
		}
		s.all = append(s.all, row)
	}
	s.stalls(gaps, ended)
	s.engine(rec, &gpu, ended)
	s.TTFT, s.TPOT, s.Latency = quantiles(s.all, ttft), quantiles(s.all, tpot), quantiles(s.all, latency)
	active := meta.Overhead.Active(recording.RequestsSource, meta.From, meta.To)
	s.rates(active, ended)
	s.crowding(active, arrivals)
	s.group()
	s.tail()
	slow := slices.Clone(s.all)
	slices.SortStableFunc(slow, func(a, b Row) int { return cmp.Compare(b.Latency, a.Latency) })
	s.Slow = append(s.Slow, slow[:min(len(slow), maxSlow)]...)
	return s
}

// count returns the requests that ended in the window.
func (s *Summary) count(meta *recording.Meta) (ended []*recording.Request) {
	for i := range meta.Requests {
		r := &meta.Requests[i]
		if r.Received > meta.To || r.End != 0 && r.End < meta.From {
			continue
		}
		s.Count++
		switch {
		case r.End == 0 || r.End > meta.To:
			s.Open++
			continue
		case r.Outcome == "aborted":
			s.Aborted++
		case r.Status >= 400:
			s.Failed++
		}
		if r.Streamed {
			s.Streamed++
		}
		if r.Unreadable {
			s.Partial++
		}
		if r.Retry > 0 {
			s.Retries++
		}
		if r.Prompt != "" || r.Answer != "" {
			s.Content++
		}
		ended = append(ended, r)
	}
	s.Ended = len(ended)
	return ended
}

func rowOf(r *recording.Request) Row {
	row := Row{
		Number: r.Number, ID: r.ID, Route: r.Route, Model: r.Model, PID: r.PID,
		Received: r.Received, Status: r.Status, Outcome: r.Outcome,
		Latency:      span(r.Received, r.End),
		InputTokens:  r.InputTokens,
		OutputTokens: r.OutputTokens,
		TokenSource:  r.TokenSource,
		Retry:        r.Retry,
		Prompt:       r.Prompt,
		Answer:       r.Answer,
	}
	if r.FirstToken == 0 {
		return row
	}
	row.TTFT, row.TPOT = r.TTFT(), r.TPOT()
	asked := r.Received
	if r.Asked >= r.Received && r.Asked <= r.FirstToken {
		asked = r.Asked
	}
	row.Phases = &phases{
		Read:   asked - r.Received,
		First:  span(asked, r.FirstToken),
		Decode: span(r.FirstToken, r.LastToken),
		Finish: span(r.LastToken, r.End),
	}
	return row
}

func span(from, to uint64) uint64 { return to - min(from, to) }

func answered(r *Row) bool { return r.Outcome == "complete" && r.Status < 400 }

func ttft(r *Row) (uint64, bool)    { return r.TTFT, r.TTFT > 0 && r.Status < 400 }
func tpot(r *Row) (uint64, bool)    { return r.TPOT, r.TPOT > 0 && answered(r) }
func latency(r *Row) (uint64, bool) { return r.Latency, answered(r) }

func quantiles(rows []Row, of func(*Row) (uint64, bool)) *Quantiles {
	var values []uint64
	for i := range rows {
		if v, ok := of(&rows[i]); ok {
			values = append(values, v)
		}
	}
	return quantilesOf(values)
}

// quantilesOf returns the smallest values that so many do not exceed; nil: there are none.
func quantilesOf(v []uint64) *Quantiles {
	if len(v) == 0 {
		return nil
	}
	slices.Sort(v)
	at := func(percent int) uint64 { return quantile.Of(v, percent) }
	return &Quantiles{Count: len(v), P50: at(50), P90: at(90), P99: at(99), Max: v[len(v)-1]}
}

// rates adds up tokens, and notes how many there are a second of the time in which requests were watched.
func (s *Summary) rates(active []recording.Interval, ended []*recording.Request) {
	for _, r := range ended {
		s.OutputTokens += uint64(r.OutputTokens)
		s.InputTokens += uint64(r.InputTokens)
		s.CachedTokens += uint64(r.CachedTokens)
		switch r.TokenSource {
		case "chunks":
			s.TokensCounted++
		case "":
			s.TokensUnknown++
		}
	}
	for _, a := range active {
		s.Watched += a.To - a.From
	}
	if length := float64(s.Watched); length > 0 {
		s.PerSec, s.TokensPerSec = float64(s.Ended)/length*1e9, float64(s.OutputTokens)/length*1e9
	}
}

// crowding notes how many requests were in progress at a time, while they were watched.
func (s *Summary) crowding(active []recording.Interval, all crowd) {
	sum := 0.0
	for _, a := range active {
		mean, most := all.concurrency(a.From, a.To)
		sum += mean * float64(a.To-a.From)
		s.MaxConcurrency = max(s.MaxConcurrency, most)
	}
	if s.Watched > 0 {
		s.MeanConcurrency = sum / float64(s.Watched)
	}
}

// Judge says how many requests kept to an objective.
func (s *Summary) Judge(o Objective) {
	g := &Goodput{Objective: o}
	keeps := func(v, limit uint64) bool { return limit == 0 || v <= limit }
	for i := range s.all {
		r := &s.all[i]
		if answered(r) && (o.TTFT > 0 && r.TTFT == 0 || o.TPOT > 0 && r.TPOT == 0 && r.OutputTokens != 1) {
			continue
		}
		g.Of++
		if answered(r) && keeps(r.TTFT, o.TTFT) && keeps(r.TPOT, o.TPOT) && keeps(r.Latency, o.Latency) {
			g.Met++
		}
	}
	if s.Ended > 0 {
		g.PerSec = s.PerSec * float64(g.Met) / float64(s.Ended)
	}
	s.Goodput = g
}

func (s *Summary) group() {
	type key struct{ route, model string }
	rows := map[key][]Row{}
	for _, r := range s.all {
		k := key{r.Route, r.Model}
		rows[k] = append(rows[k], r)
	}
	for k, list := range rows {
		s.Groups = append(
			s.Groups,
			group{k.route, k.model, len(list), quantiles(list, ttft), quantiles(list, tpot), quantiles(list, latency)},
		)
	}
	slices.SortFunc(s.Groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Route, b.Route), cmp.Compare(a.Model, b.Model))
	})
	s.Groups = s.Groups[:min(len(s.Groups), maxGroups)]
}

// fewestTail is from how many streamed requests on one at the tail says something.
const fewestTail = 10

func (s *Summary) tail() {
	var rows []Row
	for _, r := range s.all {
		if r.Phases != nil && answered(&r) {
			rows = append(rows, r)
		}
	}
	n := len(rows)
	if n < fewestTail {
		return
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.Latency, b.Latency) })
	s.Tail = &Tail{Of: n, Median: rows[(n*50+99)/100-1], Slow: rows[(n*99+99)/100-1], Exact: n >= 100}
}

// gap is a time between two writes of a stream.
type gap struct {
	request  uint64
	from, to uint64
}

// gapsOf returns the gaps of the streams that ended, without the time to the first token.
func gapsOf(rec *recording.Recording, ended []*recording.Request) []gap {
	first := make(map[uint64]uint64, len(ended))
	for _, r := range ended {
		first[r.Number] = r.FirstToken
	}
	var out []gap
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind != event.RequestChunk {
			continue
		}
		if at := first[e.Args[0]]; at > 0 && e.TS >= at {
			out = append(out, gap{e.Args[0], e.TS, e.End()})
		}
	}
	return out
}

// stalls finds gaps that are much longer than usual, and whether another request's first token came at their end: then
// its prefill ran in between.
func (s *Summary) stalls(gaps []gap, ended []*recording.Request) {
	if len(gaps) == 0 {
		return
	}
	var lengths, firsts []uint64
	total := uint64(0)
	for _, g := range gaps {
		lengths = append(lengths, g.to-g.from)
		total += g.to - g.from
	}
	for _, r := range ended {
		if r.FirstToken > 0 {
			firsts = append(firsts, r.FirstToken)
		}
	}
	slices.Sort(firsts)
	s.Gaps = quantilesOf(lengths)
	median := s.Gaps.P50
	at := make(map[uint64]*Row, len(s.all))
	for i := range s.all {
		at[s.all[i].Number] = &s.all[i]
	}
	st := &Stalls{Gaps: len(gaps), Threshold: stallFactor * median}
	byPrefill, usual := uint64(0), 0
	for _, g := range gaps {
		length := g.to - g.from
		row := at[g.request]
		row.LongestGap = max(row.LongestGap, length)
		// The write of a first token and the one that ends a gap are of the same step of the engine: within a usual
		// gap.
		i, _ := slices.BinarySearch(firsts, max(g.from, g.to-min(g.to, median))+1)
		prefill := i < len(firsts) && firsts[i] <= g.to+median
		if length < st.Threshold || len(gaps) < fewestGaps {
			if prefill {
				usual++
			}
			continue
		}
		st.Stalls++
		st.Time += length - median
		row.Stalled += length - median
		if prefill {
			byPrefill += length - median
			row.ByPrefill += length - median
		}
	}
	if n := st.Gaps - st.Stalls; n > 0 {
		st.Chance = float64(usual) / float64(n)
	}
	if total > 0 {
		st.Share = float64(st.Time) / float64(total)
	}
	if st.Time > 0 {
		st.ByPrefill = float64(byPrefill) / float64(st.Time)
	}
	s.Stalls = st
}
