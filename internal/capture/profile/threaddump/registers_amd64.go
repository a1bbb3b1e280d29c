package threaddump

import "github.com/inferscope/inferscope/internal/capture/profile/callers"

// registers returns what the kernel keeps of the thread's registers.
func registers(t *raw) callers.Registers {
	var r callers.Registers
	copy(r.R[:], t.Registers[:])
	r.PC = t.Registers[16]
	return r
}

func stackPointer(r *callers.Registers) uint64 { return r.R[7] }

// framePointer returns rbp; the caller's is where it points to, the return address above it.
func framePointer(r *callers.Registers) uint64 { return r.R[6] }

// byFramePointer makes the caller's registers out of the two words at the frame pointer.
func byFramePointer(r *callers.Registers, fp, ra uint64) callers.Registers {
	out := *r
	out.R[7], out.R[6], out.R[16], out.PC = r.R[6]+16, fp, ra, ra
	return out
}
