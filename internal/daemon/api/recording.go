package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// recording answers PathRecording.
func (s *Server) recording(w http.ResponseWriter, r *http.Request, p peer) error {
	pid, win, err := parseRecording(r.URL.Query(), s.backend.Keep())
	if err != nil {
		return err
	}
	if err := s.mayRecord(p, pid); err != nil {
		return err
	}
	end, err := s.stretch(r.Context(), p, pid, win)
	if err != nil {
		return err
	}
	defer end()
	from, err := s.await(r.Context(), p, pid, win.For)
	if err != nil {
		return err
	}
	leave, err := s.slots.enter(r.Context(), p, s.own)
	if err != nil {
		return err
	}
	defer leave()
	rec, err := s.backend.Record(r.Context(), s.asker(p), pid, win.Last, from)
	if err != nil {
		return err
	}
	end() // before it is sent, which may take long
	defer rec.Release()
	s.send(w, r, rec)
	return nil
}

// send writes a recording within the time that a reader has. Its status is out
// before anything can fail; what is cut off lacks its end frame, which tells the reader.
func (s *Server) send(w http.ResponseWriter, r *http.Request, rec Recording) {
	setDeadline(w, s.limits.Send)
	w.Header().Set("Content-Type", RecordingType)
	if err := recording.WriteStream(w, rec.Meta(), rec.Events()); err != nil && r.Context().Err() == nil {
		s.log.Printf("a recording was cut off: %v", err)
	}
}

// mayRecord reports whether p may see target pid. Users who own nothing here learn nothing of what is watched.
func (s *Server) mayRecord(p peer, pid uint32) error {
	if err := s.knows(p); err != nil {
		return err
	}
	target, watched := s.backend.Lookup(pid)
	if !watched {
		return clierror.New(
			clierror.NoProcess,
			fmt.Sprintf("watch it with: sudo inferscoped --pid %d; `inferscope targets` lists what is watched", pid),
			fmt.Errorf("pid %d is not a target of this daemon", pid),
		)
	}
	if !p.privileged(s.own) && target.UID != p.uid {
		return clierror.New(clierror.Permission, "ask as root (sudo), or as its owner",
			fmt.Errorf("pid %d belongs to user %d, not to %s", pid, target.UID, p))
	}
	return nil
}

func parseRecording(q url.Values, keep time.Duration) (uint32, Window, error) {
	var win Window
	pid, err := parsePID(q)
	if err != nil {
		return 0, win, err
	}
	if q.Has("last") && q.Has("for") {
		return 0, win, usage("leave one of them out", "last and for cannot be asked together")
	}
	if win.Last, err = parseDuration(q, "last"); err != nil {
		return 0, win, err
	}
	if win.For, err = parseDuration(q, "for"); err != nil {
		return 0, win, err
	}
	if win.For > keep {
		return 0, win, usage(fmt.Sprintf("ask for at most %s, or start the daemon with --keep %s", keep, win.For),
			"%s is longer than the %s that this daemon keeps", win.For, keep)
	}
	return pid, win, parseGPU(q, &win)
}

// stretch keeps what is recorded as it is for a window that is still to come, and begins to record all GPU activity
// where that is asked for; end may be called again.
func (s *Server) stretch(ctx context.Context, p peer, pid uint32, win Window) (end func(), err error) {
	steady := func() {}
	if win.For > 0 {
		steady = s.backend.Steady()
	}
	if win.GPU != GPUContinuous || s.exited(pid) {
		return steady, nil
	}
	if err := s.mayChange(p); err != nil {
		steady()
		return nil, err
	}
	note := s.noteChange(p, "record GPU activity all the time for "+win.For.String(), pid)
	stop, err := s.backend.Continuous(ctx, pid)
	note(err)
	if err != nil {
		steady()
		return nil, err
	}
	return sync.OnceFunc(func() { stop(); steady() }), nil
}

// parseGPU takes gpu=continuous, for a window that is still to come.
func parseGPU(q url.Values, win *Window) error {
	if !q.Has("gpu") {
		return nil
	}
	if win.GPU = q.Get("gpu"); win.GPU != GPUContinuous {
		return usage("write gpu=continuous, or leave it out", "gpu=%q is not understood", clip(win.GPU))
	}
	if win.For == 0 {
		return usage("say for how long: for=10s", "gpu=continuous is about the time from now on")
	}
	return nil
}

