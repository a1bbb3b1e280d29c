package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Flight is what was saved.
type Flight struct {
	Paths []string `json:"paths"` // of recordings, as the daemon sees them
}

// saveTimeout bounds how long a recording may take to be written.
const saveTimeout = time.Minute

// flight answers PUT on pathFlight.
func (s *Server) flight(w http.ResponseWriter, r *http.Request, p peer) error {
	if !p.privileged(s.own) {
		return clierror.New(clierror.Permission, "ask as root (sudo), or use `inferscope record`",
			errors.New("only root may have the daemon write to its disk"))
	}
	pid := uint32(0)
	if r.URL.Query().Has("pid") {
		var err error
		if pid, err = parsePID(r.URL.Query()); err != nil {
			return err
		}
		if _, known := s.backend.Lookup(pid); !known {
			return clierror.New(clierror.NoProcess, "`inferscope targets` lists what is watched",
				fmt.Errorf("pid %d is not a target of this daemon", pid))
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), saveTimeout)
	defer cancel()
	note := s.noteChange(p, "save what is remembered", pid)
	paths, err := s.backend.Save(ctx, pid, "manual")
	note(err)
	if err != nil {
		return err
	}
	setDeadline(w, s.limits.Request)
	writeJSON(w, http.StatusOK, Flight{Paths: paths})
	return nil
}

// Save has the daemon write what it remembers of a target to its disk, or of all where pid is 0.
func (c *Client) Save(ctx context.Context, pid uint32) (Flight, error) {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	path := pathFlight
	if pid != 0 {
		path += "?" + url.Values{"pid": {strconv.FormatUint(uint64(pid), 10)}}.Encode()
	}
	var out Flight
	resp, err := c.ask(ctx, http.MethodPut, path)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return out, fmt.Errorf("reading the daemon's answer to %s: %w", path, err)
	}
	return out, nil
}
