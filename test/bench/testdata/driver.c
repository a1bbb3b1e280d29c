// SPDX-License-Identifier: Apache-2.0
/*
 * Calls two functions of a libcuda on command and says what a call costs:
 *
 *   driver LIBRARY CPU
 *
 * It stays on that CPU (-1: anywhere), prints "ready PID", and answers each line of stdin:
 *
 *   call N           N calls of cuLaunchKernel, at least CHUNKS: "ok NS", ns of CPU time per call
 *   sync N           the same of cuStreamSynchronize
 *   pace RATE MS     RATE calls of cuLaunchKernel per second for MS ms: "ok CALLS MS", what was done
 *
 * cuInit is never called, so that every call answers "not initialized" at once, on the simulator,
 * on a real driver without a GPU and with one: the cheapest call there is. The time is the thread's
 * CPU time: what a probe costs is in it, what other processes do on the CPU meanwhile is not. It is
 * the median of CHUNKS parts, so that interrupts and time that a hypervisor steals are not in it either.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
			 void **);
typedef int (*sync_fn)(void *);

#define CHUNKS 25

/* A driver that looks into a handle finds no object here, where it would crash at any number. */
static char zero[1 << 20] __attribute__((aligned(4096)));

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void launches(launch_fn f, long n)
{
	for (long i = 0; i < n; i++)
		f(zero, 7, 6, 5, 128, 2, 1, 4096, zero, NULL, NULL);
}

static void syncs(sync_fn f, long n)
{
	for (long i = 0; i < n; i++)
		f(zero);
}

/* Deadlines are absolute: a pause in which the CPU was taken away is caught up with. */
static long pace(launch_fn f, long rate, long ms)
{
	struct timespec t;
	long done = 0;

	clock_gettime(CLOCK_MONOTONIC, &t);
	for (long i = 1; i <= ms; i++) {
		long due = rate * i / 1000;

		launches(f, due - done);
		done = due;
		t.tv_nsec += 1000000;
		if (t.tv_nsec >= 1000000000) {
			t.tv_nsec -= 1000000000;
			t.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	}
	return done;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Makes n calls of the one that is given, and returns the median of what a chunk's calls took. */
static double measure(launch_fn launch, sync_fn sync, long n)
{
	double ns[CHUNKS];
	long done = 0;

	for (int i = 0; i < CHUNKS; i++) {
		long due = n * (i + 1) / CHUNKS;
		uint64_t from = now(CLOCK_THREAD_CPUTIME_ID);

		if (launch)
			launches(launch, due - done);
		else
			syncs(sync, due - done);
		ns[i] = (double)(now(CLOCK_THREAD_CPUTIME_ID) - from) / (due > done ? due - done : 1);
		done = due;
	}
	qsort(ns, CHUNKS, sizeof(ns[0]), ascending);
	return ns[CHUNKS / 2];
}

static void answer(const char *line, launch_fn launch, sync_fn sync)
{
	long a, b;
	uint64_t from;

	if (sscanf(line, "pace %ld %ld", &a, &b) == 2) {
		from = now(CLOCK_MONOTONIC);
		a = pace(launch, a, b);
		printf("ok %ld %.3f\n", a, (now(CLOCK_MONOTONIC) - from) / 1e6);
		return;
	}
	if (sscanf(line, "call %ld", &a) == 1)
		printf("ok %.3f\n", measure(launch, NULL, a));
	else if (sscanf(line, "sync %ld", &a) == 1)
		printf("ok %.3f\n", measure(NULL, sync, a));
	else
		printf("unknown command\n");
}

static int pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return 0;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set);
}

int main(int argc, char **argv)
{
	char line[128];
	void *library;
	launch_fn launch;
	sync_fn sync;

	if (argc != 3) {
		fprintf(stderr, "usage: driver LIBRARY CPU\n");
		return 2;
	}
	if (pin(atoi(argv[2]))) {
		perror("pin to the CPU");
		return 1;
	}
	library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	launch = (launch_fn)dlsym(library, "cuLaunchKernel");
	sync = (sync_fn)dlsym(library, "cuStreamSynchronize");
	if (!launch || !sync) {
		fprintf(stderr, "%s lacks cuLaunchKernel or cuStreamSynchronize\n", argv[1]);
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin))
		answer(line, launch, sync);
	return 0;
}
