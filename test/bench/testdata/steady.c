// SPDX-License-Identifier: Apache-2.0
/*
 * A program that makes the same step again and again, and counts its steps where whoever measures
 * it can read them:
 *
 *   steady COUNTER CPU LIBRARY WORK THREADS LAUNCHES ALLOCS
 *
 * A step is WORK ns of computing (a fixed number of rounds, found once at the start), LAUNCHES calls
 * of cuLaunchKernel and ALLOCS pairs of cuMemAlloc and cuMemFree; with more than one of THREADS each
 * step is made by the next thread, in a ring, so that it ends with a switch. All threads stay on
 * CPU (-1: anywhere). COUNTER is a file of 8 bytes. It prints "ready PID" and runs until its input ends.
 * cuInit is never called, so that every call answers at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
			 void **);
typedef int (*alloc_fn)(uint64_t *, size_t);
typedef int (*free_fn)(uint64_t);

static char zero[1 << 20] __attribute__((aligned(4096)));
static volatile uint64_t *counter;
static launch_fn launch;
static alloc_fn allocate;
static free_fn release;
static long rounds, threads, launches, allocs;
static struct {
	_Alignas(128) int turn;
} *seats;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static __attribute__((noinline)) void spin(long n)
{
	for (volatile long i = 0; i < n; i++)
		;
}

/* How many rounds take so many ns: the fastest of many tries, since others may have the CPU in between. */
static long rounds_of(long ns)
{
	uint64_t best = ~0ULL;

	for (int i = 0; i < 400; i++) {
		uint64_t from = now();

		spin(100000);
		from = now() - from;
		if (from < best)
			best = from;
	}
	return (double)ns * 100000 / best;
}

static void step(void)
{
	uint64_t address;

	spin(rounds);
	for (long i = 0; i < launches; i++)
		launch(zero, 7, 6, 5, 128, 2, 1, 4096, zero, NULL, NULL);
	for (long i = 0; i < allocs; i++) {
		allocate(&address, 4096);
		release(4096);
	}
	(*counter)++;
}

static void *sit(void *arg)
{
	long me = (long)arg, next = (me + 1) % threads;

	for (;;) {
		while (!__atomic_exchange_n(&seats[me].turn, 0, __ATOMIC_ACQUIRE))
			syscall(SYS_futex, &seats[me].turn, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
		step();
		__atomic_store_n(&seats[next].turn, 1, __ATOMIC_RELEASE);
		syscall(SYS_futex, &seats[next].turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	}
	return NULL;
}

static void *alone(void *unused)
{
	for (;;)
		step();
	return unused;
}

static void *symbol(void *lib, const char *name)
{
	void *f = lib ? dlsym(lib, name) : NULL;

	if (!f) {
		fprintf(stderr, "steady: %s\n", dlerror());
		exit(1);
	}
	return f;
}

int main(int argc, char **argv)
{
	pthread_attr_t small;
	cpu_set_t one;
	pthread_t t;
	void *lib;
	char c;
	int fd;

	if (argc != 8)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fd = open(argv[1], O_RDWR);
	counter = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || counter == MAP_FAILED) {
		perror("steady: counter");
		return 1;
	}
	CPU_ZERO(&one);
	CPU_SET(atoi(argv[2]), &one);
	/* Others come between the steps as rarely as can be had; a session has its own share of the CPUs, by its own
	 * niceness. */
	setsid();
	fd = open("/proc/self/autogroup", O_WRONLY);
	if (setpriority(PRIO_PROCESS, 0, -20) || (fd >= 0 && write(fd, "-20", 3) != 3))
		perror("steady: priority");
	if (atoi(argv[2]) >= 0 && sched_setaffinity(0, sizeof(one), &one)) {
		perror("steady: CPU");
		return 1;
	}
	lib = dlopen(argv[3], RTLD_NOW);
	launch = (launch_fn)symbol(lib, "cuLaunchKernel");
	allocate = (alloc_fn)symbol(lib, "cuMemAlloc_v2");
	release = (free_fn)symbol(lib, "cuMemFree_v2");
	rounds = rounds_of(atol(argv[4]));
	threads = atol(argv[5]);
	launches = atol(argv[6]);
	allocs = atol(argv[7]);
	seats = aligned_alloc(128, threads * sizeof(*seats));
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (long i = 0; i < threads; i++)
		seats[i].turn = i == 0;
	for (long i = 0; i < threads; i++) {
		if (pthread_create(&t, &small, threads > 1 ? sit : alone, (void *)i)) {
			perror("steady: thread");
			return 1;
		}
	}
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (read(0, &c, 1) == 1)
		;
	return 0;
}
