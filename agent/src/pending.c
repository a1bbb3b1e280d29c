/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls without a record so far. CUPTI delivers a buffer when it is full or flushed, and has one per thread (from
 * 12.3 on): a busy thread fills its buffers, a quiet one waits for a flush. A flush delays launches by milliseconds
 * (CUPTI 13.0), so it is made only when the oldest call of a thread has waited long enough. One call per thread is
 * remembered, the oldest: records of a thread come in order.
 *
 * Threads whose ids differ by a multiple of THREADS share a place, and calls whose correlation ids differ by one of
 * CALLS share an index entry. At worst this causes an extra flush, or leaves a call to the periodic flush of loop.c.
 */
#include "agent.h"

#define THREADS 256u
#define CALLS 1024u
#define MAX_FLUSHES 3 /* after which a call is assumed to make no record: an empty graph, a copy of no bytes */

static struct {
	uint64_t since[THREADS];       /* ns; 0: nothing is pending; the thread that sets it owns the place until then */
	uint32_t correlation[THREADS];
	uint8_t flushes[THREADS];      /* since the call; used by the agent's thread only */
	uint16_t place[CALLS];         /* by correlation: its place + 1; 0: none */
} pending;

void pending_call(uint32_t tid, uint32_t correlation, uint64_t t)
{
	uint32_t at = tid % THREADS;

	if (peek(&pending.since[at]) || !swapped(&pending.since[at], 0, t))
		return;
	store(&pending.correlation[at], correlation);
	store(&pending.place[correlation % CALLS], (uint16_t)(at + 1));
}

void pending_came(uint32_t correlation)
{
	uint32_t at = load(&pending.place[correlation % CALLS]);

	if (!at || load(&pending.correlation[at - 1]) != correlation)
		return;
	store(&pending.place[correlation % CALLS], 0);
	store(&pending.since[at - 1], 0);
}

uint64_t pending_oldest(void)
{
	uint64_t oldest = 0;

	for (uint32_t i = 0; i < THREADS; i++) {
		uint64_t since = load(&pending.since[i]);

		if (since && (!oldest || since < oldest))
			oldest = since;
	}
	return oldest;
}

uint32_t pending_count(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < THREADS; i++)
		n += load(&pending.since[i]) != 0;
	return n;
}

void pending_flushed(uint64_t t)
{
	for (uint32_t i = 0; i < THREADS; i++) {
		uint64_t since = load(&pending.since[i]);

		if (!since || since > t) {
			pending.flushes[i] = 0;
		} else if (++pending.flushes[i] >= MAX_FLUSHES) {
			pending.flushes[i] = 0;
			store(&pending.since[i], 0);
		}
	}
}

void pending_forget(void)
{
	for (uint32_t i = 0; i < CALLS; i++)
		store(&pending.place[i], 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		pending.flushes[i] = 0;
		store(&pending.since[i], 0);
	}
}