func parsePID(q url.Values) (uint32, error) {
	pid, err := strconv.ParseUint(q.Get("pid"), 10, 31)
	if err != nil || pid == 0 {
		return 0, usage("say which target: ?pid=1234", "pid=%q is not a process id", clip(q.Get("pid")))
	}
	return uint32(pid), nil
}

func parseDuration(q url.Values, name string) (time.Duration, error) {
	if !q.Has(name) {
		return 0, nil
	}
	d, err := time.ParseDuration(q.Get(name))
	if err != nil || d <= 0 {
		return 0, usage("write it like 30s or 1m30s", "%s=%q is not a duration above 0", name, clip(q.Get(name)))
	}
	return d, nil
}

func usage(hint, format string, args ...any) error {
	return clierror.New(clierror.Usage, hint, fmt.Errorf(format, args...))
}

// lookPeriod is how often a request that waits looks whether its target is gone.
const lookPeriod = 250 * time.Millisecond

// await returns the time (ns) at which a window of d that begins now began, once
// it has passed: at once for d = 0, and early, so that what was recorded is
// answered, when the target or the daemon ends.
func (s *Server) await(ctx context.Context, p peer, pid uint32, d time.Duration) (uint64, error) {
	if d == 0 {
		return 0, nil
	}
	if s.exited(pid) {
		return 0, clierror.New(clierror.NoProcess,
			"ask for what was recorded of it with --last, or leave the window out",
			fmt.Errorf("pid %d has exited: nothing of it can be recorded from now on", pid))
	}
	from := s.backend.Now()
	s.log.Printf("%s waits for a recording of pid %d in the next %s", p, pid, d)
	passed, look := time.NewTimer(d), time.NewTicker(lookPeriod)
	defer passed.Stop()
	defer look.Stop()
	for {
		select {
		case <-passed.C:
			return from, nil
		case <-s.stopping.Done():
			return from, nil
		case <-look.C:
			if s.exited(pid) {
				return from, nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for the window to pass: %w", ctx.Err())
		}
	}
}

func (s *Server) exited(pid uint32) bool {
	target, watched := s.backend.Lookup(pid)
	return !watched || target.Exited
}

// slots bounds how many recordings are sent at a time: each pins the memory of
// what it sends, while the recorder goes on in other memory.
type slots struct {
	all    chan struct{}
	guests chan struct{} // of unprivileged users: one place less, which is root's
	queue  time.Duration
	each   int // per unprivileged user

	mu    sync.Mutex
	byUID map[uint32]int
}

func newSlots(l Limits) *slots {
	return &slots{
		all: make(chan struct{}, l.Recordings), guests: make(chan struct{}, max(1, l.Recordings-1)),
		queue: l.Queue, each: l.RecordingsPerUser, byUID: map[uint32]int{},
	}
}

// enter waits for a turn; leave must be called once if there is no error.
func (s *slots) enter(ctx context.Context, p peer, own uint32) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, s.queue)
	defer cancel()
	if p.privileged(own) {
		return s.wait(ctx, s.all)
	}
	if !s.count(p.uid) {
		return nil, tooMany(fmt.Sprintf("%s already receives %d recordings", p, s.each))
	}
	leaveGuests, err := s.wait(ctx, s.guests)
	if err != nil {
		s.uncount(p.uid)
		return nil, err
	}
	leaveAll, err := s.wait(ctx, s.all)
	if err != nil {
		leaveGuests()
		s.uncount(p.uid)
		return nil, err
	}
	return func() { leaveAll(); leaveGuests(); s.uncount(p.uid) }, nil
}

func (s *slots) wait(ctx context.Context, places chan struct{}) (leave func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, tooMany(fmt.Sprintf("it already sends %d recordings", cap(places)))
	}
}

func tooMany(why string) error {
	return clierror.New(clierror.General, "ask again in a few seconds", fmt.Errorf("%w: %s", ErrBusy, why))
}

func (s *slots) count(uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byUID[uid] >= s.each {
		return false
	}
	s.byUID[uid]++
	return true
}

func (s *slots) uncount(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byUID[uid]--; s.byUID[uid] == 0 {
		delete(s.byUID, uid)
	}
}
