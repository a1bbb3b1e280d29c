/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#include <linux/sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "waiter.h"

static void *nap(void *unused)
{
	pause_ms(5);
	return unused;
}

void live_threads(void)
{
	ready();
	for (;;) {
		pthread_t t;

		if (pthread_create(&t, NULL, nap, NULL) || pthread_join(t, NULL))
			die("pthread");
	}
}

static void *doze(void *unused)
{
	for (;;)
		pause_ms(200);
	return unused;
}

void live_crowd(long n)
{
	pthread_attr_t small;
	pthread_t t;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	while (n-- > 0)
		if (pthread_create(&t, &small, doze, NULL))
			die("pthread_create");
	ready();
	doze(NULL);
}

void live_fork(void)
{
	ready();
	for (;;) {
		pid_t child = fork();

		if (child < 0)
			die("fork");
		if (!child) {
			pause_ms(20);
			_exit(0);
		}
		if (waitpid(child, NULL, 0) != child)
			die("waitpid");
	}
}

void live_twin(long apart)
{
	pid_t number = getpid() + apart;
	struct clone_args how = { .exit_signal = SIGCHLD, .set_tid = (unsigned long)&number, .set_tid_size = 1 };
	long child = syscall(SYS_clone3, &how, sizeof(how));

	if (child < 0) { /* there are no pids so high, or it is taken */
		number = getpid() - apart;
		child = syscall(SYS_clone3, &how, sizeof(how));
	}
	if (!child)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	introduce(child < 0 ? "refused" : child ? "first" : "twin");
	if (child)
		pause_ms(50); /* so that the twin has introduced itself */
	if (child)
		ready();
	for (;;)
		pause_ms(10);
}

static void *replace(void *self)
{
	char c;

	if (read(0, &c, 1) != 1)
		die("read");
	execl(self, self, "sleep", (char *)0);
	die("execl");
	return self;
}

void live_exec(char *self)
{
	start("other", replace, self);
	ready();
	for (;;)
		pause();
}
