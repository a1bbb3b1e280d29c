package probe_test
import ("testing";"fmt"
"github.com/cilium/ebpf";"github.com/cilium/ebpf/asm";"github.com/cilium/ebpf/link")
func (s spinner) prog(b *testing.B, ins asm.Instructions) func() func() {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL", Instructions: ins})
	if err != nil { b.Fatal(err) }
	ex, _ := link.OpenExecutable(s.lib)
	addr := []uint64{s.function("b_call").Offset}
	return func() func() { l, err := ex.UprobeMulti(nil, prog, &link.UprobeMultiOptions{Addresses: addr, PID: s.pid()}); if err != nil { b.Fatal(err) }; return func() { l.Close() } }
}
func BenchmarkZZ(b *testing.B) {
	s := startSpinner(b)
	read := func(n int, size int32) asm.Instructions {
		ins := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
		for range n {
			ins = append(ins, asm.LoadMem(asm.R3, asm.R6, 152, asm.DWord), asm.Add.Imm(asm.R3, 8), asm.Mov.Imm(asm.R2, size), asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -64), asm.FnProbeReadUser.Call())
		}
		return append(ins, asm.Mov.Imm(asm.R0, 0), asm.Return())
	}
	kt := func(n int) asm.Instructions {
		var ins asm.Instructions
		for range n { ins = append(ins, asm.FnKtimeGetNs.Call()) }
		return append(ins, asm.Mov.Imm(asm.R0, 0), asm.Return())
	}
	pt := func(n int) asm.Instructions {
		var ins asm.Instructions
		for range n { ins = append(ins, asm.FnGetCurrentPidTgid.Call()) }
		return append(ins, asm.Mov.Imm(asm.R0, 0), asm.Return())
	}
	ck := func(n int) asm.Instructions {
		ins := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
		for range n { ins = append(ins, asm.Mov.Reg(asm.R1, asm.R6), asm.FnGetAttachCookie.Call()) }
		return append(ins, asm.Mov.Imm(asm.R0, 0), asm.Return())
	}
	sl := func(n int, size int32) func() func() {
		ins := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
		for range n {
			ins = append(ins, asm.LoadMem(asm.R3, asm.R6, 152, asm.DWord), asm.Add.Imm(asm.R3, 8), asm.Mov.Imm(asm.R2, size), asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -64), asm.FnCopyFromUser.Call())
		}
		ins = append(ins, asm.Mov.Imm(asm.R0, 0), asm.Return())
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, Flags: 1<<4, License: "GPL", Instructions: ins})
		if err != nil { b.Fatal(err) }
		ex, _ := link.OpenExecutable(s.lib)
		addr := []uint64{s.function("b_call").Offset}
		return func() func() { l, err := ex.UprobeMulti(nil, prog, &link.UprobeMultiOptions{Addresses: addr, PID: s.pid()}); if err != nil { b.Fatal(err) }; return func() { l.Close() } }
	}
	names := []string{"empty", "8B", "10x8B", "10x24B","10x64B", "10xktime", "10xpidtgid", "10xcookie","sl-empty","sl-1x24","sl-10x24"}
	ks := []func() func(){s.emptyProbe(b), s.prog(b, read(1, 8)), s.prog(b, read(10, 8)), s.prog(b, read(10, 24)), s.prog(b, read(10, 64)), s.prog(b, kt(10)), s.prog(b, pt(10)), s.prog(b, ck(10)), sl(0,24), sl(1,24), sl(10,24)}
	res := make([][]float64, len(ks))
	for b.Loop() {
		for i, k := range ks { b0 := s.nsPerCall(); d := k(); s.do("spin 1000"); p := s.nsPerCall(); d(); res[i] = append(res[i], p-b0) }
	}
	for i := range ks { fmt.Printf("%s %.0f\n", names[i], median(res[i])) }
}
