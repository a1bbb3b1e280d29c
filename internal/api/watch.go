package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/inferscope/inferscope/internal/fault"
)

// WatchRequest asks for a process to become a target, with its children.
type WatchRequest struct {
	PID uint32
	// Owner limits it to a process that runs as this user and as nobody else; children that come to
	// run as somebody else are not watched.
	Owner    uint32
	AnyOwner bool // root and the daemon's own user may have any process watched
}

// Adder is a Backend that takes new targets while it runs.
type Adder interface {
	// Watch makes a process a target, and returns when it is followed. Errors: fault.NoProcess,
	// fault.Permission, fault.Usage where it is watched as a part of another target, and ErrBusy
	// where there are too many targets.
	Watch(ctx context.Context, r WatchRequest) error
}

// watch answers PUT on PathTargets: ?pid=N becomes a target. It does not matter whether the
// caller owns one already: what counts is whose process it is.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, p peer) error {
	pid, err := parsePID(r.URL.Query())
	if err != nil {
		return err
	}
	adder, ok := s.backend.(Adder)
	if !ok {
		return fault.New(fault.Unsupported, "name it when the daemon is started: inferscoped --pid", errors.New("this daemon takes no new targets"))
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Queue)
	defer cancel()
	if err := adder.Watch(ctx, WatchRequest{PID: pid, Owner: p.uid, AnyOwner: p.privileged(s.own)}); err != nil {
		return err
	}
	setDeadline(w, s.limits.Request)
	writeJSON(w, http.StatusOK, struct {
		PID uint32 `json:"pid"`
	}{pid})
	return nil
}

// Watch makes a process a target of the daemon, and returns when it is followed.
func (c *Client) Watch(ctx context.Context, pid uint32) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	q := url.Values{"pid": {strconv.FormatUint(uint64(pid), 10)}}
	resp, err := c.ask(ctx, http.MethodPut, PathTargets+"?"+q.Encode())
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
