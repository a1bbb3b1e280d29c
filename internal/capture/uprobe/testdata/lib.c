// SPDX-License-Identifier: Apache-2.0
// A library with functions of every shape that the probes read, for tests. Each
// does one known thing; main.c calls them.
#define _GNU_SOURCE
#include "lib.h"
#include <errno.h>
#include <time.h>

#define API __attribute__((visibility("default"), noinline))

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

API int v_tick(long n) { __asm__ volatile("" ::: "memory"); return (int)n; }

API int v_launch(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		 unsigned shared, void *stream, void **params, void **extra)
{
	__asm__ volatile("" : : "r"(f), "r"(params), "r"(extra) : "memory");
	return gx + gy + gz + bx + by + bz + shared + (int)(long)stream;
}

API int v_launch_ex(const struct config *c, void *f, void **params, void **extra)
{
	__asm__ volatile("" : : "r"(f), "r"(params), "r"(extra), "r"(c) : "memory");
	return 0;
}

API int v_rt_launch(const void *f, struct dim3 grid, struct dim3 block, void **args, size_t shared, void *stream)
{
	__asm__ volatile("" : : "r"(f), "r"(args), "r"(stream) : "memory");
	return grid.x + block.z + (int)shared;
}

API int v_rt_launch_ex(const struct rt_config *c, const void *f, void **args)
{
	__asm__ volatile("" : : "r"(f), "r"(c), "r"(args) : "memory");
	return 0;
}

API int v_copy_2d(const struct copy_2d *c, void *stream)
{
	__asm__ volatile("" : : "r"(c), "r"(stream) : "memory");
	return 0;
}

API int v_copy_3d(const struct copy_3d *c, void *stream)
{
	__asm__ volatile("" : : "r"(c), "r"(stream) : "memory");
	return 0;
}

API int v_many(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l,
	       long m, long n, long o)
{
	__asm__ volatile("" ::: "memory");
	return (int)(a + b + c + d + e + f + g + h + i + j + k + l + m + n + o);
}

// Like cuMemAlloc: a result through the first parameter, an error code back.
API int v_alloc(uint64_t *out, uint64_t bytes)
{
	if (!bytes)
		return 2;
	*out = 0x7f0000000000u + bytes;
	return 0;
}

// Takes at least ns; what it measured itself goes to *inside.
API int v_wait(uint64_t ns, uint64_t *inside)
{
	uint64_t start = now();

	while (now() - start < ns)
		;
	*inside = now() - start;
	return 7;
}

API int v_outer(uint64_t ns, uint64_t *inside)
{
	int r = v_wait(ns, inside);
	return r + 1;
}

// gcc and clang make this a jump at -O2: both return at once, through one return address.
API int v_tail(uint64_t ns, uint64_t *inside) { return v_wait(ns, inside); }

API int v_nest(long depth)
{
	int r = depth > 1 ? v_nest(depth - 1) : 0;
	__asm__ volatile("" : "+r"(r) : : "memory");
	return r + 1;
}

API int v_jump(jmp_buf *to)
{
	longjmp(*to, 1);
	return 0;
}

#ifdef __x86_64__
// The shape of every export of libcuda 470 to 555: `cmpl` of a word that is not
// equal, a je that is not taken, a jump through a pointer.
__attribute__((used, visibility("hidden"))) int v_hook = 0;
__attribute__((used, visibility("hidden"))) void *v_launch_body = (void *)v_launch;
__attribute__((used, visibility("hidden"))) void *v_wait_body = (void *)v_wait;

#define THUNK(name, body)                                                                    \
	__asm__(".text\n.p2align 5\n.globl " #name "\n.type " #name ",@function\n" #name ":\n"   \
		"	.byte 0x81, 0x3d\n	.long v_hook - . - 8\n	.long 0x321cba00\n"                 \
		"	.byte 0x74, 0x0c\n"                                                              \
		"	jmp *" #body "(%rip)\n"                                                          \
		"	.byte 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00\n"                                      \
		"	mov $4, %eax\n	ret\n.size " #name ", . - " #name "\n")

THUNK(v_thunk_launch, v_launch_body);
THUNK(v_thunk_wait, v_wait_body);

// A function that uprobes refuse: its first instruction has a lock prefix.
__asm__(".text\n.p2align 5\n.globl v_locked\n.type v_locked,@function\nv_locked:\n"
	"	lock addl $0, v_hook(%rip)\n	ret\n.size v_locked, . - v_locked\n");
#endif

#ifdef __x86_64__
// For benchmarks: a function that does nothing, entered by the instruction with
// which libcuda 580 begins, and 600 functions of which nobody calls any.
__asm__(".text\n.p2align 6\n.globl b_call\n.type b_call,@function\nb_call:\n"
	"	push %rbp\n	mov %rsp, %rbp\n	pop %rbp\n	ret\n.size b_call, . - b_call\n");
__asm__(".text\n.p2align 6\n.globl b_many\n.type b_many,@function\nb_many:\n"
	"	.rept 600\n	push %rbp\n	mov %rsp, %rbp\n	pop %rbp\n	ret\n	.p2align 4\n	.endr\n"
	".size b_many, . - b_many\n");
#endif
