package sampler

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
	"go.opentelemetry.io/ebpf-profiler/times"
	"go.opentelemetry.io/ebpf-profiler/tracer"
	"go.uber.org/zap"
)

// How often the library looks at its ring, and at its processes.
const (
	tracePoll    = 50 * time.Millisecond
	monitorEvery = time.Second
	cleanupEvery = time.Minute
	unloadAfter  = 10 * time.Minute // what is known of a file that no process maps any more
)

// frameCache is how many frames the library keeps converted: 200 bytes each.
const frameCache = 8192

// maxTraces bounds the traces that wait for the drain goroutine.
const maxTraces = 32768

// library is go.opentelemetry.io/ebpf-profiler, unmodified, without its own events:
// its entry program is run by a tail call from ours.
type library struct {
	log     *zap.Logger
	tracer  *tracer.Tracer
	program *ebpf.Program
	stop    context.CancelFunc
	ended   chan struct{}
	fresh   chan struct{} // has one in it where there is something to take
	convert func(t *libpf.Trace, at uint64, pid, tid uint32) *trace
	mapped  func(*reporter.ExecutableMetadata)

	at atomic.Int64 // ns, the time of the trace that is being handled

	mu      sync.Mutex
	traces  []*trace
	dropped uint64
}

// files names the files of native frames.
type files interface {
	// converted makes a trace of the library's.
	converted(t *libpf.Trace, at uint64, pid, tid uint32) *trace
	// reported is called once for each file that the library meets.
	reported(*reporter.ExecutableMetadata)
}

// startLibrary loads the library's programs, which takes the kernel's verifier 2 to
// 9 s, and starts what feeds them. hz sizes its ring.
func startLibrary(ctx context.Context, log *zap.Logger, hz int, f files) (*library, error) {
	refused, err := memlockRefused()
	if err == nil && refused {
		err = filterMemlock()
	}
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	l := &library{log: log, stop: stop, ended: make(chan struct{}), fresh: make(chan struct{}, 1), convert: f.converted, mapped: f.reported}
	times.StartRealtimeSync(ctx, 0)
	if l.tracer, err = tracer.NewTracer(ctx, l.config(hz)); err != nil {
		stop()
		return nil, fmt.Errorf("load the native unwinder: %w", err)
	}
	if err := l.start(ctx); err != nil {
		l.tracer.Close()
		stop()
		return nil, err
	}
	return l, nil
}

func (l *library) config(hz int) *tracer.Config {
	return &tracer.Config{
		TraceReporter: l, ExecutableReporter: l, Intervals: intervals{}, InterpretersConfig: interpreterconfig.NoInterpreters(),
		// The library takes room for a second of samples of the largest size on
		// every CPU; a tenth of that is two of its polls.
		SamplesPerSecond: max(1, hz/10), FrameCacheSize: frameCache, KernelVersionCheck: true,
		ProbabilisticInterval: time.Minute, ProbabilisticThreshold: tracer.ProbabilisticThresholdMax,
		BPFFSRoot: "/sys/fs/bpf/",
	}
}

// start follows the order that loses nothing: a sample before the monitors run sets
// a latch whose wake-up is lost, and its process stays unknown for a second.
func (l *library) start(ctx context.Context) error {
	l.tracer.StartPIDEventProcessor(ctx)
	traces := make(chan *libpf.EbpfTrace, 256)
	if err := l.tracer.StartMapMonitors(ctx, traces); err != nil {
		return fmt.Errorf("start the native unwinder: %w", err)
	}
	program, err := openEntry()
	if err != nil {
		return fmt.Errorf("start the native unwinder: %w", err)
	}
	l.program = program
	if err := l.tracer.AttachSchedMonitor(); err != nil { // needs tracefs
		l.log.Debug("the unwinder learns of ended processes once a minute only", zap.Error(err))
	}
	go l.run(ctx, traces)
	return nil
}

// run lets the library handle its traces one after the other.
func (l *library) run(ctx context.Context, traces <-chan *libpf.EbpfTrace) {
	defer close(l.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.tracer.Done():
			return
		case t := <-traces:
			if t == nil { // a mark between two polls
				continue
			}
			l.at.Store(t.KTime)
			l.tracer.HandleTrace(t) // calls ReportTraceEvent
		}
	}
}

// ReportTraceEvent takes a trace; it implements reporter.TraceReporter.
func (l *library) ReportTraceEvent(t *libpf.Trace, m *samples.TraceEventMeta) error {
	converted := l.convert(t, uint64(l.at.Load()), uint32(m.PID), uint32(m.TID))
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.traces) >= maxTraces {
		l.dropped++
		return nil
	}
	l.traces = append(l.traces, converted)
	select {
	case l.fresh <- struct{}{}:
	default:
	}
	return nil
}

// ReportExecutable takes a file; it implements reporter.ExecutableReporter.
func (l *library) ReportExecutable(m *reporter.ExecutableMetadata) { l.mapped(m) }

func (l *library) entry() *ebpf.Program { return l.program }

func (l *library) take() []*trace {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.traces
	l.traces = nil
	return t
}

func (l *library) err() error {
	select {
	case <-l.ended:
		return fmt.Errorf("the native unwinder stopped by itself: restart the daemon")
	default:
		return nil
	}
}

func (l *library) close() {
	l.stop()
	<-l.ended
	l.tracer.Close()
	_ = l.program.Close() // nothing is left to be done about it
}

// intervals implements tracer.Intervals.
type intervals struct{}

// MonitorInterval is how often counters and processes are looked at.
func (intervals) MonitorInterval() time.Duration { return monitorEvery }

// TracePollInterval is how often the ring is read.
func (intervals) TracePollInterval() time.Duration { return tracePoll }

// PIDCleanupInterval is how often the dead are looked for.
func (intervals) PIDCleanupInterval() time.Duration { return cleanupEvery }

// ExecutableUnloadDelay is how long unused files are kept.
func (intervals) ExecutableUnloadDelay() time.Duration { return unloadAfter }
