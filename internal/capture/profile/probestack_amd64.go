package profile

import (
	"encoding/binary"

	"github.com/inferscope/inferscope/internal/capture/profile/callers"
)

// probeRegisters reads struct pt_regs (arch/x86/include/asm/ptrace.h) into DWARF's numbering.
func probeRegisters(b []byte) (r callers.Registers, ok bool) {
	const words = 21
	if len(b) < words*8 {
		return r, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	// r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss
	for dwarf, at := range [...]int{10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16} {
		r.R[dwarf] = word(at)
	}
	r.PC = word(16)
	return r, true
}

func stackPointer(r *callers.Registers) uint64 { return r.R[7] }
