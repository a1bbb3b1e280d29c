package uprobe_test

import (
	"debug/elf"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func code(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	must.NoError(t, err)
	return b
}

// thunk is cuLaunchKernel of libcuda 535.261, all of its 30 bytes.
const thunk = "81 3d 3e 93 8d 01 00 ba 1c 32  74 0c  ff 25 c6 18 7e 01  66 0f 1f 44 00 00  b8 04 00 00 00  c3"

func TestChooseAMD64(t *testing.T) {
	far := strings.Repeat(" 90", uprobe.Window)
	tests := []struct {
		name, code string
		offset     uint64
		cheap      bool
	}{
		{"thunk of 470 to 555", thunk, 10, true},
		{"push rbp, as 580 and cudart 12, 13", "55 48 89 e5 c3", 0, true},
		{"push r15, as cudart 11", "41 57 41 56 c3", 0, true},
		{"endbr64; push", "f3 0f 1e fa 55 48 89 e5 c3", 4, true},
		{"endbr64; nop5; push: not the nop5", "f3 0f 1e fa 0f 1f 44 00 00 55 c3", 9, true},
		{"nop5; push: not the nop5", "0f 1f 44 00 00 55 c3", 5, true},
		{"nop5 at the entry for want of better", "0f 1f 44 00 00 48 83 ec 18 c3", 0, true},
		{"nop5 behind the entry never", "f3 0f 1e fa 0f 1f 44 00 00 c3", 0, false},
		{"nop", "90 c3", 0, true},
		{"8-byte nop behind endbr64", "f3 0f 1e fa 0f 1f 84 00 00 00 00 00 c3", 4, true},
		{"nopw with cs prefix is not emulated, nor harmful", "66 2e 0f 1f 84 00 00 00 00 00 55 c3", 10, true},
		{"jmp rel32", "e9 00 10 00 00", 0, true},
		{"jmp rel8", "eb 10 c3", 0, true},
		{"call rel32", "e8 00 10 00 00 c3", 0, true},
		{"jne rel32", "0f 85 00 01 00 00 c3", 0, true},
		{"jmp with operand prefix is refused by the kernel", "66 e9 00 10 c3", 0, false},
		{"jcc with branch hint is refused by the kernel", "3e 74 10 c3", 0, false},
		{"push of memory or constants is not emulated", "ff 35 00 10 00 00 6a 01 c3", 0, false},
		{"push r8 with a needless REX.W", "48 55 c3", 0, false},
		{"test rdi,rdi; je", "48 85 ff 74 01 90 c3", 3, true},
		{"mov eax,imm; test; jne", "b8 04 00 00 00 85 ff 75 02 90 90 c3", 7, true},
		{"mov rax,fs:0x28; push", "64 48 8b 04 25 28 00 00 00 55 c3", 9, true},
		{"store to a global; push", "48 89 3d 00 10 00 00 55 c3", 7, true},
		{"sub rsp", "48 83 ec 18 55 c3", 0, false},
		{"lea rsp", "48 8d 64 24 f0 55 c3", 0, false},
		{"mov rdi,rsi writes an argument", "48 89 f7 55 c3", 0, false},
		{"xor edi,edi writes an argument", "31 ff 55 c3", 0, false},
		{"mov r8b writes an argument", "41 b0 01 55 c3", 0, false},
		{"mov dl writes an argument", "b2 01 55 c3", 0, false},
		{"mov r9w writes an argument", "66 41 b9 01 00 55 c3", 0, false},
		{"store to the stack could hit an argument", "48 89 44 24 08 55 c3", 0, false},
		{"store through a pointer could hit one", "48 89 07 55 c3", 0, false},
		{"cdq writes rdx", "99 55 c3", 0, false},
		{"mul writes rdx", "f7 e6 55 c3", 0, false},
		{"imul rdi,rsi writes an argument", "48 0f af fe 55 c3", 0, false},
		{"xchg", "48 87 c3 55 c3", 0, false},
		{"xchg r8,rax is 90 with a prefix", "49 90 55 c3", 0, false},
		{"cmpxchg", "0f b1 0d 00 00 00 00 55 c3", 0, false},
		{"rep stos writes rdi and rcx", "f3 48 ab 55 c3", 0, false},
		{"syscall writes rcx", "0f 05 55 c3", 0, false},
		{"cpuid writes rcx and rdx", "0f a2 55 c3", 0, false},
		{"pop writes rsp", "58 55 c3", 0, false},
		{"leave writes rsp", "c9 55 c3", 0, false},
		{"jmp through a pointer changes the flow", "ff 25 00 10 00 00 55 c3", 0, false},
		{"mov eax; ret", "b8 21 03 00 00 c3", 0, false},
		{"lock add", "f0 83 05 00 00 00 00 00 c3", 0, false},
		{"je in a loop counts iterations", "31 c0 80 3c 07 00 74 05 48 ff c0 eb f5 c3", 0, false},
		{"je in a loop through the entry only", "80 3f 00 74 05 48 ff c7 eb f6 c3", 3, true},
		{"je that jumps back to itself", "48 85 ff 74 fe c3", 0, false},
		{"je in a function too long to know", "48 85 ff 74 10" + far, 0, false},
		{"push in a function too long to know", "48 85 ff 55" + far, 3, true},
		{"je before bytes that cannot be decoded", "48 85 ff 74 02 06 06 c3", 0, false},
		{"too far from the entry", strings.Repeat("48 89 c3 ", 13) + "55 c3", 0, false},
		{"cut off", "81 3d 3e 93", 0, false},
		{"nothing", "", 0, false},
		{"nonsense", "06 0e 16", 0, false},
		{"AVX, which the decoder does not know", "c5 f8 77 55 c3", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := uprobe.Choose(code(t, tt.code), 0x32f860, elf.EM_X86_64)
			if got.Offset != tt.offset || got.Cheap != tt.cheap {
				t.Errorf("%+v, want offset %d, cheap %v", got, tt.offset, tt.cheap)
			}
		})
	}
}

