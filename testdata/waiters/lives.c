/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
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
