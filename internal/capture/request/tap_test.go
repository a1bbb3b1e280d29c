package request_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// engineServer runs testdata/engineserver/server.py to its end, watched.
func engineServer(t *testing.T, args ...string) *request.Source {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	needs.Tool(t, "python3")
	python := child.Start(t, exec.CommandContext(t.Context(), "python3",
		append([]string{"../../../testdata/engineserver/server.py"}, args...)...))
	python.Line()
	source, err := request.New(request.Options{Mode: mode(t)})
	must.NoError(t, err)
	t.Cleanup(func() { _ = source.Close() })
	p, err := proc.Describe(python.PID)
	must.NoError(t, err)
	must.NoError(t, source.Follow(p))
	_, err = io.WriteString(python.In, "go\n")
	must.NoError(t, err)
	if line := python.Line(); line != "done" {
		t.Fatalf("it ends with %q", line)
	}
	source.Feed(0, func([]event.Event) {})
	return source
}

// TestEngine: six requests of five tokens each on an engine with two slots, of which every other has a prompt of 12 KB.
func TestEngine(t *testing.T) {
	before := clock.Monotonic()
	gap := "10" // ms
	if slow() {
		gap = "200" // else the engine is done with one request before it is asked for the next
	}
	source := engineServer(t, "6", "5", gap)
	steps, all := source.Steps(before, clock.Monotonic())
	if len(all) != 6 {
		t.Fatalf("%d requests: %+v; losses %v", len(all), all, source.Losses())
	}
	tokens, waiting := uint32(0), uint32(0)
	for i, s := range steps {
		tokens += s.Tokens
		waiting = max(waiting, s.Waiting)
		if s.Requests == 0 || s.Requests > 2 || s.Running != s.Requests || s.KVPermille != 500 || s.Made > s.TS ||
			s.TS-s.Made > uint64(time.Second) {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	if tokens != 30 || waiting < 3 {
		t.Errorf("%d tokens in %d steps, up to %d requests waited", tokens, len(steps), waiting)
	}
	queued := 0
	for i, q := range all {
		checkEngineRequest(t, i, &q)
		if q.Scheduled-q.Queued > uint64(20*time.Millisecond) {
			queued++
		}
	}
	if queued < 4 {
		t.Errorf("%d requests waited for a slot: %+v", queued, all)
	}
	text, err := json.Marshal(all)
	if err != nil || bytes.Contains(text, []byte("31337")) {
		t.Errorf("%s, %v", text, err)
	}
	if l := source.Losses(); len(l) > 0 {
		t.Error(l)
	}
}

// TestLargeBatch: the tokens of all requests of a batch of a thousand are known, though a step's message is 64 KB long.
func TestLargeBatch(t *testing.T) {
	const requests, tokens = 1000, 8
	before := clock.Monotonic()
	source := engineServer(t, fmt.Sprint(requests), fmt.Sprint(tokens), "0", fmt.Sprint(requests))
	steps, all := source.Steps(before, clock.Monotonic())
	batch := uint32(0)
	for _, s := range steps {
		batch = max(batch, s.Requests)
	}
	ended := 0
	for _, q := range all {
		if q.OutputTokens == tokens && q.Steps == tokens && q.Finish == "length" && q.InputTokens == 7 {
			ended++
		}
	}
	if l := source.Losses(); ended != requests || batch != requests || len(l) > 0 {
		t.Errorf("%d of %d requests are whole, of batches of up to %d; losses %v", ended, len(all), batch, l)
	}
}

func checkEngineRequest(t *testing.T, i int, q *recording.EngineRequest) {
	t.Helper()
	want := uint32(7)
	if i%2 == 1 {
		want = 4000
	}
	if !strings.HasSuffix(q.ID, "-0-deadbeef") || q.InputTokens != want || q.CachedTokens != 4 || q.OutputTokens != 5 ||
		q.Steps != 5 || q.Finish != "length" || q.Preemptions != 0 {
		t.Errorf("%+v", q)
	}
	if q.Asked == 0 || q.Asked > q.Queued || q.Queued > q.Scheduled || q.Scheduled > q.First || q.First > q.Last {
		t.Errorf("times are out of order: %+v", q)
	}
}

// TestStrangeEngine: messages of another shape are left alone, and it says so.
func TestStrangeEngine(t *testing.T) {
	source := engineServer(t, "2", "20", "1", "strange")
	if steps, _ := source.Steps(0, clock.Monotonic()); len(steps) > 0 {
		t.Errorf("%+v", steps)
	}
	if said := source.TapDetail(); !strings.Contains(said, "unknown shape") {
		t.Errorf("it says %q", said)
	}
}
