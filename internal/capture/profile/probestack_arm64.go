package profile

import (
	"encoding/binary"

	"github.com/inferscope/inferscope/internal/capture/profile/callers"
)

// probeRegisters reads struct user_pt_regs (arch/arm64/include/uapi/asm/ptrace.h): x0 to x30, sp, pc.
func probeRegisters(b []byte) (r callers.Registers, ok bool) {
	const words = 33
	if len(b) < words*8 {
		return r, false
	}
	for i := range 32 {
		r.R[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	r.PC = binary.LittleEndian.Uint64(b[8*32:])
	return r, true
}

func stackPointer(r *callers.Registers) uint64 { return r.R[31] }
