package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/dump"
)

// pathDump is where a dump of a target is made.
const pathDump = "/v1/dump"

// DumpRequest asks for one stack of every thread.
type DumpRequest struct {
	PID      uint32 // of the target
	Children bool   // of its living children too
	Asker           // a target's owner may not look into children that run as somebody else
}

// dump answers pathDump.
func (s *Server) dump(w http.ResponseWriter, r *http.Request, p peer) error {
	req, err := parseDump(r.URL.Query())
	if err != nil {
		return err
	}
	if err := s.mayRecord(p, req.PID); err != nil {
		return err
	}
	leave, err := s.slots.enter(r.Context(), p, s.own)
	if err != nil {
		return err
	}
	defer leave()
	req.Asker = s.asker(p)
	d, err := s.backend.Dump(r.Context(), req)
	if err != nil {
		return err
	}
	setDeadline(w, s.limits.Send)
	writeJSON(w, http.StatusOK, d)
	return nil
}

func parseDump(q url.Values) (DumpRequest, error) {
	var req DumpRequest
	pid, err := parsePID(q)
	if err != nil {
		return req, err
	}
	req.PID = pid
	if q.Has("children") {
		if req.Children, err = strconv.ParseBool(q.Get("children")); err != nil {
			return req, usage("write true or false", "children=%q is neither true nor false", clip(q.Get("children")))
		}
	}
	return req, nil
}

// Dump asks for one stack of every thread of target pid, and of its children.
func (c *Client) Dump(ctx context.Context, pid uint32, children bool) (*dump.Dump, error) {
	q := url.Values{"pid": {strconv.FormatUint(uint64(pid), 10)}, "children": {strconv.FormatBool(children)}}
	var d dump.Dump
	if err := c.getJSON(ctx, pathDump+"?"+q.Encode(), &d); err != nil {
		return nil, err
	}
	if d.Kind != dump.Kind {
		return nil, clierror.New(clierror.General, "use a client of the daemon's version",
			fmt.Errorf("the daemon sent no dump but %q", clip(d.Kind)))
	}
	return &d, nil
}
