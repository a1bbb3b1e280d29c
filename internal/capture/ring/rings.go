// Package ring is the way of events from the kernel to the daemon: per-CPU BPF
// ring buffers that a BPF program fills without ever waking anybody, and a
// reader that maps them and empties them on the daemon's timer.
package ring

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// The names of the maps in a CollectionSpec that are replaced by those of Maps.
const (
	ringsMap  = "rings"  // ARRAY_OF_MAPS of RINGBUF, indexed by CPU
	lossesMap = "losses" // PERCPU_ARRAY of u64, indexed by enum loss_reason of bpf/event.h
)

// batchEvents is how many events Drain hands over at once: 16 KiB, which stays in
// the first-level cache between the copy out of the ring and the use. With the
// append to the recorder 18 ns per event, with 512 at once 23 (medians of 9).
const batchEvents = 256

// Options are the settings of New.
type Options struct {
	// Bytes is the budget for the data pages of all rings together; 0 means
	// DefaultBytes. It is kernel memory that is never paged out.
	Bytes int64
}

// Rings are the ring buffers of all CPUs and the counters of what did not fit in.
//
// A CPU that is offline when the rings are made shares the ring of another one
// if it comes online later: BPF ring buffers take several producers, so sharing
// costs time where both are busy and loses nothing.
type Rings struct {
	outer  *ebpf.Map
	losses *ebpf.Map
	inner  []*ebpf.Map
	size   int64 // bytes of data pages of each ring

	mu      sync.Mutex // a reader's memory may not be unmapped under Drain
	readers []*reader
	lanes   *lanes // nil: nobody asked for them
	batch   []event.Event
	fill    float64

	malformed atomic.Uint64
}

// New makes the rings, maps them, and makes the loss counters. It needs CAP_BPF
// (CAP_SYS_ADMIN before kernel 5.8, which also is the first with ring buffers) and
// raises no resource limit. Errors: clierror.Permission where the kernel refuses,
// and a plain error where memory or the budget is too small.
func New(opts Options) (*Rings, error) {
	online, err := procfile.CPUs(procfile.OnlineCPUs)
	if err != nil {
		return nil, err
	}
	possible, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("find the possible CPUs: %w", err)
	}
	plan, err := layout(opts.Bytes, possible, online)
	if err != nil {
		return nil, err
	}
	r := &Rings{size: plan.size, batch: make([]event.Event, batchEvents)}
	if err := r.create(plan); err != nil {
		return nil, errors.Join(explain(err), r.Close())
	}
	return r, nil
}

// create makes the maps of plan and fills the outer one.
func (r *Rings) create(plan plan) (err error) {
	for i := range plan.rings {
		if err := r.addRing(plan.size); err != nil {
			return fmt.Errorf("create ring buffer %d of %d (%d KiB): %w", i+1, plan.rings, plan.size>>10, err)
		}
	}
	r.outer, err = ebpf.NewMap(outerSpec(len(plan.ringOf)))
	if err != nil {
		return fmt.Errorf("create the array of ring buffers for %d CPUs: %w", len(plan.ringOf), err)
	}
	for cpu, ring := range plan.ringOf {
		if err := r.outer.Put(uint32(cpu), r.inner[ring]); err != nil {
			return fmt.Errorf("give CPU %d its ring buffer: %w", cpu, err)
		}
	}
	r.losses, err = ebpf.NewMap(lossesSpec())
	if err != nil {
		return fmt.Errorf("create the loss counters: %w", err)
	}
	return nil
}

func (r *Rings) addRing(size int64) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ring", Type: ebpf.RingBuf, MaxEntries: uint32(size)})
	if err != nil {
		return err
	}
	r.inner = append(r.inner, m)
	reader, err := mapReader(m.FD(), int(size))
	if err != nil {
		return err
	}
	r.readers = append(r.readers, reader)
	return nil
}

