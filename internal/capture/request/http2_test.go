package request_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/h2server"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// asker asks a server and says what its client saw.
type asker func(q h2server.Question) (seen, error)

// startHTTP2 starts testdata/h2server; follow watches it.
func startHTTP2(t testing.TB) (running h2server.Server, follow func() *server) {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	running = h2server.Start(t)
	return running, func() *server { return watched(t, running.PID) }
}

// watched is a process whose requests are followed from now on.
func watched(t testing.TB, pid int) *server {
	t.Helper()
	s := &server{t: t}
	var err error
	if s.p, err = proc.Describe(pid); err != nil {
		t.Fatal(err)
	}
	if s.source, err = request.New(request.Options{Mode: mode(t)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.source.Close() })
	must.NoError(t, s.source.Follow(s.p))
	return s
}

// askHTTP2 asks on as few connections as the server allows.
func askHTTP2(s h2server.Server) asker {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return askWith("http://"+s.HTTP, &http.Transport{Protocols: &protocols})
}

func askWith(url string, transport *http.Transport) asker {
	c := &http.Client{Transport: transport}
	return func(q h2server.Question) (out seen, err error) {
		body, err := json.Marshal(q)
		if err != nil {
			return out, err
		}
		out.sent = clock.Monotonic()
		resp, err := c.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			return out, err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.ProtoMajor != 2 {
			return out, errors.New("the answer came over " + resp.Proto)
		}
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if strings.Contains(lines.Text(), `"content":"secret"`) {
				out.read(lines.Text())
			}
		}
		out.end = clock.Monotonic()
		return out, lines.Err()
	}
}

// askGRPC asks on one connection.
func askGRPC(t testing.TB, s h2server.Server) asker {
	t.Helper()
	return dialGRPC(t, s.GRPC, insecure.NewCredentials())
}

func dialGRPC(t testing.TB, address string, trust credentials.TransportCredentials) asker {
	t.Helper()
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(trust),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(h2server.Raw{})))
	must.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return func(q h2server.Question) (out seen, err error) {
		body, err := json.Marshal(q)
		if err != nil {
			return out, err
		}
		out.sent = clock.Monotonic()
		stream, err := c.NewStream(
			context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/inference.GRPCInferenceService/ModelStreamInfer")
		if err != nil {
			return out, err
		}
		if err := errors.Join(stream.SendMsg(&body), stream.CloseSend()); err != nil {
			return out, err
		}
		for {
			var token []byte
			if err := stream.RecvMsg(&token); err != nil {
				out.end = clock.Monotonic()
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return out, err
			}
			out.read(string(token))
		}
	}
}

// read notes that a token was read, and when the server says that it was about to write it.
func (s *seen) read(token string) {
	s.tokens = append(s.tokens, clock.Monotonic())
	_, rest, _ := strings.Cut(token, `"at":`)
	at, _, _ := strings.Cut(rest, ",")
	written, _ := strconv.ParseUint(at, 10, 64) // 0: compareClocks tells
	s.written = append(s.written, written)
}

// protocols are how testdata/h2server is asked, and what is known of its answers then.
var protocols = []struct {
	name   string
	asker  func(t testing.TB, s h2server.Server) asker
	route  string
	tokens string // the source of their number
}{
	{"HTTP/2", func(_ testing.TB, s h2server.Server) asker { return askHTTP2(s) }, "/v1/chat/completions", "usage"},
	{"gRPC", askGRPC, "/inference.GRPCInferenceService/ModelStreamInfer", "chunks"},
}

// TestStreamsOfHTTP2: numbers are exact with many streams of a connection at a time, and times are those of the
// clients.
func TestStreamsOfHTTP2(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			running, follow := startHTTP2(t)
			checkStreams(t, follow(), p.asker(t, running), p.route, p.tokens)
		})
	}
}

// checkStreams asks on 1, 16 and 256 streams at a time; tokens is where their number comes from.
func checkStreams(t *testing.T, s *server, ask asker, route, tokens string) {
	t.Helper()
	total := 0
	for _, streams := range []int{1, 16, 256} {
		clients := askTogether(t, s, ask, streams)
		total += streams
		all := s.requests(total)[total-streams:]
		for i := range all {
			r := &all[i]
			if r.Outcome != "complete" || r.Status != 200 || r.Route != route || r.OutputTokens != 20 ||
				r.Parts != 20 || r.TokenSource != tokens || !r.Streamed || r.Unreadable {
				t.Fatalf("%d streams: %+v", streams, *r)
			}
			checkChunks(t, s.events, r)
		}
		compareClocks(t, s, total-streams, clients)
	}
	if all := s.source.Requests(0, 1<<62); len(all) != total {
		t.Errorf("%d requests instead of %d; %v", len(all), total, s.source.Losses())
	}
	for _, l := range s.source.Losses() {
		if l.Reason != loss.ExpensivePoint {
			t.Errorf("%+v", l)
		}
	}
}

// askTogether asks for 20 tokens on so many streams at a time, in the order of what it returns.
func askTogether(t *testing.T, s *server, ask asker, streams int) []seen {
	t.Helper()
	out := make([]seen, streams)
	errs := make([]error, streams)
	var wait sync.WaitGroup
	for i := range streams {
		wait.Go(func() {
			out[i], errs[i] = ask(h2server.Question{
				Model: "m", Stream: true, MaxTokens: 20, GapMS: 5,
				PrefillMS: 20, Prompt: strings.Repeat("secret ", 500),
			})
		})
	}
	done := make(chan struct{})
	go func() { wait.Wait(); close(done) }()
	for {
		select {
		case <-done:
			must.NoError(t, errors.Join(errs...))
			for i := range out {
				if len(out[i].tokens) != 20 {
					t.Fatalf("a client saw %d tokens", len(out[i].tokens))
				}
			}
			return out
		case <-time.After(5 * time.Millisecond):
			s.drain()
		}
	}
}

