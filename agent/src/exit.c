/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target's own exit: what is recorded is handed over, and no thread of ours is inside CUPTI while the
 * libraries are torn down. Handlers run in reverse order, so the agent's is registered once more when CUPTI has
 * registered its own: it runs first.
 */
#include "agent.h"

#define PATIENCE SECOND /* for which an exit is held up at most, on a host that has no CPU for our thread: CUPTI goes
                         * while it may still call it */

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
	uint64_t until = now() + PATIENCE, t;

	(void)unused;
	if (!load(&the.alive->running)) /* no agent, or a forked child */
		return;
	store(&leaving, gettid());
	while (!load(&left) && (t = now()) < until) {
		futex_wake(&the.ring->wake); /* each time: it may just be about to sleep */
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
