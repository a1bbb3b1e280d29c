package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// saving is a backend that writes to its disk.
type saving struct {
	backend
	pids []uint32
	err  error
}

func (s *saving) Save(_ context.Context, pid uint32, _ string) ([]string, error) {
	s.pids = append(s.pids, pid)
	return []string{"/rec/a.isc"}, s.err
}

// TestOnlyRootSaves: nobody else has the daemon write to its disk, and a daemon without one says so.
func TestOnlyRootSaves(t *testing.T) {
	backend := &saving{backend: &fakeBackend{}}
	s := NewServer(backend, DefaultLimits(), nil)
	s.own = 0
	ask := func(uid uint32, query string) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://x"+pathFlight+query, nil)
		must.NoError(t, err)
		return s.flight(discard{}, r, peer{uid: uid})
	}
	if err := ask(1000, ""); clierror.CodeOf(err) != clierror.Permission || len(backend.pids) != 0 {
		t.Errorf("a user: %v, saved %v", err, backend.pids)
	}
	if err := ask(0, fmt.Sprintf("?pid=%d", alicePID)); err != nil {
		t.Error(err)
	}
	if err := ask(0, ""); err != nil {
		t.Error(err)
	}
	if err := ask(0, "?pid=7"); clierror.CodeOf(err) != clierror.NoProcess {
		t.Errorf("a pid that is no target: %v", err)
	}
	if err := ask(0, "?pid=x"); clierror.CodeOf(err) != clierror.Usage {
		t.Errorf("a bad pid: %v", err)
	}
	if len(backend.pids) != 2 || backend.pids[0] != alicePID || backend.pids[1] != 0 {
		t.Errorf("saved %v, want Alice's and all", backend.pids)
	}
	backend.err = clierror.New(clierror.Unsupported, "hint", errors.New("no"))
	if err := ask(0, ""); clierror.CodeOf(err) != clierror.Unsupported {
		t.Errorf("%v", err)
	}
}

// discard is a response that nobody reads.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
