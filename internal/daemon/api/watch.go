package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// WatchRequest asks for a process to become a target, with its children.
type WatchRequest struct {
	PID uint32
	// Owner limits it to a process that runs as this user and as nobody else; children that come to
	// run as somebody else are not watched.
	Owner    uint32
	AnyOwner bool // root and the daemon's own user may have any process watched
	Found    bool // discovery asks: the target is forgotten when it has ended and its recording has expired
}

// release answers DELETE on pathTargets: target ?pid=N is released.
func (s *Server) release(w http.ResponseWriter, r *http.Request, p peer) error {
	return s.change(w, r, p, "release", s.backend.Release)
}

// watch answers PUT on pathTargets: ?pid=N becomes a target. It does not matter whether the
// caller owns one already: what counts is whose process it is.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, p peer) error {
	return s.change(w, r, p, "watch", func(ctx context.Context, r WatchRequest) error {
		if err := s.mayAdd(p); err != nil {
			return err
		}
		return s.backend.Watch(ctx, r)
	})
}

// change has a target changed as a request asks for.
func (s *Server) change(
	w http.ResponseWriter,
	r *http.Request,
	p peer,
	what string,
	do func(context.Context, WatchRequest) error,
) error {
	pid, err := parsePID(r.URL.Query())
	if err != nil {
		return err
	}
	if err := s.mayChange(p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Queue)
	defer cancel()
	note := s.noteChange(p, what, pid)
	err = do(ctx, WatchRequest{PID: pid, Owner: p.uid, AnyOwner: p.privileged(s.own)})
	note(err)
	if err != nil {
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
	return c.change(ctx, http.MethodPut, pid)
}

// Release lets the daemon take everything out of a target, which runs on.
func (c *Client) Release(ctx context.Context, pid uint32) error {
	return c.change(ctx, http.MethodDelete, pid)
}

func (c *Client) change(ctx context.Context, method string, pid uint32) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	q := url.Values{"pid": {strconv.FormatUint(uint64(pid), 10)}}
	resp, err := c.ask(ctx, method, pathTargets+"?"+q.Encode())
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
