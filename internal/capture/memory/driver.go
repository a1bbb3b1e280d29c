package memory

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// driverProbes are the probes on a driver's library: calls are probed at their entry and their return.
type driverProbes struct {
	calls, frees []uprobe.Site
	switches     []uprobe.Site        // of the current context
	skipped      []string             // functions that are not probed
	attachments  []*uprobe.Attachment // empty: off
}

// driverFunction is what a function of the driver does with memory: bpf/memory_driver.h.
type driverFunction struct {
	kind   bpf.MemoryDriverCallKind
	device uint8 // type of an event.MemoryDevice
	object uint8 // what it goes by
	gpu    uint8 // driverContext: which parameter is the GPU
	moves  bool  // on the thread's current GPU, which driverContext changes
	rare   bool  // not probed where each probe takes a tenth of a second to remove
}

// What functions go by, apart from addresses: DRIVER_HANDLE of bpf/memory_driver.h.
const (
	physical = 1 + iota // CUmemGenericAllocationHandle
	array               // CUarray and CUmipmappedArray
	external            // CUexternalMemory
)

const (
	driverAllocate = bpf.MemoryDriverCallKindDRIVER_ALLOCATE
	driverPitch    = bpf.MemoryDriverCallKindDRIVER_PITCH
	driverRegister = bpf.MemoryDriverCallKindDRIVER_REGISTER
	driverMap      = bpf.MemoryDriverCallKindDRIVER_MAP
	driverRetain   = bpf.MemoryDriverCallKindDRIVER_RETAIN
	driverFree     = bpf.MemoryDriverCallKindDRIVER_FREE
	driverUnmap    = bpf.MemoryDriverCallKindDRIVER_UNMAP
	driverArray    = bpf.MemoryDriverCallKindDRIVER_ARRAY
	driverArray3D  = bpf.MemoryDriverCallKindDRIVER_ARRAY_3D
	driverMipmaps  = bpf.MemoryDriverCallKindDRIVER_MIPMAPPED
	driverOpen     = bpf.MemoryDriverCallKindDRIVER_OPEN
	driverImport   = bpf.MemoryDriverCallKindDRIVER_IMPORT
	driverExternal = bpf.MemoryDriverCallKindDRIVER_EXTERNAL
	driverContext  = bpf.MemoryDriverCallKindDRIVER_CONTEXT
	driverSet      = bpf.MemoryDriverCallKindDRIVER_SET
	driverPush     = bpf.MemoryDriverCallKindDRIVER_PUSH
	driverPop      = bpf.MemoryDriverCallKindDRIVER_POP
	driverDestroy  = bpf.MemoryDriverCallKindDRIVER_DESTROY
)

// driverFunctions are the functions of CUDA's driver that allocate and free, with the suffix _ptsz as without.
var driverFunctions = map[string]driverFunction{
	"cuMemAlloc_v2":           {kind: driverAllocate, device: event.DriverMemory, moves: true},
	"cuMemAllocAsync":         {kind: driverAllocate, device: event.DriverMemory, moves: true},
	"cuMemAllocFromPoolAsync": {kind: driverAllocate, device: event.DriverMemory, moves: true},
	"cuMemAllocPitch_v2":      {kind: driverPitch, device: event.DriverMemory, moves: true, rare: true},
	"cuMemFree_v2":            {kind: driverFree},
	"cuMemFreeAsync":          {kind: driverFree},

	"cuMemCreate":                 {kind: driverAllocate, device: event.DriverMemory, object: physical},
	"cuMemRelease":                {kind: driverFree, object: physical},
	"cuMemRetainAllocationHandle": {kind: driverRetain},
	"cuMemMap":                    {kind: driverMap},
	"cuMemUnmap":                  {kind: driverUnmap},

	"cuMemAllocManaged":    {kind: driverAllocate, device: event.ManagedMemory, rare: true},
	"cuMemAllocHost_v2":    {kind: driverAllocate, device: event.PinnedMemory, rare: true},
	"cuMemHostAlloc":       {kind: driverAllocate, device: event.PinnedMemory},
	"cuMemHostRegister":    {kind: driverRegister, device: event.PinnedMemory, rare: true},
	"cuMemHostRegister_v2": {kind: driverRegister, device: event.PinnedMemory},
	"cuMemFreeHost":        {kind: driverFree},
	"cuMemHostUnregister":  {kind: driverFree},

	"cuArrayCreate_v2":        {kind: driverArray, device: event.ArrayMemory, object: array, moves: true, rare: true},
	"cuArray3DCreate_v2":      {kind: driverArray3D, device: event.ArrayMemory, object: array, moves: true, rare: true},
	"cuArrayDestroy":          {kind: driverFree, object: array, rare: true},
	"cuMipmappedArrayCreate":  {kind: driverMipmaps, device: event.ArrayMemory, object: array, moves: true, rare: true},
	"cuMipmappedArrayDestroy": {kind: driverFree, object: array, rare: true},

	"cuIpcOpenMemHandle":             {kind: driverOpen, device: event.SharedMemory, moves: true, rare: true},
	"cuIpcOpenMemHandle_v2":          {kind: driverOpen, device: event.SharedMemory, moves: true, rare: true},
	"cuIpcCloseMemHandle":            {kind: driverFree, rare: true},
	"cuMemImportFromShareableHandle": {kind: driverImport, device: event.SharedMemory, object: physical, rare: true},
	"cuImportExternalMemory":         {kind: driverExternal, device: event.SharedMemory, object: external, rare: true},
	"cuDestroyExternalMemory":        {kind: driverFree, object: external, rare: true},

	// All are rare: some alone would tell a wrong GPU.
	"cuDevicePrimaryCtxRetain": {kind: driverContext, gpu: 2, rare: true},
	"cuCtxCreate_v2":           {kind: driverContext, gpu: 3, moves: true, rare: true},
	"cuCtxCreate_v3":           {kind: driverContext, gpu: 5, moves: true, rare: true},
	"cuCtxCreate_v4":           {kind: driverContext, gpu: 4, moves: true, rare: true},
	"cuCtxDestroy_v2":          {kind: driverDestroy, rare: true},
	"cuCtxSetCurrent":          {kind: driverSet, rare: true},
	"cuCtxPushCurrent_v2":      {kind: driverPush, rare: true},
	"cuCtxPopCurrent_v2":       {kind: driverPop, rare: true},
}

