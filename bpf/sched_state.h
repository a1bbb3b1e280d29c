/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The state of threads for sched.bpf.c: its maps, and how an interval becomes an event
 * or, beyond the budget, a part of a sum.
 */
#ifndef INFERSCOPE_SCHED_STATE_H
#define INFERSCOPE_SCHED_STATE_H

#include "sched_task.h"

#define BPF_NOEXIST 1
#define EEXIST 17
#define SLICE_SHIFT 27		/* a budget is dealt out per 134 ms */
#define FLUSH_NS 100000000ULL	/* sums cover at most about so long, so that windows cut few of them */
#define FILTER_SIZE 16384
#define MAX_FOLLOWED 16384
#define MAX_THREADS 16384

/* A thread of a followed process. */
struct thread_state {
	__u64 out;	/* ns when it left its CPU; 0: it is on one */
	__u64 in;	/* ns since when it is on a CPU, where out is 0 */
	__u64 woken;	/* ns of its wake-up; 0: none yet */
	__u64 who;	/* tid | pid << 32 of who woke it, or took its CPU */
	__u64 args[2];	/* args[2] and [3] of the event */
	__u64 short_from; /* ns; the sum of intervals that were not sent begins here */
	__u64 short_blocked;
	__u64 short_runnable;
	__u32 short_count;
	__u32 tgid;
	__u16 func;
	__u16 cpu;	/* that it left, or runs on */
	__u8 flags;	/* enum offcpu_flags */
	__u8 woken_flags;
	__u16 pad;
};

/* Index of sched_counts. */
enum switch_count {
	SWITCH_SUMMED = 0,  /* intervals that went into sums */
	SWITCH_NO_ROOM = 1, /* times that a thread found no room in threads */
	SWITCH_MISSED = 2, /* times that a thread took a CPU unseen */
	SWITCH_COUNTS = 3,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32); /* tid */
	__type(value, struct thread_state);
} threads SEC(".maps");

/* tgid -> start time in ticks, so that a pid that is used again is not followed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FOLLOWED);
	__type(key, __u32);
	__type(value, __u64);
} followed SEC(".maps");

/* Not 0 where some followed process has a tgid with these low bits: the first look,
 * which nearly all threads of the machine do not pass. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FILTER_SIZE);
	__type(key, __u32);
	__type(value, __u8);
} filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SWITCH_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} sched_counts SEC(".maps");

/* rings and losses are replaced at load by the maps of package ring. */
struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOSS_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

/* Set before loading; the verifier drops what they rule out. */
const volatile bool has_state_argument; /* sched_switch passes the state that was left with: 5.18 on */
const volatile __u64 slice_budget;	/* intervals of all threads sent one by one per slice */
const volatile __u64 fd_calls[8];	/* by system call number: the first argument is a file descriptor */

/* Written by every CPU, but seldom more than slice_budget times per slice. */
__u64 slice;
__u64 slice_sent;

const struct event *export_event __attribute__((unused));
const struct thread_state *export_thread __attribute__((unused));
const enum switch_count *export_count __attribute__((unused));
const enum offcpu_flags *export_flags __attribute__((unused));
const enum offcpu_mark *export_mark __attribute__((unused));

static __always_inline void count(void *map, __u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(map, &reason);

	if (n)
		(*n)++;
}

/* Whether the process may be followed. */
static __always_inline bool passes(__u32 tgid)
{
	__u32 i = tgid % FILTER_SIZE;
	__u8 *on = bpf_map_lookup_elem(&filter, &i);

	return on && *on;
}

static __always_inline bool is_followed(struct task_struct___sched *task)
{
	__u32 tgid = task->tgid;
	__u64 *ticks = bpf_map_lookup_elem(&followed, &tgid);

	return ticks && *ticks == task->group_leader->start_boottime / NS_PER_TICK;
}

static __always_inline __u64 identity(struct task_struct___sched *task)
{
	return (__u32)task->pid | (__u64)task->tgid << 32;
}

