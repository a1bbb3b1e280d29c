/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A program that waits in a known way: waiter BEHAVIOUR [FILE]. It says "thread NAME
 * TID" for each thread that matters, "ready", and then goes on until it is killed.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <signal.h>
#include <unistd.h>

#include "waiter.h"

_Noreturn void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

void introduce(const char *name)
{
	char line[64];
	int n = snprintf(line, sizeof(line), "thread %s %ld\n", name, syscall(SYS_gettid));

	if (write(1, line, n) != n)
		die("write");
}

void ready(void)
{
	if (write(1, "ready\n", 6) != 6)
		die("write");
}

void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

struct job {
	const char *name;
	void *(*run)(void *);
	void *arg;
	atomic_int known;
};

static void *run(void *arg)
{
	struct job job = *(struct job *)arg;

	introduce(job.name);
	((struct job *)arg)->known = 1;
	return job.run(job.arg);
}

void start(const char *name, void *(*f)(void *), void *arg)
{
	struct job job = { name, f, arg, 0 };
	pthread_t t;

	if (pthread_create(&t, NULL, run, &job))
		die("pthread_create");
	while (!job.known)
		sched_yield();
}

/* Sleeps as 32-bit programs do: nanosleep is call 162 there, which is sync for 64-bit ones. */
static void compat(void)
{
#if defined(__x86_64__)
	struct {
		int seconds, nanos;
	} *t = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);

	if (t == MAP_FAILED)
		die("mmap");
	t->nanos = 20000000;
	ready();
	for (;;) {
		int result;

		__asm__ volatile("int $0x80" : "=a"(result) : "a"(162), "b"(t), "c"(0) : "memory", "r8", "r9", "r10", "r11");
		if (result)
			die("nanosleep of the 32-bit table");
	}
#else
	die("no such calls here");
#endif
}

static void busy(void)
{
	ready();
	for (volatile unsigned long i = 0;; i++)
		;
}

static void sleeper(void)
{
	ready();
	for (;;)
		pause_ms(10);
}

static void *locked(void *lock)
{
	pthread_mutex_lock(lock);
	return NULL;
}

/* Nobody ever wakes these. */
static void stuck(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	start("locked", locked, &lock);
	pause_ms(50);
	ready();
	for (;;)
		pause();
}

static void quick(void)
{
	ready();
	for (;;)
		sched_yield();
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	const char *file = argc > 2 ? argv[2] : "";

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	introduce("main");
	if (!strcmp(how, "compat"))
		compat();
	else if (!strcmp(how, "busy"))
		busy();
	else if (!strcmp(how, "sleep"))
		sleeper();
	else if (!strcmp(how, "stuck"))
		stuck();
	else if (!strcmp(how, "yield"))
		quick();
	else if (!strcmp(how, "pipe"))
		talk_pipe();
	else if (!strcmp(how, "child"))
		talk_child();
	else if (!strcmp(how, "socket"))
		talk_socket();
	else if (!strcmp(how, "futex"))
		talk_futex();
	else if (!strcmp(how, "poll"))
		talk_poll();
	else if (!strcmp(how, "disk"))
		file_disk(file);
	else if (!strcmp(how, "major"))
		file_major(file);
	else if (!strcmp(how, "minor"))
		file_minor();
	else if (!strcmp(how, "threads"))
		live_threads();
	else if (!strcmp(how, "fork"))
		live_fork();
	else if (!strcmp(how, "thrash"))
		file_thrash(file);
	else if (!strcmp(how, "storm"))
		talk_storm();
	else if (!strcmp(how, "crowd"))
		live_crowd(atol(file));
	else if (!strcmp(how, "twin"))
		live_twin(atol(file));
	else if (!strcmp(how, "exec"))
		live_exec(argv[0]);
	fprintf(stderr, "no behaviour %s\n", how);
	return 2;
}
