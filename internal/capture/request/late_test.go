package request_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/loss"
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
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
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
