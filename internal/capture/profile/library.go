package profile

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/support"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/ring"
)

// How often the programs' ring is looked at, and what is known of processes and files. Each
// look that finds something is a wake-up of this process and one of the daemon's; at first somebody
// waits for the first whole stack, for which one file after another is asked for.
const (
	tracePoll    = 100 * time.Millisecond
	firstPoll    = 20 * time.Millisecond
	firstPolls   = 100 // 2 s
	cleanupEvery = time.Minute
	unloadAfter  = 10 * time.Minute // what is known of a file that no process maps any more
)

// maxTraces bounds the traces that wait for the drain goroutine; of manyTraces it is told at once.
const (
	maxTraces  = 32768
	manyTraces = 1024
)

// library is the native unwinder of go.opentelemetry.io/ebpf-profiler: its programs, unmodified, run
// by a tail call from ours, and what feeds them.
type library struct {
	log     *zap.Logger
	objects *unwindObjects
	ring    *ring.Records
	ends    io.Closer // nil: nobody tells of processes that end
	stop    context.CancelFunc
	ended   chan struct{}
	fresh   chan struct{} // has one in it where there is something to take
	loader  *loader

	stacks stackCache // of the goroutine in run

	mu     sync.Mutex
	traces []trace
	taken  []trace // of the last take
}

// startLibrary loads the programs, and meanwhile reads the unwind tables of processes that are known
// already. hz sizes their ring.
func startLibrary(ctx context.Context, log *zap.Logger, hz int, pids []uint32, c *converter) (*library, error) {
	ctx, stop := context.WithCancel(ctx)
	l := &library{
		log: log, stop: stop, ended: make(chan struct{}), fresh: make(chan struct{}, 1), stacks: newStackCache(),
		loader: newLoader(log, c),
	}
	l.loader.start(ctx)
	l.loader.met <- together(pids)
	err := l.load(hz)
	l.loader.maps.set(l.objects, err)
	if err != nil {
		stop()
		return nil, fmt.Errorf("start the native unwinder: %w", err)
	}
	go l.run(ctx)
	return l, nil
}

// together is processes as their first threads.
func together(pids []uint32) []libpf.PIDTID {
	out := make([]libpf.PIDTID, len(pids))
	for i, pid := range pids {
		out[i] = libpf.PIDTID(uint64(pid)<<32 | uint64(pid))
	}
	return out
}

func (l *library) load(hz int) error {
	objects, err := loadUnwinder(hz)
	if err != nil {
		return err
	}
	if l.ring, err = ring.OpenRecords(objects.Traces); err != nil {
		objects.close()
		return err
	}
	l.objects = objects
	if ends, err := objects.watchEnds(); err == nil {
		l.ends = ends
	} else {
		l.log.Debug("the unwinder learns of ended processes once a minute only", zap.Error(err))
	}
	return nil
}

// run looks at what the programs say until ctx is done.
func (l *library) run(ctx context.Context) {
	defer close(l.ended)
	poll := time.NewTicker(firstPoll)
	defer poll.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
		if n == firstPolls {
			poll.Reset(tracePoll)
		}
		l.ring.Read(l.handle)
		l.tell()
		l.meet()
	}
}

// meet hands on which processes the programs met. They set a latch when there are any; it is
// let go first, so that none is missed.
func (l *library) meet() {
	if len(l.loader.met) > 0 {
		return // the last ones are waiting
	}
	latch, set := uint32(support.EventTypeGenericPID), false
	if l.objects.Latch.LookupAndDelete(&latch, &set) != nil {
		return
	}
	var met []libpf.PIDTID
	ids, values, cursor := make([]uint64, metBatch), make([]bool, metBatch), ebpf.MapBatchCursor{}
	for {
		n, err := l.objects.Met.BatchLookupAndDelete(&cursor, ids, values, nil)
		for _, id := range ids[:n] {
			met = append(met, libpf.PIDTID(id))
		}
		if err != nil {
			break // there are no more
		}
	}
	if len(met) > 0 {
		l.loader.met <- met
	}
}

// metBatch is how many processes are taken at once.
const metBatch = 128

// Where a stack is in a record of the ring, in bytes: struct Trace of the library's types.h.
const (
	tracePID    = unsafe.Offsetof(support.Trace{}.Pid)
	traceTID    = unsafe.Offsetof(support.Trace{}.Tid)
	traceTime   = unsafe.Offsetof(support.Trace{}.Ktime)
	traceLength = unsafe.Offsetof(support.Trace{}.Frame_data_len)
	traceKernel = unsafe.Offsetof(support.Trace{}.Num_kernel_frames)
	traceFrames = unsafe.Offsetof(support.Trace{}.Frame_data)
)

// readTrace reads a record: whose stack it is, and its frames, which stay where they are.
func readTrace(record []byte) (out trace, frames []uint64, ok bool) {
	ne := binary.NativeEndian
	if len(record) < int(traceFrames) {
		return trace{}, nil, false
	}
	length, kernel := int(ne.Uint16(record[traceLength:])), int(ne.Uint16(record[traceKernel:]))
	if len(record) < int(traceFrames)+8*length || kernel > length {
		return trace{}, nil, false
	}
	out = trace{at: ne.Uint64(record[traceTime:]), pid: ne.Uint32(record[tracePID:]), tid: ne.Uint32(record[traceTID:])}
	if length == kernel {
		return out, nil, true
	}
	// The kernel's frames come first; we have our own. Records lie at multiples of 8 bytes.
	all := unsafe.Slice((*uint64)(unsafe.Pointer(&record[traceFrames])), length)
	return out, all[kernel:], true
}

// handle takes a trace.
func (l *library) handle(record []byte) {
	out, frames, ok := readTrace(record)
	if !ok {
		return // the programs write no such record
	}
	key := l.stacks.key(frames)
	if out.stack = l.stacks.known[key]; out.stack == nil {
		var lasting bool
		if out.stack, lasting = l.loader.unwound(frames, out.pid); lasting {
			l.stacks.keep(key, out.stack)
		}
	}
	l.add(out)
}

func (l *library) add(t trace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.traces) >= maxTraces {
		return
	}
	if l.traces = append(l.traces, t); len(l.traces) >= manyTraces {
		l.tell()
	}
}

// tell signals that there may be something to take. It is said once for each look, because
// each time wakes the parent as well.
func (l *library) tell() {
	select {
	case l.fresh <- struct{}{}:
	default: // it is said already
	}
}

func (l *library) entry() *ebpf.Program { return l.objects.Entry }

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
	if l.ends != nil {
		_ = l.ends.Close()
	}
	_ = l.ring.Close() // nothing is left to be done about it
	l.objects.close()
}