// driverFunctionOf returns what an exported function is; ok is false for one that is of no interest.
func driverFunctionOf(name string) (driverFunction, bool) {
	fn, ok := driverFunctions[strings.TrimSuffix(name, "_ptsz")]
	return fn, ok
}

// cookie is what the program needs to know of a function: bpf/memory_driver.h, DRIVER_*.
func (f driverFunction) cookie() uint64 {
	c := uint64(f.kind) | uint64(f.object)<<24
	if f.kind == driverContext {
		c |= uint64(f.gpu) << 8
	} else {
		c |= uint64(f.device)<<8 | 255<<16
	}
	if f.moves {
		c |= 1 << 26
	}
	return c
}

// driverSites returns where the probes go; nil where the library exports none of the functions.
func driverSites(image *elffile.File, mode uprobe.Mode) (*driverProbes, error) {
	functions, err := image.Named(func(name string) bool { _, ok := driverFunctionOf(name); return ok })
	if err != nil {
		return nil, fmt.Errorf("find the functions that allocate: %w", err)
	}
	out := &driverProbes{}
	seen := map[uint64]bool{} // several names may share an address
	for _, fn := range functions {
		what, _ := driverFunctionOf(fn.Name)
		if fn.Indirect || seen[fn.Addr] {
			continue
		}
		if what.rare && mode == uprobe.Perf {
			out.skipped = append(out.skipped, fn.Name)
			continue
		}
		seen[fn.Addr] = true
		s := site(fn, image.Machine)
		s.Cookie = what.cookie()
		switch what.kind {
		case driverFree, driverUnmap:
			out.frees = append(out.frees, s)
		case driverSet, driverPush, driverPop, driverDestroy:
			out.switches = append(out.switches, s)
		default:
			out.calls = append(out.calls, s)
		}
	}
	if len(out.calls) == 0 {
		return nil, nil
	}
	return out, nil
}

// putDriver puts the probes on a driver's library, unless they are on. The caller holds the lock.
func (s *Source) putDriver(pid uint32, l *library) error {
	d := l.driver
	if len(d.attachments) > 0 {
		return nil
	}
	// Frees and returns come first: each allocation that is counted is also seen to be freed.
	for _, b := range []struct {
		program *ebpf.Program
		sites   []uprobe.Site
		returns bool
	}{
		{s.programs.driverFree, d.frees, false},
		{s.programs.driverContext, d.switches, false},
		{s.programs.driverReturn, d.calls, true},
		{s.programs.driverEnter, d.calls, false},
	} {
		attach := uprobe.AttachProgram
		if b.returns {
			attach = uprobe.AttachReturns
		}
		if len(b.sites) == 0 {
			continue
		}
		at, err := attach(s.opts.LinkHolder, s.opts.Mode, b.program, l.file, pid, b.sites)
		if err != nil {
			return errors.Join(err, d.off())
		}
		d.attachments = append(d.attachments, at)
		if failed := at.Failed(); len(failed) > 0 {
			return errors.Join(failed[0], d.off())
		}
	}
	return nil
}

