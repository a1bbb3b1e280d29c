package ring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// LanesMap is the name of the map in a CollectionSpec that is replaced by that of Lanes.
const LanesMap = "lanes" // ARRAY of struct lane (bpf/sched_lane.h), indexed by CPU

// The layout of struct lane in bpf/sched_lane.h, in bytes.
const (
	laneHead   = 0
	laneTail   = 128
	laneFirst  = 256
	laneEvents = 1024
	laneSize   = laneFirst + laneEvents*event.Size
)

// maxLanes bounds the memory: CPUs beyond it write into their rings.
const maxLanes = 64

// lanes are buffers of events, one for each CPU, each with one writer: programs that run with
// interrupts off, so that none comes in between another's. What does not fit into a lane goes
// into the CPU's ring.
type lanes struct {
	array *ebpf.Map
	mem   []byte // all of the array

	malformed uint64 // lanes given up because their counters made no sense
}

// Lanes returns the map of lanes, for ebpf.CollectionOptions.MapReplacements of a program
// that declares one; Drain empties it from then on. It stays the property of Rings.
func (r *Rings) Lanes() (*ebpf.Map, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lanes != nil {
		return r.lanes.array, nil
	}
	if r.readers == nil {
		return nil, errors.New("make lanes for events: the rings are closed")
	}
	l, err := newLanes(min(r.outer.MaxEntries(), maxLanes))
	if err != nil {
		return nil, explain(fmt.Errorf("make lanes for events of %d CPUs: %w", r.outer.MaxEntries(), err))
	}
	r.lanes = l
	return l.array, nil
}

func newLanes(cpus uint32) (*lanes, error) {
	array, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: LanesMap, Type: ebpf.Array, KeySize: 4, ValueSize: laneSize, MaxEntries: cpus, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	size := (int(cpus)*laneSize + page - 1) / page * page
	mem, err := unix.Mmap(array.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map them: %w", err), array.Close())
	}
	return &lanes{array: array, mem: mem}, nil
}

// drain hands the events of all lanes to f, out of the lanes themselves, and returns their number.
func (l *lanes) drain(f func(batch []event.Event)) int {
	if l == nil {
		return 0
	}
	total := 0
	for at := 0; at+laneSize <= len(l.mem); at += laneSize {
		total += l.drainOne(l.mem[at:at+laneSize], f)
	}
	return total
}

func (l *lanes) drainOne(lane []byte, f func(batch []event.Event)) int {
	head, tail := (*uint64)(unsafe.Pointer(&lane[laneHead])), (*uint64)(unsafe.Pointer(&lane[laneTail]))
	events := unsafe.Slice((*event.Event)(unsafe.Pointer(&lane[laneFirst])), laneEvents)
	from, to := *tail, atomic.LoadUint64(head) // who sees the counter sees the events
	if to-from > laneEvents {
		l.malformed++
		atomic.StoreUint64(tail, to)
		return 0
	}
	for pos := from; pos < to; {
		first := pos % laneEvents
		n := min(to-pos, laneEvents-first, batchEvents)
		f(events[first : first+n])
		pos += n
	}
	if to != from {
		atomic.StoreUint64(tail, to) // from here on they may be written over
	}
	return int(to - from)
}

// bytes returns how much memory the lanes take.
func (l *lanes) bytes() int64 {
	if l == nil {
		return 0
	}
	return int64(len(l.mem))
}

func (l *lanes) close() error {
	if l == nil {
		return nil
	}
	return errors.Join(unix.Munmap(l.mem), l.array.Close())
}

// reasons maps enum loss_reason of bpf/event.h to the registry.
func reasons() []loss.Reason {
	return []loss.Reason{loss.RingFull, loss.CallDepth, loss.ThreadStorage, loss.ReturnOnly, loss.CallsSkipped}
}

// Losses returns what was lost since the rings were made, by reason and then by
// CPU (Where is "cpu 3"); what did not happen is left out. An error means that the
// counters could not be read, so that nothing is known about losses.
func (r *Rings) Losses() ([]loss.Loss, error) {
	var all []loss.Loss
	for i, reason := range reasons() {
		var perCPU []uint64
		if err := r.losses.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read the loss counters for %s: %w", reason, err)
		}
		for cpu, n := range perCPU {
			if n > 0 {
				all = append(all, loss.Loss{Reason: reason, Count: n, CPU: loss.CPUOf(cpu), Where: cpuName(cpu)})
			}
		}
	}
	if n := r.malformed.Load(); n > 0 {
		all = append(all, loss.Loss{Reason: loss.Malformed, Count: n})
	}
	return all, nil
}

func cpuName(cpu int) string { return fmt.Sprintf("cpu %d", cpu) }
