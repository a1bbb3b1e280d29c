/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which thread may finalize after which waits for a CPU. Linked with the sources in src, task_read wrapped.
 */
#include "../src/agent.h"

int printf(const char *format, ...);
int snprintf(char *to, size_t room, const char *format, ...);

static unsigned long long waited, times;

long __wrap_task_read(uint32_t tid, const char *file, char *to, size_t room)
{
	(void)tid;
	(void)file;
	return snprintf(to, room, "1000 %llu %llu\n", waited, times);
}

/* Looks at 10 more waits of so many ns. */
static void look(uint32_t tid, uint64_t each, uint64_t held)
{
	struct waits w;

	waits_begin(&w, tid);
	waited += 10 * each;
	times += 10;
	printf("%s, waits of %llu us, %llu ms held: %d\n", tid == the.tid ? "agent" : "target",
	    (unsigned long long)each / 1000, (unsigned long long)(held / MS), waits_allow(&w, tid, held));
}

int main(void)
{
	static struct agent_ring ring;

	the.ring = &ring;
	the.tid = 7;
	ring.gate = 1;
	ring.mode = MODE_WINDOWS;
	ring.heartbeat = now();
	waited = times = 1000000;
	look(7, 1000000, 0);
	look(7, 2000000, 0);
	look(7, 1000000, 4 * MS);
	look(8, 2000000, 0);
	look(8, 9000000, 0);
	look(8, 10000000, 0);
	ring.mode = MODE_QUIT;
	look(7, 10000000, 0);
	return 0;
}
