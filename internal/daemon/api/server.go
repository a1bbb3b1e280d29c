package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// backend is what a Server asks about the daemon. Its methods are called from
// several goroutines at a time.
type backend interface {
	// Status returns everything: the Server cuts it down to what the caller may see.
	Status() Status
	// Lookup returns what decides about requests for target pid; false if it is not watched.
	Lookup(pid uint32) (Owned, bool)
	// Owns reports whether uid owns any target.
	Owns(uid uint32) bool
	// Keep is how far back recordings reach at most.
	Keep() time.Duration
	// Record returns what is kept of target pid within the last so long, or, with
	// from > 0, since from (ns, CLOCK_MONOTONIC). Both 0: everything that is kept.
	// It holds what the asker may see, and fails with clierror.Permission where that is not the target itself.
	Record(ctx context.Context, a Asker, pid uint32, last time.Duration, from uint64) (Recording, error)
	// Continuous records GPU activity of target pid all of the time until end is
	// called, once. It returns when that has begun, or after a bounded time. It is an
	// error where the daemon was told to record none.
	Continuous(ctx context.Context, pid uint32) (end func(), err error)
	// Steady keeps what is recorded as it is until end is called: it changes to measure what it costs.
	Steady() (end func())
	// Now returns the CLOCK_MONOTONIC time in ns.
	Now() uint64
	// Candidates returns the processes that could be watched.
	Candidates(ctx context.Context) ([]Candidate, error)
	// Watch makes a process a target, and returns when it is followed. Errors: clierror.NoProcess,
	// clierror.Permission, clierror.Usage where it is watched as a part of another target, and ErrBusy
	// where there are too many targets.
	Watch(ctx context.Context, r WatchRequest) error
	// Release takes everything out of a target, which runs on. Owner limits it to a target that this user has asked
	// for. Errors: clierror.NoProcess, clierror.Permission; clierror.General where an agent is still on its way out.
	Release(ctx context.Context, r WatchRequest) error
	// Dump makes a dump of a target. Errors: clierror.NoProcess where none of its
	// processes is there any more, clierror.Unsupported where dumps are not made.
	Dump(ctx context.Context, r DumpRequest) (*dump.Dump, error)
	// Save writes what is remembered of a target, or of all where pid is 0. Errors: clierror.Unsupported where the
	// daemon keeps no recordings.
	Save(ctx context.Context, pid uint32, reason string) ([]string, error)
}

// Asker is for whom a request is answered.
type Asker struct {
	UID uint32
	Any bool // root and the daemon's own user see the processes of all users
}

// Sees reports whether the asker may see what a process of this owner does.
func (a Asker) Sees(owner uint32) bool { return a.Any || a.UID == owner }

func (s *Server) asker(p peer) Asker { return Asker{UID: p.uid, Any: p.privileged(s.own)} }

// Owned is what decides whether a request for a target is answered.
type Owned struct {
	UID    uint32 // the user who alone it runs as; root's where there is none
	Exited bool   // it and its children are gone
}

// Recording is a recording on its way out. It pins memory until it is released.
type Recording interface {
	Meta() recording.Meta
	Events() iter.Seq[[]event.Event]
	Release()
}

// Limits keep users from exhausting a daemon that runs as root.
type Limits struct {
	Connections        int           // at a time; a quarter of them only for root
	ConnectionsPerUser int           // of one unprivileged user
	Recordings         int           // sent at a time; each pins memory
	RecordingsPerUser  int           // of one unprivileged user
	Queue              time.Duration // how long a recording waits for its turn
	Send               time.Duration // how long sending a recording may take: afterwards the reader is too slow
	Request            time.Duration // for reading a request, and for any other answer
	Idle               time.Duration // between two requests of a connection
	Rate               float64       // requests per second of one unprivileged user
	RateAll            float64       // requests per second of all unprivileged users together
	Changes            float64       // requests per second that change something, of one unprivileged user
}

// DefaultLimits are meant for one machine with a few people looking at it.
func DefaultLimits() Limits {
	return Limits{
		Connections: 64, ConnectionsPerUser: 12,
		Recordings: 4, RecordingsPerUser: 2,
		Queue: 10 * time.Second, Send: 30 * time.Second,
		Request: 5 * time.Second, Idle: 30 * time.Second,
		Rate: 20, RateAll: 100, Changes: 2,
	}
}

// Server answers requests about one daemon.
type Server struct {
	backend      backend
	limits       Limits
	own          uint32       // uid of the daemon
	requestLimit *userLimiter // of all requests
	changeLimit  *userLimiter // of those that change something
	allow        Allow
	changed      func(Change)
	slots        *slots
	http         *http.Server
	log          *log.Logger

	stopping context.Context // done when the server is shutting down
	stop     context.CancelFunc
}