func TestChooseARM64(t *testing.T) {
	tests := []struct {
		name, code string
		offset     uint64
		cheap      bool
	}{
		{"bti c; stp x29,x30,[sp,-16]!", "5f2403d5 fd7bbfa9 c0035fd6", 0, false},
		{"bti c; cbz x0", "5f2403d5 400000b4 c0035fd6 c0035fd6", 4, true},
		{"adrp x16; ldr x17,[x16]; br x17 (a PLT thunk)", "10000090 110240f9 20021fd6", 0, true},
		{"cmp w0; b.eq", "1f000071 40000054 c0035fd6 c0035fd6", 4, true},
		{"mov w8,#1; tbz", "28008052 40000036 c0035fd6 c0035fd6", 4, true},
		{"ldr x8,[x0]; cbz x8", "080040f9 480000b4 c0035fd6 c0035fd6", 4, true},
		{"ret", "c0035fd6", 0, true},
		{"b", "00010014", 0, true},
		{"nop; b: the nop is emulated from 6.13 on only", "1f2003d5 40000014", 4, true},
		{"ldr of a literal, which uprobes refuse; ret", "48000058 c0035fd6", 4, true},
		{"mov x0,x1 writes an argument", "e00301aa 400000b4 c0035fd6 c0035fd6", 0, false},
		{"ldr x8,[x0],#8 writes an argument", "088440f8 400000b4 c0035fd6 c0035fd6", 0, false},
		{"paciasp changes x30", "3f2303d5 400000b4 c0035fd6 c0035fd6", 0, false},
		{"sub sp", "ff4300d1 400000b4 c0035fd6 c0035fd6", 0, false},
		{"str to memory", "010000f9 400000b4 c0035fd6 c0035fd6", 0, false},
		{"cut off", "5f2403", 0, false},
		{"nothing", "", 0, false},
		{"nonsense", "00000000 ffffffff", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := uprobe.Choose(code(t, tt.code), 0x1000, elf.EM_AARCH64)
			if got.Offset != tt.offset || got.Cheap != tt.cheap {
				t.Errorf("%+v, want offset %d, cheap %v", got, tt.offset, tt.cheap)
			}
		})
	}
}

func TestChooseSaysTheInstruction(t *testing.T) {
	for s, want := range map[string]string{
		thunk:               "je 0x32f878",
		"55 c3":             "push %rbp",
		"f3 0f 1e fa c3":    "endbr64",
		"48 83 ec 18 55 c3": "sub $0x18,%rsp",
		"06":                "",
	} {
		if got := uprobe.Choose(code(t, s), 0x32f860, elf.EM_X86_64); got.Insn != want {
			t.Errorf("% s: %q, want %q", s, got.Insn, want)
		}
	}
	if got := uprobe.Choose(code(t, "55"), 0, elf.EM_PPC64); got != (uprobe.Point{}) {
		t.Errorf("another machine: %+v", got)
	}
}

// Whatever the bytes, the point lies in them and in the walk.
func FuzzChoose(f *testing.F) {
	for _, s := range []string{
		thunk, "55 48 89 e5", "f3 0f 1e fa 55", "0f 1f 44 00 00", "5f2403d5 400000b4 c0035fd6", "66 2e 0f 1f 84", "",
	} {
		f.Add(code(f, s), uint64(0x1000), true)
	}
	fuzzing.Run(f, func(t *testing.T, b []byte, addr uint64, x86 bool) {
		machine := elf.EM_AARCH64
		if x86 {
			machine = elf.EM_X86_64
		}
		got := uprobe.Choose(b, addr, machine)
		if got.Offset > 0 && (got.Offset >= uint64(len(b)) || got.Offset >= 64 || !got.Cheap || got.Insn == "") {
			t.Fatalf("%+v for % x", got, b)
		}
		if got.Cheap && len(b) == 0 {
			t.Fatalf("%+v for nothing", got)
		}
	})
}

func BenchmarkChoose(b *testing.B) {
	bytes := code(b, thunk)
	for b.Loop() {
		uprobe.Choose(bytes, 0x32f860, elf.EM_X86_64)
	}
}
