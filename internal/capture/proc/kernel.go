package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/event"
)

const hintTracing = "run as root, or with CAP_BPF and CAP_PERFMON"

// kernel is the part of the watcher that runs in the kernel: bpf/process.bpf.c.
type kernel struct {
	objects bpf.ProcessObjects
	links   []link.Link
	reader  *ringbuf.Reader
	events  chan event.Event // closed when the reader has ended
	done    chan struct{}    // closed when nobody wants events any more
}

// openKernel loads and attaches the programs and starts to read their ring.
// ringBytes 0 leaves the ring as the C file has it.
func openKernel(ringBytes uint32, buffered int) (*kernel, error) {
	k := &kernel{events: make(chan event.Event, buffered), done: make(chan struct{})}
	if err := k.load(ringBytes); err != nil {
		return nil, explainKernel("loading the process programs", err)
	}
	if err := k.attach(); err != nil {
		return nil, errors.Join(explainKernel("attaching to sched_process_fork, _exec and _exit", err), k.release())
	}
	reader, err := ringbuf.NewReader(k.objects.ProcessEvents)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading the ring of process events: %w", err), k.release())
	}
	k.reader = reader
	go k.read()
	return k, nil
}

func (k *kernel) load(ringBytes uint32) error {
	spec, err := bpf.LoadProcess()
	if err != nil {
		return err
	}
	if ringBytes != 0 {
		spec.Maps["process_events"].MaxEntries = ringBytes
	}
	return spec.LoadAndAssign(&k.objects, nil)
}

// attach puts the fork program last: once it can add a process, exec and exit follow it.
func (k *kernel) attach() error {
	for _, program := range []*ebpf.Program{k.objects.ProcessExit, k.objects.ProcessExec, k.objects.ProcessFork} {
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return err
		}
		k.links = append(k.links, l)
	}
	return nil
}

func explainKernel(doing string, err error) error {
	err = fmt.Errorf("%s: %w", doing, err)
	switch {
	case errors.Is(err, os.ErrPermission):
		return clierror.New(clierror.Permission, hintTracing, err)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, os.ErrNotExist):
		return clierror.New(clierror.Unsupported, "use Linux 5.15 or newer with BTF (CONFIG_DEBUG_INFO_BTF=y)", err)
	}
	return err
}

// read passes events on until the reader is closed, or fails for good. It may
// block: the ring holds what comes meanwhile, and the kernel counts what it has
// no room for.
func (k *kernel) read() {
	defer close(k.events)
	var record ringbuf.Record
	storm := stormMeter{mark: monotonic()}
	for k.reader.ReadInto(&record) == nil {
		if storm.count() && k.reader.AvailableBytes() == 0 {
			time.Sleep(stormPause)
		}
		e, ok := decode(record.RawSample)
		if !ok {
			continue
		}
		select {
		case k.events <- e:
		case <-k.done:
			return
		}
	}
}

// Each event wakes the reader, which takes longer than all else that is done with one. In a storm, of more than
// stormEvents within stormTime, they gather for a while; the ring holds 7,000.
const (
	stormEvents = 64
	stormTime   = 100_000_000 // ns
	stormPause  = 5 * time.Millisecond
)

// stormMeter reports whether there is one.
type stormMeter struct {
	events int
	mark   uint64 // ns
	storm  bool
}

func (m *stormMeter) count() bool {
	if m.events++; m.events == stormEvents {
		now := monotonic()
		m.storm = now-m.mark < stormTime
		m.events, m.mark = 0, now
	}
	return m.storm
}

// decode reads struct event of bpf/event.h.
func decode(raw []byte) (event.Event, bool) {
	if len(raw) < event.Size {
		return event.Event{}, false
	}
	order := binary.NativeEndian
	e := event.Event{
		TS:    order.Uint64(raw[0:]),
		Dur:   order.Uint64(raw[8:]),
		PID:   order.Uint32(raw[16:]),
		TID:   order.Uint32(raw[20:]),
		Func:  order.Uint16(raw[24:]),
		Kind:  event.Kind(raw[26]),
		Flags: event.Flags(raw[27]),
		Ret:   int32(order.Uint32(raw[28:])),
	}
	for i := range e.Args {
		e.Args[i] = order.Uint64(raw[32+8*i:])
	}
	return e, true
}

// watch makes the kernel follow a process and all that it forks from now on.
func (k *kernel) watch(id ID) error {
	if err := k.objects.Watched.Put(id.PID, id.StartTime); err != nil {
		return fmt.Errorf("watching pid %d (of at most %d processes): %w", id.PID, k.objects.Watched.MaxEntries(), err)
	}
	return nil
}

// unwatch ends it, if it is that process and no other that the kernel follows.
func (k *kernel) unwatch(id ID) {
	if k.isWatched(id) {
		_ = k.objects.Watched.Delete(id.PID) // gone already is as well
	}
}

// isWatched reports whether the kernel follows exactly that process.
func (k *kernel) isWatched(id ID) bool {
	var ticks uint64
	return k.objects.Watched.Lookup(id.PID, &ticks) == nil && ticks == id.StartTime
}

// watched returns the processes that the kernel follows.
func (k *kernel) watched() ([]ID, error) {
	var ids []ID
	var id ID
	iter := k.objects.Watched.Iterate()
	for iter.Next(&id.PID, &id.StartTime) {
		ids = append(ids, id)
	}
	if err := iter.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return ids, fmt.Errorf("listing the watched processes: %w", err)
	}
	return ids, nil
}

// kernelLosses are the counters of enum process_loss.
type kernelLosses struct {
	ring    uint64 // events that the ring had no room for
	watched uint64 // children that the map of watched processes had no room for
}

func (k *kernel) losses() kernelLosses {
	return kernelLosses{ring: k.sum(0), watched: k.sum(1)}
}

func (k *kernel) sum(reason uint32) uint64 {
	var perCPU []uint64
	if k.objects.ProcessLosses.Lookup(reason, &perCPU) != nil {
		return 0
	}
	var total uint64
	for _, n := range perCPU {
		total += n
	}
	return total
}

// close detaches the programs, then ends the reader. Called once.
func (k *kernel) close() error {
	close(k.done)
	return errors.Join(k.release(), k.reader.Close())
}

func (k *kernel) release() error {
	var errs []error
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, k.objects.Close())...)
}
