//go:build amd64 || arm64

package relocation_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/relocation"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestFind: with the changes that were found before, the kernel gets the programs that it gets without.
func TestFind(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"arm": bpf.LoadArm, "gate": bpf.LoadGate} {
		t.Run(name, func(t *testing.T) {
			spec, err := load()
			must.NoError(t, err)
			changes, err := relocation.Find(spec.Programs)
			must.NoError(t, err)
			for program := range spec.Programs {
				if len(changes[program]) == 0 {
					t.Fatalf("nothing is to be changed in %s: this test looks at nothing", program)
				}
				without, with := loaded(t, load, program, nil), loaded(t, load, program, changes[program])
				if len(with) < len(changes[program]) {
					t.Fatalf("the kernel shows %d instructions of %s", len(with), program)
				}
				if diff := cmp.Diff(without, with); diff != "" {
					t.Errorf("%s (-as it is loaded elsewhere +with changes):\n%s", program, diff)
				}
			}
		})
	}
}

// loaded returns what the kernel has of a program after it was changed.
func loaded(
	t *testing.T,
	load func() (*ebpf.CollectionSpec, error),
	name string,
	changes []relocation.Change,
) (out []relocation.Change) {
	t.Helper()
	spec, err := load()
	must.NoError(t, err)
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	program := spec.Programs[name].Instructions
	must.NoError(t, relocation.Apply(spec.Programs[name], changes))
	for i := range program {
		if r := btf.CORERelocationMetadata(&program[i]); r != nil && changes != nil {
			t.Errorf("instruction %d of %s still asks for the kernel's types: %v", i, name, r)
		}
	}
	coll, err := ebpf.NewCollection(spec)
	must.NoError(t, err)
	defer coll.Close()
	info, err := coll.Programs[name].Info()
	must.NoError(t, err)
	kernel, err := info.Instructions()
	if err != nil {
		t.Skip("this kernel does not show its programs: ", err)
	}
	for i, ins := range kernel {
		if ins.OpCode.IsDWordLoad() {
			ins.Constant = 0 // the address of a map, which is another one each time
		}
		out = append(out, relocation.Change{
			At: i, Code: ins.OpCode, Dst: ins.Dst, Src: ins.Src, Offset: ins.Offset, Constant: ins.Constant,
		})
	}
	return out
}

// TestChangesElsewhere: only what is to be relocated is changed.
func TestChangesElsewhere(t *testing.T) {
	p := &ebpf.ProgramSpec{Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}
	for _, at := range []int{-1, 0, 2} {
		if err := relocation.Apply(p, []relocation.Change{{At: at}}); err == nil {
			t.Errorf("instruction %d was changed", at)
		}
	}
}
