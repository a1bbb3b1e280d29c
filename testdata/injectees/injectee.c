/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that calls CUDA all the time and checks after each call that nothing has
 * changed: registers, vectors, flags, signal mask, alternate stack. What those are is in state_*.h.
 *   injectee [options]   prints "ready PID", then answers lines: "count" with "count CALLS ERRORS HANDLED",
 *   "work" ends --idle. At the end of its input it exits with 0, or with 3 where there were errors.
 */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#define CALLER
#include "injectee.h"

static struct options opt = {.threads = 1};
static atomic_ulong calls, errors;
static atomic_int quit, working = 1;
static int wide; /* the vectors that not every processor has */

static void complain(int what)
{
	if (atomic_fetch_add(&errors, 1) < 5)
		fprintf(stderr, "injectee: state %d differs\n", what);
}

struct mine {
	sigset_t mask;
	stack_t alt;
	struct control control;
};

static void look(struct mine *m)
{
	memset(m, 0, sizeof(*m));
	pthread_sigmask(SIG_BLOCK, NULL, &m->mask);
	sigaltstack(NULL, &m->alt);
	read_control(&m->control);
}

static void one(const struct state *want, const struct mine *before)
{
	struct state found;
	struct mine after;
	int what;

	memset(&found, 0, sizeof(found));
	if (wide)
		call_with_wide(want, &found, cuLaunchKernelEx);
	else
		call_with(want, &found, cuLaunchKernel);
	look(&after);
	if ((what = differs(want, &found, wide)))
		complain(what);
	if (memcmp(before, &after, sizeof(after)) || other_control(&found, &before->control))
		complain(4);
	atomic_fetch_add(&calls, 1);
}

static void work(void)
{
	struct state want;
	struct mine before;
	unsigned seed = (unsigned)getpid();

	look(&before);
	while (!atomic_load(&quit)) {
		if (!atomic_load(&working)) {
			usleep(1000);
			continue;
		}
		fill(&want, seed++);
		one(&want, &before);
		if (opt.pause_us)
			usleep((useconds_t)opt.pause_us);
	}
}

/* A fiber: the stack is cut out of a larger allocation, which is filled with a pattern. */
static void on_fiber(void)
{
	enum { STACK = 256 << 10, AROUND = 1 << 20 };
	unsigned char *heap = malloc(STACK + AROUND);
	ucontext_t here, there;

	memset(heap, 0x5a, STACK + AROUND);
	getcontext(&there);
	there.uc_stack.ss_sp = heap + AROUND;
	there.uc_stack.ss_size = STACK;
	there.uc_link = &here;
	makecontext(&there, work, 0);
	swapcontext(&here, &there);
	for (int i = 0; i < AROUND; i++)
		if (heap[i] != 0x5a) {
			complain(5);
			break;
		}
}

static int blocked; /* a thread is the one that blocks */

static void *run(void *unused)
{
	void *alt = NULL;
	sigset_t all;

	if (opt.alt) {
		alt = malloc(1 << 16);
		sigaltstack(&(stack_t){.ss_sp = alt, .ss_size = 1 << 16}, NULL);
	}
	if (opt.thread_blocks || (opt.one_blocks && !__atomic_exchange_n(&blocked, 1, __ATOMIC_RELAXED))) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, NULL);
	}
	if (opt.fiber)
		on_fiber();
	else
		work();
	return unused;
}

#define MADV_GUARD 102 /* MADV_GUARD_INSTALL, Linux 6.13 */
static void start(pthread_t *t)
{
	pthread_attr_t attr;
	size_t size = 512 << 10;
	char *stack;

	pthread_attr_init(&attr);
	if (opt.stack)
		pthread_attr_setstacksize(&attr, (size_t)opt.stack);
	if (opt.guard) {
		stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (madvise(stack, 4096, MADV_GUARD)) {
			perror("madvise");
			exit(4);
		}
		pthread_attr_setstack(&attr, stack + 4096, size - 4096);
	}
	if (pthread_create(t, &attr, run, NULL)) {
		perror("pthread_create");
		exit(4);
	}
}

static void answer(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "work\n"))
			atomic_store(&working, 1);
		else if (!strcmp(line, "count\n"))
			printf("count %lu %lu %lu\n", atomic_load(&calls), atomic_load(&errors), handled);
		fflush(stdout);
	}
}

static void read_options(int argc, char **argv)
{
	static const struct option names[] = {
		{ "threads", 1, 0, 't' }, { "stack", 1, 0, 's' }, { "alt", 0, 0, 'a' }, { "idle", 0, 0, 'i' },
		{ "pause", 1, 0, 'p' }, { "fiber", 0, 0, 'f' }, { "guard", 0, 0, 'g' }, { "children", 0, 0, 'c' },
		{ "profile", 0, 0, 'P' }, { "blocks", 0, 0, 'b' }, { "one-blocks", 0, 0, 'B' }, { "handle", 1, 0, 'h' },
		{ "seccomp", 1, 0, 'S' }, { "chroot", 1, 0, 'C' }, { "end", 1, 0, 'e' }, { "exec", 1, 0, 'x' },
		{ "vfork", 0, 0, 'v' }, { "attack", 1, 0, 'A' }, { 0, 0, 0, 0 },
	};
	for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;)
		switch (c) {
		case 't': opt.threads = atoi(optarg); break;
		case 's': opt.stack = atoi(optarg); break;
		case 'a': opt.alt = 1; break;
		case 'i': opt.idle = 1; break;
		case 'p': opt.pause_us = atoi(optarg); break;
		case 'f': opt.fiber = 1; break;
		case 'g': opt.guard = 1; break;
		case 'c': opt.children = 1; break;
		case 'P': opt.profile = 1; break;
		case 'b': opt.thread_blocks = 1; break;
		case 'B': opt.one_blocks = 1; break;
		case 'h': opt.handle = optarg; break;
		case 'S': opt.seccomp = optarg; break;
		case 'C': opt.chroot = optarg; break;
		case 'e': opt.end_ms = atoi(optarg); break;
		case 'v': opt.vfork = 1; break;
		case 'A': opt.attack = optarg; break;
		case 'x': opt.exec_ms = atoi(optarg); break;
		default: exit(2);
		}
}

int main(int argc, char **argv)
{
	pthread_t threads[256];

	read_options(argc, argv);
	opt.argv = argv;
	wide = have_wide();
	working = !opt.idle;
	cuInit(0);
	trouble_before(&opt);
	for (int i = 0; i < opt.threads && i < 256; i++)
		start(&threads[i]);
	trouble_after(&opt);
	printf("ready %d\n", getpid());
	fflush(stdout);
	if (opt.threads == 0)
		run(NULL); /* the first thread itself; it ends with --end, or with its killer */
	answer();
	atomic_store(&quit, 1);
	for (int i = 0; i < opt.threads && i < 256; i++)
		pthread_join(threads[i], NULL);
	return atomic_load(&errors) ? 3 : 0;
}
