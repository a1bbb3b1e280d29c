package request_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestLateReader: the ring is first read when 256 streams of 100 tokens are over, as if the daemon had had no CPU all
// that time. It has room for all of them.
func TestLateReader(t *testing.T) {
	const streams, tokens = 256, 100
	s := start(t)
	var wait sync.WaitGroup
	errs := make([]error, streams)
	for i := range streams {
		wait.Go(func() {
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			_, errs[i] = ask(c, s.url, map[string]any{
				"model": fmt.Sprint(i), "stream": true, "max_tokens": tokens, "gap_ms": 0,
				"write": []string{"send", "writev"}[i%8/7],
			})
		})
	}
	wait.Wait()
	must.NoError(t, errors.Join(errs...))
	s.drain()
	if fill := s.source.Fill(); fill < 0.3 {
		t.Errorf("the ring was full to %v", fill)
	}
	s.drain()
	if fill := s.source.Fill(); fill > 0.1 {
		t.Errorf("the ring was full to %v once it was read", fill)
	}
	all := s.requests(streams)
	seen := map[string]bool{}
	for _, r := range all {
		seen[r.Model] = true
		if r.Outcome != "complete" || r.OutputTokens != tokens || r.Parts != tokens || r.TokenSource != "usage" {
			t.Errorf("%+v", r)
		}
	}
	if len(seen) != streams || len(all) != streams {
		t.Errorf("%d requests of %d models instead of %d", len(all), len(seen), streams)
	}
	for _, l := range s.source.Losses() {
		if l.Reason == loss.RequestsLost {
			t.Errorf("%+v", l)
		}
	}
}

// TestAttachInMidStream: of an answer that is under way at the attach nothing is told, no time to a first token above
// all; what comes next on its connection is exact.
func TestAttachInMidStream(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T) (*server, *http.Transport){
		"plain":      func(t *testing.T) (*server, *http.Transport) { return start(t), &http.Transport{} },
		"TLS":        func(t *testing.T) (*server, *http.Transport) { return startTLS(t) },
		"TLS memory": func(t *testing.T) (*server, *http.Transport) { return startTLS(t, "memory") },
	} {
		t.Run(name, func(t *testing.T) {
			s, transport := begin(t)
			transport.MaxConnsPerHost = 1
			c := &http.Client{Transport: transport}
			over, gap := make(chan error, 1), 5
			if slow() {
				gap = 40 // it takes seconds to attach
			}
			go func() {
				_, err := ask(c, s.url, map[string]any{
					"model": "before", "stream": true, "max_tokens": 1000, "gap_ms": gap, "prefill_ms": 20,
				})
				over <- err
			}()
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				s.drain()
				if all := s.source.Requests(0, 1<<62); len(all) == 1 && all[0].FirstToken > 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("no stream began")
				}
			}
			late := &server{t: t, url: s.url, p: s.p}
			var err error
			if late.source, err = request.New(request.Options{Mode: mode(t)}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = late.source.Close() })
			must.NoError(t, late.source.Follow(s.p))
			select {
			case err := <-over:
				t.Fatalf("the stream ended before the attach: %v", err)
			default:
			}
			must.NoError(t, <-over)
			want, err := ask(c, s.url, map[string]any{
				"model": "m", "stream": true, "max_tokens": 5, "gap_ms": 4, "prefill_ms": 30,
			})
			must.NoError(t, err)
			all := late.requests(1)
			if len(all) != 1 {
				t.Fatalf("%d requests: %+v", len(all), all)
			}
			checkTimes(t, name, &all[0], &want)
			if both := s.requests(2); both[0].OutputTokens != 1000 || both[0].Outcome != "complete" {
				t.Errorf("who was there saw %+v", both[0])
			}
		})
	}
}
