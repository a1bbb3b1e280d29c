/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reconstructs switches for which sched.bpf.c did not run. Some kernels run no programs while
 * certain threads are current, and do not count that as a miss (docs/limitations.md). A thread
 * of the target that such a thread wakes, or leaves its CPU to, is seen only when it leaves the
 * CPU again. The times of its wake-up and switch are in struct sched_info, in the time of the
 * run queue's clock.
 */
#ifndef INFERSCOPE_SCHED_UNSEEN_H
#define INFERSCOPE_SCHED_UNSEEN_H

#include "sched_state.h"

/*
 * CLOCK_MONOTONIC minus the run queue's clock, in ns, measured at observed switches to a CPU. The kernel reads its
 * clock just before, so each measurement is slightly too large, or much too large where a virtual machine pauses in
 * between: the smallest is right. The clocks drift apart by about 10 ppm at most, so the value is raised slowly.
 */
__u64 clock_offset OWN_LINE;
__u64 clock_samples; /* measurements, counted up to CLOCK_SAMPLES */

#define CLOCK_SAMPLES 16
#define CLOCK_SLACK 16384 /* ns; smaller increases are not written, because all CPUs read the value */

static __always_inline void set_clock(__u64 offset)
{
	__s64 more = offset - clock_offset;

	if (clock_samples < CLOCK_SAMPLES) {
		if (!clock_samples || more < 0)
			clock_offset = offset;
		clock_samples++;
	} else if (more < 0) {
		clock_offset = offset;
	} else if (more >= CLOCK_SLACK) {
		clock_offset += more >> 3;
	}
}

/* Measures the clock at the end of a stay on a CPU that was seen to begin, at t->in. */
static __always_inline void learn_clock(struct task_struct___sched *task, struct thread_state *t)
{
	if (has_account() && task->sched_info.pcount == t->arrivals + 1)
		set_clock(t->in - task->sched_info.last_arrival);
}

/* The thread, of any process, last seen to take this CPU; kept until there are enough measurements of the clock. */
struct taken {
	__u64 in;	/* ns */
	__u64 arrivals; /* sched_info.pcount before it */
	__u64 tid;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct taken);
} takers SEC(".maps");

/*
 * Measures the clock from any two consecutive switches on a CPU. Waiting for those of the target is not
 * enough: a thread whose first observed event is a missed wake-up would need the clock already.
 */
static __noinline void learn_first(struct task_struct___sched *prev, struct task_struct___sched *next)
{
	__u32 zero = 0;
	struct taken *last = bpf_map_lookup_elem(&takers, &zero);

	if (!last)
		return;
	if (prev->pid && last->tid == prev->pid && prev->sched_info.pcount == last->arrivals + 1)
		set_clock(last->in - prev->sched_info.last_arrival);
	last->in = bpf_ktime_get_ns();
	last->arrivals = next->sched_info.pcount;
	last->tid = next->pid;
}

static __always_inline __u64 between(__u64 low, __u64 at, __u64 high)
{
	return at < low ? low : at > high ? high : at;
}

/* Converts a time of the run queue's clock to CLOCK_MONOTONIC. */
static __always_inline __u64 monotonic(__u64 at)
{
	return at + clock_offset;
}

/* Reports whether the end of the thread's sleep has not been seen yet. */
static __always_inline bool awaits_waker(struct thread_state *t)
{
	return !t->woken && !(t->flags & (OFFCPU_PREEMPTED | OFFCPU_MARK));
}

/* Handles a thread that takes a CPU after a missed wake-up. */
static __noinline void woken_unseen(struct task_struct___sched *task, struct thread_state *t, __u64 now)
{
	if (!detail.no_wakers)
		count(&sched_counts, SWITCH_MISSED);
	if (has_account() && clock_samples && task->sched_info.last_queued)
		t->woken = between(t->out + 1, monotonic(task->sched_info.last_queued), now);
}

/*
 * Handles a thread that leaves a CPU after a missed switch to it. Without sched_info it counts
 * as running from the wake-up on, or for the whole time if that was missed as well.
 */
static __noinline void unseen(struct task_struct___sched *task, struct thread_state *t, __u64 now)
{
	__u64 at = t->woken, waited;

	count(&sched_counts, SWITCH_MISSED);
	if (has_account() && clock_samples && task->sched_info.pcount != t->arrivals) {
		at = between(t->woken > t->out ? t->woken : t->out, monotonic(task->sched_info.last_arrival), now);
		waited = task->sched_info.run_delay - t->waited;
		if (awaits_waker(t))
			t->woken = waited < at - t->out ? at - waited : t->out + 1;
	}
	if (at > t->out)
		enter(task, t, at);
	t->out = 0;
	t->woken = 0;
	t->woken_flags = 0;
	t->who = 0;
}

/* A thread whose thread_state is out of date: it was woken, or took a CPU, without a program running. */
struct unseen_thread {
	__u64 out;   /* ns, as in its thread_state: when it left its CPU */
	__u64 woken; /* ns of the missed wake-up; 0: none was missed */
	__u64 in;    /* ns since when it is on a CPU again; 0: it waits for one */
	__u32 tid;
	__u32 cpu; /* that it is on, or was on last */
};

const struct unseen_thread *export_unseen __attribute__((unused));

/*
 * Reports whether a thread's state is out of date, and fills u. The thread may be switched meanwhile:
 * an observed switch clears t->out before the kernel counts the arrival, and an observed wake-up sets
 * t->woken before the thread is queued, so these two are read last.
 */
static __always_inline bool is_unseen(struct task_struct___sched *task, struct thread_state *t, struct unseen_thread *u)
{
	__u64 arrivals, waited, queued;

	u->out = *(volatile __u64 *)&t->out;
	arrivals = *(volatile unsigned long *)&task->sched_info.pcount;
	queued = *(volatile unsigned long long *)&task->sched_info.last_queued;
	waited = task->sched_info.run_delay - t->waited;
	u->in = 0;
	u->woken = 0;
	if (arrivals != t->arrivals) {
		if (!task->on_cpu)
			return false;
		u->in = monotonic(task->sched_info.last_arrival);
		if (awaits_waker(t))
			u->woken = waited < u->in - u->out ? u->in - waited : u->out + 1;
	} else if (queued && awaits_waker(t)) {
		u->woken = monotonic(queued);
	} else {
		return false;
	}
	u->tid = task->pid;
	u->cpu = cpu_of(task);
	__sync_fetch_and_add(&clock_samples, 0); /* a full barrier */
	return u->out && *(volatile __u64 *)&t->out == u->out && (u->in || !*(volatile __u64 *)&t->woken);
}

#endif
