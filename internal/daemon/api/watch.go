package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/inferscope/inferscope/internal/format/clierror"
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

// adder is a backend that takes new targets while it runs.
type adder interface {
	// Watch makes a process a target, and returns when it is followed. Errors: clierror.NoProcess,
	// clierror.Permission, clierror.Usage where it is watched as a part of another target, and ErrBusy
	// where there are too many targets.
	Watch(ctx context.Context, r WatchRequest) error
}

// releaser is a backend that releases targets while it runs.
type releaser interface {
	// Release takes everything out of a target, which runs on. Owner limits it to a target that this user has asked
	// for. Errors: clierror.NoProcess, clierror.Permission; clierror.General where an agent is still on its way out.
	Release(ctx context.Context, r WatchRequest) error
}

// release answers DELETE on pathTargets: target ?pid=N is released.
func (s *Server) release(w http.ResponseWriter, r *http.Request, p peer) error {
	releaser, ok := s.backend.(releaser)
	if !ok {
		return clierror.New(clierror.Unsupported, "stop the daemon instead",
			errors.New("this daemon cannot release targets"))
	}
	return s.change(w, r, p, "release", releaser.Release)
}

// watch answers PUT on pathTargets: ?pid=N becomes a target. It does not matter whether the
// caller owns one already: what counts is whose process it is.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, p peer) error {
	adder, ok := s.backend.(adder)
	if !ok {
		return clierror.New(clierror.Unsupported, "name it when the daemon is started: inferscoped --pid",
			errors.New("this daemon takes no new targets"))
	}
	return s.change(w, r, p, "watch", func(ctx context.Context, r WatchRequest) error {
		if err := s.mayAdd(p); err != nil {
			return err
		}
		return adder.Watch(ctx, r)
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
