/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives the agent's sources NVTX markers as CUPTI does, and prints the ranges that come out: there is no NVTX in
 * the simulated CUDA. Linked with the sources in src.
 */
#include "../src/agent.h"

int printf(const char *format, ...);

static void marker(uint32_t flags, uint32_t id, uint64_t time, const char *name)
{
	struct marker_record m = { KIND_MARKER, flags, time, id, OBJECT_THREAD, 1, 77, 0, 0, name };

	range_marker(&m);
}

int main(void)
{
	the.params.slots = 256;
	if (ring_make() || names_make())
		return 1;
	marker(MARKER_START, 1, 100, "outer");
	marker(MARKER_START, 2, 110, "inner");
	marker(MARKER_END, 2, 150, NULL);
	marker(MARKER_INSTANT, 3, 160, "point");
	marker(MARKER_END, 1, 200, NULL);
	marker(MARKER_END, 9, 210, NULL);          /* began before the window */
	marker(MARKER_START, 5, 300, "lost");      /* its place is taken before it ends */
	marker(MARKER_START, 5 + 4096, 310, "inner");
	marker(MARKER_END, 5, 320, NULL);
	marker(MARKER_END, 5 + 4096, 330, NULL);
	marker(MARKER_START, 6, 400, "inner");     /* never ends */
	for (uint64_t i = 0; i < the.ring->head; i++) {
		struct agent_slot *s = (struct agent_slot *)((char *)the.ring + AGENT_DATA) + i;

		if (s->kind == EVENT_RANGE)
			printf("%d [%lu, %lu] thread %u id %lu\n", s->ret, s->ts, s->ts + s->dur, s->tid, s->args[0]);
		if (s->kind == AGENT_NAME)
			printf("name %d of %d bytes, %d\n", s->ret, s->func, s->flags);
	}
	return 0;
}