// off takes the probes off, those at entries first.
func (d *driverProbes) off() error {
	var errs []error
	for _, at := range slices.Backward(d.attachments) {
		errs = append(errs, at.Close())
	}
	d.attachments = nil
	return errors.Join(errs...)
}

// isDriver reports whether what a device holds was allocated by the driver's own calls.
func (k deviceKey) isDriver() bool { return event.MemoryDevice(k.device()).Driver() }

// forgetDriver lets go of what is known of the driver's blocks, of one process or (0) of all; of one also of its
// contexts.
func (p *programs) forgetDriver(pid uint32) error {
	names := []string{bpf.MemoryMapDriverBlocks, bpf.MemoryMapDriverMappings}
	if pid != 0 {
		names = append(names, bpf.MemoryMapDriverContexts)
	}
	var errs []error
	for _, name := range names {
		m := p.coll.Maps[name]
		keys, err := driverKeys(m, pid)
		if err != nil {
			errs = append(errs, fmt.Errorf("forget the driver's blocks of pid %d: %w", pid, err))
		}
		for _, k := range keys {
			_ = m.Delete(k) // it may be freed
		}
	}
	return errors.Join(errs...)
}

// driverKeys returns the keys of one process or (0) of all. Where others change the map meanwhile an iteration may be
// aborted: then it is tried again, and with an error some are returned.
func driverKeys(m *ebpf.Map, pid uint32) (keys []bpf.MemoryMemoryBlock, err error) {
	value := make([]byte, m.ValueSize())
	for range 10 {
		all := m.Iterate()
		for key := (bpf.MemoryMemoryBlock{}); all.Next(&key, &value); {
			if pid == 0 || uint32(key.Pid>>32) == pid {
				keys = append(keys, key)
			}
		}
		if err = all.Err(); !errors.Is(err, ebpf.ErrIterationAborted) {
			break
		}
	}
	return keys, err
}

// empty sets what devices hold to nothing, of those that which accepts; what was counted stays. Of the driver's blocks
// those of one process or (0) of all are forgotten.
func (p *programs) empty(at uint64, which func(deviceKey, *bpf.MemoryMemoryDevice) bool, pid uint32) error {
	var errs []error
	for key, d := range p.devices() {
		if which(key, &d) {
			d.Allocated, d.Reserved, d.High, d.Sent = 0, 0, 0, at
			errs = append(errs, p.coll.Maps[bpf.MemoryMapMemoryDevices].Put(uint64(key), d))
		}
	}
	return errors.Join(append(errs, p.forgetDriver(pid))...)
}

// resumeDriver lets the next event of each device begin at a time: what it held before that is not known, nor which
// contexts are current.
func (p *programs) resumeDriver(at uint64) error {
	epoch := p.coll.Variables[bpf.MemoryVarDriverEpoch]
	var n uint64
	errs := []error{epoch.Get(&n)}
	errs = append(errs, epoch.Set(n+1))
	for key, d := range p.devices() {
		if key.isDriver() {
			d.Sent = at
			errs = append(errs, p.coll.Maps[bpf.MemoryMapMemoryDevices].Put(uint64(key), d))
		}
	}
	return errors.Join(errs...)
}

// What a call of the driver costs its thread, in ns: more than that of a framework, because its return is probed too.
const (
	driverCallNS = 1500
	driverFreeNS = 700
)

// driverRuns is what the driver's calls cost: at all levels but the last nearly the same.
func driverRuns(d *bpf.MemoryMemoryDevice, level int) overhead.Runs {
	at := make([]uint64, len(levels))
	for l := range at {
		at[l] = d.Allocations*driverCallNS + d.Frees*driverFreeNS + d.Samples*budgets[l]/budgets[level]*sampleNS
	}
	ns := at[level]
	at[levelOff] = 0
	return overhead.Runs{Count: d.Allocations + d.Frees, NS: ns, At: at}
}

// switches returns how often the processes, or one of them, changed a thread's current context.
func (p *programs) switches(pid uint32) (out []uint64) {
	var of uint32
	var n uint64
	for all := p.coll.Maps[bpf.MemoryMapDriverSwitches].Iterate(); all.Next(&of, &n); {
		if pid == 0 || pid == of {
			out = append(out, n)
		}
	}
	return out
}

// switchRuns is what it cost to see so many changes of the current context.
func switchRuns(n uint64, level int) overhead.Runs {
	at := slices.Repeat([]uint64{n * driverFreeNS}, len(levels))
	ns := at[level]
	at[levelOff] = 0
	return overhead.Runs{Count: n, NS: ns, At: at}
}
