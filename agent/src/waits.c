/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long threads wait for a CPU (/proc/self/task/TID/schedstat; a kernel without CONFIG_SCHED_INFO has none). A
 * finalize that has begun cannot be broken off: if the thread that makes it loses its CPU, the gates hold all others
 * until it has one again. So it begins only where it is expected to end within LONGEST_HOLD. Where graphs run it may
 * take longer: a window that is disabled instead leaves them slower, while a subscription that is kept costs nothing.
 */
#include "agent.h"

#define LONGEST_HOLD (10 * MS)        /* of a thread of the target, where the agent's thread finalizes */
#define LONGEST_HOLD_GRAPHS (40 * MS) /* the same where the thread that launches graphs does */
#define REMOVAL (3 * MS) /* without waits: 2 to 3 ms on an H200, CUPTI 13.0 */
#define RARELY 4u        /* if waits are exponentially distributed, 2% are longer than so many times the mean */

/* The critical section that gates hold threads for. */
static struct {
	uint64_t closed, out;         /* when the gates closed, and all threads were outside; 0: not yet */
	struct waits before, drained; /* of the thread in it, at these times */
} section;

void waits_begin(struct waits *w, uint32_t tid)
{
	char line[96];
	const char *c = line;

	w->tid = tid;
	w->ns = w->times = 0;
	if (!tid || task_read(tid, "/schedstat", line, sizeof(line)) <= 0)
		return;
	number(&c); /* for how long it ran */
	w->ns = number(&c);
	w->times = number(&c);
}

/* Returns how long that thread waited for a CPU on average, ns: since w, if that is of the thread, else since its
 * start. */
static uint64_t mean(const struct waits *w, uint32_t tid)
{
	struct waits is;
	uint64_t ns, times;

	waits_begin(&is, tid);
	ns = is.ns;
	times = is.times;
	if (w->tid == tid && ns >= w->ns && times >= w->times) {
		ns -= w->ns;
		times -= w->times;
	}
	return ns / (times ? times : 1);
}

int waits_allow(const struct waits *w, uint32_t tid, uint64_t held)
{
	if (!load(&the.ring->gate) || load(&the.ring->mode) >= MODE_QUIT || exiting() || daemon_gone())
		return 1;
	return held + REMOVAL + RARELY * mean(w, tid) <= (tid == the.tid ? LONGEST_HOLD : LONGEST_HOLD_GRAPHS);
}

void section_forget(void)
{
	section.closed = 0;
}

void section_close(void)
{
	waits_begin(&section.before, gettid());
	section.closed = now();
	section.out = 0;
}

void section_out(void)
{
	section.out = now();
	waits_begin(&section.drained, section.before.tid);
}

/* Returns how long a thread waited between two readings, ns; 0 where the first failed: a thread that reads has run at
 * least once. */
static __attribute__((noinline)) uint64_t waited(const struct waits *from, const struct waits *to)
{
	return from->times && to->ns > from->ns ? to->ns - from->ns : 0;
}

void section_end(uint64_t opened)
{
	struct waits is;
	struct agent_slot s = { .ts = section.closed, .dur = opened - section.closed, .tid = section.before.tid,
		.kind = AGENT_HOLD };

	if (!section.closed)
		return;
	waits_begin(&is, section.before.tid);
	if (!section.out) {
		section.out = opened;
		section.drained = is;
	}
	s.args[0] = section.out - section.closed;
	s.args[1] = waited(&section.before, &section.drained);
	s.args[2] = waited(&section.drained, &is);
	section.closed = 0;
	ring_write(&s);
}
