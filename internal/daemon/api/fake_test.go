package api

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// Targets of the fake backend, and users.
const (
	alicePID, bobPID        = 100, 200
	aliceChild, unknown     = 101, 999
	alicesRoot              = 102 // a child of alice's target that runs as root
	alice, bob, otherThread = 40001, 40002, 40003
)

// fakeBackend serves two targets of two users.
type fakeBackend struct {
	events   []event.Event
	repeat   int // how often the events are sent
	exited   atomic.Bool
	gate     chan struct{} // if not nil, Record waits for it
	recorded chan uint32   // pids that Record was called for
	released atomic.Int64
	clock    atomic.Uint64

	mu       sync.Mutex
	lastFrom uint64
	lastLast time.Duration
	stretch  []string // "begin" and "end" of Continuous, and "record"
}

// Continuous notes when it begins and ends.
func (b *fakeBackend) Continuous(context.Context, uint32) (func(), error) {
	b.note("begin")
	return func() { b.note("end") }, nil
}

func (*fakeBackend) Steady() (end func()) { return func() {} }

var errUnused = errors.New("not of this fake")

func (*fakeBackend) Candidates(context.Context) ([]Candidate, error) { return nil, errUnused }

func (*fakeBackend) Watch(context.Context, WatchRequest) error { return errUnused }

func (*fakeBackend) Release(context.Context, WatchRequest) error { return errUnused }

func (*fakeBackend) Dump(context.Context, DumpRequest) (*dump.Dump, error) { return nil, errUnused }

func (*fakeBackend) Save(context.Context, uint32, string) ([]string, error) { return nil, errUnused }

func (b *fakeBackend) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stretch = append(b.stretch, what)
}

func newFake() *fakeBackend {
	return &fakeBackend{
		events: []event.Event{
			{TS: 10, PID: alicePID, TID: 1, Kind: event.Call},
			{TS: 20, PID: alicePID, TID: 1, Kind: event.Call},
		},
		repeat: 1, recorded: make(chan uint32, 100),
	}
}

func (b *fakeBackend) Status() Status {
	return Status{
		Version: "test", PID: 1,
		Targets: []Target{
			{
				PID: alicePID, UID: alice, Owner: alice, Comm: "a", State: Watching,
				Processes: []recording.Process{
					{PID: alicePID},
					{PID: aliceChild},
					{PID: alicesRoot, Cmdline: "secret"},
				}, Others: map[uint32]bool{alicesRoot: true},
			},
			{
				PID:       bobPID,
				UID:       bob,
				Owner:     bob,
				Comm:      "b",
				State:     Waiting,
				Processes: []recording.Process{{PID: bobPID}},
			},
		},
		Agents: []recording.AgentStatus{
			{Agent: recording.Agent{PID: aliceChild}},
			{Agent: recording.Agent{PID: alicesRoot}},
			{Agent: recording.Agent{PID: bobPID}},
		},
		Libraries: []recording.Library{
			{PID: alicePID, Path: "/a"},
			{PID: aliceChild, Path: "/ac"},
			{PID: alicesRoot, Path: "/secret"},
			{PID: bobPID, Path: "/b"},
		},
		Losses: []loss.Loss{
			{Reason: loss.RingFull, Count: 3, CPU: loss.CPUOf(1), Where: "cpu 1"},
			{Reason: loss.LibraryRefused, Count: 1, PID: 200, Where: "pid 200", Detail: "/b"},
			{Reason: loss.LibraryRefused, Count: 1, PID: 102, Where: "pid 102", Detail: "/secret"},
			{Reason: loss.LibraryRefused, Count: 1, PID: 101, Where: "pid 101", Detail: "/ac"},
		},
	}
}

func (b *fakeBackend) Lookup(pid uint32) (Owned, bool) {
	switch pid {
	case alicePID:
		return Owned{UID: alice, Exited: b.exited.Load()}, true
	case bobPID:
		return Owned{UID: bob}, true
	}
	return Owned{}, false
}

func (b *fakeBackend) Owns(uid uint32) bool { return uid == alice || uid == bob }
func (b *fakeBackend) Keep() time.Duration  { return time.Minute }
func (b *fakeBackend) Now() uint64          { return b.clock.Add(1) }

func (b *fakeBackend) Record(
	ctx context.Context,
	_ Asker,
	pid uint32,
	last time.Duration,
	from uint64,
) (Recording, error) {
	b.recorded <- pid
	b.note("record")
	if b.gate != nil {
		select {
		case <-b.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	b.mu.Lock()
	b.lastLast, b.lastFrom = last, from
	b.mu.Unlock()
	return &fakeRecording{b, pid}, nil
}

type fakeRecording struct {
	b   *fakeBackend
	pid uint32
}

func (r *fakeRecording) Meta() recording.Meta {
	return recording.Meta{
		Schema:    recording.SchemaVersion,
		Target:    r.pid,
		To:        100,
		Functions: []recording.Function{{Name: "cuInit"}},
	}
}

func (r *fakeRecording) Events() iter.Seq[[]event.Event] {
	return func(yield func([]event.Event) bool) {
		for range r.b.repeat {
			if !yield(r.b.events) {
				return
			}
		}
	}
}

func (r *fakeRecording) Release() { r.b.released.Add(1) }

// patient limits never get in the way of a test that is not about them.
func patient() Limits {
	l := DefaultLimits()
	l.Rate, l.RateAll, l.Changes = 1e6, 1e6, 1e6
	return l
}

// serve starts a server for b and returns its socket.
func serve(t *testing.T, b backend, limits Limits) string {
	t.Helper()
	return serveWith(t, b, limits, func(s *Server) { s.SetAllow(Allow{all: true}) })
}

// serveWith lets a test set the server up.
func serveWith(t *testing.T, b backend, limits Limits, setUp func(*Server)) string {
	t.Helper()
	path := filepath.Join(publicDir(t), "s.sock")
	l, err := Listen(path)
	must.NoError(t, err)
	s := NewServer(b, limits, nil)
	setUp(s)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
		if err := <-ended; err != nil {
			t.Errorf("Serve = %v", err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	return path
}

// publicDir returns a directory that every user can enter. The path is short, as socket paths must be.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

func dial(t *testing.T, socket string) *Client {
	t.Helper()
	c, err := Dial(socket)
	must.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// connectAs connects as another user. Credentials belong to a thread in Linux, and
// the kernel notes those of the thread that connects; the thread ends afterwards.
func connectAs(t *testing.T, socket string, uid uintptr, groups ...uint32) (net.Conn, error) {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	ch := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not serve other goroutines
		list := append(groups, uint32(uid))
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(list)), uintptr(unsafe.Pointer(&list[0])), 0); errno != 0 {
			ch <- result{nil, errno}
			return
		}
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			ch <- result{nil, errno}
			return
		}
		conn, err := net.Dial("unix", socket) //nolint:noctx // the daemon is this process
		ch <- result{conn, err}
	}()
	r := <-ch
	return r.conn, r.err
}

// dialAs returns a client that connects as another user.
func dialAs(t *testing.T, socket string, uid uintptr, groups ...uint32) *Client {
	t.Helper()
	needs.Root(t, "it connects as other users")
	c := &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return connectAs(t, socket, uid, groups...) },
	}}}
	t.Cleanup(c.Close)
	return c
}

func wantFault(t *testing.T, err error, code clierror.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want code %d", code)
	}
	if got := clierror.CodeOf(err); got != code {
		t.Fatalf("error %q has code %d, want %d", err, got, code)
	}
	if clierror.HintOf(err) == "" {
		t.Errorf("error %q has no hint", err)
	}
}
