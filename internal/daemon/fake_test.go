package daemon

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// fakeWatcher follows processes that a test makes up.
type fakeWatcher struct {
	changes chan proc.Change
	addErr  error
	added   func() // called before Add returns, when its changes are out

	mu      sync.Mutex
	procs   map[proc.ID]proc.Process
	onAdd   map[int][]proc.Process // what Add finds: the root first
	threads map[uint32][]recording.Thread
	losses  []loss.Loss
	closed  bool
}

func newFakeWatcher() *fakeWatcher {
	return &fakeWatcher{
		changes: make(chan proc.Change, 100), procs: map[proc.ID]proc.Process{},
		onAdd: map[int][]proc.Process{}, threads: map[uint32][]recording.Thread{},
	}
}

func (w *fakeWatcher) Add(pid int) (*proc.Process, error) {
	if w.addErr != nil {
		return nil, w.addErr
	}
	w.mu.Lock()
	found := w.onAdd[pid]
	w.mu.Unlock()
	for _, p := range found {
		w.emit(proc.Appeared, p, p.Born)
	}
	if w.added != nil {
		w.added()
	}
	return &found[0], nil
}

// emit makes a change happen.
func (w *fakeWatcher) emit(kind proc.ChangeKind, p proc.Process, at uint64) {
	w.mu.Lock()
	w.procs[p.ID()] = p
	w.mu.Unlock()
	w.changes <- proc.Change{Kind: kind, Process: &p, At: at}
}

func (w *fakeWatcher) Changes() <-chan proc.Change { return w.changes }

func (w *fakeWatcher) Found() <-chan uint32 { return nil }

func (w *fakeWatcher) Processes() []proc.Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []proc.Process
	for _, p := range w.procs {
		out = append(out, p)
	}
	return out
}

func (w *fakeWatcher) Living(root uint32) []proc.Process {
	return slices.DeleteFunc(w.Processes(), func(p proc.Process) bool { return p.Root != root || p.Died != 0 })
}

func (w *fakeWatcher) Threads(pid uint32) []recording.Thread {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.threads[pid])
}

func (w *fakeWatcher) setThreads(pid uint32, threads ...recording.Thread) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.threads[pid] = threads
}

func (w *fakeWatcher) Spent(uint32, time.Duration) {}

func (w *fakeWatcher) State() recording.Source {
	return recording.Source{Name: "processes", State: "running"}
}

func (w *fakeWatcher) Losses() []loss.Loss {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.losses)
}

func (w *fakeWatcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return nil
}

// fakeRings hold what a test puts into them.
type fakeRings struct {
	mu     sync.Mutex
	events []event.Event
	losses []loss.Loss
	err    error
	drains atomic.Int64
	closed bool
}

func (r *fakeRings) put(events ...event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, events...)
}

func (r *fakeRings) Drain(f func([]event.Event)) int {
	r.mu.Lock()
	events := r.events
	r.events = nil
	r.mu.Unlock()
	r.drains.Add(1)
	if len(events) > 0 {
		f(events)
	}
	return len(events)
}

func (r *fakeRings) Fill() float64 { return 0 }
func (r *fakeRings) Bytes() int64  { return 1 << 20 }

func (r *fakeRings) Losses() ([]loss.Loss, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.losses), r.err
}

func (r *fakeRings) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

// fakeSource notes what it is told; follow may be replaced.
type fakeSource struct {
	name    string
	follow  func(*proc.Process) error
	onClose func()

	mu        sync.Mutex
	followed  []uint32
	forgotten []uint32
	closed    bool
	losses    []loss.Loss
}

func (s *fakeSource) Name() string { return s.name }

func (s *fakeSource) Follow(p *proc.Process) error {
	s.mu.Lock()
	s.followed = append(s.followed, p.PID)
	s.mu.Unlock()
	if s.follow != nil {
		return s.follow(p)
	}
	return nil
}

func (s *fakeSource) Forget(p *proc.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten = append(s.forgotten, p.PID)
}

func (s *fakeSource) State() recording.Source {
	return recording.Source{Name: s.name, State: "running"}
}

func (s *fakeSource) Losses() []loss.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.losses)
}

func (s *fakeSource) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.onClose != nil {
		s.onClose()
	}
	return nil
}

