package request_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/h2server"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestLostTransfers: nobody reads the ring until it is full. No request stays open then: each of which a read or a write
// was lost has no end that is known, and its numbers are not more than the client's. What comes after is exact again, on
// the same connections.
func TestLostTransfers(t *testing.T) {
	needs.Long(t)
	const clients, tokens = 8, 7000 // some 11 MB of records, and the ring has 8
	for name, begin := range map[string]func(t *testing.T) (*server, *http.Transport){
		"plain":      func(t *testing.T) (*server, *http.Transport) { return start(t), &http.Transport{} },
		"TLS":        func(t *testing.T) (*server, *http.Transport) { return startTLS(t) },
		"TLS memory": func(t *testing.T) (*server, *http.Transport) { return startTLS(t, "memory") },
	} {
		t.Run(name, func(t *testing.T) {
			if slow() && name != "plain" {
				t.Skip("it takes a quarter of an hour on an emulated processor")
			}
			s, transport := begin(t)
			var asker [clients]*http.Client
			for i := range asker {
				asker[i] = &http.Client{Transport: transport.Clone()}
			}
			together := func(model string, tokens int) {
				t.Helper()
				var wait sync.WaitGroup
				errs := make([]error, clients)
				for i := range asker {
					wait.Go(func() {
						_, errs[i] = ask(asker[i], s.url, map[string]any{
							"model": model, "stream": true, "max_tokens": tokens, "gap_ms": 0,
						})
					})
				}
				wait.Wait()
				must.NoError(t, errors.Join(errs...))
			}
			together("before", 3)
			s.requests(clients)
			together("lost", tokens)
			s.requests(2 * clients)
			together("after", 5)
			all := s.requests(3 * clients)
			if len(all) != 3*clients {
				t.Fatalf("%d requests instead of %d: %+v", len(all), 3*clients, all)
			}
			unbounded := uint64(0)
			for _, r := range all {
				switch {
				case r.Model == "lost" && r.Outcome == "unbounded":
					unbounded++
					if r.OutputTokens == 0 || r.OutputTokens >= tokens || r.TokenSource != "chunks" || r.End < r.LastToken {
						t.Errorf("%+v", r)
					}
				case r.Model == "lost" && r.Outcome == "complete":
					if r.OutputTokens != tokens || r.Parts != tokens {
						t.Errorf("%+v", r)
					}
				case r.Model == "before" && r.OutputTokens == 3 && r.Parts == 3 && r.Outcome == "complete":
				case r.Model == "after" && r.OutputTokens == 5 && r.Parts == 5 && r.Outcome == "complete":
				default:
					t.Errorf("%+v", r)
				}
			}
			counted := map[string]uint64{}
			for _, l := range s.source.Losses() {
				if l.Reason == loss.RequestsLost {
					counted[l.Where] += l.Count
				}
			}
			if unbounded == 0 || counted["ends"] != unbounded || counted["transfers"] == 0 {
				t.Errorf("%d requests without an end; losses %+v", unbounded, counted)
			}
		})
	}
}

// TestLostFrames: likewise over HTTP/2, where what was lost of one connection is missing there only: what the client
// has said on another stands.
func TestLostFrames(t *testing.T) {
	const clients, tokens = 8, 7000
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			if slow() {
				t.Skip("it takes a quarter of an hour on an emulated processor")
			}
			running, follow := startHTTP2(t)
			s := follow()
			quiet, busy := p.asker(t, running), p.asker(t, running)
			together := func(q h2server.Question) {
				t.Helper()
				var wait sync.WaitGroup
				errs := make([]error, clients)
				for i := range errs {
					wait.Go(func() { _, errs[i] = busy(q) })
				}
				wait.Wait()
				must.NoError(t, errors.Join(errs...))
			}
			for range 3 { // which fill HPACK's tables: later requests refer to their entries
				_, err := quiet(h2server.Question{Stream: true, MaxTokens: 2})
				must.NoError(t, err)
			}
			s.requests(3)
			for len(s.source.Losses()) == 0 {
				together(h2server.Question{Stream: true, MaxTokens: tokens})
			}
			lost := s.requests(3 + 1)[3:] // those of which the beginning was lost are in none
			unbounded := 0
			for _, r := range lost {
				if r.Outcome == "unbounded" && r.OutputTokens < tokens {
					unbounded++
				} else if r.Outcome != "complete" || r.Parts != tokens {
					t.Errorf("%+v", r)
				}
			}
			if unbounded == 0 {
				t.Errorf("%+v; losses %+v", lost, s.source.Losses())
			}
			for i, ask := range []asker{quiet, busy} {
				_, err := ask(h2server.Question{Stream: true, MaxTokens: 5})
				must.NoError(t, err)
				r := s.requests(len(lost) + 4 + i)[len(lost)+3+i]
				known := r.Route == p.route || i == 1 && r.Route == "unknown"
				if !known || r.Parts != 5 || r.Outcome != "complete" {
					t.Errorf("%+v", r)
				}
			}
			for _, l := range s.source.Losses() {
				if l.Where == "transfers" && l.PID != s.p.PID {
					t.Errorf("%+v", l)
				}
			}
		})
	}
}
