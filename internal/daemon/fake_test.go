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

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/target"
)

// fakeWatcher follows processes that a test makes up.
type fakeWatcher struct {
	changes chan target.Change
	addErr  error
	added   func() // called before Add returns, when its changes are out

	mu      sync.Mutex
	procs   map[target.ID]target.Process
	onAdd   map[int][]target.Process // what Add finds: the root first
	threads map[uint32][]record.Thread
	losses  []loss.Loss
	closed  bool
}

func newFakeWatcher() *fakeWatcher {
	return &fakeWatcher{
		changes: make(chan target.Change, 100), procs: map[target.ID]target.Process{},
		onAdd: map[int][]target.Process{}, threads: map[uint32][]record.Thread{},
	}
}

func (w *fakeWatcher) Add(pid int) (*target.Process, error) {
	if w.addErr != nil {
		return nil, w.addErr
	}
	w.mu.Lock()
	found := w.onAdd[pid]
	w.mu.Unlock()
	for _, p := range found {
		w.emit(target.Appeared, p, p.Born)
	}
	if w.added != nil {
		w.added()
	}
	return &found[0], nil
}

// emit makes a change happen.
func (w *fakeWatcher) emit(kind target.ChangeKind, p target.Process, at uint64) {
	w.mu.Lock()
	w.procs[p.ID()] = p
	w.mu.Unlock()
	w.changes <- target.Change{Kind: kind, Process: &p, At: at}
}

func (w *fakeWatcher) Changes() <-chan target.Change { return w.changes }

func (w *fakeWatcher) Processes() []target.Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []target.Process
	for _, p := range w.procs {
		out = append(out, p)
	}
	return out
}

func (w *fakeWatcher) Threads(pid uint32) []record.Thread {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.threads[pid])
}

func (w *fakeWatcher) setThreads(pid uint32, threads ...record.Thread) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.threads[pid] = threads
}

func (w *fakeWatcher) State() record.Source {
	return record.Source{Name: "processes", State: "running"}
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
	follow  func(*target.Process) error
	onClose func()

	mu        sync.Mutex
	followed  []uint32
	forgotten []uint32
	closed    bool
	losses    []loss.Loss
}

func (s *fakeSource) Name() string { return s.name }

func (s *fakeSource) Follow(p *target.Process) error {
	s.mu.Lock()
	s.followed = append(s.followed, p.PID)
	s.mu.Unlock()
	if s.follow != nil {
		return s.follow(p)
	}
	return nil
}

func (s *fakeSource) Forget(p *target.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgotten = append(s.forgotten, p.PID)
}

func (s *fakeSource) State() record.Source { return record.Source{Name: s.name, State: "running"} }

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
	functions []record.Function
	libraries []record.Library
}

func (s *tableSource) Functions() []record.Function {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return slices.Clone(s.functions)
}

func (s *tableSource) Libraries() []record.Library {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	return slices.Clone(s.libraries)
}

// Forget forgets the libraries too, so that the daemon must have kept them.
func (s *tableSource) Forget(p *target.Process) {
	s.fakeSource.Forget(p)
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.libraries = slices.DeleteFunc(s.libraries, func(l record.Library) bool { return l.PID == p.PID })
}

// maps makes a library be probed at the present time.
func (s *tableSource) maps(pid uint32, path string, probed uint64) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.libraries = append(s.libraries, record.Library{PID: pid, Path: path, Inode: uint64(len(path)), Kind: "driver", Points: 2, Cheap: 1, Mapped: probed, Probed: probed})
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
	rec, err := record.NewRecorder(10_000_000, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, watcher: newFakeWatcher(), rings: &fakeRings{}, logs: logs,
		source: &tableSource{fakeSource: fakeSource{name: "calls"}}, other: &fakeSource{name: "other"},
	}
	w.now.Store(1000 * second)
	w.source.functions = []record.Function{{Name: "cuInit", Base: "cuInit", Library: "driver", Group: "init"}}
	w.parts = Parts{
		Log: zap.New(core), Clock: w.now.Load, Watcher: w.watcher, Rings: w.rings, Recorder: rec,
		Sources: []Source{w.source, w.other},
	}
	return w
}

// process makes up a process; root 0 means that it is one.
func process(pid, root uint32, born uint64) target.Process {
	p := target.Process{PID: pid, NSPID: pid, Root: root, Parent: root, StartTime: born / 1e7, Born: born, UID: 7, Comm: "p"}
	if root == 0 {
		p.Root = pid
	}
	return p
}

// start runs a daemon over the targets, and returns once it is ready. stop ends it and returns Run's error.
func (w *world) start(opts Options, targets ...target.Process) (d *Daemon, stop func() error) {
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
	if err != nil {
		w.t.Fatal(err)
	}
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

// until waits for a condition that another goroutine brings about; a hang is the failure.
func until(cond func() bool) {
	for !cond() {
		time.Sleep(100 * time.Microsecond)
	}
}
