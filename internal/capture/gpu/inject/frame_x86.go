package inject

import (
	"errors"
	"fmt"
)

// x86Regs is struct user_regs_struct of x86-64 (arch/x86/include/asm/user_64.h), what
// the regset NT_PRSTATUS holds.
type x86Regs struct {
	R15, R14, R13, R12, Rbp, Rbx, R11, R10, R9, R8 uint64
	Rax, Rcx, Rdx, Rsi, Rdi, OrigRax               uint64
	Rip, Cs, Eflags, Rsp, Ss, FsBase, GsBase       uint64
	Ds, Es, Fs, Gs                                 uint64
}

// Of arch/x86/include/uapi/asm/sigcontext.h and ucontext.h.
const (
	x86Magic1 = 0x46505853 // FP_XSTATE_MAGIC1
	x86Magic2 = 0x46505845 // FP_XSTATE_MAGIC2, behind the state

	x86FPXState   = 1 // UC_FP_XSTATE
	x86SigSS      = 2 // UC_SIGCONTEXT_SS
	x86StrictSS   = 4 // UC_STRICT_RESTORE_SS
	x86RedZone    = 128
	x86XSaveSW    = 464 // sw_reserved in the legacy area
	x86XSaveBV    = 512 // XSTATE_BV, the first word of the XSAVE header
	x86XSaveMin   = 576 // legacy area and header
	x86XSaveAlign = 64

	// struct rt_sigframe: the restorer's address, struct ucontext, siginfo.
	x86Context   = 8
	x86StackT    = x86Context + 16
	x86Registers = x86Context + 40
	x86FPState   = x86Registers + 184
	x86SigMask   = x86Registers + 256
	x86FrameSize = x86SigMask + 8 + 128
)

// keepAltStack is a mode of an alternate stack that sigaltstack refuses, and
// rt_sigreturn ignores: what the thread has stays. It cannot be read from outside.
const keepAltStack = 0x40

// x86Component returns size and offset of a component in the standard format (CPUID leaf 0xd).
type x86Component func(i int) (size, offset uint32)

// x86StateSize returns how much of an XSAVE area holds the components in bv. Not
// more than that may go into the frame: the kernel offers ptrace room for every
// component (AMX: 8 kB), but takes back only what the thread may use.
func x86StateSize(bv uint64, component x86Component) int {
	size := x86XSaveMin
	for i := 2; i < 63; i++ {
		if bv>>i&1 != 0 {
			bytes, offset := component(i)
			size = max(size, int(offset)+int(bytes))
		}
	}
	return size
}

var errNoXSave = errors.New("the extended state of the thread is not in XSAVE format")

// x86Frame makes the frame of a thread with these registers, this extended state (as
// the regset NT_X86_XSTATE holds it) and this signal mask.
func x86Frame(r *x86Regs, xsave []byte, component x86Component, mask, restorer uint64) (frame, error) {
	if len(xsave) < x86XSaveMin {
		return frame{}, errNoXSave
	}
	bv := get64(xsave, x86XSaveBV)
	size := x86StateSize(bv, component)
	if size > len(xsave) {
		return frame{}, fmt.Errorf("%w: components %#x need %d bytes, it has %d", errNoXSave, bv, size, len(xsave))
	}
	text := down(r.Rsp-x86RedZone-textRoom, 16)
	state := down(text-uint64(size)-4, x86XSaveAlign)
	sp := down(state-x86FrameSize, 16) - 8 // as after a call
	f := frame{at: sp, data: make([]byte, text+textRoom-sp), sp: sp, text: text}
	put64(f.data, 0, restorer)
	x86PutRegisters(f.data, r, state, mask)
	x86PutState(f.data[state-sp:], xsave[:size], bv)
	return f, nil
}

func x86PutRegisters(b []byte, r *x86Regs, state, mask uint64) {
	put64(b, x86Context, x86FPXState|x86SigSS|x86StrictSS)
	put32(b, x86StackT+8, keepAltStack)
	for i, v := range []uint64{
		r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15,
		r.Rdi, r.Rsi, r.Rbp, r.Rbx, r.Rdx, r.Rax, r.Rcx, r.Rsp, r.Rip, r.Eflags,
	} {
		put64(b, x86Registers+8*i, v)
	}
	segments := x86Registers + 8*18
	put16(b, segments, uint16(r.Cs))
	put16(b, segments+6, uint16(r.Ss))
	put64(b, x86FPState, state)
	put64(b, x86SigMask, mask)
}

// x86PutState writes the XSAVE area and what marks it as one: without the marks
// the kernel would restore the SSE registers alone.
func x86PutState(b, xsave []byte, bv uint64) {
	size := copy(b, xsave)
	clear(b[x86XSaveSW:512])
	put32(b, x86XSaveSW, x86Magic1)
	put32(b, x86XSaveSW+4, uint32(size+4))
	put64(b, x86XSaveSW+8, bv|3)
	put32(b, x86XSaveSW+16, uint32(size))
	put32(b, size, x86Magic2)
}
