package judges

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/otlp"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// asked is a question as openai_judge.py saw it.
type asked struct {
	Model   string   `json:"model"`
	Sent    uint64   `json:"sent"`
	Tokens  []uint64 `json:"tokens"`
	Counted uint64   `json:"counted"` // when the account of tokens came
	Input   uint32   `json:"input"`
	Output  uint32   `json:"output"`
	End     string   `json:"end"`
}

// TestOpenAIClient: what OpenAI's own client saw of its requests is what was recorded of them: plain, streamed, sent
// again after errors, left, and many at a time. Each has its span, and nothing that was asked is in one.
func TestOpenAIClient(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	server := child.Start(t, exec.Command(needs.Tool(t, "python3"), "../../testdata/sseserver/server.py"))
	url := "http://127.0.0.1:" + server.Line()
	source := follow(t, server.PID)
	meta := recording.Meta{From: clock.Monotonic(), WallFrom: time.Now().UnixNano()}
	var questions []asked
	judge(t, "openai", "openai_judge.py", url, &questions)

	requests := len(questions) + 2 // one is sent three times
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		source.Feed(0, func([]event.Event) {})
		meta.Requests = source.Requests(0, 1<<62)
		open := slices.ContainsFunc(meta.Requests, func(r recording.Request) bool { return r.Outcome == "open" })
		if len(meta.Requests) >= requests && !open {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests instead of %d: %+v", len(meta.Requests), requests, meta.Requests)
		}
	}
	byModel := map[string][]recording.Request{}
	for _, r := range meta.Requests {
		byModel[r.Model] = append(byModel[r.Model], r)
	}
	for _, q := range questions {
		all := byModel[q.Model]
		if q.Model == "retried" && len(all) == 3 {
			for i, r := range all {
				if int(r.Retry) != i || i < 2 && (r.Status != 503 || r.Streamed) {
					t.Errorf("try %d: %+v", i, r)
				}
			}
			all = all[2:]
		}
		if len(all) != 1 {
			t.Errorf("%d requests of %q: %+v", len(all), q.Model, all)
			continue
		}
		checkAsked(t, &q, &all[0])
	}
	meta.To = clock.Monotonic()
	var spans bytes.Buffer
	must.NoError(t, otlp.WriteJSON(&spans, &meta))
	if n := strings.Count(spans.String(), `"spanId"`); n != requests || strings.Contains(spans.String(), "canary") {
		t.Errorf("%d spans instead of %d: %s", n, requests, spans.String())
	}
}

// follow records the requests that a process serves.
func follow(t *testing.T, pid int) *request.Source {
	t.Helper()
	mode, err := uprobe.Detect()
	must.NoError(t, err)
	source, err := request.New(request.Options{Mode: mode})
	must.NoError(t, err)
	t.Cleanup(func() { _ = source.Close() })
	p, err := proc.Describe(pid)
	must.NoError(t, err)
	must.NoError(t, source.Follow(p))
	return source
}

func checkAsked(t *testing.T, q *asked, r *recording.Request) {
	t.Helper()
	if r.Outcome != q.End || r.Status != 200 || r.Streamed != (len(q.Tokens) > 0) {
		t.Errorf("%q: %+v", q.Model, *r)
	}
	if q.End == "complete" && (r.InputTokens != q.Input || r.OutputTokens != q.Output || r.TokenSource != "usage") {
		t.Errorf("%q has %d and %d tokens: %+v", q.Model, q.Input, q.Output, *r)
	}
	if len(q.Tokens) == 0 {
		return
	}
	if q.End == "complete" && (int(r.Parts) != len(q.Tokens) || r.LastToken < r.FirstToken || r.LastToken > q.Counted) ||
		int(r.Parts) < len(q.Tokens) {
		t.Errorf("%q: %d parts of %d, the last at %d: %+v", q.Model, r.Parts, len(q.Tokens), q.Tokens, *r)
	}
	// The server stamps a write when it returns, which is before it begins the next one.
	if r.Received < q.Sent || r.FirstToken < r.Received || r.FirstToken > q.Tokens[1] {
		t.Errorf("%q was sent at %d, its first token came at %d: %+v", q.Model, q.Sent, q.Tokens[0], *r)
	}
}
