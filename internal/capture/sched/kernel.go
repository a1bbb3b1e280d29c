package sched

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

const (
	// sliceNS is the time over which the programs deal a budget out (SLICE_SHIFT).
	sliceNS = 1 << 27
	// rowsAtOnce is how many threads are read out of the map by one system call.
	rowsAtOnce = 1024
)

// kernel is the part that runs in the kernel: bpf/sched.bpf.c.
type kernel struct {
	objects bpf.SchedObjects
	links   []link.Link
	wakers  bool      // somebody looks who wakes threads, while programs are attached
	waking  link.Link // of SchedWaking; nil: nobody looks who wakes threads
}

func openKernel(rings *ring.Rings, opts Options) (*kernel, error) {
	k := &kernel{wakers: true}
	if err := k.load(rings, opts); err != nil {
		return nil, explain(fmt.Errorf("load the programs for scheduling: %w", err))
	}
	return k, nil
}

func (k *kernel) load(rings *ring.Rings, opts Options) error {
	spec, err := bpf.LoadSched()
	if err != nil {
		return fmt.Errorf("read the embedded programs: %w", err)
	}
	if err := setConstants(spec, opts); err != nil {
		return err
	}
	maps, err := mapsFor(spec, rings)
	if err != nil {
		return err
	}
	for name, m := range maps {
		ms := spec.Maps[name]
		if ms == nil {
			return fmt.Errorf("the programs have no map %q", name)
		}
		ms.MaxEntries = m.MaxEntries() // how many CPUs there are is known only here
	}
	return spec.LoadAndAssign(&k.objects, &ebpf.CollectionOptions{MapReplacements: maps})
}

// mapsFor returns the maps that the programs share with the daemon, by name. Lanes are
// declared where the architecture can have them.
func mapsFor(spec *ebpf.CollectionSpec, rings *ring.Rings) (map[string]*ebpf.Map, error) {
	maps := rings.Maps()
	if spec.Maps[ring.LanesMap] == nil {
		return maps, nil
	}
	lanes, err := rings.Lanes()
	if err != nil {
		return nil, err
	}
	maps[ring.LanesMap] = lanes
	return maps, nil
}

// attach puts sched_new first: it only ever adds what the others then find.
func (k *kernel) attach() error {
	if err := k.watchWakers(k.wakers); err != nil {
		return err
	}
	for _, p := range []*ebpf.Program{k.objects.SchedNew, k.objects.SchedExec, k.objects.SchedSwitch} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return explain(errors.Join(fmt.Errorf("attach to the scheduler's tracepoints: %w", err), k.detach()))
		}
		k.links = append(k.links, l)
	}
	return nil
}

// watchWakers attaches what looks who wakes threads, or detaches it.
func (k *kernel) watchWakers(on bool) error {
	if on == (k.waking != nil) {
		return nil
	}
	if !on {
		err := k.waking.Close()
		k.waking = nil
		return err
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: k.objects.SchedWaking})
	if err != nil {
		return explain(fmt.Errorf("attach to the scheduler's wake-ups: %w", err))
	}
	k.waking = l
	return nil
}

func (k *kernel) detach() error {
	errs := []error{k.watchWakers(false)}
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	k.links = nil
	return errors.Join(errs...)
}

func (k *kernel) close() error { return errors.Join(k.detach(), k.objects.Close()) }

// follow makes the kernel follow the process, and reports whether it did already: a
// child of a followed process is followed from its birth.
func (k *kernel) follow(id proc.ID) (already bool, err error) {
	if k.follows(id) {
		return true, nil
	}
	if err := k.objects.Followed.Put(id.PID, bpf.SchedFollowedProcess{Ticks: id.StartTime}); err != nil {
		return false, fmt.Errorf("follow the scheduling of pid %d (of at most %d processes): %w",
			id.PID, k.objects.Followed.MaxEntries(), err)
	}
	if err := k.objects.Filter.Put(k.slot(id.PID), uint8(1)); err != nil {
		return false, fmt.Errorf("let pid %d pass the filter: %w", id.PID, err)
	}
	return false, nil
}

func (k *kernel) slot(pid uint32) uint32 { return pid % k.objects.Filter.MaxEntries() }

func (k *kernel) follows(id proc.ID) bool {
	var p bpf.SchedFollowedProcess
	return k.objects.Followed.Lookup(id.PID, &p) == nil && p.Ticks == id.StartTime
}

// forget ends following the process, if no other has its pid by now, whatever its threads
// are doing: what is known of these stays until they have ended, or until clear.
func (k *kernel) forget(id proc.ID) {
	if k.follows(id) {
		_ = k.objects.Followed.Delete(id.PID) // gone already is as well
	}
	k.block(id)
}

