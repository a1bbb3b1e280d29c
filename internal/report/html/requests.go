package html

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of what the timeline shows of requests: the slowest of them, so many at a time.
const (
	maxRequestLanes = 24
	maxRequests     = 4000
)

// served is a request of the timeline.
type served struct {
	*recording.Request
	from, to uint64 // within the window
}

// addRequests makes tracks of the slowest requests, each with its stages; the slowest ones come first.
func (s *scene) addRequests() {
	m := &s.in.Timeline.Rec.Meta
	var list []served
	for i := range m.Requests {
		r := &m.Requests[i]
		if from, to, ok := s.clip(r.Received, requestEnd(m, r)); ok {
			list = append(list, served{r, from, to})
		}
	}
	slices.SortStableFunc(list, func(a, b served) int { return cmp.Compare(b.to-b.from, a.to-a.from) })
	var lanes [][]served
	shown := 0
	for _, r := range list[:min(len(list), maxRequests)] {
		if fitIn(&lanes, r) {
			shown++
		}
	}
	group := "Requests"
	if shown < len(list) {
		group = fmt.Sprintf("Requests: %s of %s, the slowest", format.Count(shown), format.Count(len(list)))
	}
	engines := recording.ByID(m.EngineRequests)
	for i, lane := range lanes {
		tr := track{head: trackHead{Kind: requestTrack, Name: fmt.Sprintf("lane %d", i+1), Group: group, Seen: -1}}
		for _, r := range lane {
			tr.items = append(tr.items, item{
				start: r.from, end: r.to, label: s.labels.of(requestLabel(r.Request), "request", "request"), ref: none,
				src: none,
			})
			tr.items = s.addStages(tr.items, r.Request, engines)
		}
		s.add(tr)
	}
}

// requestEnd returns when a request ended, or the recording did.
func requestEnd(m *recording.Meta, r *recording.Request) uint64 {
	return max(r.Received, cmp.Or(r.End, m.To))
}

// fitIn places a request in the first lane without overlap; false if there is none.
func fitIn(lanes *[][]served, r served) bool {
	for i, lane := range *lanes {
		at, _ := slices.BinarySearchFunc(lane, r.from,
			func(o served, from uint64) int { return cmp.Compare(o.from, from) })
		if (at == 0 || lane[at-1].to <= r.from) && (at == len(lane) || lane[at].from >= r.to) {
			(*lanes)[i] = slices.Insert(lane, at, r)
			return true
		}
	}
	if len(*lanes) >= maxRequestLanes {
		return false
	}
	*lanes = append(*lanes, []served{r})
	return true
}

func requestLabel(r *recording.Request) string {
	parts := []string{r.Method + " " + r.Route}
	if r.ID != "" {
		parts = append(parts, r.ID)
	}
	if r.Model != "" {
		parts = append(parts, r.Model)
	}
	switch {
	case r.Outcome != "complete":
		parts = append(parts, r.Outcome)
	case r.Status >= 400:
		parts = append(parts, fmt.Sprintf("status %d", r.Status))
	}
	if ns := r.TTFT(); ns > 0 {
		parts = append(parts, "first token after "+format.Span(ns))
	}
	if r.TokenSource != "" && r.OutputTokens > 0 {
		least := ""
		if r.TokenSource == "chunks" {
			least = "at least "
		}
		parts = append(parts, least+format.Plural(uint64(r.OutputTokens), "output token", "output tokens"))
	}
	return format.Shorten(format.Clean(strings.Join(parts, ", ")), maxKernel)
}

// addStages appends the stages of a request, as far as they lie in the window.
func (s *scene) addStages(
	items []item,
	r *recording.Request,
	engines map[string]*recording.EngineRequest,
) []item {
	var engine *recording.EngineRequest
	if r.ID != "" {
		engine = engines[r.ID]
	}
	for _, st := range requests.Stages(r, engine, requestEnd(&s.in.Timeline.Rec.Meta, r)) {
		if from, to, ok := s.clip(st.From, st.To); ok && to > from {
			l := s.labels.of(st.Name, stageClass(st.Name), st.Name)
			items = append(items, item{start: from, end: to, label: l, ref: none, src: none})
		}
	}
	return items
}

