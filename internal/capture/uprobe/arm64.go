package uprobe

import (
	"encoding/binary"

	"golang.org/x/arch/arm64/arm64asm"
)

const arm64InsnSize = 4

type arm64 struct{}

// arm64Class is one encoding class: those instructions i with i&mask == value.
type arm64Class struct{ mask, value uint32 }

func in(w uint32, classes ...arm64Class) bool {
	for _, c := range classes {
		if w&c.mask == c.value {
			return true
		}
	}
	return false
}

func (arm64) text(code []byte, _ uint64) string {
	inst, err := arm64asm.Decode(code)
	if err != nil {
		return "bti c"
	}
	return arm64asm.GNUSyntax(inst)
}

func (arm64) decode(code []byte) (insn, bool) {
	if len(code) < arm64InsnSize {
		return insn{}, false
	}
	w := binary.LittleEndian.Uint32(code)
	i := insn{size: arm64InsnSize, emulated: arm64Emulated(w)}
	inst, err := arm64asm.Decode(code[:arm64InsnSize])
	switch {
	case err == nil:
		i.harmless = arm64Harmless(w, inst)
		i.target, i.branches = arm64Branch(inst)
	case w == arm64BTI:
		i.harmless = true
	default:
		return insn{}, false
	}
	return i, true
}

// arm64Emulated: what arm_probe_decode_insn simulates for uprobes on every kernel
// from 5.15 on. Not nop (6.13 on) and not ldr of a literal (kprobes only since
// 6.12, broken for uprobes before).
func arm64Emulated(w uint32) bool {
	return in(w,
		arm64Class{0x7c000000, 0x14000000}, // b, bl
		arm64Class{0xff000010, 0x54000000}, // b.cond
		arm64Class{0x7e000000, 0x34000000}, // cbz, cbnz
		arm64Class{0x7e000000, 0x36000000}, // tbz, tbnz
		arm64Class{0x1f000000, 0x10000000}, // adr, adrp
		arm64Class{0xfffffc1f, 0xd61f0000}, // br
		arm64Class{0xfffffc1f, 0xd63f0000}, // blr
		arm64Class{0xfffffc1f, 0xd65f0000}, // ret
	)
}

// bti c, which arm64asm may not know: hint 34.
const arm64BTI = 0xd503245f

func arm64Branch(inst arm64asm.Inst) (target int64, ok bool) {
	switch inst.Op {
	case arm64asm.B, arm64asm.CBZ, arm64asm.CBNZ, arm64asm.TBZ, arm64asm.TBNZ:
	default:
		return 0, false
	}
	for _, a := range inst.Args {
		if rel, is := a.(arm64asm.PCRel); is {
			return int64(rel), true
		}
	}
	return 0, false
}

// arm64Harmless allows comparisons, and moves, arithmetic and plain loads into a
// register that holds no argument, stack pointer or return address. paciasp is not
// among them: it changes x30.
func arm64Harmless(w uint32, inst arm64asm.Inst) bool {
	if w == arm64BTI {
		return true
	}
	switch inst.Op {
	case arm64asm.NOP, arm64asm.CMP, arm64asm.CMN, arm64asm.TST, arm64asm.CCMP:
		return true
	case arm64asm.MOV, arm64asm.MOVZ, arm64asm.MOVN, arm64asm.MOVK, arm64asm.ADD, arm64asm.SUB,
		arm64asm.AND, arm64asm.ORR, arm64asm.EOR, arm64asm.LSL, arm64asm.LSR, arm64asm.ASR:
		return arm64Free(inst.Args[0])
	case arm64asm.LDR, arm64asm.LDRB, arm64asm.LDRH, arm64asm.LDRSW, arm64asm.LDUR:
		return arm64Free(inst.Args[0]) && !arm64WritesBack(inst)
	}
	return false
}

func arm64WritesBack(inst arm64asm.Inst) bool {
	for _, a := range inst.Args {
		if m, ok := a.(arm64asm.MemImmediate); ok && m.Mode != arm64asm.AddrOffset {
			return true
		}
	}
	return false
}

// arm64Free: x8 to x28 and w8 to w28. Not x29, which frame walkers need, nor x30 and sp.
func arm64Free(a arm64asm.Arg) bool {
	var r arm64asm.Reg
	switch v := a.(type) {
	case arm64asm.Reg:
		r = v
	case arm64asm.RegSP:
		r = arm64asm.Reg(v)
	default:
		return false
	}
	return r >= arm64asm.X8 && r <= arm64asm.X28 || r >= arm64asm.W8 && r <= arm64asm.W28
}
