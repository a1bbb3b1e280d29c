/* Threads at the end of known call chains, built without frame pointers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLAIN __attribute__((noinline, noclone))

volatile int sink;

PLAIN void leaf_pause(void) { pause(); sink++; }
PLAIN void big_frame(void) { volatile char room[300000]; room[0] = 1; leaf_pause(); sink += room[0]; }
PLAIN void varying_frame(int n)
{
	volatile char *room = __builtin_alloca(n);
	room[0] = 1;
	big_frame();
	sink += room[0];
}
PLAIN void chain(int n) { if (n) chain(n - 1); else varying_frame(sink + 1000); sink++; }

static int compare(const void *a, const void *b) { chain(3); sink++; return *(const int *)a - *(const int *)b; }
PLAIN void *sorting(void *arg) { int v[2] = { 2, 1 }; qsort(v, 2, sizeof(int), compare); sink++; return arg; }

PLAIN void handler(int signal) { leaf_pause(); sink += signal; }
PLAIN void interrupted(void) { for (;;) sink++; }
PLAIN void *signalled(void *arg) { interrupted(); sink++; return arg; }

PLAIN void *reading(void *arg) { char c; sink += read(*(int *)arg, &c, 1); sink++; return arg; }
PLAIN void *spinning(void *arg) { for (;;) sink++; return arg; }

static void start(const char *name, void *(*f)(void *), void *arg, pthread_t *t)
{
	if (pthread_create(t, NULL, f, arg))
		exit(1);
	pthread_setname_np(*t, name);
}

int main(int argc, char **argv)
{
	pthread_t t;
	int ends[2];

	if (pipe(ends))
		return 1;
	signal(SIGUSR1, handler);
	start("sorting", sorting, NULL, &t);
	start("reading", reading, &ends[0], &t);
	if (argc > 1)
		start("spinning", spinning, NULL, &t);
	start("signalled", signalled, NULL, &t);
	usleep(100000);
	pthread_kill(t, SIGUSR1);
	usleep(100000);
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
