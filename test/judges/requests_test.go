package judges

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
)

// TestPerfettoRequests: requests that overlap are on different tracks, each with its phases inside of it.
func TestPerfettoRequests(t *testing.T) {
	rec := exporttest.Decode(20)
	m := &rec.Meta
	at := func(ms uint64) uint64 { return m.From + ms*1e6 }
	request := func(number, from, to uint64) recording.Request {
		r := recording.Request{
			Number: number, PID: m.Target, Received: at(from), Method: "POST", Route: "/v1/completions",
			Outcome: "open",
		}
		if to > 0 {
			r.End, r.Status, r.Outcome = at(to), 200, "complete"
		}
		return r
	}
	engine, stream, document := request(1, 1, 9), request(2, 2, 8), request(3, 9, 12)
	engine.ID, engine.Model = "cmpl-1", "llama"
	stream.Asked, stream.FirstToken, stream.LastToken = at(3), at(5), at(7)
	document.Asked = at(10)
	m.Requests = []recording.Request{engine, stream, document, request(4, 12, 0)}
	m.EngineRequests = []recording.EngineRequest{
		{ID: "cmpl-1-0", Asked: at(2), Scheduled: at(4), First: at(5), Last: at(8)},
	}
	m.Steps = []recording.Step{{TS: at(5), PID: m.Target, Requests: 1, Stats: true, Waiting: 2, KVPermille: 500}}
	var its struct {
		Problems []string       `json:"problems"`
		Counts   map[string]int `json:"counts"`
		Requests [][][]any      `json:"requests"`
	}
	judge(t, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto_judge.py",
		exported(t, rec, "perfetto"), &its)
	for _, p := range its.Problems {
		t.Error(p)
	}
	end := float64(m.To-m.From) / 1e6
	want := []string{
		"POST /v1/completions 2-8, read 2-3, queue and prefill 3-5, decode 5-7, finish 7-8",
		"POST /v1/completions llama 1-9, API server 1-2, queue 2-4, prefill 4-5, decode 5-8, API server 8-9, " +
			"POST /v1/completions 9-12, read 9-10, answer 10-12, " +
			fmt.Sprintf("POST /v1/completions 12-%g, read, answer 12-%g", end, end),
	}
	var got []string
	for _, track := range its.Requests {
		var slices []string
		for _, s := range track {
			ms := func(v any) float64 { return (v.(float64) - float64(m.From)) / 1e6 }
			slices = append(slices, fmt.Sprintf("%s %g-%g", s[0], ms(s[1]), ms(s[2])))
		}
		got = append(got, strings.Join(slices, ", "))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("tracks\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
