package inject

import "fmt"

// armRegs is struct user_pt_regs of arm64, what the regset NT_PRSTATUS holds.
type armRegs struct {
	X              [31]uint64
	SP, PC, PState uint64
}

// Of arch/arm64/include/uapi/asm/sigcontext.h and ucontext.h, and kernel/signal.c.
const (
	armFPSIMDMagic = 0x46508001
	armFPSIMDSize  = 528 // head, fpsr, fpcr, 32 registers of 16 bytes
	armSVEMagic    = 0x53564501
	armSVEHead     = 16 // struct sve_context: head, vl, flags, reserved
	armSVEUser     = 16 // struct user_sve_header, what the regset NT_ARM_SVE begins with

	// struct rt_sigframe: siginfo, struct ucontext.
	armUCStack   = 128 + 16
	armSigMask   = 128 + 40
	armContext   = 128 + 176 // struct sigcontext, aligned to 16
	armRegisters = armContext + 8
	armRecords   = armContext + 288 // __reserved, 4,096 bytes of records
	armFrameSize = armRecords + 4096

	armPtraceSVE = 1 // SVE_PT_REGS_SVE in user_sve_header.flags
)

// armState is the extended state of a thread.
type armState struct {
	fpsimd []byte // regset NT_FPREGSET: 32 registers, fpsr, fpcr
	sve    []byte // regset NT_ARM_SVE; nil where there is no SVE
}

// armFrame makes the frame of a thread with these registers, this extended state and
// this signal mask. The restorer stands in the link register, not in the frame.
func armFrame(r *armRegs, state armState, mask uint64) (frame, error) {
	if len(state.fpsimd) < 520 {
		return frame{}, fmt.Errorf("the floating point state has %d bytes, want 520", len(state.fpsimd))
	}
	text := down(r.SP-textRoom, 16)
	sp := down(text-armFrameSize, 16)
	f := frame{at: sp, data: make([]byte, text+textRoom-sp), sp: sp, text: text}
	put32(f.data, armUCStack+8, keepAltStack)
	put64(f.data, armSigMask, mask)
	for i, v := range append(r.X[:], r.SP, r.PC, r.PState) {
		put64(f.data, armRegisters+8*i, v)
	}
	records := f.data[armRecords : armRecords+4096]
	armPutFPSIMD(records, state.fpsimd)
	return f, armPutSVE(records[armFPSIMDSize:], state.sve)
}

func armPutFPSIMD(b, regs []byte) {
	put32(b, 0, armFPSIMDMagic)
	put32(b, 4, armFPSIMDSize)
	copy(b[8:16], regs[512:520]) // fpsr, fpcr
	copy(b[16:armFPSIMDSize], regs[:512])
}

// armPutSVE writes the scalable registers where the thread uses them. What the
// regset and the record hold is laid out alike: z0-z31, p0-p15, ffr.
func armPutSVE(b, regset []byte) error {
	if len(regset) < armSVEUser {
		return nil
	}
	vl, flags := int(regset[8])|int(regset[9])<<8, regset[12]
	if flags&armPtraceSVE == 0 {
		return nil
	}
	size := 32*vl + 17*(vl/8)
	whole := (armSVEHead + size + 15) &^ 15
	if len(regset) < armSVEUser+size {
		return fmt.Errorf("the SVE state of vector length %d has %d bytes, want %d", vl, len(regset), armSVEUser+size)
	}
	if whole+8 > len(b) { // an empty record ends the list
		return fmt.Errorf("the SVE state of vector length %d does not fit into a signal frame", vl)
	}
	put32(b, 0, armSVEMagic)
	put32(b, 4, uint32(whole))
	put16(b, 8, uint16(vl))
	copy(b[armSVEHead:], regset[armSVEUser:armSVEUser+size])
	return nil
}
