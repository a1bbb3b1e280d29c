package proc

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Options are the settings of a Watcher. The zero value is right for a daemon.
type Options struct {
	// Keep is how long a dead process stays in Processes; 0 means 5 minutes.
	Keep time.Duration
	// PollMappings does without perf events, as where perf_event_open is refused.
	PollMappings bool
	// Discover has processes told of that are not watched and map the library of a GPU's driver: Found.
	Discover bool

	ringBytes uint32 // tests: size of the kernel's ring
	buffered  int    // tests: events between the ring and the loop
}

const (
	defaultKeep = 5 * time.Minute
	// maxDead bounds the dead: 4,096 with cmdlines of 4 KiB are 16 MB at worst.
	maxDead = 4096
	// eventsAhead is how many events wait outside the kernel's ring of 7,000.
	eventsAhead = 256
	// sweepInterval is how often what should not happen is looked for.
	sweepInterval = time.Second
)

// Initial namespaces have fixed inodes (include/linux/proc_ns.h). The kernel
// program knows pids of the first and start times of the second only.
const (
	initialPIDNamespace  = "pid:[4026531836]"
	initialTimeNamespace = "time:[4026531834]"
)

var errClosed = errors.New("the watcher of processes is closed")

// Watcher follows targets: the processes it was given and all their descendants.
// One goroutine owns everything below; methods hand it their work.
type Watcher struct {
	fs       *procfs
	kernel   *kernel
	maps     mapSource
	table    *table
	queue    *queue
	watching bool         // there is a living target, so that looks are worth their cost
	sweeps   *time.Ticker // stopped while there is none
	failed   string       // why process events no longer come; empty while they do
	seen     kernelLosses
	lateDead uint64 // deaths found by looking, without an exit event

	budgets *budgets
	later   *time.Timer       // fires when it is time to look at what was put off
	putOff  map[uint32]*entry // what was, by pid
	skipped map[uint32]uint64 // of each known target, processes that had ended before they were looked at, or were too many
	lostDue uint64            // ns: when it may be looked again for what the ring had no room for
	allDue  bool              // every process is to be looked at

	found     chan uint32 // pids of processes that began to use a GPU; nil: nobody wants to know
	foundLost bool        // some had no room there

	changes  chan Change
	requests chan func()
	quit     chan struct{} // closed to end the loop
	ended    chan struct{} // closed when it has ended
	closing  sync.Once
	closeErr error
}

// New starts to listen to the kernel; nothing is watched yet. It needs CAP_BPF
// and CAP_PERFMON (else clierror.Permission), BTF, and the initial pid and time
// namespaces (else clierror.Unsupported). Where perf events cannot be had, mappings
// are polled, which State says.
func New(o Options) (*Watcher, error) {
	if err := inInitialNamespaces(); err != nil {
		return nil, err
	}
	if o.Keep == 0 {
		o.Keep = defaultKeep
	}
	if o.buffered == 0 {
		o.buffered = eventsAhead
	}
	k, err := openKernel(o.ringBytes, o.buffered)
	if err != nil {
		return nil, fmt.Errorf("watching processes: %w", err)
	}
	fs := newProcfs(procRoot)
	w := &Watcher{
		fs: fs, kernel: k, maps: newMapSource(fs, o.PollMappings),
		table: newTable(o.Keep, maxDead), queue: newQueue(maxQueued),
		changes: make(chan Change), requests: make(chan func()),
		quit: make(chan struct{}), ended: make(chan struct{}), sweeps: time.NewTicker(sweepInterval),
		budgets: newBudgets(monotonic),
		later:   time.NewTimer(time.Hour),
		putOff:  map[uint32]*entry{},
		skipped: map[uint32]uint64{},
	}
	w.sweeps.Stop()
	w.later.Stop()
	if o.Discover {
		w.found = make(chan uint32, maxFound)
		if err := w.maps.watch(true); err != nil {
			return nil, errors.Join(fmt.Errorf("watching for processes that use a GPU: %w", err), k.close(),
				w.maps.close())
		}
	}
	go w.loop()
	return w, nil
}

func inInitialNamespaces() error {
	for name, want := range map[string]string{"pid": initialPIDNamespace, "time": initialTimeNamespace} {
		got, err := os.Readlink("/proc/self/ns/" + name)
		if err == nil && got != want {
			return clierror.New(clierror.Unsupported,
				"run on the host, or in a container with the host's pid namespace (hostPID: true)",
				fmt.Errorf("not in the initial %s namespace (%s)", name, got))
		}
	}
	return nil
}

