// SPDX-License-Identifier: Apache-2.0
// Does what the lines on stdin say with lib.c's functions, and answers each with a
// line: two CLOCK_MONOTONIC times around it, and one number.
#define _GNU_SOURCE
#include "lib.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + t.tv_nsec;
}

static void *ticks(void *n)
{
	for (long i = 0; i < (long)n; i++)
		v_tick(i);
	return NULL;
}

static void threads(long n, long count)
{
	pthread_t t[64];

	for (long i = 0; i < count && i < 64; i++)
		pthread_create(&t[i], NULL, ticks, (void *)n);
	for (long i = 0; i < count && i < 64; i++)
		pthread_join(t[i], NULL);
}

static void launches(void)
{
	struct config c = {1, 2, 3, 4, 5, 6, 777, (void *)0x51, NULL, 0};
	struct rt_config rc = {{7, 8, 9}, {10, 11, 12}, 888, (void *)0x52, NULL, 0};

	v_launch((void *)0xf1, 100000, 65535, 65534, 1024, 512, 64, 49152, (void *)0x7fff12345678, NULL, NULL);
#ifdef __x86_64__
	v_thunk_launch((void *)0xf2, 1, 2, 3, 4, 5, 6, 7, (void *)8, NULL, NULL);
#endif
	v_launch_ex(&c, (void *)0xf3, NULL, NULL);
	v_rt_launch((void *)0xf4, (struct dim3){21, 22, 23}, (struct dim3){24, 25, 26}, NULL, 999, (void *)0x53);
	v_rt_launch_ex(&rc, (void *)0xf5, NULL);
	v_launch_ex((void *)8, (void *)0xf6, NULL, NULL); // nothing is mapped at 8
	v_many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static void copies(void)
{
	struct copy_2d d = {.src_type = 1, .src_host = (void *)0xa1, .src_device = 0xbad, .dst_type = 2,
			    .dst_host = (void *)0xbad, .dst_device = 0xa2, .width = 100, .height = 20};
	struct copy_3d e = {.src_type = 2, .src_device = 0xb1, .dst_type = 3, .dst_array = (void *)0xb2,
			    .dst_device = 0xbad, .width = 10, .height = 20, .depth = 30};

	v_copy_2d(&d, (void *)0x61);
	v_copy_3d(&e, (void *)0x62);
	e.dst_type = 4;
	e.dst_device = 0xb3;
	v_copy_3d(&e, (void *)0x63);
	v_copy_2d((void *)8, (void *)0x64);
}

// Leaves v_jump by longjmp, then makes a call at the same place of the stack.
static int jump(long times)
{
	int seen = 0;

	for (volatile long i = 0; i < times; i++) {
		jmp_buf to;
		if (!setjmp(to))
			v_jump(&to);
		else
			seen++;
		v_tick(i);
	}
	return seen;
}

#ifdef __x86_64__
// CPU time in ns, so that other load on the machine counts less.
static long spin(long n)
{
	struct timespec from, to;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	for (long i = 0; i < n; i++)
		b_call((void *)0xf1, 1024, 1, 1, 256, 1, 1, 0, (void *)0x7fff12345678, NULL, NULL);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	return (to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec;
}
#endif

static long child(long n)
{
	pid_t pid = fork();

	if (!pid) {
		ticks((void *)n);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	return pid;
}

// Waits in a thread of the agent's name.
static void as_agent(long ns)
{
	char name[16];
	uint64_t inside;

	prctl(PR_GET_NAME, name);
	prctl(PR_SET_NAME, "inferscope");
	v_wait(ns, &inside);
	prctl(PR_SET_NAME, name);
}

static long run(const char *cmd, long a, long b)
{
	uint64_t inside = 0, out = 0;

	if (!strcmp(cmd, "tick"))
		ticks((void *)a);
	else if (!strcmp(cmd, "threads"))
		threads(a, b);
	else if (!strcmp(cmd, "launches"))
		launches();
	else if (!strcmp(cmd, "copies"))
		copies();
	else if (!strcmp(cmd, "alloc"))
		v_alloc(&out, a);
	else if (!strcmp(cmd, "wait"))
		v_wait(a, &inside);
	else if (!strcmp(cmd, "agent"))
		as_agent(a);
	else if (!strcmp(cmd, "outer"))
		v_outer(a, &inside);
	else if (!strcmp(cmd, "tail"))
		v_tail(a, &inside);
#ifdef __x86_64__
	else if (!strcmp(cmd, "thunkwait"))
		v_thunk_wait(a, &inside);
	else if (!strcmp(cmd, "spin"))
		return spin(a);
#endif
	else if (!strcmp(cmd, "nest"))
		v_nest(a);
	else if (!strcmp(cmd, "jump"))
		return jump(a);
	else if (!strcmp(cmd, "fork"))
		return child(a);
	else if (!strcmp(cmd, "addr"))
		return (long)v_tick;
	return (long)inside;
}

int main(void)
{
	char line[128], cmd[32];

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		long a = 0, b = 0;
		uint64_t from, to;
		long r;

		if (sscanf(line, "%31s %ld %ld", cmd, &a, &b) < 1)
			break;
		from = now();
		r = run(cmd, a, b);
		to = now();
		printf("%lu %lu %ld\n", (unsigned long)from, (unsigned long)to, r);
	}
	return 0;
}
