package uprobe_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// From 64 bytes on, in any function, kernels since 6.13 put a program's stack where
// another thread on the same CPU can overwrite it (bpf/shapes.h); they round up to
// 16 bytes.
const maxStack = 48

var stackDepth = regexp.MustCompile(`stack depth ([0-9+]+)`)

// The verifier's own figure, for each function of each program.
func TestStackAsVerified(t *testing.T) {
	needRoot(t)
	r := newRings(t, 1<<16)
	spec, err := bpf.LoadCalls()
	must.NoError(t, err)
	for name, m := range r.maps {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: r.maps,
		Programs:        ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats},
	})
	if err != nil {
		t.Skip("this kernel does not load them all: ", err)
	}
	defer coll.Close()
	for name, prog := range coll.Programs {
		found := stackDepth.FindStringSubmatch(prog.VerifierLog)
		if found == nil {
			t.Fatalf("%s: the verifier says nothing of its stack:\n%s", name, prog.VerifierLog)
		}
		for _, s := range strings.Split(found[1], "+") {
			if n, err := strconv.Atoi(s); err != nil || n > maxStack {
				t.Errorf("%s: stack depth %s, at most %d for each function", name, found[1], maxStack)
			}
		}
	}
}

// The same without root and for both architectures: no instruction addresses the
// stack below maxStack.
func TestStackAsCompiled(t *testing.T) {
	for _, object := range []string{"calls_x86", "calls_arm64", "memory_x86", "memory_arm64", "request_x86", "request_arm64"} {
		spec, err := ebpf.LoadCollectionSpec("../../../bpf/" + object + "_bpfel.o")
		must.NoError(t, err)
		for name, prog := range spec.Programs {
			if prog.Type != ebpf.Kprobe { // programs at tracepoints are not preempted
				continue
			}
			if n := deepest(prog.Instructions); n > maxStack || n == 0 {
				t.Errorf("%s, %s: uses %d bytes of stack, at most %d", object, name, n, maxStack)
			}
		}
	}
}

func deepest(insns asm.Instructions) (depth int64) {
	var frame [asm.R10 + 1]bool // registers that hold the frame pointer just now
	frame[asm.R10] = true
	for _, i := range insns {
		op := i.OpCode
		switch {
		case op.Class() == asm.LdXClass && frame[i.Src], op.Class().IsStore() && frame[i.Dst]:
			depth = max(depth, -int64(i.Offset))
		case op.Class() == asm.ALU64Class && op.ALUOp() == asm.Add && op.Source() == asm.ImmSource && frame[i.Dst]:
			depth = max(depth, -i.Constant)
		}
		if op.Class() == asm.ALU64Class && i.Dst != asm.R10 {
			frame[i.Dst] = op.ALUOp() == asm.Mov && op.Source() == asm.RegSource && i.Src == asm.R10
		} else if op.Class() == asm.LdXClass && i.Dst != asm.R10 {
			frame[i.Dst] = false
		}
	}
	return depth
}
