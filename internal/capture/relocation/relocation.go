// Package relocation fits BPF programs to this kernel's structures (CO-RE) ahead of time. Whatever loads a program
// reads the types of the whole kernel for that, 15 ms of CPU and 10 MB: too much for programs that are loaded for each
// target.
package relocation

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Change is an instruction of a program as this kernel wants it: with the offsets of its structures.
type Change struct {
	At       int // index
	Code     asm.OpCode
	Dst, Src asm.Register
	Offset   int16
	Constant int64
}

// kernelTypes is where the kernel describes its types.
const kernelTypes = "/sys/kernel/btf/vmlinux"

// Find returns for each program what this kernel's types change in it.
func Find(programs map[string]*ebpf.ProgramSpec) (map[string][]Change, error) {
	file, err := os.Open(kernelTypes)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	kernel, err := btf.LoadSplitSpecFromReader(file, nil) // unlike LoadKernelSpec it keeps nothing
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kernelTypes, err)
	}
	out := map[string][]Change{}
	for name, p := range programs {
		if out[name], err = find(p, kernel); err != nil {
			return nil, fmt.Errorf("fit program %s to this kernel: %w", name, err)
		}
	}
	return out, nil
}

func find(p *ebpf.ProgramSpec, kernel *btf.Spec) ([]Change, error) {
	var relocations []*btf.CORERelocation
	var at []int
	for i := range p.Instructions {
		if r := btf.CORERelocationMetadata(&p.Instructions[i]); r != nil {
			relocations, at = append(relocations, r), append(at, i)
		}
	}
	noLocal := func(btf.Type) (btf.TypeID, error) { return 0, errors.New("it asks for a type of its own") }
	fixups, err := btf.CORERelocate(relocations, []*btf.Spec{kernel}, p.ByteOrder, noLocal)
	if err != nil {
		return nil, err
	}
	changes := make([]Change, 0, len(fixups))
	for i := range fixups {
		to := p.Instructions[at[i]]
		if err := fixups[i].Apply(&to); err != nil {
			return nil, err
		}
		changes = append(changes, Change{at[i], to.OpCode, to.Dst, to.Src, to.Offset, to.Constant})
	}
	return changes, nil
}

// Apply changes a program. What loads it then needs no types of the kernel. Without changes all is left to that.
func Apply(p *ebpf.ProgramSpec, changes []Change) error {
	for _, c := range changes {
		if c.At < 0 || c.At >= len(p.Instructions) || btf.CORERelocationMetadata(&p.Instructions[c.At]) == nil {
			return fmt.Errorf("instruction %d of %d is not to be relocated", c.At, len(p.Instructions))
		}
		to := btf.WithCORERelocationMetadata(p.Instructions[c.At], nil)
		to.OpCode, to.Dst, to.Src, to.Offset, to.Constant = c.Code, c.Dst, c.Src, c.Offset, c.Constant
		p.Instructions[c.At] = to
	}
	return nil
}
