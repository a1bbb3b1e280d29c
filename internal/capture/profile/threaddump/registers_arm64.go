package threaddump

import "github.com/inferscope/inferscope/internal/capture/profile/callers"

// registers returns what the kernel keeps of the thread's registers.
func registers(t *raw) callers.Registers {
	var r callers.Registers
	copy(r.R[:32], t.Registers[:32])
	r.PC = t.Registers[32]
	return r
}

func stackPointer(r *callers.Registers) uint64 { return r.R[31] }

// framePointer returns x29; the caller's is where it points to, the return address above it.
func framePointer(r *callers.Registers) uint64 { return r.R[29] }

// byFramePointer makes the caller's registers out of the two words at the frame pointer.
func byFramePointer(r *callers.Registers, fp, ra uint64) callers.Registers {
	out := *r
	// Of the return address the upper bits may be its signature.
	out.R[31], out.R[29], out.R[30], out.PC = r.R[29]+16, fp, ra, ra&(1<<48-1)
	return out
}
