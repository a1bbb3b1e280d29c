/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that looks like a CUDA driver: functions with the entry of driver 580, which
 * note every register that they find. So a program knows whether anything was different after a visit.
 */
#include <stddef.h>
#include "injectee.h"

_Static_assert(offsetof(struct state, flags) == 120 && offsetof(struct state, mxcsr) == 128 && offsetof(struct state, fcw) == 132, "as below");
_Static_assert(offsetof(struct state, vector) == 192 && offsetof(struct state, masks) == 2240, "as below");

#define GENERAL                                                                                                     \
	"push %rbp\n mov %rsp, %rbp\n"                                                                                  \
	"mov %rax, (%rdi)\n mov %rbx, 8(%rdi)\n mov %rcx, 16(%rdi)\n mov %rdx, 24(%rdi)\n mov %rsi, 32(%rdi)\n"         \
	"mov %rdi, 40(%rdi)\n mov %r8, 56(%rdi)\n mov %r9, 64(%rdi)\n mov %r10, 72(%rdi)\n mov %r11, 80(%rdi)\n"        \
	"mov %r12, 88(%rdi)\n mov %r13, 96(%rdi)\n mov %r14, 104(%rdi)\n mov %r15, 112(%rdi)\n"                        \
	"pushfq\n pop %rax\n mov %rax, 120(%rdi)\n"                                                                     \
	"mov (%rbp), %rax\n mov %rax, 48(%rdi)\n stmxcsr 128(%rdi)\n fnstcw 132(%rdi)\n"

#define END "xor %eax, %eax\n pop %rbp\n ret\n"

__asm__(".text\n.globl cuLaunchKernel\n.type cuLaunchKernel, @function\n.balign 16\ncuLaunchKernel:\n" GENERAL
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu %ymm\\n, 192+64*\\n(%rdi)\n .endr\n" END
	".size cuLaunchKernel, .-cuLaunchKernel\n");

__asm__(".text\n.globl cuLaunchKernelEx\n.type cuLaunchKernelEx, @function\n.balign 16\ncuLaunchKernelEx:\n" GENERAL
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
	" vmovdqu64 %zmm\\n, 192+64*\\n(%rdi)\n .endr\n"
	".irp n, 0,1,2,3,4,5,6,7\n kmovw %k\\n, 2240+8*\\n(%rdi)\n .endr\n" END
	".size cuLaunchKernelEx, .-cuLaunchKernelEx\n");

int cuInit(unsigned flags) { return (int)flags; }
