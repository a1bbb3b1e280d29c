/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STATE_H
#define STATE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What a processor holds that a call of a function may depend on. */
struct state {
	uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp; /* 0 .. 48 */
	uint64_t r8, r9, r10, r11, r12, r13, r14, r15; /* 56 .. 112 */
	uint64_t flags;  /* 120 */
	uint32_t mxcsr;  /* 128 */
	uint16_t fcw, pad; /* 132 */
	uint64_t pad2[3];
	unsigned char vector[32][64] __attribute__((aligned(64))); /* 160 -> 192: zmm0-31, or ymm0-15 in their first
	                                                            * halves */
	uint64_t masks[8]; /* k0-7 */
};

/* What stays as it is from call to call. */
struct control {
	uint32_t mxcsr;
	uint16_t fcw;
};

#ifdef DRIVER
_Static_assert(
    offsetof(struct state, flags) == 120 && offsetof(struct state, mxcsr) == 128 && offsetof(struct state, fcw) == 132,
    "as below");
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
#endif

#ifdef CALLER
/* call_with loads all of want but rdi and flags, calls f(found), and comes back. */
int call_with(const struct state *want, struct state *found, int (*f)(struct state *));
int call_with_wide(const struct state *want, struct state *found, int (*f)(struct state *));
#define LOAD                                                                                               \
	"push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n push %rdx\n"                  \
	"mov (%rdi), %rax\n mov 8(%rdi), %rbx\n mov 16(%rdi), %rcx\n mov 24(%rdi), %rdx\n mov 48(%rdi), %rbp\n" \
	"mov 56(%rdi), %r8\n mov 64(%rdi), %r9\n mov 72(%rdi), %r10\n mov 80(%rdi), %r11\n mov 88(%rdi), %r12\n" \
	"mov 96(%rdi), %r13\n mov 104(%rdi), %r14\n mov 112(%rdi), %r15\n"
#define CALL                                                                                               \
	"push 32(%rdi)\n mov %rsi, %rdi\n pop %rsi\n" /* rsi = want->rsi */                                     \
	"call *(%rsp)\n"                                                                                       \
	"pop %rdx\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
__asm__(".text\n.type call_with, @function\ncall_with:\n" LOAD
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n vmovdqu 192+64*\\n(%rdi), %ymm\\n\n .endr\n" CALL ".size call_with, .-call_with\n"
	".type call_with_wide, @function\ncall_with_wide:\n" LOAD
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
	" vmovdqu64 192+64*\\n(%rdi), %zmm\\n\n .endr\n"
	".irp n, 0,1,2,3,4,5,6,7\n kmovw 2240+8*\\n(%rdi), %k\\n\n .endr\n" CALL ".size call_with_wide, .-call_with_wide\n");

static inline void fill(struct state *s, unsigned seed)
{
	unsigned char *b = (unsigned char *)s;

	for (size_t i = 0; i < sizeof(*s); i++)
		b[i] = (unsigned char)((seed = seed * 1103515245 + 12345) >> 16);
	for (int i = 0; i < 8; i++)
		s->masks[i] &= 0xffff;
}

static inline int differs(const struct state *want, const struct state *found, int wide)
{
	size_t vectors = wide ? 32 : 16, bytes = wide ? 64 : 32;

	if (memcmp(&want->rax, &found->rax, 5 * 8) || want->rbp != found->rbp || memcmp(&want->r8, &found->r8, 8 * 8))
		return 1;
	for (size_t i = 0; i < vectors; i++)
		if (memcmp(want->vector[i], found->vector[i], bytes))
			return 2;
	if (wide && memcmp(want->masks, found->masks, sizeof(want->masks)))
		return 3;
	return 0;
}

static inline void read_control(struct control *c)
{
	__asm__ volatile("stmxcsr %0\n fnstcw %1" : "=m"(c->mxcsr), "=m"(c->fcw));
}

/* The trap and direction flags are clear in compiled code. */
static inline int other_control(const struct state *found, const struct control *c)
{
	return found->mxcsr != c->mxcsr || found->fcw != c->fcw || (found->flags & 0x500);
}

static inline int have_wide(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}
#endif
#endif
