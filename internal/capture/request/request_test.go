package request_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// server is testdata/sseserver/server.py, watched.
type server struct {
	t      testing.TB
	url    string
	source *request.Source
	p      *proc.Process
	events []event.Event
}

// mode is how probes are attached here.
func mode(t testing.TB) uprobe.Mode {
	t.Helper()
	m, err := uprobe.Detect()
	must.NoError(t, err)
	return m
}

func start(t testing.TB, args ...string) *server {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	needs.Tool(t, "python3")
	python := child.Start(t, exec.CommandContext(t.Context(), "python3",
		append([]string{"../../../testdata/sseserver/server.py"}, args...)...))
	s := &server{t: t, url: "http://127.0.0.1:" + python.Line()}
	var err error
	s.p, err = proc.Describe(python.PID)
	must.NoError(t, err)
	s.source, err = request.New(request.Options{Mode: mode(t)})
	must.NoError(t, err)
	t.Cleanup(func() { _ = s.source.Close() })
	must.NoError(t, s.source.Follow(s.p))
	return s
}

func (s *server) drain() {
	s.source.Feed(0, func(batch []event.Event) { s.events = append(s.events, batch...) })
}

// requests returns what was recorded once n requests are over.
func (s *server) requests(n int) []recording.Request {
	s.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		s.drain()
		all := s.source.Requests(0, 1<<62)
		over := 0
		for _, r := range all {
			if r.Outcome != "open" {
				over++
			}
		}
		if over >= n {
			return all
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d of %d requests are over: %+v; %v", over, n, all, s.source.Losses())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// seen is what a client saw of a request.
type seen struct {
	sent, end uint64
	tokens    []uint64 // when each was read
	written   []uint64 // before each was written, as the server of HTTP/2 says
}

func ask(c *http.Client, url string, question map[string]any) (out seen, err error) {
	body, err := json.Marshal(question)
	if err != nil {
		return out, err
	}
	out.sent = clock.Monotonic()
	resp, err := c.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"content": "secret"`) {
			out.tokens = append(out.tokens, clock.Monotonic())
		}
	}
	out.end = clock.Monotonic()
	_, err = io.Copy(io.Discard, resp.Body)
	return out, err
}

// near reports whether a server's time is that of a client: not later, and not much earlier. The bound is for a machine
// on which others work; BenchmarkClocks says what it is on an idle one.
func near(server, client uint64) bool {
	bound := 100 * time.Millisecond
	if slow() {
		bound = 5 * time.Second
	}
	return server <= client+uint64(time.Millisecond) && client <= server+uint64(bound)
}

// slow reports whether the processor is emulated.
func slow() bool { return os.Getenv("INFERSCOPE_TEST_SLOW") != "" }

// TestTimes: every way to write, on a connection that is kept alive, against a client's clock.
func TestTimes(t *testing.T) {
	s := start(t)
	c := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	ways := []string{"write", "writev", "send", "sendmsg"}
	var clients []seen
	for _, way := range ways {
		got, err := ask(c, s.url, map[string]any{
			"model":      "m",
			"stream":     true,
			"max_tokens": 5,
			"gap_ms":     4,
			"prefill_ms": 30,
			"write":      way,
			"prompt":     strings.Repeat("secret ", 2000),
		})
		must.NoError(t, err)
		clients = append(clients, got)
	}
	all := s.requests(len(ways))
	if len(all) != len(ways) {
		t.Fatalf("%d requests", len(all))
	}
	for i, r := range all {
		want := clients[i]
		checkTimes(t, ways[i], &r, &want)
		checkChunks(t, s.events, &r)
	}
	text, err := json.Marshal(all)
	if err != nil || bytes.Contains(text, []byte("secret")) {
		t.Errorf("content was kept: %s, %v", text, err)
	}
}

// checkTimes compares a stream of five tokens, the first of them after 30 ms, with what its client saw.
func checkTimes(t *testing.T, name string, r *recording.Request, want *seen) {
	t.Helper()
	if r.Outcome != "complete" || r.Status != 200 || r.Model != "m" || !r.Streamed || r.InputTokens != 5 ||
		r.OutputTokens != 5 || r.TokenSource != "usage" || r.Parts != 5 {
		t.Errorf("%s: %+v", name, *r)
	}
	if !near(r.FirstToken, want.tokens[0]) || !near(r.LastToken, want.tokens[4]) || !near(r.End, want.end) ||
		!near(want.sent, r.Received) {
		t.Errorf("%s: times %+v of a client who saw %+v", name, *r, want)
	}
	if after := r.FirstToken - r.FirstByte; after < uint64(25*time.Millisecond) {
		t.Errorf("%s: the first token came %d ns after the header, with 30 ms in between", name, after)
	}
}

func checkChunks(t *testing.T, events []event.Event, r *recording.Request) {
	t.Helper()
	var ends []uint64
	parts := uint64(0)
	for i := range events {
		if e := &events[i]; e.Kind == event.RequestChunk && e.Args[0] == r.Number {
			ends, parts = append(ends, e.End()), parts+e.Args[1]
		}
	}
	if len(ends) != int(r.Writes) || parts != uint64(r.Parts) || !slices.IsSorted(ends) || ends[0] != r.FirstToken ||
		ends[len(ends)-1] != r.LastToken {
		t.Errorf("request %d: chunks at %v with %d parts, of %+v", r.Number, ends, parts, *r)
	}
}

// TestStreams: numbers are exact with many streams at a time.
func TestStreams(t *testing.T) { manyStreams(t, start(t), &http.Transport{}) }

func manyStreams(t *testing.T, s *server, transport *http.Transport) {
	total := 0
	for _, streams := range []int{1, 16, 256} {
		var wait sync.WaitGroup
		errs := make(chan error, streams)
		clients, lock := map[string]seen{}, sync.Mutex{}
		for i := range streams {
			wait.Go(func() {
				own := transport.Clone()
				own.DisableKeepAlives = i%2 == 0
				c := &http.Client{Transport: own}
				for j := range 2 {
					model := fmt.Sprintf("%d streams, %d-%d", streams, i, j)
					got, err := ask(c, s.url,
						map[string]any{"model": model, "stream": true, "max_tokens": 20, "gap_ms": 2})
					if err == nil && len(got.tokens) != 20 {
						err = fmt.Errorf("the client saw %d tokens", len(got.tokens))
					}
					lock.Lock()
					clients[model] = got
					lock.Unlock()
					errs <- err
				}
				c.CloseIdleConnections()
			})
			if i%16 == 15 {
				s.drain()
			}
		}
		go func() { wait.Wait(); close(errs) }()
		for err := range errs {
			if err != nil {
				t.Error(err)
			}
			s.drain()
		}
		total += 2 * streams
		n := 0
		all := s.requests(total)
		for _, r := range all {
			if _, ok := clients[r.Model]; !ok {
				continue
			}
			n++
			if r.Outcome != "complete" || r.OutputTokens != 20 || r.Parts != 20 || r.TokenSource != "usage" {
				t.Errorf("%d streams: %+v", streams, r)
			}
		}
		if n != 2*streams {
			t.Errorf("%d requests instead of %d; %v", n, 2*streams, s.source.Losses())
		}
		first, gaps := s.errors(all, clients)
		if len(first) != 2*streams || len(gaps) != 2*streams*19 {
			t.Errorf("%d first tokens and %d gaps compared", len(first), len(gaps))
			continue
		}
		t.Logf(
			"%d streams: first token p50 %.0f us, p99 %.0f us from the client's; gaps p50 %.0f us, p99 %.0f us",
			streams, quantile(first, 50), quantile(first, 99), quantile(gaps, 50), quantile(gaps, 99),
		)
		// Most are the wait of the clients for a CPU, with many streams all of it: the strict bounds are for an idle
		// machine, in BenchmarkClocks.
		if !slow() && streams <= 16 && (quantile(first, 50) > 50_000 || quantile(gaps, 50) > 10_000) {
			t.Errorf("%d streams: times are not those of the clients", streams)
		}
	}
}

// errors returns by how much the times of first tokens and the gaps behind them differ from those that clients saw, by
// model, in us.
func (s *server) errors(all []recording.Request, clients map[string]seen) (first, gaps []float64) {
	chunks := map[uint64][]uint64{} // when each was written
	for i := range s.events {
		if e := &s.events[i]; e.Kind == event.RequestChunk {
			chunks[e.Args[0]] = append(chunks[e.Args[0]], e.End())
		}
	}
	for _, r := range all {
		client, written := clients[r.Model], chunks[r.Number]
		if len(client.tokens) == 0 || len(client.tokens) != len(written) {
			continue
		}
		first = append(first, math.Abs(float64(client.tokens[0])-float64(written[0]))/1000)
		for i := 1; i < len(written); i++ {
			gap := float64(client.tokens[i]-client.tokens[i-1]) - float64(written[i]-written[i-1])
			gaps = append(gaps, math.Abs(gap)/1000)
		}
	}
	slices.Sort(first)
	slices.Sort(gaps)
	return first, gaps
}

// quantile is of sorted values.
func quantile(v []float64, percent int) float64 { return v[(len(v)*percent+99)/100-1] }

// TestClientLeaves: a client that goes away in mid-stream, and a server that dies.
func TestClientLeaves(t *testing.T) {
	s := start(t)
	body := `{"model":"m","stream":true,"max_tokens":100000,"gap_ms":2}`
	resp, err := http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(body))
	must.NoError(t, err)
	if _, err := io.ReadFull(resp.Body, make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	r := s.requests(1)[0]
	if r.Outcome != "aborted" || r.Parts == 0 || r.TokenSource != "chunks" || r.FirstToken == 0 {
		t.Errorf("%+v", r)
	}
	if resp, err = http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(body)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	s.drain()
	s.source.Forget(s.p)
	if all := s.requests(2); all[1].Outcome != "aborted" {
		t.Errorf("%+v", all)
	}
}

// TestOff: nothing is recorded at the lowest level, nor of processes that are not followed.
func TestOff(t *testing.T) {
	s := start(t)
	must.NoError(t, s.source.SetLevel(len(s.source.Levels())-1))
	question := map[string]any{"model": "off", "stream": true}
	if _, err := ask(http.DefaultClient, s.url, question); err != nil {
		t.Fatal(err)
	}
	must.NoError(t, s.source.SetLevel(0))
	question["model"] = "on"
	if _, err := ask(http.DefaultClient, s.url, question); err != nil {
		t.Fatal(err)
	}
	if all := s.requests(1); len(all) != 1 || all[0].Model != "on" {
		t.Errorf("%+v", all)
	}
}

// TestOthersAreNotSeen: a server that is no target is not looked at.
func TestOthersAreNotSeen(t *testing.T) {
	s := start(t)
	other := start(t)
	s.source.Forget(s.p)
	if _, err := ask(http.DefaultClient, s.url, map[string]any{"stream": true}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(http.DefaultClient, other.url, map[string]any{"model": "watched", "stream": true}); err != nil {
		t.Fatal(err)
	}
	if all := other.requests(1); len(all) != 1 || all[0].Model != "watched" {
		t.Errorf("%+v", all)
	}
	s.drain()
	if all := s.source.Requests(0, 1<<62); len(all) > 0 || len(s.events) > 0 {
		t.Errorf("%+v, %+v", all, s.events)
	}
}

// TestLongUpload: a socket that reads what begins no request is looked at once a second, and followed from its next
// request on.
func TestLongUpload(t *testing.T) {
	const length = 200 * 32
	s := start(t)
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	must.NoError(t, err)
	defer func() { _ = c.Close() }()
	answers := bufio.NewReader(c)
	send := func(text string) {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	// The colon is there for the server, to which the empty line makes this a field.
	const head = "POST /v1/completions?a:b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
	send("\r\n" + fmt.Sprintf(head, length)) // as if its first bytes were older than the attach
	body := `{"model":"` + strings.Repeat("m", length-len(`{"model":""}`)) + `"}`
	runs := func() overhead.Runs { return s.source.Runs(uint32(s.p.PID)) }
	for at := 0; at < length; at += 32 {
		before, end := runs().Count, time.Now().Add(time.Second)
		send(body[at : at+32])
		for runs().Count == before && time.Now().Before(end) { // until it was read by itself
			time.Sleep(50 * time.Microsecond)
		}
	}
	answered := func() {
		if resp, err := http.ReadResponse(answers, nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("the answer is %+v, %v", resp, err)
		} else if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	answered()
	// On a muted socket a transfer costs the target half of an inspected one.
	if r := runs(); r.Count < 100 || r.NS > r.Count*225 {
		t.Errorf("%d transfers cost %d ns: none was on a muted socket", r.Count, r.NS)
	}
	for end := time.Now().Add(20 * time.Second); len(s.source.Requests(0, 1<<62)) == 0; s.drain() {
		if time.Now().After(end) {
			t.Fatal("no request of the socket was seen for 20 s after its upload")
		}
		send(fmt.Sprintf(head, 2) + "{}")
		answered()
		time.Sleep(10 * time.Millisecond)
	}
}

// BenchmarkClocks says how far the times are from those of clients at 1, 16 and 256 streams: on an idle machine with a
// CPU for each client that is 1 ms at most (p99).
func BenchmarkClocks(b *testing.B) {
	for _, streams := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(streams), func(b *testing.B) {
			s := start(b)
			clients, lock := map[string]seen{}, sync.Mutex{}
			asked := 0
			for b.Loop() {
				var wait sync.WaitGroup
				for i := range streams {
					wait.Go(func() {
						model := fmt.Sprintf("%d-%d", asked, i)
						got, err := ask(
							&http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
							s.url,
							map[string]any{"model": model, "stream": true, "max_tokens": 50, "gap_ms": 20, "prefill_ms": 5},
						)
						if err != nil {
							b.Error(err)
						}
						lock.Lock()
						defer lock.Unlock()
						clients[model] = got
					})
				}
				done := make(chan struct{})
				go func() { wait.Wait(); close(done) }()
				for waiting := true; waiting; s.drain() {
					select {
					case <-done:
						waiting = false
					case <-time.After(20 * time.Millisecond):
					}
				}
				asked++
			}
			first, gaps := s.errors(s.requests(asked*streams), clients)
			for name, v := range map[string][]float64{"first": first, "gap": gaps} {
				b.ReportMetric(quantile(v, 50), name+"-p50-us")
				b.ReportMetric(quantile(v, 99), name+"-p99-us")
			}
			b.ReportMetric(quantile(gaps, 99)/1000, "gap-p99-of-1ms")
		})
	}
}