static __always_inline struct thread_state *thread_of(struct task_struct___sched *task)
{
	__u32 tid = task->pid;

	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline bool add(struct task_struct___sched *task, struct thread_state *t)
{
	__u32 tid = task->pid;

	long err;

	t->tgid = task->tgid;
	err = bpf_map_update_elem(&threads, &tid, t, BPF_NOEXIST);
	if (!err || err == -EEXIST) /* then the thread was seen meanwhile */
		return true;
	count(&sched_counts, SWITCH_NO_ROOM);
	return false;
}

static __always_inline struct event *reserve(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct event *e = ring ? bpf_ringbuf_reserve(ring, sizeof(*e), 0) : NULL;

	if (!e)
		count(&losses, LOSS_RING_FULL);
	return e;
}

struct words {
	__u64 ts, dur, args[4];
};

static __always_inline void put(struct task_struct___sched *task, __u16 func, __u8 flags, __s32 ret, const struct words *w)
{
	struct event *e = reserve();

	if (!e)
		return;
	e->ts = w->ts;
	e->dur = w->dur;
	e->pid = task->tgid;
	e->tid = task->pid;
	e->func = func;
	e->kind = EVENT_OFFCPU;
	e->flags = flags;
	e->ret = ret;
	e->args[0] = w->args[0];
	e->args[1] = w->args[1];
	e->args[2] = w->args[2];
	e->args[3] = w->args[3];
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

static __always_inline void put_mark(struct task_struct___sched *task, __u16 mark, __u64 ts)
{
	struct words w = { .ts = ts };

	put(task, mark, OFFCPU_MARK, bpf_get_smp_processor_id(), &w);
}

/* Sends the sum of what was not sent one by one, up to the time given. */
static __always_inline void flush(struct task_struct___sched *task, struct thread_state *t, __u64 until)
{
	struct words w = { .ts = t->short_from, .dur = until - t->short_from };

	if (!t->short_count)
		return;
	w.args[0] = t->short_blocked;
	w.args[1] = t->short_runnable;
	w.args[2] = t->short_count;
	t->short_count = 0;
	t->short_blocked = 0;
	t->short_runnable = 0;
	put(task, OFFCPU_SHORT, OFFCPU_MARK | EVENT_TIMED, 0, &w);
}

/*
 * Whether an interval may have an event of its own. Within a slice the first
 * slice_budget may; then only what is longer than 0.1 ms, then than 10 ms, then nothing.
 */
static __always_inline bool affordable(__u64 now, __u64 dur)
{
	__u64 this = now >> SLICE_SHIFT, sent;

	if (slice != this) { /* two CPUs may both come here: the slice has a few more then */
		slice = this;
		slice_sent = 0;
	}
	sent = slice_sent;
	if (sent >= slice_budget &&
	    (sent >= 3 * slice_budget || dur < (sent >= 2 * slice_budget ? 10000000ULL : 100000ULL)))
		return false;
	__sync_fetch_and_add(&slice_sent, 1);
	return true;
}

static __always_inline void sum(struct task_struct___sched *task, struct thread_state *t, __u64 now, __u64 blocked)
{
	if (!t->short_count)
		t->short_from = t->out;
	t->short_count++;
	t->short_blocked += blocked;
	t->short_runnable += now - t->out - blocked;
	count(&sched_counts, SWITCH_SUMMED);
	if (now - t->short_from > FLUSH_NS)
		flush(task, t, now);
}

/* A thread takes a CPU. */
static __always_inline void enter(struct task_struct___sched *task, struct thread_state *t, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct words w = { .ts = t->out, .dur = now - t->out };
	bool plain = !(t->flags & OFFCPU_MARK);

	if (t->woken) /* the wake-up may be a little earlier than the switch that it undoes */
		w.args[0] = t->woken > t->out ? t->woken - t->out : 1;
	if (plain && !affordable(now, w.dur)) {
		sum(task, t, now, t->flags & OFFCPU_PREEMPTED ? 0 : t->woken ? w.args[0] : w.dur);
	} else {
		flush(task, t, t->out);
		w.args[1] = t->who;
		w.args[2] = t->args[0];
		w.args[3] = t->args[1];
		put(task, t->func, t->flags | t->woken_flags | EVENT_TIMED, t->cpu | cpu << 16, &w);
	}
	t->out = 0;
	t->in = now;
	t->woken = 0;
	t->woken_flags = 0;
	t->who = 0;
	t->cpu = cpu;
}

#endif
