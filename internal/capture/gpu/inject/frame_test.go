package inject

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// amx is where Sapphire Rapids has its components (CPUID leaf 0xd): tiles beyond all else.
func amx(i int) (size, offset uint32) {
	at := map[int][2]uint32{
		2:  {256, 576},
		5:  {64, 1088},
		6:  {512, 1152},
		7:  {1024, 1664},
		9:  {8, 2688},
		17: {64, 2752},
		18: {8192, 2816},
	}
	return at[i][0], at[i][1]
}

func TestStateSize(t *testing.T) {
	for bv, want := range map[uint64]int{
		0: 576, 3: 576, 7: 832, 0xe7: 2688, 0x2e7: 2696, 0x2e7 | 3<<17: 11008, 1 << 9: 2696,
	} {
		if got := x86StateSize(bv, amx); got != want {
			t.Errorf("components %#x: %d bytes, want %d", bv, got, want)
		}
	}
}

func TestX86Frame(t *testing.T) {
	r := &x86Regs{
		Rsp:    0x7ffe12345678,
		Rip:    0x401000,
		Rax:    1,
		R8:     8,
		R15:    15,
		Rdi:    0xd1,
		Eflags: 0x246,
		Cs:     0x33,
		Ss:     0x2b,
	}
	state := make([]byte, 11008)
	for i := range state {
		state[i] = byte(i)
	}
	put64(state, x86XSaveBV, 0x2e7)
	f, err := x86Frame(r, state, amx, 0xabc, 0x5555)
	if err != nil {
		t.Fatal(err)
	}
	fp := get64(f.data, x86FPState)
	save := f.data[fp-f.sp:]
	switch {
	case f.sp%16 != 8 || f.at != f.sp || get64(f.data, 0) != 0x5555:
		t.Errorf("stack pointer %#x, data at %#x: not as after a call", f.sp, f.at)
	case f.sp+uint64(len(f.data)) > r.Rsp-128:
		t.Error("the frame reaches into the red zone")
	case fp%64 != 0:
		t.Errorf("state at %#x is not aligned", fp)
	case get32(save, 464) != 0x46505853 || get32(save, 468) != 2700 || get64(save, 472) != 0x2e7 ||
		get32(save, 480) != 2696 || get32(save, 2696) != 0x46505845:
		t.Errorf("the state is not marked as what it is: % x", save[464:484])
	case !bytes.Equal(save[576:2696], state[576:2696]) || !bytes.Equal(save[:464], state[:464]):
		t.Error("the state is not the thread's")
	case get64(f.data, x86Registers) != 8 || get64(f.data, x86Registers+8*15) != r.Rsp ||
		get64(f.data, x86Registers+8*16) != r.Rip:
		t.Error("registers are not in their places")
	}
	f.setText("hello")
	if text := f.data[f.text-f.at:]; string(text[:6]) != "hello\x00" || f.text < fp+2700 {
		t.Errorf("text %q at %#x", text[:6], f.text)
	}
	if _, err := x86Frame(r, state[:1000], amx, 0, 0); err == nil {
		t.Error("a frame of half a state")
	}
}

func TestArmFrame(t *testing.T) {
	r := &armRegs{SP: 0xffffe0001230, PC: 0x401000, PState: 0x60000000}
	r.X[0], r.X[30] = 100, 130
	fp := make([]byte, 528)
	fp[0], fp[511], fp[512], fp[516] = 1, 2, 3, 4
	sve := make([]byte, 16+32*32+17*4)
	sve[8], sve[12], sve[16] = 32, armPtraceSVE, 0x77
	f, err := armFrame(r, armState{fp, sve}, 0xabc)
	if err != nil {
		t.Fatal(err)
	}
	records := f.data[armRecords:]
	switch {
	case f.sp%16 != 0 || f.sp+uint64(len(f.data)) > r.SP:
		t.Errorf("frame at %#x of %d bytes", f.sp, len(f.data))
	case get64(f.data, armRegisters) != 100 || get64(f.data, armRegisters+30*8) != 130 ||
		get64(
			f.data, armRegisters+31*8,
		) != r.SP || get64(f.data, armRegisters+32*8) != r.PC || get64(f.data, armSigMask) != 0xabc:
		t.Error("registers are not in their places")
	case get32(records, 0) != 0x46508001 || get32(records, 4) != 528 || records[8] != 3 || records[12] != 4 ||
		records[16] != 1 || records[527] != 2:
		t.Errorf("floating point record % x", records[:20])
	case get32(records, 528) != 0x53564501 || records[528+8] != 32 || records[528+16] != 0x77:
		t.Errorf("SVE record % x", records[528:552])
	}
	size := get32(records, 532)
	if size%16 != 0 || int(size) < 16+32*32+17*4 || get64(records, 528+int(size)) != 0 {
		t.Errorf("SVE record of %d bytes, and no end", size)
	}
	sve[8], sve[9] = 0, 1 // vectors of 2,048 bits
	if _, err := armFrame(r, armState{fp, make([]byte, 16)}, 0); err != nil {
		t.Errorf("SVE not in use: %v", err)
	}
	big := make([]byte, 16+32*256+17*32)
	big[9], big[12] = 1, armPtraceSVE
	if _, err := armFrame(r, armState{fp, big}, 0); err == nil {
		t.Error("vectors that do not fit are taken")
	}
}