// recordedBy returns by when the first token was recorded at the latest. A time is taken when the system call returns:
// the client may have read by then, and the server's thread have lost its CPU. What the server came to after the client
// had read is in a later write, which it began after that.
func (s *seen) recordedBy() uint64 {
	for i, at := range s.written {
		if at > s.tokens[0] {
			return max(s.tokens[i], s.tokens[0]+uint64(time.Millisecond))
		}
	}
	return max(s.end, s.tokens[0]+uint64(time.Millisecond))
}

// compareClocks compares the first tokens of the requests from that one on with what servers and clients say: which
// request is whose is not known, so times are compared in their order.
func compareClocks(t *testing.T, s *server, first int, clients []seen) {
	t.Helper()
	all := s.requests(first + len(clients))[first:]
	var recorded, written, read, latest []uint64
	for i := range all {
		recorded = append(recorded, all[i].FirstToken)
		written, read = append(written, clients[i].written[0]), append(read, clients[i].tokens[0])
		latest = append(latest, clients[i].recordedBy())
	}
	late := 0
	for _, times := range [][]uint64{recorded, written, read, latest} {
		slices.Sort(times)
	}
	for i, at := range recorded {
		if written[i] == 0 || at < written[i] || at > latest[i] {
			t.Errorf("first token %d of %d: recorded %d ns after the server's time and %d ns before the client's",
				i, len(recorded), int64(at-written[i]), int64(read[i]-at))
		}
		if at > read[i]+uint64(time.Millisecond) {
			late++
		}
	}
	if late > 1 && late > len(recorded)/2 {
		t.Errorf("%d of %d first tokens were recorded after their clients had read them", late, len(recorded))
	}
}

// TestEndsOfGRPC: the code of a call is its status; a client that leaves, and one whose call is no stream.
func TestEndsOfGRPC(t *testing.T) {
	running, follow := startHTTP2(t)
	s, ask := follow(), askGRPC(t, running)
	if got, err := ask(h2server.Question{MaxTokens: 3, GapMS: 2, Fail: true}); err == nil || len(got.tokens) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := ask(h2server.Question{Fail: true}); err == nil { // without a message: trailers only
		t.Fatal("no error")
	}
	all := s.requests(2)
	for i, parts := range []uint32{3, 0} {
		if r := &all[i]; r.Status != 503 || r.Outcome != "complete" || r.Parts != parts || (r.FirstToken > 0) != (parts > 0) {
			t.Errorf("%+v", *r)
		}
	}
	c, err := grpc.NewClient(
		running.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(h2server.Raw{})))
	must.NoError(t, err)
	defer func() { _ = c.Close() }()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/a.B/C")
	must.NoError(t, err)
	body := []byte(`{"max_tokens":100000,"gap_ms":2}`)
	var token []byte
	if err := errors.Join(stream.SendMsg(&body), stream.CloseSend(), stream.RecvMsg(&token), stream.RecvMsg(&token)); err != nil {
		t.Fatal(err)
	}
	leave()
	if r := s.requests(3)[2]; r.Outcome != "aborted" || r.Parts < 2 || r.FirstToken == 0 || r.Route != "/a.B/C" {
		t.Errorf("%+v", r)
	}
	text, err := json.Marshal(s.source.Requests(0, 1<<62))
	if err != nil || bytes.Contains(text, []byte("secret")) {
		t.Errorf("content was kept: %s, %v", text, err)
	}
}

// TestLateOnHTTP2: on a connection that was in use before, streams are counted and timed; a path that the client has
// not spelt since then is not known, and none is invented.
func TestLateOnHTTP2(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			running, follow := startHTTP2(t)
			ask := p.asker(t, running)
			q := h2server.Question{Stream: true, MaxTokens: 4, GapMS: 3, PrefillMS: 30}
			for range 3 {
				if _, err := ask(q); err != nil {
					t.Fatal(err)
				}
			}
			s := follow()
			var clients []seen
			for range 3 {
				got, err := ask(q)
				must.NoError(t, err)
				clients = append(clients, got)
			}
			all, by := s.requests(len(clients)), clock.Monotonic()
			if len(all) != len(clients) {
				t.Fatalf("%d requests", len(all))
			}
			for i, r := range all {
				if r.Parts != 4 || r.Outcome != "complete" || r.Route != p.route && r.Route != "unknown" {
					t.Errorf("%+v", r)
				}
				c := &clients[i]
				last := c.written[len(c.written)-1]
				if r.FirstToken < c.written[0] || r.FirstToken > c.recordedBy() || r.End < last || r.End > by {
					t.Errorf("%+v of a client who saw %+v", r, clients[i])
				}
			}
			t.Log("route ", all[0].Route)
		})
	}
}

// BenchmarkClocksOfHTTP2 says how far times are from a client's on an idle machine.
func BenchmarkClocksOfHTTP2(b *testing.B) {
	running, follow := startHTTP2(b)
	s, ask := follow(), askHTTP2(running)
	var first []float64
	for b.Loop() {
		got, err := ask(h2server.Question{Stream: true, MaxTokens: 10, GapMS: 2, PrefillMS: 5})
		must.NoError(b, err)
		n := len(first) + 1
		r := s.requests(n)[n-1]
		first = append(first, float64(got.tokens[0]-got.sent)-float64(r.FirstToken-r.Received))
	}
	slices.Sort(first)
	b.ReportMetric(first[len(first)/2]/1000, "ttft-p50-us")
	b.ReportMetric(first[len(first)*99/100]/1000, "ttft-p99-us")
}
