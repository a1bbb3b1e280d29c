package memory

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// programs are the BPF programs and their maps.
type programs struct {
	coll              *ebpf.Collection
	report, exhausted *ebpf.Program
	reader            *ring.Records // nil: closed

	driverEnter, driverReturn, driverFree, driverContext *ebpf.Program
}

// load loads the programs so that they write into rings.
func load(rings *ring.Rings, opts Options) (*programs, error) {
	spec, err := bpf.LoadMemory()
	if err != nil {
		return nil, fmt.Errorf("read the programs for allocations: %w", err)
	}
	replaced := rings.Maps()
	if opts.Stacks != nil {
		replaced = maps.Clone(replaced)
		maps.Copy(replaced, opts.Stacks.ProbeMaps())
	} else {
		spec.Maps[bpf.MemoryMapSampledProcesses].MaxEntries = 1
	}
	kept := map[string]*ebpf.Map{}
	for name, m := range replaced {
		if ms := spec.Maps[name]; ms != nil {
			ms.MaxEntries = m.MaxEntries()
			kept[name] = m
		}
	}
	if err := spec.Variables[bpf.MemoryVarHaveLoop].Set(profile.HaveLoop()); err != nil {
		return nil, fmt.Errorf("set the programs for allocations up: %w", err)
	}
	if opts.Mode == uprobe.Perf {
		for _, p := range spec.Programs {
			p.AttachType = ebpf.AttachNone
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: kept})
	if err != nil {
		return nil, fmt.Errorf("load the programs for allocations: %w", err)
	}
	p := &programs{
		coll:      coll,
		report:    coll.Programs[bpf.MemoryProgMemoryReport],
		exhausted: coll.Programs[bpf.MemoryProgMemoryExhausted],

		driverEnter:  coll.Programs[bpf.MemoryProgDriverEnter],
		driverReturn: coll.Programs[bpf.MemoryProgDriverReturn],
		driverFree:   coll.Programs[bpf.MemoryProgDriverFree],

		driverContext: coll.Programs[bpf.MemoryProgDriverContext],
	}
	if p.reader, err = ring.OpenRecords(coll.Maps[bpf.MemoryMapMemoryRecords]); err != nil {
		coll.Close()
		return nil, fmt.Errorf("map the ring of allocations: %w", err)
	}
	return p, nil
}

func (p *programs) close() error {
	var err error
	if p.reader != nil {
		err = p.reader.Close()
		p.reader = nil
	}
	p.coll.Close()
	return err
}

// counts is what the programs lost.
type counts struct{ lost, forgotten, devices, unfreed, blocks, mappings uint64 }

func (p *programs) counts() counts {
	read := func(which bpf.MemoryMemoryCount) (n uint64) {
		var perCPU []uint64
		if p.coll.Maps[bpf.MemoryMapMemoryCounts].Lookup(which, &perCPU) == nil {
			for _, c := range perCPU {
				n += c
			}
		}
		return n
	}
	return counts{
		lost:      read(bpf.MemoryMemoryCountMEMORY_COUNT_LOST),
		forgotten: read(bpf.MemoryMemoryCountMEMORY_COUNT_FORGOTTEN),
		devices:   read(bpf.MemoryMemoryCountMEMORY_COUNT_DEVICES),
		unfreed:   read(bpf.MemoryMemoryCountMEMORY_COUNT_UNFREED),
		blocks:    read(bpf.MemoryMemoryCountMEMORY_COUNT_BLOCKS),
		mappings:  read(bpf.MemoryMemoryCountMEMORY_COUNT_MAPPINGS),
	}
}

// deviceKey is a device of a process, as the programs know it.
type deviceKey uint64

func (k deviceKey) pid() uint32    { return uint32(k >> 32) }
func (k deviceKey) device() uint16 { return uint16(k) }

// devices returns what is known of all of them.
func (p *programs) devices() map[deviceKey]bpf.MemoryMemoryDevice {
	out := map[deviceKey]bpf.MemoryMemoryDevice{}
	var key uint64
	var d bpf.MemoryMemoryDevice
	for all := p.coll.Maps[bpf.MemoryMapMemoryDevices].Iterate(); all.Next(&key, &d); {
		out[deviceKey(key)] = d
	}
	return out
}

// forget lets go of what is known of a process.
func (p *programs) forget(pid uint32) error {
	driver := p.coll.Maps[bpf.MemoryMapDriverSwitches].Delete(pid) == nil
	for key := range p.devices() {
		if key.pid() == pid {
			driver = driver || key.isDriver()
			_ = p.coll.Maps[bpf.MemoryMapMemoryDevices].Delete(uint64(key)) // it may be gone already
		}
	}
	if !driver {
		return nil
	}
	return p.forgetDriver(pid)
}

// live reports whether a block is still known not to be freed.
func (p *programs) live(b blockKey) bool {
	var at uint64
	err := p.coll.Maps[bpf.MemoryMapMemoryLive].Lookup(
		bpf.MemoryMemoryBlock{Pid: uint64(b.device), Pointer: b.pointer},
		&at,
	)
	return !errors.Is(err, ebpf.ErrKeyNotExist)
}

func (p *programs) drop(b blockKey) {
	_ = p.coll.Maps[bpf.MemoryMapMemoryLive].Delete(
		bpf.MemoryMemoryBlock{Pid: uint64(b.device), Pointer: b.pointer},
	) // it may be freed
}

// awaitNone forgets the hashes of blocks whose frees are awaited: those that were dropped stay counted. No probe of
// allocations may be on.
func (p *programs) awaitNone() error {
	v := p.coll.Variables[bpf.MemoryVarMemoryAwaited]
	if err := v.Set(make([]byte, v.Size())); err != nil {
		return fmt.Errorf("clear what frees of allocations are awaited: %w", err)
	}
	return nil
}

// setBudget changes how many samples of a device are taken in a tenth of a second.
func (p *programs) setBudget(n uint64) error {
	if err := p.coll.Variables[bpf.MemoryVarMemoryBudget].Set(n); err != nil {
		return fmt.Errorf("change the budget of samples of allocations: %w", err)
	}
	return nil
}
