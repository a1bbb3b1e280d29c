/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of which no record has come yet. CUPTI gives a buffer back when it is full or flushed, and keeps one for
 * each thread (from 12.3 on): a busy thread's come by themselves, a quiet one's wait for a flush. A flush holds
 * launches up for milliseconds (CUPTI 13.0), so it is made when some thread's oldest call has waited long enough,
 * and only then. One call of each thread is remembered: its records come in order, so nothing of it is older.
 *
 * Threads whose ids differ by a multiple of THREADS share a place, and calls by one of CALLS an entry of the
 * index: both at worst cause a flush too many, or leave a call to the flush of every second in loop.c.
 */
#include "agent.h"

#define THREADS 256u
#define CALLS 1024u
#define PATIENCE 3 /* flushes after which a call is taken to have made no record: an empty graph, a copy of no bytes */

static struct {
	uint64_t since[THREADS];       /* ns; 0: nothing is pending; whoever sets it owns the place until it is 0 again */
	uint32_t correlation[THREADS];
	uint8_t flushes[THREADS];      /* that it has outlasted; the agent's thread only */
	uint16_t place[CALLS];         /* by correlation: where it is, + 1; 0: nowhere */
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
		} else if (++pending.flushes[i] >= PATIENCE) {
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
