/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One window: subscribe (the lock: nothing before it), enable, record, and out. The way out is a finalize inside
 * a callback at the exit of a synchronizing call, with the kinds still on; or, after a deadline, disable and
 * unsubscribe, which leaves graphs that ran slower, but kills nobody. No other order of these calls is safe.
 *
 * cuptiSubscribe takes a lock of the driver's for writing, which every call into the driver holds for reading, and
 * readers go first: where several threads are nearly always inside, it waits for seconds to minutes (measured:
 * libcuda 580, CUPTI 13.0). There a window without graphs ends by turning the kinds off, which is safe and cheap, and the
 * next one turns them on again: the subscription is kept. It is given up in the good way when no more windows are wanted.
 */
#include "agent.h"

/* What is recorded. Markers only where NVTX reaches CUPTI: they are the last. */
static const uint8_t kinds[] = { KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMCPY_PEER, KIND_MEMSET, KIND_OVERHEAD, KIND_MARKER };

#define PATIENCE 50 /* times POLL for which a window's last word waits for room in the ring: without it all of the window is lost */
#define KEEP_AFTER (300 * MS) /* what a subscription may take that is made anew for each window */

static uint64_t realtime(void)
{
	struct timespec64 t = { 0, 0 };

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.seconds * SECOND + (uint64_t)t.nanoseconds;
}

static void kinds_off(void)
{
	for (uint32_t i = 0; i < COUNT(kinds); i++)
		if (the.window.kinds & 1u << i)
			the.cupti.disable(kinds[i]);
	the.window.kinds = 0;
}

/* Kernels are what it is about; any other kind that this CUPTI or device refuses is done without. */
static int kinds_on(void)
{
	for (uint32_t i = 0; i < COUNT(kinds); i++) {
		int bad = kinds[i] == KIND_MARKER && !the.ranges ? 1 : the.cupti.enable(kinds[i]);

		if (!bad)
			the.window.kinds |= 1u << i;
		else if (kinds[i] == KIND_CONCURRENT_KERNEL)
			return bad;
	}
	return 0;
}

/* Overheads and markers carry threads: as gettid counts them, for the time of the window. */
static void thread_ids_on(void)
{
	uint32_t type = 0;

	the.window.thread_ids = 0;
	if (the.cupti.thread_ids && the.cupti.set_thread_ids && !the.cupti.thread_ids(&type) && !the.cupti.set_thread_ids(THREAD_ID_SYSTEM))
		the.window.thread_ids = type + 1;
}

static void thread_ids_back(void)
{
	if (the.window.thread_ids)
		the.cupti.set_thread_ids(the.window.thread_ids - 1);
	the.window.thread_ids = 0;
}

/* A profiler of the target's own that comes later must find the clock that it expects. */
static void clock_back(void)
{
	the.cupti.clock(realtime);
}

static void reset(void)
{
	struct window *w = &the.window;

	w->calls = w->kinds = w->unfinished = 0;
	w->records = w->dropped = w->off = w->left = 0;
	w->began = now();
	if (!the.dormant)
		graphs_forget();
	graphs_unsee();
	ranges_forget();
	pending_forget();
}

int window_subscribe(void)
{
	struct window *w = &the.window;
	int bad = pool_make();

	if (bad)
		return bad;
	reset();
	if (the.kept)
		return 0;
	store(&the.ring->opening, w->began);
	bad = the.cupti.subscribe(&w->subscriber, on_call, NULL);
	store(&the.ring->opening, 0);
	the.slow = !bad && now() - w->began > KEEP_AFTER;
	return bad; /* where it failed, not a thing was changed */
}

void window_unsubscribe(void)
{
	the.cupti.unsubscribe(the.window.subscriber);
	the.kept = 0;
}

/* What a subscription needs once. */
static int set_up(void)
{
	int bad = the.cupti.buffers(pool_request, records_complete);

	if (!bad)
		bad = the.cupti.clock(now);
	if (!bad)
		thread_ids_on();
	return bad;
}

/* Calls before kinds, and off after them: no graph runs with the kinds on of which nobody knows. */
static int turn_on(void)
{
	size_t earlier = 0;

	/* What was lost since the last window, such as the record of the call that it ended in, is none of this one's. */
	the.cupti.dropped(NULL, 0, &earlier);
	calls_enable(1, 0);
	return kinds_on();
}

static void leave(void)
{
	thread_ids_back();
	clock_back();
	window_unsubscribe();
}

int window_open(void)
{
	struct window *w = &the.window;
	int bad = the.kept ? 0 : set_up();

	if (!bad)
		bad = turn_on();
	if (bad) {
		kinds_off();
		leave();
		return bad;
	}
	w->opened = now();
	w->entered = w->opened - w->began;
	store(&w->phase, PHASE_OPEN);
	return 0;
}

/* While the phase is WANTED any thread may finalize: this one keeps its hands off CUPTI. */
void window_want(void)
{
	calls_enable(1, 1);
	store(&the.window.phase, PHASE_WANTED);
}

int window_unwant(void)
{
	return swapped(&the.window.phase, PHASE_WANTED, PHASE_OPEN) ? 0 : -1;
}

void window_finish(void)
{
	the.window.off = now();
	kinds_off();
	the.cupti.flush(FLUSH_FORCED);
	thread_ids_back();
	clock_back();
	the.cupti.unsubscribe(the.window.subscriber);
	the.cupti.finalize();
	the.window.left = now();
	store(&the.window.phase, PHASE_DONE);
	futex_wake(&the.window.phase);
}

int window_drop(void)
{
	if (!swapped(&the.window.phase, PHASE_WANTED, PHASE_TAKEN) && !swapped(&the.window.phase, PHASE_OPEN, PHASE_TAKEN))
		return -1;
	the.window.off = now();
	kinds_off();
	the.cupti.flush(FLUSH_FORCED);
	leave();
	the.window.left = now();
	store(&the.window.phase, PHASE_DONE);
	return 0;
}

void window_keep(void)
{
	the.window.off = now();
	kinds_off();
	calls_enable(0, 0);
	calls_enable(0, 1); /* of an end that was wanted, and then was not */
	the.cupti.flush(FLUSH_FORCED);
	the.window.left = now();
}

void window_flush(void)
{
	the.cupti.flush(0);
}

void window_said(int how)
{
	struct window *w = &the.window;
	struct agent_slot s = {
		.ts = w->opened, .dur = w->off - w->opened, .tid = w->unfinished, .kind = AGENT_WINDOW, .flags = EVENT_TIMED, .func = 1, .ret = how,
		.args = { w->records, w->dropped, w->entered, w->left - w->off },
	};

	for (int i = 0; !ring_write(&s) && i < PATIENCE && !exiting(); i++)
		futex_wait(&the.ring->wake, peek(&the.ring->wake), POLL);
	add(&the.ring->windows, 1);
	store(&the.ring->lost, 0);
	store(&the.ring->began, 0);
	store(&w->phase, PHASE_CLOSED);
}
