package live

import "github.com/inferscope/inferscope/internal/dump/cfi"

// registers returns what the kernel keeps of the thread's registers.
func registers(t *raw) cfi.Registers {
	var r cfi.Registers
	copy(r.R[:], t.Registers[:])
	r.PC = t.Registers[16]
	return r
}

func stackPointer(r *cfi.Registers) uint64 { return r.R[7] }

// framePointer returns rbp; the caller's is where it points to, the return address above it.
func framePointer(r *cfi.Registers) uint64 { return r.R[6] }

// byFramePointer makes the caller's registers out of the two words at the frame pointer.
func byFramePointer(r *cfi.Registers, fp, ra uint64) cfi.Registers {
	out := *r
	out.R[7], out.R[6], out.R[16], out.PC = r.R[6]+16, fp, ra, ra
	return out
}
