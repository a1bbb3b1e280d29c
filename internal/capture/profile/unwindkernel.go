package profile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"go.opentelemetry.io/ebpf-profiler/kallsyms"
	"go.opentelemetry.io/ebpf-profiler/maccess"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// kernelOffsets is what the library's programs are told of the kernel, in bytes.
type kernelOffsets struct {
	stack             uint32 // of stack in task_struct
	registers         uint32 // of the user's registers in the stack
	vmaFile, vmaFlags uint32 // of those in vm_area_struct
	vmas              bool   // these are known
	err               error
}

// readOffsets asks the kernel's types. They are read without the library that loads
// programs keeping them, which would be 10 MB for as long as this process lives.
func readOffsets() (k kernelOffsets) {
	file, err := os.Open("/sys/kernel/btf/vmlinux")
	if err != nil {
		return kernelOffsets{err: err}
	}
	defer file.Close()
	spec, err := btf.LoadSplitSpecFromReader(file, nil)
	if err != nil {
		return kernelOffsets{err: fmt.Errorf("read %s: %w", file.Name(), err)}
	}
	var task, vma *btf.Struct
	if err := errors.Join(spec.TypeByName("task_struct", &task), spec.TypeByName("vm_area_struct", &vma)); err != nil {
		return kernelOffsets{err: err}
	}
	var ok bool
	if k.stack, ok = memberOffset(task.Members, "stack"); !ok {
		return kernelOffsets{err: errors.New("task_struct has no stack")}
	}
	var file1, flags bool
	k.vmaFile, file1 = memberOffset(vma.Members, "vm_file")
	if k.vmaFlags, flags = memberOffset(vma.Members, "vm_flags"); !flags {
		k.vmaFlags, flags = memberOffset(vma.Members, "__vm_flags")
	}
	k.vmas = file1 && flags
	return k
}

// memberOffset finds a member, also of structures and unions without a name in there.
func memberOffset(members []btf.Member, name string) (uint32, bool) {
	for _, m := range members {
		if m.Name == name {
			return m.Offset.Bytes(), true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if at, ok := memberOffset(inner, name); ok {
			return m.Offset.Bytes() + at, true
		}
	}
	return 0, false
}

// askKernel lets a program of the library's look at address, of the kernel or of its structure
// for this thread, at the entry of a system call.
func askKernel(spec *ebpf.CollectionSpec, program string, address uint64) (out support.SystemAnalysis, err error) {
	one := &ebpf.CollectionSpec{
		Maps: spec.Maps, Programs: map[string]*ebpf.ProgramSpec{program: spec.Programs[program]},
		Variables: spec.Variables, Types: spec.Types, ByteOrder: spec.ByteOrder,
	}
	if one.Programs[program] == nil {
		return out, fmt.Errorf("there is no program %s", program)
	}
	coll, err := ebpf.NewCollection(referenced(one))
	if err != nil {
		return out, fmt.Errorf("load %s: %w", program, err)
	}
	defer coll.Close()
	answer := coll.Maps["system_analysis"]
	if answer == nil {
		return out, fmt.Errorf("%s answers nowhere", program)
	}
	question := support.SystemAnalysis{Pid: uint32(os.Getpid()), Address: address}
	if err := answer.Put(uint32(0), question); err != nil {
		return out, err
	}
	if err := atSystemCall(coll.Programs[program], func() error { return answer.Lookup(uint32(0), &out) }); err != nil {
		return out, err
	}
	switch {
	case out.Pid != 0:
		return out, fmt.Errorf("%s did not run", program)
	case out.Err != 0:
		return out, fmt.Errorf("%s: %w", program, syscall.Errno(-out.Err))
	}
	return out, nil
}

// referenced leaves of the maps and variables of a spec those that its programs name.
func referenced(spec *ebpf.CollectionSpec) *ebpf.CollectionSpec {
	maps, variables := map[string]*ebpf.MapSpec{}, map[string]*ebpf.VariableSpec{}
	for _, p := range spec.Programs {
		for i := range p.Instructions {
			if in := &p.Instructions[i]; in.IsLoadFromMap() && spec.Maps[in.Reference()] != nil {
				maps[in.Reference()] = spec.Maps[in.Reference()]
			}
		}
	}
	for name, v := range spec.Variables {
		if maps[v.SectionName] != nil {
			variables[name] = v
		}
	}
	out := *spec
	out.Maps, out.Variables = maps, variables
	return &out
}

// atSystemCall runs call, which makes the system call bpf, with program at its entry.
func atSystemCall(program *ebpf.Program, call func() error) error {
	var at link.Link
	var err error
	if program.Type() == ebpf.RawTracepoint {
		at, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: program})
	} else {
		at, err = link.Tracepoint("syscalls", "sys_enter_bpf", program, nil)
	}
	if err != nil {
		return err
	}
	return errors.Join(call(), at.Close())
}

