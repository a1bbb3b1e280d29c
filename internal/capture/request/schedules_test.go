package request_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// scheduled is a request of TestSchedules, and what its client knows.
type scheduled struct {
	tokens int
	leaves bool
	id     string
	sent   uint64
}

// ask asks for a completion, and leaves after its beginning where it is to.
func (s *scheduled) ask(c *http.Client, port string) error {
	s.sent = clock.Monotonic()
	body := fmt.Sprintf(`{"stream": true, "max_tokens": %d, "prompt": "w w w"}`, s.tokens)
	resp, err := c.Post("http://127.0.0.1:"+port+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	part := make([]byte, 48)
	n, err := io.ReadFull(resp.Body, part)
	if err == nil && !s.leaves {
		var rest []byte
		rest, err = io.ReadAll(resp.Body)
		if !bytes.HasSuffix(rest, []byte("[DONE]\n\n")) {
			return fmt.Errorf("the answer ends with %q", rest)
		}
	}
	_, id, _ := strings.Cut(string(part[:n]), `"id": "`)
	s.id, _, _ = strings.Cut(id, `"`)
	return err
}

// engineProcesses returns the processes of a server.
func engineProcesses(t *testing.T, pid int) (all []*proc.Process) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	must.NoError(t, err)
	for _, one := range append(strings.Fields(string(text)), strconv.Itoa(pid)) {
		n, err := strconv.Atoi(one)
		must.NoError(t, err)
		p, err := proc.Describe(n)
		must.NoError(t, err)
		all = append(all, p)
	}
	return all
}

// TestSchedules: rounds of requests in random order, of one token and more, on connections that are new or used, of
// clients that leave and of those that stay; and with a source that begins in the midst of some. Each request is there
// once and has its own tokens, those that the engine tells of.
func TestSchedules(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	needs.Tool(t, "python3")
	rounds := 200
	if testing.Short() || slow() {
		rounds = 10
	}
	for script, settings := range map[string]string{
		"sglang_llm.py": `{"slots": 3, "step_ms": 1, "prefill_ms": 0, "usage": 0, "merge": 3}`,
		"llm.py":        `{"slots": 3, "step_ms": 1, "prefill_ms": 0, "usage": 0, "merge": 3}`,
	} {
		t.Run(script, func(t *testing.T) {
			python := child.Start(t, exec.CommandContext(t.Context(), "python3",
				"../../../testdata/engineserver/"+script, settings))
			port := python.Line()
			for i := 0; i < rounds; {
				i += scheduleRounds(t, rand.New(rand.NewPCG(uint64(i), 7)), engineProcesses(t, python.PID), port)
			}
		})
	}
}

// scheduleRounds has clients ask in some rounds, and returns how many.
func scheduleRounds(t *testing.T, random *rand.Rand, server []*proc.Process, port string) int {
	t.Helper()
	const rounds = 10
	var all []*scheduled
	var wait sync.WaitGroup
	round := func() {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: random.IntN(2) == 0}}
		for range 1 + random.IntN(3) {
			var of []*scheduled
			for range 1 + random.IntN(3) {
				of = append(of, &scheduled{tokens: 1 + random.IntN(7), leaves: random.IntN(6) == 0})
			}
			all = append(all, of...)
			pause := time.Duration(random.IntN(4)) * time.Millisecond
			wait.Go(func() {
				for _, s := range of {
					if err := s.ask(c, port); err != nil {
						t.Error(err)
					}
					time.Sleep(pause)
				}
			})
		}
	}
	round() // its requests may be under way when the source begins
	time.Sleep(time.Duration(random.IntN(5)) * time.Millisecond)
	source, err := request.New(request.Options{Mode: mode(t)})
	must.NoError(t, err)
	defer func() { _ = source.Close() }()
	ended := map[string]int{}
	source.OnEnd(func(r *recording.Request) { ended[r.ID]++ })
	for _, p := range server {
		must.NoError(t, source.Follow(p))
	}
	begun := clock.Monotonic()
	for range rounds {
		round()
		wait.Wait()
		source.Feed(0, func([]event.Event) {})
	}
	want, deadline := 0, time.Now().Add(10*time.Second)
	for _, s := range all {
		if s.sent > begun {
			want++
		}
	}
	for len(ended) < want && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
		source.Feed(0, func([]event.Event) {})
	}
	found := map[string]recording.Request{}
	for _, r := range source.Requests(0, 1<<62) {
		if _, twice := found[r.ID]; twice {
			t.Errorf("%s is there twice", r.ID)
		}
		found[r.ID] = r
	}
	_, requests := source.Steps(0, 1<<62)
	engine := recording.ByID(requests)
	for _, s := range all {
		r, there := found[s.id]
		q := engine[s.id]
		switch {
		case s.sent < begun && !there: // it was under way
		case s.sent < begun && int(r.OutputTokens) <= s.tokens:
		case !there || ended[s.id] != 1:
			t.Errorf("%+v has ended %d times", s, ended[s.id])
		case s.leaves && (r.Outcome == "aborted" || r.Outcome == "complete") && int(r.OutputTokens) <= s.tokens:
		case int(r.OutputTokens) != s.tokens || r.TokenSource != "engine" || r.Outcome != "complete" ||
			r.FirstToken == 0:
			t.Errorf("%+v is %+v, %+v", s, r, q)
		case q == nil || int(q.OutputTokens) != s.tokens || q.Finish != "length" || int(q.Steps) != s.tokens ||
			q.First == 0:
			t.Errorf("%+v is %+v", s, q)
		}
	}
	losses := slices.DeleteFunc(source.Losses(), func(l loss.Loss) bool { return l.Reason == loss.ExpensivePoint })
	if len(losses) > 0 || t.Failed() {
		t.Fatalf("losses %+v", losses)
	}
	return rounds
}