// Changes returns what happens to the watched processes, in order. A consumer
// that lags never delays the kernel or the target: up to 65,536 changes wait,
// Mapped of one process only once; more are dropped and counted in Losses. The
// channel is closed by Close.
func (w *Watcher) Changes() <-chan Change { return w.changes }

// Found returns the pids of processes that are not watched and have mapped a library of a GPU's driver, as it happens,
// and 0 where it may have happened unseen, so that all processes are to be looked at. It is nil without
// Options.Discover, and silent where mappings are polled.
func (w *Watcher) Found() <-chan uint32 { return w.found }

// Add makes the process with the pid, and all its present and future
// descendants, a target. It returns once Appeared of each present one is queued.
// Adding what is watched already changes nothing. Errors are those of Describe.
// A descendant whose own parent had ended before is not found: nothing in the
// system knows any more that it belongs to the target.
func (w *Watcher) Add(pid int) (*Process, error) {
	var p *Process
	var err error
	if doErr := w.do(func() { p, err = w.add(pid) }); doErr != nil {
		return nil, doErr
	}
	return p, err
}

// Processes returns all watched processes, ordered by birth and pid: those that
// run, and those that ended within Options.Keep (at most 4,096). A new name or
// owner that a process gave itself shows within a second. Nil after Close.
func (w *Watcher) Processes() []Process {
	var all []Process
	_ = w.do(func() {
		w.drainEvents() // a program that has just come to run as somebody else
		w.table.expire(monotonic())
		all = w.table.snapshot()
	})
	return all
}

// Living returns the processes of a target that run, in no order. Nil after Close.
func (w *Watcher) Living(root uint32) []Process {
	var living []Process
	_ = w.do(func() {
		w.drainEvents()
		for _, e := range w.table.live {
			if e.p.Root == root {
				living = append(living, *e.p)
			}
		}
	})
	return living
}

// Threads returns the names of a process's threads ordered by tid, those that
// have ended as they were last seen: their names are read when the number of
// threads changes, at most once a second, so that a thread that was shorter may
// be missing. For a dead process it returns what was known of the last one with
// that pid. At most 4,096 threads; nil for a process that is not watched.
func (w *Watcher) Threads(pid uint32) []recording.Thread {
	var threads []recording.Thread
	_ = w.do(func() {
		if e := w.table.latest(pid); e != nil {
			w.fs.readThreads(e)
			threads = e.threadList()
		}
	})
	return threads
}

// State reports whether processes are followed, and how. A detail with state
// "running" says what is done in a lesser way, such as polled mappings.
func (w *Watcher) State() recording.Source {
	s := recording.Source{Name: "processes", State: "off"}
	_ = w.do(func() {
		s.State, s.Detail = "running", w.maps.detail()
		if w.failed != "" {
			s.State, s.Detail = "unavailable", w.failed
		}
	})
	return s
}

// Losses returns what was missed since New; nothing where nothing was.
func (w *Watcher) Losses() []loss.Loss {
	var losses []loss.Loss
	count := func(n uint64, where, detail string) {
		if n > 0 {
			losses = append(losses, loss.Loss{Reason: loss.ProcessEvents, Count: n, Where: where, Detail: detail})
		}
	}
	_ = w.do(func() {
		l := w.kernel.losses()
		count(l.ring, "kernel ring", "the ring of process events was full")
		count(l.watched, "kernel map", "too many processes: children of children may be missing")
		count(w.queue.dropped, "queue of changes", "the consumer of process changes did not keep up")
		count(w.lateDead, "exit", "ends noticed late and without an exit code")
		count(w.table.forgotten, "dead processes", "more processes ended than are kept")
		for root, n := range w.skipped {
			losses = append(losses, loss.Loss{
				Reason: loss.ProcessesSkipped, Count: n, PID: root, Where: fmt.Sprintf("pid %d", root),
				Detail: "this target starts more processes and programs than there is time to look at",
			})
		}
	})
	return losses
}

// Spent charges a target for CPU time that a change of it has cost the consumer of Changes. A target that costs more
// than its share is told of later: of what has ended by then not at all, which Losses count.
func (w *Watcher) Spent(root uint32, cost time.Duration) { w.budgets.spend(root, cost) }

// Close detaches everything and closes Changes. The targets do not notice.
func (w *Watcher) Close() error {
	w.closing.Do(func() {
		close(w.quit)
		<-w.ended
	})
	return w.closeErr
}

// do runs f in the loop, which owns all state, and waits for it.
func (w *Watcher) do(f func()) error {
	done := make(chan struct{})
	select {
	case w.requests <- func() { f(); close(done) }:
		<-done
		return nil
	case <-w.ended:
		return errClosed
	}
}