// What the kernel's headers must say, in C.
const x86Layout = `
#include <stddef.h>
#include <asm/signal.h>
#include <asm/siginfo.h>
#include <asm/sigcontext.h>
#include <asm/ucontext.h>
struct rt_sigframe { char *pretcode; struct { unsigned long flags; void *link; stack_t stack; struct sigcontext mc; unsigned long mask; } uc; siginfo_t info; };
#define IS(a, b) _Static_assert((a) == (b), #a)
IS(offsetof(struct rt_sigframe, uc.stack), 8 + 16); IS(offsetof(struct rt_sigframe, uc.mc), 48); IS(offsetof(struct rt_sigframe, uc.mc.fpstate), 48 + 184);
IS(offsetof(struct rt_sigframe, uc.mask), 48 + 256); IS(sizeof(struct rt_sigframe), 48 + 256 + 8 + 128);
IS(offsetof(struct rt_sigframe, uc.mc.cs), 48 + 144); IS(offsetof(struct rt_sigframe, uc.mc.__pad0), 48 + 150);
IS(offsetof(struct _fpx_sw_bytes, xstate_size), 16); IS(offsetof(struct _fpx_sw_bytes, xfeatures), 8); IS(offsetof(struct _fpstate_64, sw_reserved), 464);
IS(FP_XSTATE_MAGIC1, 0x46505853); IS(FP_XSTATE_MAGIC2, 0x46505845); IS(offsetof(struct _xstate, xstate_hdr), 512);
`

const armLayout = `
#include <stddef.h>
#include <asm/sigcontext.h>
#include <asm/ptrace.h>
#include <asm/signal.h>
#include <asm/ucontext.h>
#include <asm/siginfo.h>
struct rt_sigframe { siginfo_t info; struct ucontext uc; };
#define IS(a, b) _Static_assert((a) == (b), #a)
IS(offsetof(struct rt_sigframe, uc.uc_stack), 144); IS(offsetof(struct rt_sigframe, uc.uc_sigmask), 168);
IS(offsetof(struct rt_sigframe, uc.uc_mcontext), 304); IS(offsetof(struct rt_sigframe, uc.uc_mcontext.regs), 312);
IS(offsetof(struct rt_sigframe, uc.uc_mcontext.__reserved), 592); IS(sizeof(struct rt_sigframe), 592 + 4096);
IS(FPSIMD_MAGIC, 0x46508001); IS(sizeof(struct fpsimd_context), 528); IS(offsetof(struct fpsimd_context, vregs), 16); IS(offsetof(struct fpsimd_context, fpsr), 8);
IS(SVE_MAGIC, 0x53564501); IS(SVE_SIG_REGS_OFFSET, 16); IS(SVE_SIG_REGS_SIZE(2), 32 * 32 + 17 * 4); IS(offsetof(struct sve_context, vl), 8);
IS(sizeof(struct user_sve_header), 16); IS(offsetof(struct user_sve_header, vl), 8); IS(offsetof(struct user_sve_header, flags), 12); IS(SVE_PT_REGS_SVE, 1);
IS(SVE_PT_SVE_OFFSET, 16); IS(offsetof(struct user_fpsimd_state, fpsr), 512); IS(sizeof(struct user_pt_regs), 34 * 8);
`

// The numbers are those of the kernel's headers.
func TestFrameAsHeaders(t *testing.T) {
	for name, tt := range map[string]struct{ source, include, target string }{
		"x86-64": {x86Layout, "/usr/include/x86_64-linux-gnu", "x86_64-linux-gnu"},
		// Debian's linux-libc-dev-arm64-cross
		"arm64": {armLayout, "/usr/aarch64-linux-gnu/include", "aarch64-linux-gnu"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(tt.include, "asm", "sigcontext.h")); err != nil {
				t.Skip("no kernel headers: ", err)
			}
			compiler, err := exec.LookPath("clang-19")
			if err != nil {
				t.Skip(err)
			}
			file := filepath.Join(t.TempDir(), "layout.c")
			if err := os.WriteFile(file, []byte(tt.source), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(compiler, "--target="+tt.target, "-isystem", tt.include, "-fsyntax-only", file).
				CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func get32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
