package profile

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"go.opentelemetry.io/ebpf-profiler/pacmask"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// Names of the library's programs and maps (support/ebpf of go.opentelemetry.io/ebpf-profiler).
const (
	rulesPrefix = "exe_id_to_" // and 8 to 23, the binary logarithm of how many rules a file has
	rulesSuffix = "_stack_deltas"
	rulesMap    = rulesPrefix + "8" + rulesSuffix
	endedHook   = "tracepoint__sched_process_free"        // from 6.16 on,
	endedHook15 = "tracepoint__sched_process_free_pre616" // and before
	endedAny    = "process_ended"                         // what the one of this kernel is called here
)

// unwindObjects are the library's programs that unwind native code, unmodified, and the
// maps by which they are told what to do and tell what they did.
//
// The library's own loader (tracer.NewTracer) is not used, because it makes the first whole stack
// come late: it reads the kernel's symbols for names that nobody asks it for; and there are 16
// maps of rules, for files of up to 256, 512, ... rules, so that the kernel's verifier follows
// each path through the unwinder 16 times. Here the 16 names are one map, whose arrays are as
// long as their files need.
type unwindObjects struct {
	Entry    *ebpf.Program `ebpf:"native_tracer_entry"` // runs on a sample
	Ended    *ebpf.Program `ebpf:"process_ended"`
	Programs *ebpf.Map     `ebpf:"perf_progs"`               // what they tail-call
	Traces   *ebpf.Map     `ebpf:"trace_events"`             // a ring of stacks
	Met      *ebpf.Map     `ebpf:"pid_events"`               // processes that began, ended, or run unknown code
	Latch    *ebpf.Map     `ebpf:"inhibit_events"`           // has an entry once there is something in Met
	Reported *ebpf.Map     `ebpf:"reported_pids"`            // those that are not reported again for a while
	Mappings *ebpf.Map     `ebpf:"pid_page_to_mapping_info"` // of a process and an address, by longest prefix: which file, moved by how much
	Pages    *ebpf.Map     `ebpf:"stack_delta_page_to_info"` // of a file and 64 KiB of its code: which of its rules
	Rules    *ebpf.Map     `ebpf:"exe_id_to_8_stack_deltas"` // of a file: an array of its rules
	Infos    *ebpf.Map     `ebpf:"unwind_info_array"`        // what a rule says
}

// loadUnwinder loads the programs. hz sizes their ring.
func loadUnwinder(hz int) (*unwindObjects, error) {
	offsets := make(chan kernelOffsets, 1)
	go func() { offsets <- readOffsets() }() // beside what follows: reading the kernel's types takes 50 ms
	spec, err := support.LoadCollectionSpec()
	if err != nil {
		return nil, fmt.Errorf("read the native unwinder's programs: %w", err)
	}
	version, err := features.LinuxVersionCode()
	if err != nil {
		return nil, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	if err := checkUserReads(spec, version); err != nil {
		return nil, err
	}
	known := <-offsets
	if known.err == nil {
		known.registers, known.err = savedRegisters(spec, known.stack)
	}
	if known.err != nil {
		return nil, fmt.Errorf("learn where the kernel keeps a thread's registers: %w", known.err)
	}
	if err := adapt(spec, hz, version, &known); err != nil {
		return nil, fmt.Errorf("set the native unwinder's programs up: %w", err)
	}
	o := &unwindObjects{}
	if err := spec.LoadAndAssign(o, nil); err != nil {
		return nil, explain(fmt.Errorf("load the native unwinder: %w", err))
	}
	return o, nil
}

// adapt makes the programs fit this kernel, and their maps what is kept here.
func adapt(spec *ebpf.CollectionSpec, hz int, version uint32, known *kernelOffsets) error {
	if err := shareRules(spec); err != nil {
		return err
	}
	ended := endedHook
	if version < kernelVersion(6, 16, 0) {
		ended = endedHook15
	}
	if spec.Programs[endedAny] = spec.Programs[ended]; spec.Programs[endedAny] == nil {
		return fmt.Errorf("there is no program %s", ended)
	}
	for name, entries := range map[string]uint32{
		"trace_events": traceRing(hz, runtime.NumCPU()), "pid_page_to_mapping_info": maxPrefixes,
		"stack_delta_page_to_info": maxPages, "reported_pids": maxProcesses, "pid_events": maxProcesses,
		rulesMap: maxImages,
	} {
		m := spec.Maps[name]
		if m == nil {
			return fmt.Errorf("there is no map %s", name)
		}
		m.MaxEntries = entries
	}
	spec.Maps["perf_progs"].Contents = []ebpf.MapKV{
		{
			Key:   uint32(support.ProgUnwindStop),
			Value: "perf_unwind_stop",
		}, {Key: uint32(support.ProgUnwindNative), Value: "perf_unwind_native"},
	}
	values := map[string]any{
		"origin_id_sampling": uint16(1), "go_labels_disabled": true, "inverse_pac_mask": ^pacmask.GetPACMask(),
		"task_stack_offset": known.stack, "stack_ptregs_offset": known.registers,
	}
	if known.vmas && canFindVMA() {
		values["vma_lookup_enabled"], values["vma_vm_file_offset"], values["vma_vm_flags_offset"] = true, known.vmaFile, known.vmaFlags
	} else {
		withoutVMAs(spec)
	}
	return setAll(spec, values)
}

func setAll(spec *ebpf.CollectionSpec, values map[string]any) error {
	for name, value := range values {
		v := spec.Variables[name]
		if v == nil {
			return fmt.Errorf("there is no variable %s", name)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// shareRules makes one map of those that hold rules.
func shareRules(spec *ebpf.CollectionSpec) error {
	one := spec.Maps[rulesMap]
	if one == nil || one.InnerMap == nil {
		return errors.New("there is no map " + rulesMap)
	}
	one.InnerMap = rulesSpec(1)
	for _, program := range spec.Programs {
		for i := range program.Instructions {
			in := &program.Instructions[i]
			if in.IsLoadFromMap() && strings.HasPrefix(in.Reference(), rulesPrefix) &&
				strings.HasSuffix(in.Reference(), rulesSuffix) {
				*in = in.WithReference(rulesMap)
			}
		}
	}
	return nil
}

// traceRing returns the size of the ring of stacks, in bytes. It has room for as many of the
// largest size as come in a fiftieth of a second, 25 KB each; one with 60 frames takes 2 KB, so
// that is a quarter of a second of those where all CPUs are sampled.
func traceRing(hz, cpus int) uint32 {
	want := max(1, (hz+25)/50) * cpus * support.Sizeof_Trace
	return 1 << bits.Len32(uint32(want-1))
}

// watchEnds lets the programs tell of processes that end. It needs tracefs.
func (o *unwindObjects) watchEnds() (link.Link, error) {
	return link.Tracepoint("sched", "sched_process_free", o.Ended, nil)
}

func (o *unwindObjects) close() {
	for _, p := range []*ebpf.Program{o.Entry, o.Ended} {
		_ = p.Close() // nothing is left to be done about it
	}
	for _, m := range []*ebpf.Map{
		o.Programs, o.Traces, o.Met, o.Latch, o.Reported, o.Mappings, o.Pages, o.Rules, o.Infos,
	} {
		_ = m.Close()
	}
}
