package ring

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// order tells the producer what to put into which ring. Its layout is that of the
// loop context of the BPF program below.
type order struct {
	slot    uint64 // CPU whose ring is filled
	base    uint64 // TS and Args[0] of the first event; they count up from it
	n       uint64
	discard uint64 // 1: give every record up instead of submitting it
}

// Offsets in order, and where its copy lies on the program's stack.
const (
	orderSlot, orderBase, orderN, orderDiscard = 0, 8, 16, 24
	onStack                                    = -32
)

// producer is a BPF program that fills rings as the probes do, run by BPF_PROG_RUN.
type producer struct{ prog *ebpf.Program }

// newProducer loads the producer with the maps of r put in by name, as the daemon
// does it, so that the declarations that Maps documents are tested as well.
func newProducer(t testing.TB, r *Rings) producer {
	t.Helper()
	if errors.Is(features.HaveProgramHelper(ebpf.Syscall, asm.FnLoop), ebpf.ErrNotSupported) {
		t.Skip("this kernel has no bpf_loop (5.17), which the producer is made of")
	}
	spec := &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{
			ringsMap: {
				Name: ringsMap, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1,
				InnerMap: &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096},
			},
			lossesMap: {Name: lossesMap, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 4},
		},
		Programs: map[string]*ebpf.ProgramSpec{"produce": {
			Name: "produce", Type: ebpf.Syscall, Flags: 1 << 4, // BPF_F_SLEEPABLE: syscall programs must be
			License:      "Dual BSD/GPL",
			Instructions: append(described(mainCode(), "produce"), described(loopBody(), "body")...),
		}},
	}
	for name, m := range r.Maps() {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: r.Maps()})
	if err != nil {
		t.Fatalf("load the producer: %+v", err)
	}
	t.Cleanup(coll.Close)
	return producer{coll.Programs["produce"]}
}

// described adds the BTF that the kernel wants of each function of a program with a callback.
func described(code asm.Instructions, name string) asm.Instructions {
	u64 := &btf.Int{Name: "u64", Size: 8}
	proto := &btf.FuncProto{Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}}
	if name == "body" {
		proto.Params = []btf.FuncParam{{Name: "round", Type: u64}, {Name: "order", Type: &btf.Pointer{Target: u64}}}
	} else {
		proto.Params = []btf.FuncParam{{Name: "order", Type: &btf.Pointer{Target: u64}}}
	}
	code[0] = btf.WithFuncMetadata(code[0], &btf.Func{Name: name, Type: proto, Linkage: btf.StaticFunc})
	return code
}

// mainCode copies the order to the stack and loops over it.
func mainCode() asm.Instructions {
	code := asm.Instructions{}
	for _, off := range []int16{orderSlot, orderBase, orderN, orderDiscard} {
		code = append(code,
			asm.LoadMem(asm.R2, asm.R1, off, asm.DWord),
			asm.StoreMem(asm.RFP, onStack+off, asm.R2, asm.DWord))
	}
	callback := asm.LoadImm(asm.R2, -1, asm.DWord).WithReference("body")
	callback.Src = asm.PseudoFunc
	return append(code,
		asm.LoadMem(asm.R1, asm.R1, orderN, asm.DWord),
		callback,
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, onStack),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnLoop.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return())
}

// loopBody is the callback of bpf_loop: R1 the round, R2 the order.
func loopBody() asm.Instructions {
	const round, ord, rec = asm.R6, asm.R7, asm.R8
	code := asm.Instructions{
		asm.Mov.Reg(round, asm.R1).WithSymbol("body"),
		asm.Mov.Reg(ord, asm.R2),
		asm.LoadMem(asm.R1, ord, orderSlot, asm.DWord),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, 0).WithReference(ringsMap),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "lost"),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.Mov.Imm(asm.R2, event.Size),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "lost"),
		asm.Mov.Reg(rec, asm.R0),
		asm.LoadMem(asm.R1, ord, orderBase, asm.DWord),
		asm.Add.Reg(asm.R1, round),
		asm.StoreMem(rec, 0, asm.R1, asm.DWord),           // ts
		asm.StoreMem(rec, 32, asm.R1, asm.DWord),          // args[0]
		asm.Mov.Imm(asm.R1, 7),                            //
		asm.StoreMem(rec, 8, asm.R1, asm.DWord),           // dur
		asm.StoreImm(rec, 16, 100, asm.Word),              // pid
		asm.LoadMem(asm.R1, ord, orderSlot, asm.DWord),    //
		asm.StoreMem(rec, 20, asm.R1, asm.Word),           // tid: the slot
		asm.StoreImm(rec, 24, 1|1<<16|1<<24, asm.Word),    // func 1, kind Call, flags Timed
		asm.StoreImm(rec, 28, -3, asm.Word),               // ret
		asm.Mov.Imm(asm.R1, 1),                            //
		asm.StoreMem(rec, 40, asm.R1, asm.DWord),          // args[1]
		asm.Mov.Imm(asm.R1, 2),                            //
		asm.StoreMem(rec, 48, asm.R1, asm.DWord),          // args[2]
		asm.Mov.Imm(asm.R1, 3),                            //
		asm.StoreMem(rec, 56, asm.R1, asm.DWord),          // args[3]
		asm.Mov.Reg(asm.R1, rec),                          //
		asm.Mov.Imm(asm.R2, 1),                            // BPF_RB_NO_WAKEUP
		asm.LoadMem(asm.R3, ord, orderDiscard, asm.DWord), //
		asm.JNE.Imm(asm.R3, 0, "discard"),
		asm.FnRingbufSubmit.Call(),
		asm.Ja.Label("done"),
		asm.FnRingbufDiscard.Call().WithSymbol("discard"),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("done"),
		asm.Return(),
	}
	return append(code, lostCode()...)
}

// lostCode counts LOSS_RING_FULL on the CPU that runs the program.
func lostCode() asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -8, 0, asm.Word).WithSymbol("lost"),
		asm.LoadMapPtr(asm.R1, 0).WithReference(lossesMap),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "done"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Ja.Label("done"),
	}
}

// run carries out o.
func (p producer) run(t testing.TB, o order) {
	t.Helper()
	if _, err := p.prog.Run(&ebpf.RunOptions{Context: &o}); err != nil {
		t.Fatalf("run the producer: %v", err)
	}
}

// newRings makes rings for a test, or skips it.
func newRings(t testing.TB, bytes int64) *Rings {
	t.Helper()
	needs.Root(t, "BPF ring buffers want CAP_BPF")
	r, err := New(Options{Bytes: bytes})
	must.NoError(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close the rings: %v", err)
		}
	})
	return r
}
