// Package gate keeps the threads of a process out of the CUDA driver for moments: while an agent in it waits until none is inside, and
// those that launch graphs while CUPTI is finalized (bpf/gate.bpf.c).
package gate

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"

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

// Options say how gates are put up.
type Options struct {
	Keeper *probe.Keeper // of the probes (probe.AttachProgram)
	Mode   probe.Mode
	Walks  bool // hold threads by walks over a map (Linux 5.13), as where there is no bpf_loop (5.17); Detect says whether that is so
}

// Detect says whether this kernel has no bpf_loop.
func Detect() (walks bool) {
	return errors.Is(features.HaveProgramHelper(ebpf.Kprobe, asm.FnLoop), ebpf.ErrNotSupported)
}

// Open puts a gate before the driver of p, for the agent whose words (opening, leaving and finalizing of struct agent_ring, agent/abi.h) lie
// at an address in p. It opens and shuts by itself, by these words.
func (o Options) Open(p *target.Process, kind Kind, words uint64) (*Gate, error) {
	spec, err := bpf.LoadGate()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	if err := errors.Join(spec.Variables[bpf.GateVarWordsAt].Set(words), spec.Variables[bpf.GateVarLaunches].Set(kind == Launches)); err != nil {
		return nil, fmt.Errorf("tell the program what it is for: %w", err)
	}
	prog := o.choose(spec)
	g := &Gate{}
	if g.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load the program that holds threads: %w", err)
	}
	g.attachments, err = libcuda.Attach(p, o.Keeper, o.Mode, g.coll.Programs[prog], kind.functions())
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// choose leaves in spec only what is wanted, and says which program that is.
func (o Options) choose(spec *ebpf.CollectionSpec) (prog string) {
	prog = bpf.GateProgGate
	if o.Walks {
		prog = bpf.GateProgGateByWalks
	} else {
		delete(spec.Maps, bpf.GateMapSteps)
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{prog: spec.Programs[prog]}
	if o.Mode == probe.Perf {
		spec.Programs[prog].AttachType = ebpf.AttachNone
	}
	return prog
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