// savedRegisters returns where in a thread's kernel stack its registers are saved.
func savedRegisters(spec *ebpf.CollectionSpec, stack uint32) (uint32, error) {
	got, err := askKernel(spec, "read_task_struct", uint64(stack))
	if err != nil {
		return 0, err
	}
	return uint32(got.Address - binary.NativeEndian.Uint64(got.Code[:])), nil
}

// canFindVMA reports whether programs may ask which mapping an address is of (5.17).
func canFindVMA() bool {
	return features.HaveProgramHelper(ebpf.PerfEvent, asm.FnGetCurrentTaskBtf) == nil &&
		features.HaveProgramHelper(ebpf.PerfEvent, asm.FnFindVma) == nil
}

// findVMACallback is how the function begins that such a program has called.
const findVMACallback = "find_vma_callback"

// withoutVMAs takes the calls out by which programs ask that: a kernel that does not know them
// refuses the programs even where they are never reached. They only make the reason more
// exact for which a stack ends.
func withoutVMAs(spec *ebpf.CollectionSpec) {
	for _, program := range spec.Programs {
		touched := false
		for i := range program.Instructions {
			in := &program.Instructions[i]
			switch {
			case in.IsLoadOfFunctionPointer() && strings.HasPrefix(in.Reference(), findVMACallback):
				*in = asm.LoadImm(in.Dst, 0, asm.DWord)
			case in.IsBuiltinCall() && asm.BuiltinFunc(in.Constant) == asm.FnGetCurrentTaskBtf:
				*in = asm.Mov.Imm(asm.R0, 0).WithMetadata(in.Metadata)
			case in.IsBuiltinCall() && asm.BuiltinFunc(in.Constant) == asm.FnFindVma:
				*in = asm.Mov.Imm(asm.R0, -int32(syscall.ENOTSUP)).WithMetadata(in.Metadata)
			default:
				continue
			}
			touched = true
		}
		if touched {
			program.Instructions = withoutFunction(program.Instructions, findVMACallback)
		}
	}
}

// withoutFunction leaves a function out, and what is known of the lines and types of all: the
// kernel would compare it with the code.
func withoutFunction(all asm.Instructions, prefix string) asm.Instructions {
	out, skips := all[:0], false
	for i := range all {
		in := all[i]
		symbol, reference := in.Symbol(), in.Reference()
		if symbol != "" {
			skips = strings.HasPrefix(symbol, prefix)
		}
		if skips {
			continue
		}
		if btf.FuncMetadata(&in) != nil || in.Source() != nil {
			in.Metadata = asm.Metadata{}
			if symbol != "" {
				in = in.WithSymbol(symbol)
			}
			if reference != "" {
				in = in.WithReference(reference)
			}
		}
		out = append(out, in)
	}
	return out
}

// kernelVersion is KERNEL_VERSION of linux/version.h.
func kernelVersion(major, minor, patch uint32) uint32 { return major<<16 | minor<<8 | min(patch, 255) }

// readsFreeze reports whether a kernel of that version may stop for ever when a program reads a user's
// memory (copy_from_user_nofault without nmi_uaccess_okay), as the library has it: some
// distributions have mended theirs.
func readsFreeze(version uint32) bool {
	in := func(from, to uint32) bool { return version >= from && version < to }
	return in(kernelVersion(5, 19, 0), kernelVersion(6, 1, 36)) || in(kernelVersion(6, 2, 0), kernelVersion(6, 3, 10))
}

// checkUserReads looks whether the kernel is mended, where its version does not say it.
func checkUserReads(spec *ebpf.CollectionSpec, version uint32) error {
	if !readsFreeze(version) {
		return nil
	}
	symbols, err := kallsyms.NewSymbolizer()
	if err != nil {
		return fmt.Errorf("read the kernel's symbols: %w", err)
	}
	kernel, err := symbols.Snapshot().GetModuleByName(kallsyms.Kernel)
	if err != nil {
		return err
	}
	reader, err := kernel.LookupSymbol("copy_from_user_nofault")
	if err != nil {
		return fmt.Errorf("copy_from_user_nofault: %w", err)
	}
	code, err := askKernel(spec, "read_kernel_memory", uint64(reader))
	if err != nil {
		return err
	}
	check, _ := kernel.LookupSymbol("nmi_uaccess_okay") // it may be inlined
	mended, err := maccess.CopyFromUserNoFaultIsPatched(code.Code[:], uint64(reader), uint64(check))
	if err == nil && !mended {
		err = errors.New(
			"this kernel may freeze when programs read memory of users (fixed in 6.1.36, 6.3.10 and 6.4): update it",
		)
	}
	return err
}
