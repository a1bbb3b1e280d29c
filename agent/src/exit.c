/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exit of the target: delivers the records and makes sure that our thread is not inside CUPTI while the libraries
 * are torn down. Exit handlers run in reverse order, so the agent's is registered again after CUPTI has registered its
 * own, in order to run first.
 */
#include "agent.h"

#define MAX_EXIT_DELAY SECOND /* limit on a host without CPU time for our thread; CUPTI is torn down after it */

static uint32_t leaving; /* the thread that is in exit(); 0: none */
static uint32_t left;    /* futex: 1 when the agent's thread is done */

uint32_t exiting(void)
{
	return load(&leaving);
}

void exit_done(void)
{
	store(&left, 1);
	futex_wake(&left);
}

static void at_exit(void *unused)
{
	uint64_t until = now() + MAX_EXIT_DELAY, t;

	(void)unused;
	if (!load(&the.alive->running)) /* no agent, or a forked child */
		return;
	store(&leaving, gettid());
	while (!load(&left) && (t = now()) < until) {
		futex_wake(&the.ring->wake); /* repeated: it may be about to sleep */
		futex_wake(&the.window.phase);
		futex_wait(&left, 0, POLL / 10);
	}
}

static void watch(int *watched)
{
	if (!*watched && __cxa_atexit)
		*watched = !__cxa_atexit(at_exit, NULL, NULL);
}

void exit_watch(void)
{
	static int watched;

	left = 0;
	watch(&watched);
}

void exit_watch_first(void)
{
	static int watched;

	watch(&watched);
}