// outerSpec describes the array of rings. The kernel compares a ring with the
// inner template by type and flags, not by size (bpf_map_meta_equal), so the
// template is as small as a ring can be.
func outerSpec(cpus int) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: ringsMap, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: uint32(cpus),
		InnerMap: &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(unix.Getpagesize())},
	}
}

func lossesSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: lossesMap, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: uint32(len(reasons())),
	}
}

// explain adds what to do to the errors that a person can do something about.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return clierror.New(clierror.Permission, "run the daemon as root or with CAP_BPF and CAP_PERFMON", err)
	}
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: lower --ring-mb", err)
	}
	return err
}

// Maps returns the maps by the name that BPF programs know them by, for
// ebpf.CollectionOptions.MapReplacements. They stay the property of Rings; the
// library clones them. The C side declares what follows, and whoever loads it sets
// max_entries to that of the map given here, which the library demands to be equal:
//
//	struct ring {
//		__uint(type, BPF_MAP_TYPE_RINGBUF);
//		__uint(max_entries, 4096);
//	};
//	struct {
//		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
//		__uint(max_entries, 1); // the number of possible CPUs, known at load
//		__type(key, __u32);
//		__array(values, struct ring);
//	} rings SEC(".maps");
//	struct {
//		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
//		__uint(max_entries, LOSS_REASONS);
//		__type(key, __u32);
//		__type(value, __u64);
//	} losses SEC(".maps");
//
// A program looks its ring up with the number of its CPU, and never finds NULL.
func (r *Rings) Maps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{ringsMap: r.outer, lossesMap: r.losses}
}

// Bytes returns how much kernel memory the rings take, as the kernel counts it
// (ringbuf_map_mem_usage): data pages, for each ring the consumer's and the
// producer's page and one of bookkeeping, and a table of pointers to the pages,
// which are mapped twice. Those of Lanes are added.
func (r *Rings) Bytes() int64 {
	page := int64(unix.Getpagesize())
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.inner))*(r.size+3*page+2*8*r.size/page) + r.lanes.bytes()
}

// Drain hands the events that the rings hold to f, in batches of at most 256. Events of one CPU come in the order in
// which they were submitted; CPUs follow each other, and so do lanes and rings. A batch is valid only until f returns,
// and not to be written to. What arrives during the pass waits for the next one, so that a busy target cannot keep
// Drain forever. It returns the number of events. Calls do not overlap; after Close it returns 0.
func (r *Rings) Drain(f func(batch []event.Event)) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := r.drainLanes(f)
	r.fill = 0
	for _, rd := range r.readers {
		limit := rd.produced()
		r.fill = max(r.fill, rd.fill(limit))
		for {
			n, more := rd.read(r.batch, limit)
			if n > 0 {
				f(r.batch[:n])
				total += n
			}
			if !more {
				break
			}
		}
		if rd.malformed > 0 {
			r.malformed.Add(rd.malformed)
			rd.malformed = 0
		}
	}
	return total
}

// drainLanes is Drain of the lanes. The caller holds the lock.
func (r *Rings) drainLanes(f func(batch []event.Event)) int {
	n := r.lanes.drain(f)
	if r.lanes != nil && r.lanes.malformed > 0 {
		r.malformed.Add(r.lanes.malformed)
		r.lanes.malformed = 0
	}
	return n
}

// Fill returns how full the fullest ring was when the last Drain reached it, 0 to
// 1: the daemon's timer slows down and speeds up by it. A full lane counts for nothing: what
// has no room there fills a ring.
func (r *Rings) Fill() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fill
}

// Close unmaps the rings and closes the maps; a BPF program that is still
// attached keeps them alive in the kernel. Calling it again does nothing.
func (r *Rings) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, rd := range r.readers {
		errs = append(errs, rd.close())
	}
	r.readers = nil
	errs = append(errs, r.lanes.close())
	r.lanes = nil
	for _, m := range slices.Concat(r.inner, []*ebpf.Map{r.outer, r.losses}) {
		errs = append(errs, m.Close()) // nil maps close without an error
	}
	return errors.Join(errs...)
}
