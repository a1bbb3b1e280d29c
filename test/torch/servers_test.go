package torch

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/test/watch"
)

// What is asked of a server, and how near its times must be to those of its clients: the median, since the rest of them
// are waits of the clients for a CPU on a machine that is full.
const (
	maxTokens   = 24
	firstWithin = 50 * time.Millisecond
	gapWithin   = 10 * time.Millisecond
)

// TestLlamaServer holds the requests of llama.cpp's server on the CPU against its clients.
func TestLlamaServer(t *testing.T) {
	watch.NeedRoot(t)
	program, python := os.Getenv("LLAMA_SERVER"), cmp.Or(os.Getenv("TORCH_PYTHON"), "python3")
	if program == "" {
		t.Skip("LLAMA_SERVER names no llama-server: make test-torch does, where scripts/llama-server.sh can build one")
	}
	if out, err := exec.Command(python, "-c", "import gguf, numpy").CombinedOutput(); err != nil {
		t.Skipf("%s lacks the package gguf, which writes a model: %v\n%s", python, err, out)
	}
	model := filepath.Join(t.TempDir(), "model.gguf")
	if out, err := exec.Command(python, "../gpu/servers/random_gguf.py", model, "2", "128").CombinedOutput(); err != nil {
		t.Fatalf("make a model: %v\n%s", err, out)
	}
	port := freePort(t)
	compareWithClients(t, exec.CommandContext(
		t.Context(), program, "-m", model, "--host", "127.0.0.1", "--port", port, "-np", "16", "-c", "16384", "-t", "1",
		"--threads-http", "20",
	), port, "m")
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// answer is what a client saw.
type answer struct {
	id     string
	sent   uint64
	tokens []uint64 // when it had read each part with content
	usage  uint32   // tokens, as the server counts them; 0: it does not
}

// compareWithClients starts a server and the daemon, asks on 1 and on 16 streams at a time, and compares what is recorded
// with what the clients saw by their own clock.
func compareWithClients(t *testing.T, cmd *exec.Cmd, port, model string) {
	log, err := os.Create(filepath.Join(t.TempDir(), "server"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	server := child.Start(t, cmd)
	go func() { // what it prints is of no use, but it may not wait for a reader
		for server.Out.Scan() {
		}
	}()
	url := "http://127.0.0.1:" + port + "/v1/chat/completions"
	for end := time.Now().Add(watch.Patience); ; time.Sleep(200 * time.Millisecond) {
		if _, err = request(url, model); err == nil {
			break
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server does not answer: %v\n%s", err, text[max(0, len(text)-3000):])
		}
	}
	d := watch.Start(t, server.PID, "--gpu", "off", "--pin-level", "requests=all")
	var all []answer
	for _, streams := range []int{1, 16} {
		before := len(all)
		for range 2 {
			got, errs, wait := make([]answer, streams), make([]error, streams), sync.WaitGroup{}
			for i := range streams {
				wait.Go(func() { got[i], errs[i] = request(url, model) })
			}
			wait.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			all = append(all, got...)
		}
		var rec *recording.Recording
		d.Until(fmt.Sprintf("%d requests to end", len(all)), func() bool {
			rec = d.Recording(server.PID, api.Window{Last: time.Hour})
			return !slices.ContainsFunc(rec.Meta.Requests, func(r recording.Request) bool { return r.End == 0 }) && len(rec.Meta.Requests) >= len(all)
		})
		if len(rec.Meta.Requests) != len(all) {
			t.Errorf("%d requests are recorded, and %d were asked", len(rec.Meta.Requests), len(all))
		}
		compare(t, rec, streams, all[before:])
	}
	d.Stop()
}

// request asks for a stream.
func request(url, model string) (out answer, err error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "stream": true, "max_tokens": maxTokens, "ignore_eos": true,
		"stream_options": map[string]any{"include_usage": true},
		"messages":       []any{map[string]any{"role": "user", "content": strings.Repeat("t0042 ", 30)}},
	})
	if err != nil {
		return out, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	out.sent = clock.Monotonic()
	resp, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	defer func() { _ = resp.Body.Close() }()
	if out.id = resp.Header.Get("X-Request-Id"); resp.StatusCode != http.StatusOK {
		return out, errors.New(resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		text, found := strings.CutPrefix(lines.Text(), "data: ")
		now := clock.Monotonic()
		var part struct {
			ID      string
			Choices []struct{ Delta struct{ Content string } }
			Usage   struct {
				Tokens uint32 `json:"completion_tokens"`
			}
		}
		if !found || json.Unmarshal([]byte(text), &part) != nil {
			continue
		}
		out.id, out.usage = cmp.Or(out.id, part.ID), max(out.usage, part.Usage.Tokens)
		if len(part.Choices) > 0 && part.Choices[0].Delta.Content != "" {
			out.tokens = append(out.tokens, now)
		}
	}
	if err := lines.Err(); err != nil {
		return out, err
	}
	if len(out.tokens) == 0 {
		return out, errors.New("an answer without content")
	}
	return out, nil
}

// compare finds each client's request by its id.
func compare(t *testing.T, rec *recording.Recording, streams int, clients []answer) {
	t.Helper()
	written := map[uint64][]uint64{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.RequestChunk {
			for range e.Args[1] { // parts in one write
				written[e.Args[0]] = append(written[e.Args[0]], e.End())
			}
		}
	}
	byID := map[string]*recording.Request{}
	for i := range rec.Meta.Requests {
		byID[rec.Meta.Requests[i].ID] = &rec.Meta.Requests[i]
	}
	var first, ttft, gaps []float64
	tokens, parts := uint32(0), 0
	for _, c := range clients {
		r := byID[c.id]
		if r == nil {
			t.Errorf("the request %q is not recorded", c.id)
			continue
		}
		at := written[r.Number]
		want := cmp.Or(c.usage, uint32(len(c.tokens)))
		if r.Outcome != "complete" || r.OutputTokens != want || len(at) != len(c.tokens) || r.Unreadable {
			t.Errorf("a client saw %d parts and %d tokens; recorded are %d parts of %+v", len(c.tokens), want, len(at), *r)
			continue
		}
		tokens, parts = tokens+r.OutputTokens, parts+len(at)
		for i := range at {
			if at[i] > c.tokens[i]+uint64(time.Millisecond) {
				t.Errorf("part %d was written %d ns after the client had read it", i, at[i]-c.tokens[i])
			}
			if i > 0 {
				gaps = append(gaps, math.Abs(float64(c.tokens[i]-c.tokens[i-1])-float64(at[i]-at[i-1])))
			}
		}
		first = append(first, float64(c.tokens[0])-float64(at[0]))
		ttft = append(ttft, float64(r.TTFT()))
	}
	if len(first) == 0 || len(gaps) == 0 {
		t.Fatalf("%d first tokens and %d gaps to compare", len(first), len(gaps))
	}
	of := func(v []float64, percent int) float64 {
		slices.Sort(v)
		return v[(len(v)*percent+99)/100-1] / 1e6
	}
	t.Logf(
		"%d streams: %d requests, %d tokens, %d parts; TTFT p50 %.1f ms; a client has the first token p50 %.3f ms, p99 %.3f ms "+
			"after its write; %d gaps differ by p50 %.3f ms, p99 %.3f ms",
		streams, len(first), tokens, parts, of(ttft, 50), of(first, 50), of(first, 99), len(gaps), of(gaps, 50), of(gaps, 99),
	)
	if of(first, 50) > firstWithin.Seconds()*1e3 || of(gaps, 50) > gapWithin.Seconds()*1e3 {
		t.Errorf("%d streams: times are not those of the clients", streams)
	}
}
