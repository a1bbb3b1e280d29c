package inject

import (
	"debug/elf"
	"fmt"
)

const machine = elf.EM_X86_64

const (
	auditArch   = 0xc000003e // AUDIT_ARCH_X86_64
	regsetState = 0x202      // NT_X86_XSTATE
	maxState    = 32 << 10   // bytes of XSAVE area; AMX makes it 11,008
)

// restorers are what libc returns from a handler through: glibc's __restore_rt, musl's.
func restorers() [][]byte {
	return [][]byte{
		{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}, // mov $15, %rax; syscall
		{0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05},             // mov $15, %eax; syscall
	}
}

// gadgets make a system call and return: the end of getpid.
func gadgets() [][]byte { return [][]byte{{0x0f, 0x05, 0xc3}} } // syscall; ret

// cpuid asks the processor.
func cpuid(leaf, subleaf uint32) (eax, ebx uint32)

func component(i int) (size, offset uint32) { return cpuid(0xd, uint32(i)) }

type registers x86Regs

func (r *registers) sp() uint64 { return r.Rsp }

// native reports whether the thread runs 64-bit code; __USER_CS is 0x33.
func (r *registers) native() bool { return r.Cs == 0x33 }

// inSyscall reports whether the stop interrupted a system call.
func (t *thread) inSyscall(r *registers) (bool, error) { return int64(r.OrigRax) >= 0, nil }

// shadowed: on x86-64 noShadow has asked.
func (t *thread) shadowed() bool { return false }

// systemCall makes a thread with registers r do one system call and then return through f.
func (r registers) systemCall(gadget, _ uint64, f *frame, number uint64, args ...uint64) registers {
	r = r.call(gadget, 0, f, args...)
	r.Rax = number
	return r
}

// call makes a thread with registers r enter function fn, to return through f. At the
// entry of a function the direction flag is clear (ABI); the trap flag must be.
func (r registers) call(fn, _ uint64, f *frame, args ...uint64) registers {
	const stopPoint, direction = 1 << 8, 1 << 10
	r.Rip, r.Rsp, r.Rax, r.OrigRax = fn, f.sp, 0, ^uint64(0)
	r.Eflags &^= stopPoint | direction
	for i, p := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx} {
		if i < len(args) {
			*p = args[i]
		}
	}
	return r
}

// frame makes the signal frame of the stopped thread.
func (t *thread) frame(r *registers, mask, restorer uint64) (frame, error) {
	state := make([]byte, maxState)
	n, err := t.getRegset(regsetState, state)
	if err != nil {
		return frame{}, fmt.Errorf("read its extended state: %w", err)
	}
	return x86Frame((*x86Regs)(r), state[:n], component, mask, restorer)
}
