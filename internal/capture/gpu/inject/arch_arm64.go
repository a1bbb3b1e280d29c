package inject

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
)

const machine = elf.EM_AARCH64

const (
	auditArch     = 0xc00000b7 // AUDIT_ARCH_AARCH64
	regsetFloat   = 2          // NT_PRFPREG
	regsetSyscall = 0x404      // NT_ARM_SYSTEM_CALL
	regsetSVE     = 0x405      // NT_ARM_SVE
	regsetGCS     = 0x410      // NT_ARM_GCS: struct user_gcs, whose first word says what is on; Linux 6.13
	maxState      = 32 << 10   // bytes of SVE state; vectors of 2,048 bits make it 8,752
)

// restorers are __kernel_rt_sigreturn of the vdso, which is what the kernel itself lets
// handlers return through (libc gives none on arm64).
func restorers() [][]byte {
	return [][]byte{{0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4}} // mov x8, #139; svc #0
}

// gadgets make a system call and return: the end of getpid.
func gadgets() [][]byte {
	return [][]byte{{0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6}} // svc #0; ret
}

type registers armRegs

func (r *registers) sp() uint64 { return r.SP }

// native reports whether the thread runs 64-bit code: PSR_MODE32_BIT is clear.
func (r *registers) native() bool { return r.PState&0x10 == 0 }

func (t *thread) syscallNumber() (int32, error) {
	var b [4]byte
	if _, err := t.getRegset(regsetSyscall, b[:]); err != nil {
		return 0, fmt.Errorf("read its system call: %w", err)
	}
	return int32(binary.LittleEndian.Uint32(b[:])), nil
}

// inSyscall reports whether the stop interrupted a system call. A stop for a signal never says so: the kernel has
// gone back to before the call by then (do_signal), and returning through a frame makes it anew, which is as well.
func (t *thread) inSyscall(*registers) (bool, error) {
	n, err := t.syscallNumber()
	return n >= 0, err
}

// shadowed reports whether the thread has a guarded control stack. The kernel would look for a signal's mark
// on it when the thread returns through our frame, and kill the process for want of one.
func (t *thread) shadowed() bool {
	var features [24]byte
	n, err := t.getRegset(regsetGCS, features[:])
	return err == nil && n > 0 && features[0]&1 != 0 // PR_SHADOW_STACK_ENABLE
}

// systemCall makes a thread with registers r do one system call and then return through f.
func (r registers) systemCall(gadget, restorer uint64, f *frame, number uint64, args ...uint64) registers {
	r = r.call(gadget, restorer, f, args...)
	r.X[8] = number
	return r
}

// call makes a thread with registers r enter function fn, to return through f. BTYPE
// is cleared: fn need not begin with a landing pad, the gadget does not.
func (r registers) call(fn, restorer uint64, f *frame, args ...uint64) registers {
	const btype = 3 << 10
	r.PC, r.SP, r.X[30] = fn, f.sp, restorer
	r.PState &^= btype
	copy(r.X[:8], args)
	return r
}

// frame makes the signal frame of the stopped thread.
func (t *thread) frame(r *registers, mask, _ uint64) (frame, error) {
	state := armState{fpsimd: make([]byte, 528), sve: make([]byte, maxState)}
	if _, err := t.getRegset(regsetFloat, state.fpsimd); err != nil {
		return frame{}, fmt.Errorf("read its floating point state: %w", err)
	}
	n, err := t.getRegset(regsetSVE, state.sve)
	if err != nil { // EINVAL, ENODEV: no SVE
		n = 0
	}
	state.sve = state.sve[:n]
	return armFrame((*armRegs)(r), state, mask)
}
