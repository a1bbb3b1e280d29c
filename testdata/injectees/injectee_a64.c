/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same program for arm64, with what some of the tests need (--threads, --pause, --alt; the others do nothing):
 * built with -DDRIVER it is libcuda.so.1, whose function notes the registers that it finds.
 */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct state {
	uint64_t x[31];
	uint64_t nzcv, fpcr, pad; /* 248, 256 */
	unsigned char v[32][16] __attribute__((aligned(16))); /* 272 */
};
_Static_assert(offsetof(struct state, v) == 272, "as below");

int cuLaunchKernel(struct state *found);
int cuInit(unsigned flags);

#ifdef DRIVER
__asm__(".text\n.globl cuLaunchKernel\n.type cuLaunchKernel, %function\n.balign 16\ncuLaunchKernel:\n"
	"stp x29, x30, [sp, #-16]!\n"
	".irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n str x\\n, [x0, #8*\\n]\n .endr\n"
	"add x9, x0, #272\n"
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n str q\\n, [x9, #16*\\n]\n .endr\n"
	"mrs x9, nzcv\n str x9, [x0, #248]\n mrs x9, fpcr\n str x9, [x0, #256]\n"
	"mov w0, #0\n ldp x29, x30, [sp], #16\n ret\n"
	".size cuLaunchKernel, .-cuLaunchKernel\n");

int cuInit(unsigned flags) { return (int)flags; }
#else
static atomic_ulong calls, errors;
static atomic_int quit;
static int pause_us, alt;

int call_with(const struct state *want, struct state *found, int (*f)(struct state *));
__asm__(".text\n.type call_with, %function\ncall_with:\n"
	"stp x29, x30, [sp, #-176]!\n stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n stp x23, x24, [sp, #48]\n stp x25, x26, [sp, #64]\n"
	"stp x27, x28, [sp, #80]\n stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
	"mov x30, x2\n str x1, [sp, #160]\n add x9, x0, #272\n"
	".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n ldr q\\n, [x9, #16*\\n]\n .endr\n"
	".irp n, 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n ldr x\\n, [x0, #8*\\n]\n .endr\n"
	"ldr x0, [sp, #160]\n blr x30\n"
	"ldp x19, x20, [sp, #16]\n ldp x21, x22, [sp, #32]\n ldp x23, x24, [sp, #48]\n ldp x25, x26, [sp, #64]\n"
	"ldp x27, x28, [sp, #80]\n ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
	"ldp x29, x30, [sp], #176\n ret\n.size call_with, .-call_with\n");

static int differs(const struct state *want, const struct state *found)
{
	for (int i = 1; i < 30; i++)
		if (i < 16 || i > 18) /* x16 and x17 belong to the linker */
			if (want->x[i] != found->x[i])
				return i;
	return memcmp(want->v, found->v, sizeof(want->v)) ? 99 : 0;
}

static void *run(void *unused)
{
	struct state want, found;
	sigset_t mask, now;
	stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
	unsigned seed = 1;

	if (alt)
		sigaltstack(&stack, NULL);

	memset(&mask, 0, sizeof(mask));
	memset(&now, 0, sizeof(now));
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	while (!atomic_load(&quit)) {
		for (size_t i = 0; i < sizeof(want); i++)
			((unsigned char *)&want)[i] = (unsigned char)((seed = seed * 1103515245 + 12345) >> 16);
		call_with(&want, &found, cuLaunchKernel);
		pthread_sigmask(SIG_BLOCK, NULL, &now);
		int what = differs(&want, &found);
		sigaltstack(NULL, &stack);
		if (what || memcmp(&mask, &now, sizeof(mask)) || !alt != !!(stack.ss_flags & SS_DISABLE)) {
			if (atomic_fetch_add(&errors, 1) < 5)
				fprintf(stderr, "injectee: state %d differs\n", what);
		}
		atomic_fetch_add(&calls, 1);
		if (pause_us)
			usleep((useconds_t)pause_us);
	}
	return unused;
}

int main(int argc, char **argv)
{
	static const struct option names[] = {{"threads", 1, 0, 't'}, {"pause", 1, 0, 'p'}, {"alt", 0, 0, 'a'}, {"handle", 1, 0, 'h'}, {"children", 0, 0, 'c'}, {0, 0, 0, 0}};
	pthread_t threads[64];
	char line[64];
	int n = 1;

	for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;)
		switch (c) {
		case 't': n = atoi(optarg); break;
		case 'p': pause_us = atoi(optarg); break;
		case 'a': alt = 1; break;
		}
	cuInit(0);
	for (int i = 0; i < n && i < 64; i++)
		pthread_create(&threads[i], NULL, run, NULL);
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		printf("count %lu %lu 0\n", atomic_load(&calls), atomic_load(&errors));
		fflush(stdout);
	}
	atomic_store(&quit, 1);
	for (int i = 0; i < n && i < 64; i++)
		pthread_join(threads[i], NULL);
	return atomic_load(&errors) ? 3 : 0;
}
#endif
