/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INJECTEE_H
#define INJECTEE_H
#include <stdint.h>

/* What a processor holds that a call of a function may depend on. */
struct state {
	uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp; /* 0 .. 48 */
	uint64_t r8, r9, r10, r11, r12, r13, r14, r15; /* 56 .. 112 */
	uint64_t flags;  /* 120 */
	uint32_t mxcsr;  /* 128 */
	uint16_t fcw, pad; /* 132 */
	uint64_t pad2[3];
	unsigned char vector[32][64] __attribute__((aligned(64))); /* 160 -> 192: zmm0-31, or ymm0-15 in their first halves */
	uint64_t masks[8]; /* k0-7 */
};

/* The driver's functions write the state that they find into the structure that rdi points to. */
int cuLaunchKernel(struct state *found);   /* AVX */
int cuLaunchKernelEx(struct state *found); /* AVX-512 */
int cuInit(unsigned flags);

/* trouble.c: what makes a process awkward. */
struct options {
	int threads;
	int stack;         /* bytes of the threads' stacks; 0: as usual */
	int alt;           /* alternate signal stacks */
	int idle;          /* make no CUDA call until told "work" */
	int pause_us;      /* between calls; 0: none */
	int fiber;         /* run on stacks cut out of the heap */
	int guard;         /* stacks guarded as glibc 2.42 does */
	int children;      /* SIGCHLD all the time */
	int profile;       /* SIGPROF with a handler, all the time */
	int thread_blocks; /* the threads block all signals */
	const char *handle;  /* signals to handle, comma separated numbers */
	const char *seccomp; /* kill, errno, trap, allow, log, docker */
	const char *chroot;
	int vfork;         /* have a child of vfork that has not run exec yet */
	int end_ms;        /* exit then */
	int exec_ms;       /* exec then */
	char **argv;
};
void trouble_before(const struct options *o); /* in the first thread, before the others */
void trouble_after(const struct options *o);  /* when all threads run */
void trouble_filter(const struct options *o); /* of the seccomp filter */
extern volatile unsigned long handled;
#endif
