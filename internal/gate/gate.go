// Package gate keeps the threads of a process out of the CUDA driver for moments: while an agent in it waits until none is inside, and
// those that launch graphs while CUPTI is finalized (bpf/gate.bpf.c).
package gate

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/libcuda"
	"github.com/inferscope/inferscope/internal/probe"
	"github.com/inferscope/inferscope/internal/target"
)

// Kind is what a gate is for.
type Kind int

// What there are.
const (
	Launches Kind = iota // holds launches of graphs while CUPTI is finalized
	Calls                // holds calls while the agent waits to be let in or out
	Kinds                // how many there are
)

// functions are those at which threads are held: what launches graphs, or what can wait. All of it is probed all of the time anyway, so that
// no instruction is changed for a gate. Their variants are taken too.
func (k Kind) functions() []string {
	if k == Launches {
		return []string{"cuGraphLaunch"}
	}
	return []string{
		"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuGraphLaunch", "cuMemcpy", "cuMemcpyAsync", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD",
	}
}

// Gate stands before the driver of one process.
type Gate struct {
	coll        *ebpf.Collection
	attachments []*probe.Attachment
}

// Count is what a gate has done so far.
type Count struct {
	Held    uint64        // threads that were held, each time counted
	Sum     time.Duration // for how long, all together
	Longest time.Duration
}

// Open puts a gate before the driver of p, for the agent whose words (opening, leaving and finalizing of struct agent_ring, agent/abi.h) lie
// at an address in p. It opens and shuts by itself, by these words. It needs what probes need (keeper and mode: see probe.AttachProgram), and kernel 5.17 (bpf_loop).
func Open(p *target.Process, keeper *probe.Keeper, mode probe.Mode, kind Kind, words uint64) (*Gate, error) {
	spec, err := bpf.LoadGate()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	prog := map[Kind]string{Launches: bpf.GateProgLaunches, Calls: bpf.GateProgGate}[kind]
	spec.Programs = map[string]*ebpf.ProgramSpec{prog: spec.Programs[prog]}
	if mode == probe.Perf {
		spec.Programs[prog].AttachType = ebpf.AttachNone
	}
	if err := spec.Variables[bpf.GateVarWordsAt].Set(words); err != nil {
		return nil, fmt.Errorf("tell the program where the agent's words are: %w", err)
	}
	g := &Gate{}
	if g.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load the program that holds threads: %w", err)
	}
	g.attachments, err = libcuda.Attach(p, keeper, mode, g.coll.Programs[prog], kind.functions())
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Count returns what the gate has done so far.
func (g *Gate) Count() (Count, error) {
	var c bpf.GateGateCount
	if err := g.coll.Maps[bpf.GateMapCounts].Lookup(uint32(0), &c); err != nil {
		return Count{}, fmt.Errorf("read what the gate has done: %w", err)
	}
	return Count{Held: c.Held, Sum: time.Duration(c.Ns), Longest: time.Duration(c.Longest)}, nil
}

// Close takes the gate away. It takes a grace period of the kernel.
func (g *Gate) Close() error {
	var errs []error
	for _, a := range g.attachments {
		errs = append(errs, a.Close())
	}
	g.coll.Close()
	return errors.Join(errs...)
}
