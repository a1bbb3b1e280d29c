package api

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Change is a request that changed something in a target, or was refused: who asked for it, and what became of it.
type Change struct {
	UID    uint32
	PID    int32  // of who asked; 0 where the daemon cannot see it
	Comm   string // its name, when it asked: it may have chosen any
	What   string // "watch", "release", "record GPU activity all the time for 10s"
	Target uint32
	Took   time.Duration
	Err    error
}

// OnChange has f called for every Change, from several goroutines at a time. It must be called before Serve.
func (s *Server) OnChange(f func(Change)) { s.changed = f }

// noteChange begins a Change; the function that it returns ends it.
func (s *Server) noteChange(p peer, what string, target uint32) func(error) {
	c := Change{UID: p.uid, PID: p.pid, Comm: commOf(p.pid), What: what, Target: target}
	began := time.Now()
	return func(err error) {
		c.Took, c.Err = time.Since(began), err
		s.changed(c)
	}
}

// commOf returns the name of a process; "" if it has ended.
func commOf(pid int32) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(bytes.TrimSuffix(raw, []byte{'\n'})), "?")
}
