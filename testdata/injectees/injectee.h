/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INJECTEE_H
#define INJECTEE_H
#include <stdint.h>

#ifdef __x86_64__
#include "state_x86.h"
#elif defined(__aarch64__)
#include "state_a64.h"
#else
#error "the registers of this architecture are not known here"
#endif

/* The driver's functions write the state that they find into the structure that their argument points to. */
int cuLaunchKernel(struct state *found);   /* AVX, or the vectors that every arm64 has */
int cuLaunchKernelEx(struct state *found); /* AVX-512, or SVE */
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
	int one_blocks;    /* one of them does */
	const char *handle;  /* signals to handle, comma separated numbers */
	const char *seccomp; /* kill, errno, trap, allow, log, docker */
	const char *chroot;
	const char *attack; /* attack.c */
	int vfork;         /* have a child of vfork that has not run exec yet */
	int end_ms;        /* exit then */
	int exec_ms;       /* exec then */
	char **argv;
};
void attack(const char *how);
void trouble_before(const struct options *o); /* in the first thread, before the others */
void trouble_after(const struct options *o);  /* when all threads run */
extern volatile unsigned long handled;
#endif
