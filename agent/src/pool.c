/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activity buffers: a fixed pool, mapped once. CUPTI keeps one for each thread that makes records (from 12.3 on)
 * until it is full or flushed, clears each with memset, and drops records when it gets none. So there are many of
 * medium size: 256 KiB hold 1,200 kernels. Pages of buffers that were never used cost nothing.
 */
#include "agent.h"

#define SIZE (256u << 10)
#define BUFFERS 128u
#define KEPT 16u /* buffers whose pages stay between windows */

static struct {
	uint8_t *base;
	uint64_t busy[BUFFERS / 64];
	uint32_t top; /* only buffers below it may have been touched since the last pool_trim */
} pool;

/* The first buffers are touched here, in the agent's thread, so that the target's threads need not fault them in. */
int pool_make(void)
{
	if (!pool.base)
		pool.base = map((size_t)SIZE * BUFFERS);
	if (!pool.base)
		return ERROR_MEMORY;
	for (size_t i = 0; i < (size_t)SIZE * KEPT / 4; i += 4096)
		__atomic_fetch_or(pool.base + i, 0, __ATOMIC_RELAXED);
	return 0;
}

static void touched(uint32_t i)
{
	uint32_t top = peek(&pool.top);

	while (top <= i && !__atomic_compare_exchange_n(&pool.top, &top, i + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* Hands out the lowest free buffer, so that few are ever touched. */
void pool_request(uint8_t **buffer, size_t *size, size_t *records)
{
	*buffer = NULL;
	*size = 0;
	*records = 0;
	if (!pool.base || !load(&the.alive->awake))
		return;
	for (uint32_t w = 0; w < COUNT(pool.busy); w++) {
		uint64_t busy = peek(&pool.busy[w]);

		while (~busy) {
			uint32_t i = (uint32_t)__builtin_ctzll(~busy);

			if (!__atomic_compare_exchange_n(
			        &pool.busy[w], &busy, busy | 1ull << i, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
				continue;
			touched(w * 64 + i);
			*buffer = pool.base + (size_t)SIZE * (w * 64 + i);
			*size = SIZE;
			return;
		}
	}
}

void pool_release(uint8_t *buffer)
{
	size_t i = (size_t)(buffer - pool.base) / SIZE;

	if (buffer >= pool.base && i < BUFFERS)
		__atomic_fetch_and(&pool.busy[i / 64], ~(1ull << i % 64), __ATOMIC_RELEASE);
}

/* After a finalize CUPTI holds no buffer, whether it gave all back or not. */
void pool_reset(void)
{
	for (uint32_t w = 0; w < COUNT(pool.busy); w++)
		store(&pool.busy[w], 0);
}

/* Takes a free buffer while its pages are freed, because a thread of the target may request one at the same time. */
static void trim_one(uint32_t i)
{
	uint64_t bit = 1ull << i % 64;

	if (__atomic_fetch_or(&pool.busy[i / 64], bit, __ATOMIC_ACQUIRE) & bit)
		return; /* CUPTI holds it, and may append to it */
	sys(SYS_madvise, pool.base + (size_t)SIZE * i, SIZE, MADV_DONTNEED);
	pool_release(pool.base + (size_t)SIZE * i);
}

/* With all, a buffer that CUPTI still holds stays mapped and reads as zeros, which is no record: no thread faults. */
void pool_trim(int all)
{
	uint32_t top = __atomic_exchange_n(&pool.top, KEPT, __ATOMIC_RELAXED);

	if (pool.base && all)
		sys(SYS_madvise, pool.base, (size_t)SIZE * BUFFERS, MADV_DONTNEED);
	for (uint32_t i = KEPT; pool.base && !all && i < top; i++)
		trim_one(i);
}