// tableSource is a fakeSource that has tables, as the source of CUDA calls does.
type tableSource struct {
	fakeSource
	tmu       sync.Mutex
	functions []recording.Function
	libraries []recording.Library
}

func (s *tableSource) Functions() []recording.Function {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return slices.Clone(s.functions)
}

func (s *tableSource) Libraries() []recording.Library {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return slices.Clone(s.libraries)
}

// Forget forgets the libraries too, so that the daemon must have kept them.
func (s *tableSource) Forget(p *proc.Process) {
	s.fakeSource.Forget(p)
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.libraries = slices.DeleteFunc(s.libraries, func(l recording.Library) bool { return l.PID == p.PID })
}

// maps makes a library be probed at the present time.
func (s *tableSource) maps(pid uint32, path string, probed uint64) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.libraries = append(s.libraries, recording.Library{
		PID:    pid,
		Path:   path,
		Inode:  uint64(len(path)),
		Kind:   "driver",
		Points: 2,
		Cheap:  1,
		Mapped: probed,
		Probed: probed,
	})
}

// world is a daemon made of fakes, with a clock that a test sets.
type world struct {
	t       *testing.T
	watcher *fakeWatcher
	rings   *fakeRings
	source  *tableSource
	other   *fakeSource
	now     atomic.Uint64
	logs    *observer.ObservedLogs
	parts   Parts
}

// Times in the tests, in ns of the fake clock: seconds after the start of the machine.
const second = 1_000_000_000

func newWorld(t *testing.T) *world {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	rec, err := recording.NewRecorder(10_000_000, time.Minute)
	must.NoError(t, err)
	w := &world{
		t: t, watcher: newFakeWatcher(), rings: &fakeRings{}, logs: logs,
		source: &tableSource{fakeSource: fakeSource{name: "calls"}}, other: &fakeSource{name: "other"},
	}
	w.now.Store(1000 * second)
	w.source.functions = []recording.Function{{Name: "cuInit", Base: "cuInit", Library: "driver", Group: "init"}}
	w.parts = Parts{
		Log: zap.New(core), Clock: w.now.Load, Watcher: w.watcher, Rings: w.rings, Recorder: rec,
		Sources: []Source{w.source, w.other},
	}
	return w
}

// process makes up a process; root 0 means that it is one.
func process(pid, root uint32, born uint64) proc.Process {
	p := proc.Process{
		PID:       pid,
		NSPID:     pid,
		Root:      root,
		Parent:    root,
		StartTime: born / 1e7,
		Born:      born,
		UID:       7,
		Owner:     7,
		Comm:      "p",
	}
	if root == 0 {
		p.Root = pid
	}
	return p
}

// start runs a daemon over the targets, and returns once it is ready. stop ends it and returns Run's error.
func (w *world) start(opts Options, targets ...proc.Process) (d *Daemon, stop func() error) {
	w.t.Helper()
	for _, p := range targets {
		w.watcher.onAdd[int(p.Root)] = append(w.watcher.onAdd[int(p.Root)], p)
		if p.PID == p.Root {
			opts.PIDs = append(opts.PIDs, int(p.PID))
		}
	}
	if opts.Keep == 0 {
		opts.Keep = time.Minute
	}
	d, err := New(opts, w.parts)
	must.NoError(w.t, err)
	d.follower.guard = fakeGuardOf
	ctx, cancel := newContext()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.Run(ctx, Hooks{Ready: func() { close(ready) }, Stopping: func() {}}) }()
	select {
	case <-ready:
	case err := <-ended:
		w.t.Fatalf("Run ended before it was ready: %v", err)
	}
	var once sync.Once
	stop = func() (err error) {
		err = errors.New("already stopped")
		once.Do(func() { cancel(); err = <-ended })
		return err
	}
	w.t.Cleanup(func() { _ = stop() })
	return d, stop
}

// fakeGuard guards a process that a test makes up.
type fakeGuard struct{ err error }

func (g *fakeGuard) Check() error { return g.err }
func (g *fakeGuard) Close() error { return nil }

func fakeGuardOf(p *proc.Process, uid uint32) (guard, error) {
	if p.Owner != uid {
		return nil, errors.New("it is another's")
	}
	return &fakeGuard{}, nil
}

// until waits for a condition that another goroutine brings about; a hang is the failure.
func until(cond func() bool) {
	for !cond() {
		time.Sleep(100 * time.Microsecond)
	}
}
