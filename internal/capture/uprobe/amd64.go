package uprobe

import (
	"bytes"

	"golang.org/x/arch/x86/x86asm"
)

type amd64 struct{}

// isEndbr64: a hint that x86asm does not know.
func isEndbr64(code []byte) bool {
	return bytes.HasPrefix(code, []byte{0xf3, 0x0f, 0x1e, 0xfa})
}

func (amd64) text(code []byte, addr uint64) string {
	if isEndbr64(code) {
		return "endbr64"
	}
	inst, err := x86asm.Decode(code, 64)
	if err != nil {
		return ""
	}
	return x86asm.GNUSyntax(inst, addr, nil)
}

func (amd64) decode(code []byte) (insn, bool) {
	if isEndbr64(code) {
		return insn{size: 4, harmless: true}, true
	}
	inst, err := x86asm.Decode(code, 64)
	if err != nil || inst.Len <= 0 || inst.Len > len(code) {
		return insn{}, false
	}
	code = code[:inst.Len]
	i := insn{size: inst.Len}
	if nop := nopKind(code); nop != notNop {
		i.harmless, i.emulated, i.risky = true, nop != foreignNop, nop == jumpNop
		return i, true
	}
	i.push = isPush(code)
	i.emulated = i.push || isBranch(code)
	i.harmless = amd64Harmless(inst)
	if rel, ok := inst.Args[0].(x86asm.Rel); ok && inst.Op != x86asm.CALL {
		i.branches, i.target = true, int64(inst.Len)+int64(rel)
	}
	return i, true
}

// isPush: push of a 64-bit register, without any prefix but REX.B.
func isPush(code []byte) bool {
	if len(code) == 2 && code[0] == 0x41 {
		code = code[1:]
	}
	return len(code) == 1 && code[0]&^7 == 0x50
}

// isBranch: call rel32, jmp rel8 and rel32, jcc rel8 and rel32. With a prefix the
// kernel refuses some of them (66, 2e, 3e), so none is taken.
func isBranch(code []byte) bool {
	switch {
	case code[0] == 0xe8 || code[0] == 0xe9:
		return len(code) == 5
	case code[0] == 0xeb || code[0]&^15 == 0x70:
		return len(code) == 2
	}
	return len(code) == 6 && code[0] == 0x0f && code[1]&^15 == 0x80
}

type nop int

const (
	notNop     nop = iota
	plainNop       // emulated
	jumpNop        // 5 bytes: kernel 6.18 replaces it with a call while it is probed
	foreignNop     // harmless, but not one that the kernel knows
)

// nopKind knows the nops of arch/x86/include/asm/nops.h. The kernel emulates these
// and no other form of 0f 1f. From 6.18 on it turns a probed 5-byte nop into a
// call, which writes below the stack pointer: harmless at an entry, where nothing
// lives there yet, but in the middle of a leaf function it destroys the red zone.
// Another thread may also be about to execute those five bytes. So it is the last resort.
func nopKind(code []byte) nop {
	switch string(code) {
	case "\x90", "\x66\x90", "\x0f\x1f\x00", "\x0f\x1f\x40\x00", "\x66\x0f\x1f\x44\x00\x00",
		"\x0f\x1f\x80\x00\x00\x00\x00", "\x0f\x1f\x84\x00\x00\x00\x00\x00":
		return plainNop
	case "\x0f\x1f\x44\x00\x00":
		return jumpNop
	}
	n := len(code)
	for n > 0 && (code[0] == 0x66 || code[0] == 0x2e) {
		code, n = code[1:], n-1
	}
	if n >= 3 && code[0] == 0x0f && code[1] == 0x1f {
		return foreignNop
	}
	return notNop
}

// amd64Harmless allows what compilers put before a prologue or a thunk's jump, and
// nothing else: what reads, and what writes rax, rbx, rbp, r10 to r15 or a vector
// register. A store could hit an argument on the stack or one that a pointer leads
// to, so it is allowed only to a global, which is addressed through rip.
func amd64Harmless(inst x86asm.Inst) bool {
	switch inst.Op {
	case x86asm.CMP, x86asm.TEST, x86asm.BT:
		return true
	case x86asm.MOV, x86asm.MOVZX, x86asm.MOVSX, x86asm.MOVSXD, x86asm.LEA,
		x86asm.XOR, x86asm.AND, x86asm.OR, x86asm.ADD, x86asm.SUB, x86asm.INC, x86asm.DEC,
		x86asm.SHL, x86asm.SHR, x86asm.SAR, x86asm.NEG, x86asm.NOT,
		x86asm.MOVD, x86asm.MOVQ, x86asm.MOVAPS, x86asm.MOVUPS, x86asm.MOVDQA, x86asm.MOVDQU,
		x86asm.PXOR, x86asm.XORPS:
	default:
		return false
	}
	switch dst := inst.Args[0].(type) {
	case x86asm.Reg:
		return !amd64Holds(dst)
	case x86asm.Mem:
		return dst.Base == x86asm.RIP
	}
	return false
}

// amd64Holds reports whether r is part of an argument register or of rsp, or is
// nothing that the walk knows to be free.
func amd64Holds(r x86asm.Reg) bool {
	switch r {
	case x86asm.AL, x86asm.AH, x86asm.AX, x86asm.EAX, x86asm.RAX,
		x86asm.BL, x86asm.BH, x86asm.BX, x86asm.EBX, x86asm.RBX,
		x86asm.EBP, x86asm.RBP:
		return false
	}
	within := func(from, to x86asm.Reg) bool { return r >= from && r <= to }
	free := within(x86asm.R10B, x86asm.R15B) || within(x86asm.R10W, x86asm.R15W) ||
		within(x86asm.R10L, x86asm.R15L) || within(x86asm.R10, x86asm.R15) ||
		within(x86asm.M0, x86asm.M7) || within(x86asm.X0, x86asm.X15)
	return !free
}
