// Package quiesce keeps threads of a process out of the CUDA driver for moments: all of them while CUPTI is taken out
// of it, and some while the agent waits for the driver's lock (bpf/gate.bpf.c). It sends them a signal; the agent's
// handler holds them.
package quiesce

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/relocation"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/libcuda"
)

// Kind is what a gate is for.
type Kind int

// What there are.
const (
	Launches Kind = iota // holds launches of graphs while CUPTI is finalized
	Calls                // holds calls while the agent waits to enter CUPTI, or CUPTI is taken out
	Kinds                // how many there are
)

// Extent is where a gate for calls has probes. They are there only while threads are held, for some 50 ms of a window: a
// server that makes many copies a step would pay a microsecond for each between windows, too.
type Extent uint32

// The extents, each with what the ones before it have.
const (
	Nowhere Extent = iota
	Waits          // calls that can wait, and launches of graphs
	All            // all calls in which CUPTI has a part
)

// waits are the functions of Waits. Variants of all functions are taken too.
func waits() []string {
	return []string{
		"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuGraphLaunch", "cuMemcpy",
		"cuMemcpyAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpyHtoD",
		"cuMemcpyDtoH", "cuMemcpyDtoD",
	}
}

// always are the functions that have probes all of the time: launches of graphs, since it must be known who makes them.
// A probe of a perf event takes 0.1 s to remove, so those of calls that can wait stay too.
func (k Kind) always(mode uprobe.Mode) []string {
	switch {
	case k == Launches:
		return []string{"cuGraphLaunch"}
	case mode == uprobe.Perf:
		return waits()
	}
	return nil
}

// more are the functions that an extent has beyond the one before it and those of always.
func (e Extent) more(mode uprobe.Mode) []string {
	launches := []string{"cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel"}
	switch {
	case e == Waits && mode == uprobe.Perf:
		return nil
	case e == Waits:
		return waits()
	case mode == uprobe.Perf:
		return launches
	}
	return append(
		launches,
		"cuMemsetD8", "cuMemsetD16", "cuMemsetD32", "cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async",
		"cuMemcpyPeer", "cuMemcpyPeerAsync", "cuMemcpy2D", "cuMemcpy2DAsync", "cuMemcpy3D", "cuMemcpy3DAsync",
		"cuMemcpyBatchAsync", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleUnload", "cuLibraryLoadData",
		"cuLibraryUnload", "cuStreamCreate", "cuStreamCreateWithPriority", "cuStreamDestroy",
		// Calls that loops make in a row: a thread that runs between two of them is seen outside and goes on.
		"cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemFree", "cuMemAllocAsync",
		"cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemAllocHost", "cuMemHostAlloc", "cuMemFreeHost",
		"cuMemHostRegister", "cuMemHostUnregister", "cuStreamQuery", "cuStreamWaitEvent", "cuEventCreate",
		"cuEventDestroy", "cuEventQuery", "cuEventRecord",
	)
}

func (k Kind) program() string {
	if k == Launches {
		return bpf.GateProgLaunch
	}
	return bpf.GateProgCall
}

// Gate stands before the driver of one process.
type Gate struct {
	coll        *ebpf.Collection
	attachments []*uprobe.Attachment
	mode        uprobe.Mode
	attach      func(functions []string) ([]*uprobe.Attachment, error)

	wanted atomic.Uint32 // Extent
	mu     sync.Mutex
	extra  [All + 1][]*uprobe.Attachment // what each extent has of its own; nil: it is not there
}

// Who is never held.
type Who struct {
	Launcher uint32 // the thread that launches graphs; 0: none is known to
	Agent    uint32 // the agent's own; 0: not known
}

// State is what a gate has seen and done so far.
type State struct {
	LaunchedAt uint64 // ns: when the launcher last launched a graph
	Signals    uint64 // that were sent
	Blocked    uint64 // that could not be: the thread blocks the signal
	Overflow   uint64 // threads that launched graphs and were not noted
}

// Options say how gates are put up.
type Options struct {
	LinkHolder *uprobe.LinkHolder // of the probes (uprobe.AttachProgram)
	Mode       uprobe.Mode
}

// outlives is for how long a gate stays where the daemon is killed: an agent that has begun to flush or to finalize
// relies on it, and needs some milliseconds. Later ones see that the daemon has gone.
const outlives = time.Second

// fitted is what this kernel's types change in the programs; nothing where that cannot be found out: whatever loads a
// program then finds it out itself.
var fitted = sync.OnceValue(func() map[string][]relocation.Change {
	spec, err := bpf.LoadGate()
	if err != nil {
		return nil
	}
	changes, _ := relocation.Find(spec.Programs)
	return changes
})

