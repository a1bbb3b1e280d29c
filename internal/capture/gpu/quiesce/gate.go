// Package quiesce keeps threads of a process out of the CUDA driver for moments: those that launch graphs while CUPTI
// is finalized, and others while the agent waits for the driver's lock (bpf/gate.bpf.c). It sends them a signal; the
// agent's handler holds them.
package quiesce

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/libcuda"
)

// Kind is what a gate is for.
type Kind int

// What there are.
const (
	Launches Kind = iota // holds launches of graphs while CUPTI is finalized
	Calls                // holds calls while the agent waits to be let in or out
	Kinds                // how many there are
)

// functions are those at which threads are held: what launches graphs, or what can wait. All of it is probed all of the
// time anyway, so that no instruction is changed for a gate. Their variants are taken too.
func (k Kind) functions() []string {
	if k == Launches {
		return []string{"cuGraphLaunch"}
	}
	return []string{
		"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuGraphLaunch", "cuMemcpy", "cuMemcpyAsync", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD",
	}
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

// Open puts a gate before the driver of p. It does nothing before it is armed, but to note which threads launch graphs.
func (o Options) Open(p *proc.Process, kind Kind) (*Gate, error) {
	spec, err := bpf.LoadGate()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	name := kind.program()
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	if o.Mode == uprobe.Perf {
		spec.Programs[name].AttachType = ebpf.AttachNone
	}
	g := &Gate{}
	if g.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load the program that holds threads: %w", err)
	}
	g.attachments, err = libcuda.Attach(p, o.LinkHolder, o.Mode, g.coll.Programs[name], kind.functions())
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Arm has threads sent a signal when they come by, but for the launcher, the thread that launches graphs (0: none is
// known to).
func (g *Gate) Arm(signal unix.Signal, launcher uint32) error {
	return g.set(bpf.GateGateControl{Armed: 1, Signal: uint32(signal), Launcher: launcher})
}

// Disarm lets threads come by as they like.
func (g *Gate) Disarm(launcher uint32) error { return g.set(bpf.GateGateControl{Launcher: launcher}) }

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
	var errs []error
	for _, a := range g.attachments {
		errs = append(errs, a.Close())
	}
	g.coll.Close()
	return errors.Join(errs...)
}