// block lets a process no longer pass the filter.
func (k *kernel) block(id proc.ID) {
	// The bit may be another process's as well, or a child's that is born just now:
	// the kernel follows first and sets the bit then, so whoever has it is found.
	_ = k.objects.Filter.Put(k.slot(id.PID), uint8(0)) // the slot exists
	var pid uint32
	var p bpf.SchedFollowedProcess
	for iter := k.objects.Followed.Iterate(); iter.Next(&pid, &p); {
		if k.slot(pid) == k.slot(id.PID) {
			_ = k.objects.Filter.Put(k.slot(id.PID), uint8(1))
			return
		}
	}
}

// seed takes down what the threads of followed processes are doing now, those that
// are known already excepted.
func (k *kernel) seed() error {
	_, err := iterate(k.objects.SchedSeed)
	return err
}

// iterate runs a program over all threads of the machine, and returns what it says.
func iterate(p *ebpf.Program) ([]byte, error) {
	l, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return nil, fmt.Errorf("attach the iterator over threads: %w", err)
	}
	defer func() { _ = l.Close() }() // it holds nothing that matters
	r, err := l.Open()
	if err != nil {
		return nil, fmt.Errorf("open the iterator over threads: %w", err)
	}
	said, err := io.ReadAll(r)
	return said, errors.Join(err, r.Close())
}

// fewThreads are looked up one by one: the array of all has room for 16,384, and to read it takes 5 ms.
const fewThreads = 1024

// threads calls visit with every thread that is known, as it is now.
func (k *kernel) threads(visit func(t *bpf.SchedThreadState)) error {
	places, owners := make([]uint32, fewThreads), make([]uint32, fewThreads)
	n, err := k.objects.Owners.BatchLookup(new(ebpf.MapBatchCursor), places, owners, nil)
	if !errors.Is(err, ebpf.ErrKeyNotExist) { // there are more
		return errors.Join(walk(k.objects.Threads, visit), walk(k.objects.Overflow, visit))
	}
	for _, place := range places[:n] {
		var t bpf.SchedThreadState
		if err := k.objects.Threads.Lookup(place, &t); err != nil {
			return fmt.Errorf("read the state of a thread: %w", err)
		}
		if t.Tid != 0 {
			visit(&t)
		}
	}
	return walk(k.objects.Overflow, visit)
}

// walk calls visit with every thread in a map.
func walk(m *ebpf.Map, visit func(t *bpf.SchedThreadState)) error {
	keys := make([]uint32, rowsAtOnce)
	states := make([]bpf.SchedThreadState, rowsAtOnce)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, states, nil)
		for i := range n {
			if states[i].Tid != 0 {
				visit(&states[i])
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the states of threads: %w", err)
		}
	}
}

// room returns how many threads there can be a state of, unless many share a place.
func (k *kernel) room() uint32 { return k.objects.Threads.MaxEntries() }

// count returns a counter of enum switch_count, summed over the CPUs.
func (k *kernel) count(index bpf.SchedSwitchCount) uint64 {
	var perCPU []uint64
	if k.objects.SchedCounts.Lookup(uint32(index), &perCPU) != nil {
		return 0
	}
	var total uint64
	for _, n := range perCPU {
		total += n
	}
	return total
}

// explain adds what to do to the errors that a person can do something about.
func explain(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return clierror.New(clierror.Permission, "run as root, or with CAP_BPF and CAP_PERFMON", err)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, os.ErrNotExist):
		return clierror.New(clierror.Unsupported, "use Linux 5.15 or newer with BTF (CONFIG_DEBUG_INFO_BTF=y)", err)
	}
	return err
}

func (k *kernel) summed() uint64 { return k.count(bpf.SchedSwitchCountSWITCH_SUMMED) }
func (k *kernel) missed() uint64 { return k.count(bpf.SchedSwitchCountSWITCH_MISSED) }
func (k *kernel) noRoom() uint64 { return k.count(bpf.SchedSwitchCountSWITCH_NO_ROOM) }

// clear forgets the threads that are chosen: what they did while nothing was attached is
// not known, and some ended while nobody looked.
func (k *kernel) clear(chosen func(t *bpf.SchedThreadState) bool) error {
	var tids []uint32
	err := k.threads(func(t *bpf.SchedThreadState) {
		if chosen(t) {
			tids = append(tids, t.Tid)
		}
	})
	for _, tid := range tids {
		place := tid % k.room()
		var there bpf.SchedThreadState
		if k.objects.Threads.Lookup(place, &there) == nil && there.Tid == tid {
			err = errors.Join(err, k.objects.Threads.Put(place, bpf.SchedThreadState{}))
			_ = k.objects.Owners.Delete(place)
		}
		_ = k.objects.Overflow.Delete(tid) // it is in one of both
	}
	return err
}
