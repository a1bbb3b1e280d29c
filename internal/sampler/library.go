package sampler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
	"go.opentelemetry.io/ebpf-profiler/times"
	"go.opentelemetry.io/ebpf-profiler/tracer"
	"go.uber.org/zap"
)

// How often the library looks at its ring, and at its processes.
const (
	tracePoll    = 100 * time.Millisecond // each is a wake-up of this process and one of the daemon's
	linger       = 10 * time.Millisecond  // after its last trace a poll is at its end
	monitorEvery = time.Second
	cleanupEvery = time.Minute
	unloadAfter  = 10 * time.Minute // what is known of a file that no process maps any more
)

// frameCache is how many frames the library keeps converted. It converts none.
const frameCache = 1

// maxTraces bounds the traces that wait for the drain goroutine; of manyTraces it is told at once.
const (
	maxTraces  = 32768
	manyTraces = 1024
)

// library is go.opentelemetry.io/ebpf-profiler, unmodified, without its own events:
// its entry program is run by a tail call from ours.
type library struct {
	log     *zap.Logger
	tracer  *tracer.Tracer
	program *ebpf.Program
	stop    context.CancelFunc
	ended   chan struct{}
	fresh   chan struct{} // has one in it where there is something to take
	loader  *loader

	stacks stackCache // of the goroutine in run

	mu      sync.Mutex
	traces  []trace
	taken   []trace // of the last take
	dropped uint64
}

// startLibrary loads the library's programs, which takes the kernel's verifier 2 to
// 9 s, and starts what feeds them. hz sizes its ring.
func startLibrary(ctx context.Context, log *zap.Logger, hz int, c *converter) (*library, error) {
	refused, err := memlockRefused()
	if err == nil && refused {
		err = filterMemlock()
	}
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	l := &library{log: log, stop: stop, ended: make(chan struct{}), fresh: make(chan struct{}, 1), stacks: newStackCache()}
	times.StartRealtimeSync(ctx, 0)
	if l.tracer, err = tracer.NewTracer(ctx, l.config(hz)); err != nil {
		stop()
		return nil, fmt.Errorf("load the native unwinder: %w", err)
	}
	if l.loader, err = newLoader(log, l.tracer, c); err == nil {
		err = l.start(ctx)
	}
	if err != nil {
		l.tracer.Close()
		stop()
		return nil, err
	}
	return l, nil
}

func (l *library) config(hz int) *tracer.Config {
	return &tracer.Config{
		TraceReporter: l, Intervals: intervals{}, InterpretersConfig: interpreterconfig.NoInterpreters(),
		// The library takes room for a second of samples of the largest size, 25 KB, on
		// every CPU, which is mapped twice; one with 60 frames takes 2 KB, so this is room
		// for a quarter of a second of those where all CPUs are sampled.
		SamplesPerSecond: max(1, (hz+25)/50), FrameCacheSize: frameCache, KernelVersionCheck: true,
		ProbabilisticInterval: time.Minute, ProbabilisticThreshold: tracer.ProbabilisticThresholdMax,
		BPFFSRoot: "/sys/fs/bpf/",
	}
}

// start follows the order that loses nothing: a sample before the monitors run sets
// a latch whose wake-up is lost, and its process stays unknown for a second.
func (l *library) start(ctx context.Context) error {
	l.loader.start(ctx)                       // in the place of tracer.StartPIDEventProcessor
	traces := make(chan *libpf.EbpfTrace, 32) // 25 KB each
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
	late := time.NewTimer(linger)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.tracer.Done():
			return
		case t := <-traces:
			if t == nil { // a mark at the end of a poll, where the one before it had traces too
				late.Stop()
				l.tell()
				continue
			}
			late.Reset(linger)
			l.handle(t)
		case <-late.C:
			l.tell()
		}
	}
}

// handle takes a trace. It goes to the library without its frames, of which we make more
// ourselves, only because its memory has to go back there.
func (l *library) handle(t *libpf.EbpfTrace) {
	out := trace{at: uint64(t.KTime), pid: uint32(t.PID), tid: uint32(t.TID)}
	// The kernel's frames come first; we have our own.
	frames := t.FrameData[min(int(t.NumKernelFrames), len(t.FrameData)):]
	key := l.stacks.key(frames)
	if out.stack = l.stacks.known[key]; out.stack == nil {
		var lasting bool
		if out.stack, lasting = l.loader.unwound(frames, out.pid); lasting {
			l.stacks.keep(key, out.stack)
		}
	}
	t.FrameData, t.NumFrames, t.NumKernelFrames = t.FrameData[:0], 0, 0
	l.tracer.HandleTrace(t)
	l.add(out)
}

func (l *library) add(t trace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.traces) >= maxTraces {
		l.dropped++
		return
	}
	if l.traces = append(l.traces, t); len(l.traces) >= manyTraces {
		l.tell()
	}
}

// tell says that there is something to take. It is said once for each poll, because
// each time wakes the parent as well.
func (l *library) tell() {
	select {
	case l.fresh <- struct{}{}:
	default: // it is said already
	}
}

// ReportTraceEvent takes nothing, because handle has it already; it implements
// reporter.TraceReporter.
func (l *library) ReportTraceEvent(*libpf.Trace, *samples.TraceEventMeta) error { return nil }

func (l *library) entry() *ebpf.Program { return l.program }

func (l *library) take() []trace {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.traces
	l.traces, l.taken = l.taken[:0], t
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
