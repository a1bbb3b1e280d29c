/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the agent's own part of a launch and of a record costs, ns of CPU time each. Linked with the sources in
 * src. */
#include "../src/agent.h"

int printf(const char *format, ...);

/* CPU time of this thread, ns: other programs do not count. */
static uint64_t spent(void)
{
	struct timespec64 t = { 0, 0 };

	clock_gettime(3 /* CLOCK_THREAD_CPUTIME_ID */, &t);
	return (uint64_t)t.seconds * SECOND + (uint64_t)t.nanoseconds;
}

enum { ROUNDS = 2000000, RECORDS = 1000 };

static struct kernel_record records[RECORDS];

static int next(uint8_t *buffer, size_t valid, void **record)
{
	struct kernel_record *r = *record ? (struct kernel_record *)*record + 1 : (void *)buffer;

	if ((uint8_t *)r >= buffer + valid)
		return 12;
	*record = r;
	return 0;
}

static int dropped(void *context, uint32_t stream, size_t *n)
{
	(void)context, (void)stream;
	*n = 0;
	return 0;
}

static double launches(void)
{
	struct launch_params p = { 1, { 2, 3, 4 }, { 5, 6, 7 }, 8, 9 };
	int32_t result = 0;
	uint64_t kept = 0, began = spent();
	struct callback_data d = { .params = &p, .result = &result, .kept = &kept };

	for (uint32_t i = 0; i < ROUNDS; i++) {
		d.site = SITE_ENTER;
		on_call(NULL, DOMAIN_DRIVER, 307, &d);
		d.site = SITE_EXIT;
		d.correlation = i;
		on_call(NULL, DOMAIN_DRIVER, 307, &d);
		the.ring->tail = the.ring->head;
	}
	return (double)(spent() - began) / ROUNDS;
}

static double kernels(void)
{
	static char names[RECORDS][200];
	uint64_t began;

	for (uint32_t i = 0; i < RECORDS; i++) {
		memset(names[i], 'x', 150);
		names[i][70] = (char)('a' + i % 20);
		records[i] =
		    (struct kernel_record){ .kind = KIND_CONCURRENT_KERNEL, .start = 1, .end = 2, .name = names[i % 20] };
	}
	began = spent();
	for (uint32_t i = 0; i < ROUNDS / RECORDS; i++) {
		records_complete(NULL, 0, (uint8_t *)records, sizeof(records), sizeof(records));
		the.ring->tail = the.ring->head;
	}
	return (double)(spent() - began) / ROUNDS;
}

int main(void)
{
	static struct alive alive = { .awake = 1 };
	uint64_t began = spent();

	the.alive = &alive;
	the.tids_agree = 2 * (libc_tid() == gettid());
	the.params.slots = 1 << 16;
	the.cupti.next = next;
	the.cupti.dropped = dropped;
	if (ring_make() || names_make())
		return 1;
	for (uint32_t i = 0; i < ROUNDS; i++)
		gettid();
	printf("gettid %.1f ", (double)(spent() - began) / ROUNDS);
	printf("launch %.1f ", launches());
	printf("kernel %.1f\n", kernels());
	return 0;
}