// NewServer returns a server that answers for backend. What goes wrong on the way
// to a caller is said to complain, which may be nil.
func NewServer(backend backend, limits Limits, complain *log.Logger) *Server {
	if complain == nil {
		complain = log.New(io.Discard, "", 0)
	}
	s := &Server{
		backend: backend, limits: limits, own: uint32(os.Geteuid()),
		requestLimit: newUserLimiter(limits.Rate, limits.Rate, limits.RateAll),
		changeLimit:  newUserLimiter(limits.Changes, changesAtOnce, limits.RateAll),
		changed:      func(Change) {}, slots: newSlots(limits), log: complain,
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler: s.routes(), ConnContext: withPeer, ErrorLog: complain,
		// No ReadTimeout: it would end requests that wait for their window. No request has a body.
		ReadHeaderTimeout: limits.Request, IdleTimeout: limits.Idle,
		MaxHeaderBytes: 8 << 10,
	}
	return s
}

// Serve answers until Shutdown; then it returns nil. The listener must be a unix socket's.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(newDoor(l, s.own, s.limits))
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return fmt.Errorf("serving the API: %w", err)
}

// Shutdown stops: requests that wait for their window get an error, those that
// are being answered have until ctx is done.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("requests were cut off at the end: %w", err)
	}
	return nil
}

// handler answers with a value, or with an error.
type handler func(r *http.Request, p peer) (any, error)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(pathVersion, s.guard(func(w http.ResponseWriter, _ *http.Request, _ peer) error {
		setDeadline(w, s.limits.Request)
		writeJSON(w, http.StatusOK, s.version())
		return nil
	}))
	mux.Handle(pathStatus, s.guard(s.known(s.status)))
	mux.Handle(pathTargets, s.guard(s.known(s.targets)))
	mux.Handle(PathCandidates, s.guard(s.candidates))
	mux.Handle(http.MethodPut+" "+pathTargets, s.guard(s.watch))
	mux.Handle(http.MethodDelete+" "+pathTargets, s.guard(s.release))
	mux.Handle(http.MethodPut+" "+pathFlight, s.guard(s.flight))
	mux.Handle(PathRecording, s.guard(s.recording))
	mux.Handle(pathDump, s.guard(s.dump))
	mux.Handle("/", s.guard(func(_ http.ResponseWriter, r *http.Request, _ peer) error {
		return usage("use a client of the same version as the daemon ("+version.String()+")",
			"the daemon has no %q", clip(r.URL.Path))
	}))
	return mux
}

// clip bounds what an answer repeats of a request, in bytes.
func clip(s string) string { return s[:min(len(s), 128)] }

func (s *Server) version() Version {
	agents := slices.ContainsFunc(
		s.backend.Status().Sources,
		func(r recording.Source) bool { return r.Name == recording.GPUSource && r.State != recording.SourceOff },
	)
	return Version{API: level, Schema: recording.SchemaVersion, Agents: agents, Info: version.Get()}
}

// guard does for every path what none may forget: who asks, how, and how often.
func (s *Server) guard(next func(http.ResponseWriter, *http.Request, peer) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := peerFrom(r.Context())
		if err == nil {
			err = s.admit(w, r, p)
		}
		if err == nil {
			err = next(w, r, p)
		}
		if err != nil {
			setDeadline(w, s.limits.Request)
			writeError(w, err)
		}
	})
}

// setDeadline bounds the writing of an answer: a caller that never reads would
// else hold a goroutine, and the memory of a recording, for ever.
func setDeadline(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

func (s *Server) admit(w http.ResponseWriter, r *http.Request, p peer) error {
	if r.ContentLength != 0 {
		// net/http reads on before it closes: not longer than this.
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.Request))
		return usage("put parameters into the query", "a request has no body")
	}
	changes := r.URL.Path == pathTargets && (r.Method == http.MethodPut || r.Method == http.MethodDelete) ||
		r.URL.Path == pathFlight && r.Method == http.MethodPut
	if r.Method != http.MethodGet && !changes {
		return usage("use GET", "%s is not understood", clip(r.Method))
	}
	if !p.privileged(s.own) && !s.requestLimit.take(p.uid, time.Now()) {
		return clierror.New(clierror.General, "ask again in a second",
			fmt.Errorf("%w: a user may ask %g times a second, and all users together %g times",
				ErrBusy, s.limits.Rate, s.limits.RateAll))
	}
	return nil
}

// known turns away users that own nothing here, and writes the answer of the others.
func (s *Server) known(next handler) func(http.ResponseWriter, *http.Request, peer) error {
	return func(w http.ResponseWriter, r *http.Request, p peer) error {
		if err := s.knows(p); err != nil {
			return err
		}
		v, err := next(r, p)
		if err != nil {
			return err
		}
		setDeadline(w, s.limits.Request)
		writeJSON(w, http.StatusOK, v)
		return nil
	}
}

func (s *Server) knows(p peer) error {
	if p.privileged(s.own) || s.backend.Owns(p.uid) {
		return nil
	}
	return clierror.New(clierror.Permission, "ask as root (sudo), or as the user whose process is watched",
		fmt.Errorf("%s owns none of the processes that this daemon watches", p))
}

func (s *Server) status(_ *http.Request, p peer) (any, error) {
	st := s.backend.Status()
	if !p.privileged(s.own) {
		st = visible(st, p.uid)
	}
	return st, nil
}

func (s *Server) targets(_ *http.Request, p peer) (any, error) {
	st := s.backend.Status()
	if !p.privileged(s.own) {
		st = visible(st, p.uid)
	}
	return st.Targets, nil
}
