package api

import (
	"context"
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

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/fault"
	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
)

// Targets of the fake backend, and users.
const (
	alicePID, bobPID     = 100, 200
	aliceChild, unknown  = 101, 999
	alice, bob, stranger = 40001, 40002, 40003
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

func (b *fakeBackend) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stretch = append(b.stretch, what)
}

func newFake() *fakeBackend {
	return &fakeBackend{
		events: []event.Event{{TS: 10, PID: alicePID, TID: 1, Kind: event.Call}, {TS: 20, PID: alicePID, TID: 1, Kind: event.Call}},
		repeat: 1, recorded: make(chan uint32, 100),
	}
}

func (b *fakeBackend) Status() Status {
	return Status{
		Version: "test", PID: 1,
		Targets: []Target{
			{PID: alicePID, UID: alice, Comm: "a", State: Watching, Processes: []record.Process{{PID: alicePID}, {PID: aliceChild}}},
			{PID: bobPID, UID: bob, Comm: "b", State: Waiting, Processes: []record.Process{{PID: bobPID}}},
		},
		Agents:    []Agent{{Agent: record.Agent{PID: aliceChild}}, {Agent: record.Agent{PID: bobPID}}},
		Libraries: []record.Library{{PID: alicePID, Path: "/a"}, {PID: aliceChild, Path: "/ac"}, {PID: bobPID, Path: "/b"}},
		Losses: []loss.Loss{
			{Reason: loss.RingFull, Count: 3, Where: "cpu 1"},
			{Reason: loss.LibraryRefused, Count: 1, Where: "pid 200", Detail: "/b"},
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

func (b *fakeBackend) Record(ctx context.Context, pid uint32, last time.Duration, from uint64) (Recording, error) {
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

func (r *fakeRecording) Meta() record.Meta {
	return record.Meta{Schema: record.SchemaVersion, Target: r.pid, To: 100, Functions: []record.Function{{Name: "cuInit"}}}
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
	l.Rate = 1e6
	return l
}

// serve starts a server for b and returns its socket.
func serve(t *testing.T, b Backend, limits Limits) string {
	t.Helper()
	path := filepath.Join(publicDir(t), "s.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(b, limits, nil)
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func dial(t *testing.T, socket string) *Client {
	t.Helper()
	c, err := Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: connects as other users")
	}
}

// connectAs connects as another user. Credentials belong to a thread in Linux, and
// the kernel notes those of the thread that connects; the thread ends afterwards.
func connectAs(t *testing.T, socket string, uid uintptr) (net.Conn, error) {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	ch := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not serve other goroutines
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
func dialAs(t *testing.T, socket string, uid uintptr) *Client {
	t.Helper()
	needRoot(t)
	c := &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return connectAs(t, socket, uid) },
	}}}
	t.Cleanup(c.Close)
	return c
}

func wantFault(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want code %d", code)
	}
	if got := fault.CodeOf(err); got != code {
		t.Fatalf("error %q has code %d, want %d", err, got, code)
	}
	if fault.HintOf(err) == "" {
		t.Errorf("error %q has no hint", err)
	}
}
