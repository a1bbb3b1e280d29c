// SPDX-License-Identifier: Apache-2.0
/* Threads of known stacks for the sampler's tests: victim MODE. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

unsigned long work_outer(volatile int *stop); /* libbusy.so */

static volatile int stop;

static void say(const char *name)
{
	printf("%s %ld\n", name, syscall(SYS_gettid));
	fflush(stdout);
}

__attribute__((noinline)) static void *busy(void *name)
{
	say(name);
	work_outer(&stop);
	return 0;
}

static void *starts_another(void *unused)
{
	pthread_t t;

	getchar();
	pthread_create(&t, 0, busy, "born");
	pthread_join(t, 0);
	return 0;
}

static void *sleeps(void *unused)
{
	for (;;)
		usleep(2000);
	return 0;
}

/* A long wait and a brief one, of which the kernel's stack tells which. */
static void by_turns(void)
{
	struct timespec brief = {0, 50000};

	for (;;) {
		usleep(3000);
		ppoll(0, 0, &brief, 0);
	}
}

static void *sleeps_long(void *unused)
{
	say("rare");
	for (;;)
		usleep(50000);
	return 0;
}

/* Each waits for a line, and starts the next; the last one does not wait. */
static void *generation(void *names)
{
	const char **name = names;
	pthread_t t;

	say(*name);
	if (name[1]) {
		getchar();
		pthread_create(&t, 0, generation, name + 1);
	}
	work_outer(&stop);
	return 0;
}

static void threads_come_and_go(void)
{
	for (;;) {
		pthread_t t;

		pthread_create(&t, 0, sleeps, 0);
		usleep(1000);
		pthread_cancel(t);
		pthread_join(t, 0);
	}
}

static void forks(void)
{
	getchar();
	if (!fork())
		busy("child");
	busy("main");
}

int main(int argc, char **argv)
{
	static const char *names[] = {"first", "second", "third", 0};
	const char *mode = argc > 1 ? argv[1] : "busy";
	pthread_t t;

	if (!strcmp(mode, "thread")) {
		say("main");
		pthread_create(&t, 0, starts_another, 0);
	} else if (!strcmp(mode, "sleep")) {
		say("main");
		sleeps(0);
	} else if (!strcmp(mode, "rates")) { /* 500 switches a second and 20 */
		say("often");
		pthread_create(&t, 0, sleeps_long, 0);
		sleeps(0);
	} else if (!strcmp(mode, "turns")) {
		say("main");
		by_turns();
	} else if (!strcmp(mode, "generations")) {
		generation(names);
	} else if (!strcmp(mode, "fork")) {
		forks();
	} else if (!strcmp(mode, "many")) {
		for (int i = 0; i < 40; i++)
			pthread_create(&t, 0, sleeps, 0);
		say("main");
	} else if (!strcmp(mode, "short")) {
		say("main");
		threads_come_and_go();
	} else {
		busy("main");
	}
	pause();
	return 0;
}
