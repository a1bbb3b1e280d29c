package inject

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/inferscope/inferscope/bpf"
)

// change is an instruction of the program that stops a thread as this kernel wants it: with the offsets of this kernel's
// structures.
type change struct {
	At       int // index
	Code     asm.OpCode
	Dst, Src asm.Register
	Offset   int16
	Constant int64
}

// kernelTypes is where the kernel describes its types.
const kernelTypes = "/sys/kernel/btf/vmlinux"

// relocated finds out what this kernel's types change in the program. Reading the types takes 15 ms of CPU and 10 MB,
// which processes that bring in one agent each need not spend again.
func relocated() ([]change, error) {
	file, err := os.Open(kernelTypes)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	kernel, err := btf.LoadSplitSpecFromReader(file, nil) // unlike LoadKernelSpec it keeps nothing
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kernelTypes, err)
	}
	spec, err := bpf.LoadArm()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	program := spec.Programs[bpf.ArmProgArm].Instructions
	var relocations []*btf.CORERelocation
	var at []int
	for i := range program {
		if r := btf.CORERelocationMetadata(&program[i]); r != nil {
			relocations, at = append(relocations, r), append(at, i)
		}
	}
	noLocal := func(btf.Type) (btf.TypeID, error) { return 0, errors.New("the program asks for a type of its own") }
	fixups, err := btf.CORERelocate(relocations, []*btf.Spec{kernel}, spec.ByteOrder, noLocal)
	if err != nil {
		return nil, fmt.Errorf("find this kernel's structures: %w", err)
	}
	changes := make([]change, 0, len(fixups))
	for i := range fixups {
		to := &program[at[i]]
		if err := fixups[i].Apply(to); err != nil {
			return nil, fmt.Errorf("find this kernel's structures: %w", err)
		}
		changes = append(changes, change{at[i], to.OpCode, to.Dst, to.Src, to.Offset, to.Constant})
	}
	return changes, nil
}

// apply changes the program. What loads it then needs no types of the kernel. Without changes all is left to that.
func apply(spec *ebpf.CollectionSpec, changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	program := spec.Programs[bpf.ArmProgArm].Instructions
	for _, c := range changes {
		if c.At < 0 || c.At >= len(program) || btf.CORERelocationMetadata(&program[c.At]) == nil {
			return fmt.Errorf("instruction %d of %d is not to be relocated", c.At, len(program))
		}
		to := btf.WithCORERelocationMetadata(program[c.At], nil)
		to.OpCode, to.Dst, to.Src, to.Offset, to.Constant = c.Code, c.Dst, c.Src, c.Offset, c.Constant
		program[c.At] = to
	}
	return nil
}
