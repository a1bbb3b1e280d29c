//go:build amd64 || arm64

package inject

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/bpf"
)

// TestRelocated: with the changes that were found out before, the kernel gets the program that it gets without.
func TestRelocated(t *testing.T) {
	needRoot(t)
	changes, err := relocated()
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) == 0 {
		t.Fatal("nothing is to be changed: this test looks at nothing")
	}
	loaded := func(changes []change) []asm.Instruction {
		spec, err := bpf.LoadArm()
		if err != nil {
			t.Fatal(err)
		}
		if err := apply(spec, changes); err != nil {
			t.Fatal(err)
		}
		for i := range spec.Programs[bpf.ArmProgArm].Instructions {
			if r := btf.CORERelocationMetadata(&spec.Programs[bpf.ArmProgArm].Instructions[i]); r != nil &&
				changes != nil {
				t.Errorf("instruction %d still asks for the kernel's types: %v", i, r)
			}
		}
		coll, err := ebpf.NewCollection(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer coll.Close()
		info, err := coll.Programs[bpf.ArmProgArm].Info()
		if err != nil {
			t.Fatal(err)
		}
		program, err := info.Instructions()
		if err != nil {
			t.Skip("this kernel does not show its programs: ", err)
		}
		if len(program) < len(changes) {
			t.Fatalf("the kernel shows %d instructions", len(program))
		}
		for i := range program {
			program[i].Metadata = asm.Metadata{}
			if program[i].OpCode.IsDWordLoad() {
				program[i].Constant = 0 // the address of a map, which is another one each time
			}
		}
		return program
	}
	raw := func(program []asm.Instruction) (out []change) {
		for i, ins := range program {
			out = append(out, change{i, ins.OpCode, ins.Dst, ins.Src, ins.Offset, ins.Constant})
		}
		return out
	}
	if diff := cmp.Diff(raw(loaded(nil)), raw(loaded(changes))); diff != "" {
		t.Errorf("(-as it is loaded elsewhere +with changes):\n%s", diff)
	}
}

// TestChangesElsewhere: only what is to be relocated is changed.
func TestChangesElsewhere(t *testing.T) {
	spec, err := bpf.LoadArm()
	if err != nil {
		t.Fatal(err)
	}
	program := spec.Programs[bpf.ArmProgArm].Instructions
	for _, at := range []int{-1, 0, len(program)} {
		if err := apply(spec, []change{{At: at}}); err == nil {
			t.Errorf("instruction %d was changed", at)
		}
	}
}