// Open puts a gate before the driver of p. It does nothing before it is armed, but to note which threads launch graphs.
func (o Options) Open(p *proc.Process, kind Kind) (*Gate, error) {
	spec, err := bpf.LoadGate()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	name := kind.program()
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	if err := relocation.Apply(spec.Programs[name], fitted()[name]); err != nil {
		return nil, fmt.Errorf("fit the program that holds threads to this kernel: %w", err)
	}
	if o.Mode == uprobe.Perf {
		spec.Programs[name].AttachType = ebpf.AttachNone
	}
	if o.LinkHolder != nil {
		o.LinkHolder = o.LinkHolder.Outliving(outlives)
	}
	g := &Gate{mode: o.Mode}
	if g.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load the program that holds threads: %w", err)
	}
	g.attach = func(functions []string) ([]*uprobe.Attachment, error) {
		return libcuda.Attach(p, o.LinkHolder, o.Mode, g.coll.Programs[name], functions)
	}
	if err := g.try(kind); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// try attaches all that a gate of that kind needs, so that one which cannot be had is known before a window opens.
func (g *Gate) try(kind Kind) (err error) {
	if functions := kind.always(g.mode); functions != nil {
		g.attachments, err = g.attach(functions)
		return err
	}
	for _, e := range []Extent{All, Nowhere} {
		g.Want(e)
		if _, err := g.Settle(); err != nil {
			return err
		}
	}
	return nil
}

// Arm has threads sent a signal when they come by, but for those that are never held: each time, or now and then.
func (g *Gate) Arm(signal unix.Signal, but Who, each bool) error {
	if signal == 0 {
		return errors.New("arm the gate: signal 0 holds nobody")
	}
	c := bpf.GateGateControl{Armed: 1, Signal: uint32(signal), Launcher: but.Launcher, Agent: but.Agent}
	if each {
		c.EveryCall = 1
	}
	return g.set(c)
}

// Disarm lets threads come by as they like.
func (g *Gate) Disarm(launcher uint32) error { return g.set(bpf.GateGateControl{Launcher: launcher}) }

// Want says where the gate is to have probes. Settle makes it so.
func (g *Gate) Want(e Extent) { g.wanted.Store(uint32(e)) }

// Settle brings the probes where they were wanted last, and reports where they are. It takes a moment, to remove some a
// grace period of the kernel. It may run several times at once: whichever comes last sees what is wanted last.
func (g *Gate) Settle() (Extent, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	wanted, has := Extent(g.wanted.Load()), Nowhere
	for e := Waits; e <= All; e++ {
		functions := e.more(g.mode)
		switch {
		case wanted < e:
			for _, a := range g.extra[e] {
				errs = append(errs, a.Close())
			}
			g.extra[e] = nil
			continue
		case g.extra[e] == nil && functions != nil:
			var err error
			if g.extra[e], err = g.attach(functions); err != nil {
				errs = append(errs, fmt.Errorf("hold calls of %s and others: %w", functions[0], err))
			}
		}
		if has == e-1 && (functions == nil || g.extra[e] != nil) {
			has = e
		}
	}
	return min(has, Extent(g.wanted.Load())), errors.Join(errs...)
}

func (g *Gate) set(c bpf.GateGateControl) error {
	if err := g.coll.Maps[bpf.GateMapControl].Put(uint32(0), c); err != nil {
		return fmt.Errorf("tell the gate what is wanted: %w", err)
	}
	return nil
}

// State returns what the gate has seen and done.
func (g *Gate) State() (State, error) {
	var c bpf.GateGateState
	if err := g.coll.Maps[bpf.GateMapState].Lookup(uint32(0), &c); err != nil {
		return State{}, fmt.Errorf("read what the gate has done: %w", err)
	}
	return State{LaunchedAt: c.LaunchedAt, Signals: c.Signals, Blocked: c.Blocked, Overflow: c.Overflow}, nil
}

// Launchers returns the threads that launched graphs, but those that were the launcher then, or were forgotten since.
func (g *Gate) Launchers() ([]uint32, error) {
	var tids []uint32
	var tid uint32
	var at uint64
	all := g.coll.Maps[bpf.GateMapLaunchers].Iterate()
	for all.Next(&tid, &at) {
		tids = append(tids, tid)
	}
	if err := all.Err(); err != nil {
		return tids, fmt.Errorf("read which threads launch graphs: %w", err)
	}
	return tids, nil
}

// Forget makes room for other launchers; where that thread launches again it is noted again.
func (g *Gate) Forget(tid uint32) { _ = g.coll.Maps[bpf.GateMapLaunchers].Delete(tid) }

// Close takes the gate away. It takes a grace period of the kernel.
func (g *Gate) Close() error {
	g.Want(Nowhere)
	_, err := g.Settle()
	errs := []error{err}
	for _, a := range g.attachments {
		errs = append(errs, a.Close())
	}
	g.coll.Close()
	return errors.Join(errs...)
}
