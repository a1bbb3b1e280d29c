/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What sched.bpf.c was not run for. There are kernels that run no program, and count none
 * as missed, while certain threads are the current one (docs/limitations.md): then a
 * thread of the target that such a thread wakes, or leaves its CPU to, is seen only when
 * it leaves that CPU again. When it was woken and put on the CPU stands in the kernel's own
 * account of it (struct sched_info), in the time of the run queue's clock.
 */
#ifndef INFERSCOPE_SCHED_UNSEEN_H
#define INFERSCOPE_SCHED_UNSEEN_H

#include "sched_state.h"

/*
 * CLOCK_MONOTONIC less the run queue's clock, in ns. Learned from threads that were seen to
 * take a CPU, the first of them anybody's: the kernel reads its clock just before, so that each says a little too much,
 * or a lot where a virtual machine stands still in between, and the least is right. The clocks drift apart by some
 * 10 ppm at most: up it goes slowly.
 */
__u64 clock_offset OWN_LINE;
__u64 clock_samples; /* that were taken, at most CLOCK_SAMPLES */

#define CLOCK_SAMPLES 16
#define CLOCK_SLACK 16384 /* ns within which nothing is written, for all CPUs read it */

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

/* A thread leaves a CPU that it was seen to take at t->in. */
static __always_inline void learn_clock(struct task_struct___sched *task, struct thread_state *t)
{
	if (has_account() && task->sched_info.pcount == t->arrivals + 1)
		set_clock(t->in - task->sched_info.last_arrival);
}

/* Who was seen to take this CPU last, whoever that is, until there are enough samples of the clock. */
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
 * Any two switches in a row on a CPU tell the clock. Waiting for the target's would not do: a thread
 * that runs when it begins to be followed, and is woken unseen after its first sleep, has none.
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

/* A time of the run queue's clock in CLOCK_MONOTONIC. */
static __always_inline __u64 monotonic(__u64 at)
{
	return at + clock_offset;
}

/* Whether the thread is woken by somebody, of whom all that matters is when. */
static __always_inline bool awaits_waker(struct thread_state *t)
{
	return !t->woken && !(t->flags & (OFFCPU_PREEMPTED | OFFCPU_MARK));
}

/* A thread takes a CPU, and was not seen to be woken. */
static __noinline void woken_unseen(struct task_struct___sched *task, struct thread_state *t, __u64 now)
{
	if (!detail.no_wakers)
		count(&sched_counts, SWITCH_MISSED);
	if (has_account() && clock_samples && task->sched_info.last_queued)
		t->woken = between(t->out + 1, monotonic(task->sched_info.last_queued), now);
}

/*
 * A thread leaves its CPU that was not seen to take it. Where the kernel keeps no account,
 * it counts as running from the wake-up on, or all the time if that was not seen either.
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

/* A thread that is off its CPU as far as anybody has seen, and is not. */
struct unseen_thread {
	__u64 out;   /* ns, as in its thread_state: when it left its CPU */
	__u64 woken; /* ns when it was woken; 0: nothing is known beyond its thread_state */
	__u64 in;    /* ns since when it is on a CPU again; 0: it waits for one */
	__u32 tid;
	__u32 cpu; /* that it is on, or was on last */
};

const struct unseen_thread *export_unseen __attribute__((unused));

/*
 * Says what is known of a thread beyond its state. The thread may be switched meanwhile. One that
 * is seen to take its CPU has no t->out any more by the time that the kernel counts the
 * arrival, and one that is seen to be woken has t->woken by the time that it is queued:
 * so these are read last.
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
