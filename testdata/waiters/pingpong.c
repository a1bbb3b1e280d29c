/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Two threads on one CPU that hand a byte to and fro: each round trip is two
 * switches. It says "ready PID", reads "go N", and answers with ns of CPU time per switch.
 * pingpong CPU
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int there[2], back[2];

/* CPU time of both threads: a busy machine changes it little, and a switch between them is in it. */
static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void *pong(void *unused)
{
	char c;

	while (read(there[0], &c, 1) == 1 && write(back[1], &c, 1) == 1)
		;
	return unused;
}

int main(int argc, char **argv)
{
	cpu_set_t one;
	char line[64], c = 'x';
	pthread_t t;
	long n;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* fewer others in between, where that is allowed */
	if (setpriority(PRIO_PROCESS, 0, -15))
		fprintf(stderr, "no higher priority\n");
	CPU_ZERO(&one);
	CPU_SET(argc > 1 ? atoi(argv[1]) : 0, &one);
	if (sched_setaffinity(0, sizeof(one), &one) || pipe(there) || pipe(back) || pthread_create(&t, NULL, pong, NULL))
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		double from = now();

		if (sscanf(line, "go %ld", &n) != 1)
			return 1;
		for (long i = 0; i < n; i++)
			if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1)
				return 1;
		printf("%.2f\n", (now() - from) / n / 2);
	}
	return 0;
}