// stageClass returns the colour of a stage: that of its first part.
func stageClass(name string) string {
	first, _, _ := strings.Cut(name, ",")
	switch first {
	case requests.StageServer, requests.StageRead, requests.StageFinish:
		return "stage server"
	case requests.StageQueue:
		return "stage queue"
	case requests.StageFirst, requests.StagePrefill:
		return "stage prefill"
	}
	return "stage decode"
}

// requestTables lists the figures of requests.
func requestTables(in Input) []table {
	if in.Requests == nil {
		return nil
	}
	return []table{delayTable(in), slowTable(in), routeTable(in)}
}

func delayTable(in Input) table {
	t := table{Key: "delays", Title: "What holds requests up", Columns: []column{
		{"What", "text"},
		{"Of their time", "share"},
		{"Requests", "count"},
		{"p50", "ns"},
		{"p99", "ns"},
		{"Shown by", "text"},
		{"Without it", "text"},
		{"Change", "text"},
	}}
	for i := range in.Delays {
		d := &in.Delays[i]
		t.Rows = append(t.Rows, []any{d.Title, d.Share, d.Requests, d.P50, d.P99, d.Proof, d.Without, d.Change})
	}
	return t
}

func slowTable(in Input) table {
	t := table{Key: "requests", Title: "Requests, the slowest first", Columns: []column{
		{"Latency", "ns"},
		{"First token", "ns"},
		{"Per token", "ns"},
		{"Longest gap", "ns"},
		{"Queue", "ns"},
		{"Prefill", "ns"},
		{"In", "count"},
		{"Out", "count"},
		{"Others", "count"},
		{"Result", "text"},
		{"Begins", "at"},
		{"Route", "code"},
		{"Model", "code"},
		{"Id", "code"},
	}, Note: "Others were in progress when it arrived. In and Out are tokens. Queue and Prefill are the engine's, " +
		"where it told them. Begins is after the start of the window."}
	content := in.Requests.Content > 0
	if content {
		t.Columns = append(t.Columns, column{"Prompt", "text"}, column{"Answer", "text"})
	}
	known := func(n uint64) any {
		if n == 0 {
			return nil
		}
		return n
	}
	for _, r := range in.Requests.Rows() {
		result := format.Clean(r.Outcome)
		if r.Outcome == "complete" {
			result = fmt.Sprint(r.Status)
		}
		if r.Retry > 0 {
			result += fmt.Sprintf(", retry %d", r.Retry)
		}
		var queue, prefill any
		if e := r.Engine; e != nil {
			queue, prefill = known(e.Queue), known(e.Prefill)
		}
		t.Rows = append(t.Rows, []any{
			r.Latency, known(r.TTFT), known(r.TPOT), known(r.LongestGap), queue, prefill, known(uint64(r.InputTokens)),
			known(uint64(r.OutputTokens)), r.Ahead, result, r.Received - min(r.Received, in.Timeline.From),
			format.Clean(r.Route), format.Clean(r.Model), format.Clean(r.ID),
		})
		if content {
			row := &t.Rows[len(t.Rows)-1]
			*row = append(*row, format.Clean(r.Prompt), format.Clean(r.Answer))
		}
	}
	return t
}

func routeTable(in Input) table {
	t := table{Key: "routes", Title: "Requests by route", Columns: []column{
		{"Route", "code"},
		{"Model", "code"},
		{"Requests", "count"},
		{"TTFT p50", "ns"},
		{"TTFT p99", "ns"},
		{"TPOT p50", "ns"},
		{"TPOT p99", "ns"},
		{"Latency p50", "ns"},
		{"Latency p99", "ns"},
	}}
	for i := range in.Requests.Groups {
		g := &in.Requests.Groups[i]
		cells := []any{format.Clean(g.Route), format.Clean(g.Model), g.Count}
		for _, q := range []*requests.Quantiles{g.TTFT, g.TPOT, g.Latency} {
			if q == nil {
				cells = append(cells, nil, nil)
			} else {
				cells = append(cells, q.P50, q.P99)
			}
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}
