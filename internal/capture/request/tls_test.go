package request_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/certificate"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// startTLS starts the server with TLS, and returns what its clients need.
func startTLS(t testing.TB, args ...string) (*server, *http.Transport) {
	t.Helper()
	cert, key, transport := certificate.Files(t)
	s := start(t, append([]string{cert, key}, args...)...)
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	return s, transport
}

// ways are how Python's servers use OpenSSL: on a socket, and in memory.
var ways = map[string][]string{"socket": nil, "memory": {"memory"}}

// TestTLS: requests over TLS, on a connection that is kept alive, against a client's clock; each is seen once.
func TestTLS(t *testing.T) {
	for name, args := range ways {
		t.Run(name, func(t *testing.T) {
			s, transport := startTLS(t, args...)
			transport.MaxConnsPerHost = 1
			c := &http.Client{Transport: transport}
			question := map[string]any{
				"model": "m", "stream": true, "max_tokens": 5, "gap_ms": 4,
				"prefill_ms": 30, "prompt": strings.Repeat("secret ", 2000),
			}
			var clients []seen
			for range 3 {
				got, err := ask(c, s.url, question)
				must.NoError(t, err)
				clients = append(clients, got)
			}
			all := s.requests(len(clients))
			if len(all) != len(clients) {
				t.Fatalf("%d requests", len(all))
			}
			for i, r := range all {
				checkTimes(t, name, &r, &clients[i])
				checkChunks(t, s.events, &r)
				if (r.Port != 0) != (name == "socket") {
					t.Errorf("port %d", r.Port)
				}
			}
			text, err := json.Marshal(all)
			if err != nil || bytes.Contains(text, []byte("secret")) {
				t.Errorf("content was kept: %s, %v", text, err)
			}
			for _, l := range s.source.Losses() {
				if l.Reason != loss.ExpensivePoint {
					t.Errorf("%+v", l)
				}
			}
			if runs := s.source.Runs(s.p.PID); runs.NS < 3*5*900 { // three streams of five writes at least
				t.Errorf("calls of OpenSSL cost nothing: %+v", runs)
			}
		})
	}
}

// TestStreamsOverTLS: numbers are exact with many streams at a time.
func TestStreamsOverTLS(t *testing.T) {
	s, transport := startTLS(t)
	manyStreams(t, s, transport)
}

// TestClientOfTLSLeaves: a client that goes away in mid-stream.
func TestClientOfTLSLeaves(t *testing.T) {
	for name, args := range ways {
		t.Run(name, func(t *testing.T) {
			s, transport := startTLS(t, args...)
			c := &http.Client{Transport: transport}
			resp, err := c.Post(s.url, "application/json",
				strings.NewReader(`{"model":"m","stream":true,"max_tokens":100000,"gap_ms":2}`))
			must.NoError(t, err)
			if _, err := io.ReadFull(resp.Body, make([]byte, 500)); err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			c.CloseIdleConnections()
			if r := s.requests(1)[0]; r.Outcome != "aborted" || r.Parts == 0 || r.FirstToken == 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestWithoutTLS: below the first level OpenSSL is not probed; back on it, it is again.
func TestWithoutTLS(t *testing.T) {
	s, transport := startTLS(t)
	c := &http.Client{Transport: transport}
	for i, model := range []string{"without", "off", "with"} {
		must.NoError(t, s.source.SetLevel([]int{1, 2, 0}[i]))
		if _, err := ask(c, s.url, map[string]any{"model": model, "stream": true}); err != nil {
			t.Fatal(err)
		}
		c.CloseIdleConnections() // whose threads are in SSL_read already
	}
	if all := s.requests(1); len(all) != 1 || all[0].Model != "with" {
		t.Errorf("%+v", all)
	}
}
