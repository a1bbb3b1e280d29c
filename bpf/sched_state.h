/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Thread states of sched.bpf.c: its maps, and how an interval becomes an event or, beyond
 * the budget, part of a sum.
 */
#ifndef INFERSCOPE_SCHED_STATE_H
#define INFERSCOPE_SCHED_STATE_H

#include "sched_task.h"

#define BPF_F_MMAPABLE (1U << 10)
#define EEXIST 17
#define SLICE_SHIFT 27		/* one slice, the period of the budget, is 134 ms */
#define FLUSH_NS 100000000ULL	/* length of a sum within the budget; short, so that windows cut few of them */
#define FILTER_SIZE 16384
#define MAX_FOLLOWED 16384
#define MAX_THREADS 16384
#define MAX_OVERFLOW 4096

#define SHORT_REASONS 4

/* The sum of waits for one reason that were not sent one by one. */
struct short_sum {
	__u32 what;  /* ret of its event; 0 in the last one: all reasons that found no room */
	__u32 count; /* 0: not in use */
	__u64 file;  /* args[3] of its event */
	__u64 blocked;
	__u64 runnable;
};

/* A thread of a followed process. The fields used at every switch come first, in one cache line. */
struct thread_state {
	__u64 out;	/* ns when it left its CPU; 0: it is on one */
	__u64 in;	/* ns since when it is on a CPU, where out is 0 */
	__u64 woken;	/* ns of its wake-up; 0: none yet */
	__u64 who;	/* tid | pid << 32 of who woke it, or took its CPU */
	__u64 args[2];	/* args[2] and [3] of the event */
	__u32 tid;	/* 0: not in use */
	__u32 tgid;
	__u16 func;
	__u16 cpu;	/* that it left, or runs on */
	__u8 flags;	/* enum offcpu_flags */
	__u8 woken_flags;
	__u8 switched;	/* the thread was switched before publish */
	__u8 pad;
	__u64 short_from; /* ns, start of the sum of intervals that were not sent */
	__u64 switches;	  /* times that it left its CPU */
	__u32 short_count; /* intervals in the sum */
	__u32 busy;	   /* it left its CPU so often in the last slice that its short waits are summed */
	__u32 slice;	   /* low part of the number of the current slice */
	__u32 in_slice;	   /* times that it left its CPU in it */
	__u64 arrivals; /* sched_info.pcount when it left; on a CPU, the value before it took that CPU */
	__u64 waited;	/* sched_info.run_delay when it left */
	__u64 pad3[2]; /* no two threads share a cache line */
	struct short_sum sums[SHORT_REASONS];
};

/* Index of sched_counts. */
enum switch_count {
	SWITCH_SUMMED = 0,  /* intervals that went into sums */
	SWITCH_NO_ROOM = 1, /* times that a thread found no room in threads */
	SWITCH_MISSED = 2, /* missed wake-ups and switches to a CPU */
	SWITCH_LEFT = 3,   /* times that a followed thread left its CPU */
	SWITCH_COUNTS = 4,
};

/*
 * Thread states by tid modulo MAX_THREADS: an array lookup needs no helper call. The map is mmapable
 * because the kernel aligns only those to a page; otherwise each state would touch one more cache
 * line. Where another thread has the place, the state is in overflow, by tid.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32);
	__type(value, struct thread_state);
} threads SEC(".maps");

/* The thread that has a place in threads: the first to add itself. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32);   /* index into threads */
	__type(value, __u32); /* tid */
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_OVERFLOW);
	__type(key, __u32); /* tid */
	__type(value, struct thread_state);
} overflow SEC(".maps");

/* A process whose threads are followed. */
struct followed_process {
	__u64 ticks;	/* its start time, so that a reused pid is not followed */
	__u64 switches; /* of its threads that have ended */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FOLLOWED);
	__type(key, __u32); /* tgid */
	__type(value, struct followed_process);
} followed SEC(".maps");

/* Not 0 where some followed process has a tgid with these low bits: the first check,
 * which rejects nearly all threads of the machine. */
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

#include "sched_lane.h"

/* Set before loading; the verifier drops what they rule out. */
const volatile bool has_state_argument; /* sched_switch passes the state that was left with: 5.18 on */
const volatile __u64 slice_budget;	/* intervals of all threads sent one by one per slice */
const volatile __u64 slice_share;	/* number of these that a CPU takes at once */
const volatile __u64 fd_calls[8];	/* by system call number: the first argument is a file descriptor */

/* Data that every CPU reads at each switch and that is rarely written has its own cache line. */
#define OWN_LINE __attribute__((aligned(128)))

/* The level of detail. It changes while the programs run. */
struct {
	__u64 short_ns;	 /* waits shorter than that are summed, */
	__u64 busy_from; /* of threads that leave their CPU more often than that in a slice */
	__u64 no_wakers; /* not 0: wake-ups are not recorded */
} detail OWN_LINE;

__u64 overflowed OWN_LINE; /* not 0 from the first thread in overflow on */

const struct event *export_event __attribute__((unused));
const struct followed_process *export_followed __attribute__((unused));
const struct thread_state *export_thread __attribute__((unused));
const enum switch_count *export_count __attribute__((unused));
const enum offcpu_flags *export_flags __attribute__((unused));
const enum offcpu_mark *export_mark __attribute__((unused));

/* Reports whether the process may be followed. */
static __always_inline bool passes(__u32 tgid)
{
	__u32 i = tgid % FILTER_SIZE;
	__u8 *on = bpf_map_lookup_elem(&filter, &i);

	return on && *on;
}

static __noinline bool is_followed(struct task_struct___sched *task)
{
	__u32 tgid = task->tgid;
	struct followed_process *p = bpf_map_lookup_elem(&followed, &tgid);

	return p && p->ticks == task->group_leader->start_boottime / NS_PER_TICK;
}

static __always_inline __u64 identity(struct task_struct___sched *task)
{
	return (__u32)task->pid | (__u64)task->tgid << 32;
}

static __noinline struct thread_state *overflow_state(__u32 tid)
{
	struct thread_state *t = bpf_map_lookup_elem(&overflow, &tid);

	return t && t->tid == tid ? t : NULL;
}

/* Returns the state of a thread by its tid, or NULL. */
static __always_inline struct thread_state *state_of(__u32 tid)
{
	__u32 place = tid % MAX_THREADS;
	struct thread_state *t = bpf_map_lookup_elem(&threads, &place);

	if (t && t->tid == tid)
		return t;
	return overflowed ? overflow_state(tid) : NULL;
}

static __always_inline struct thread_state *thread_of(struct task_struct___sched *task)
{
	return state_of(task->pid);
}

static __always_inline void clear(struct thread_state *t)
{
	t->out = t->in = t->woken = t->who = 0;
	t->args[0] = t->args[1] = 0;
	t->func = t->cpu = 0;
	t->flags = t->woken_flags = t->switched = 0;
	t->short_from = t->switches = 0;
	t->short_count = t->busy = t->slice = t->in_slice = 0;
	for (int i = 0; i < SHORT_REASONS; i++)
		t->sums[i].count = 0;
	t->arrivals = t->waited = 0;
}

/* Copies how often the thread was put on a CPU, and how long it waited for one. */
static __always_inline void note_account(struct task_struct___sched *task, struct thread_state *t)
{
	if (!has_account())
		return;
	t->arrivals = task->sched_info.pcount;
	t->waited = task->sched_info.run_delay;
}

static const struct thread_state empty_state;

/*
 * Returns a zeroed state for a thread that has none. It is not visible before publish.
 * NULL where another CPU is adding the thread, or where there is no room.
 */
static __noinline struct thread_state *claim(struct task_struct___sched *task)
{
	__u32 tid = task->pid, place = tid % MAX_THREADS, *owner;
	struct thread_state *t = bpf_map_lookup_elem(&threads, &place);
	long err;

	if (t && !bpf_map_update_elem(&owners, &place, &tid, BPF_NOEXIST)) {
		clear(t);
	} else {
		owner = bpf_map_lookup_elem(&owners, &place);
		if (owner && *owner == tid) {
			if (t && !t->tid)
				t->switched = 1; /* the CPU that adds it takes another snapshot */
			return NULL;
		}
		err = bpf_map_update_elem(&overflow, &tid, &empty_state, BPF_NOEXIST);
		if (err) {
			if (err != -EEXIST)
				count(&sched_counts, SWITCH_NO_ROOM);
			return NULL;
		}
		overflowed = 1;
		t = bpf_map_lookup_elem(&overflow, &tid);
		if (!t)
			return NULL;
	}
	t->tgid = task->tgid;
	note_account(task, t);
	return t;
}

/* Makes the state visible. */
static __always_inline void publish(struct task_struct___sched *task, struct thread_state *t)
{
	barrier();
	*(volatile __u32 *)&t->tid = task->pid;
}

/* Forgets a thread. */
static __noinline void release(__u32 tid)
{
	__u32 place = tid % MAX_THREADS;
	struct thread_state *t = bpf_map_lookup_elem(&threads, &place);

	if (t && t->tid == tid) {
		*(volatile __u32 *)&t->tid = 0;
		bpf_map_delete_elem(&owners, &place);
	} else {
		bpf_map_delete_elem(&overflow, &tid);
	}
}

/* Reserves an event of a task, in place, so that no stack is needed; submit sets dur and args. Its event is NULL where
 * there is no room. */
static __always_inline struct room event_of(
    struct task_struct___sched *task, bool alone, __u16 func, __u8 flags, __s32 ret, __u64 ts)
{
	struct room room = reserve(alone);
	struct event *e = room.event;

	if (!e)
		return room;
	e->ts = ts;
	e->pid = task->tgid;
	e->tid = task->pid;
	e->func = func;
	e->kind = EVENT_OFFCPU;
	e->flags = flags;
	e->ret = ret;
	return room;
}

static __always_inline void put_mark(struct task_struct___sched *task, bool alone, __u16 mark, __u64 ts)
{
	struct room room = event_of(task, alone, mark, OFFCPU_MARK, bpf_get_smp_processor_id(), ts);

	if (room.event)
		submit(room, 0, 0, 0, 0, 0);
}

/* Sends the sums of the intervals that were not sent one by one. */
static __noinline void flush_sums(struct task_struct___sched *task, struct thread_state *t, __u64 until)
{
	struct room room;

	for (int i = 0; i < SHORT_REASONS; i++) {
		struct short_sum *s = &t->sums[i];

		if (!s->count)
			continue;
		room = event_of(task, true, OFFCPU_SHORT, OFFCPU_MARK | EVENT_TIMED, s->what, t->short_from);
		if (room.event)
			submit(room, until - t->short_from, s->blocked, s->runnable, s->count, s->file);
		s->count = 0;
	}
	t->short_count = 0;
}

static __always_inline void flush(struct task_struct___sched *task, struct thread_state *t, __u64 until)
{
	if (t->short_count)
		flush_sums(task, t, until);
}

#include "sched_budget.h"

/* Adds a wait to the sum of its reason. */
static __always_inline void add(struct thread_state *t, __u32 what, __u64 file, __u64 blocked, __u64 runnable)
{
	for (int i = 0; i < SHORT_REASONS; i++) {
		struct short_sum *s = &t->sums[i];

		if (!s->count) {
			s->count = 1;
			s->what = i < SHORT_REASONS - 1 ? what : 0;
			s->file = i < SHORT_REASONS - 1 ? file : 0;
			s->blocked = blocked;
			s->runnable = runnable;
			return;
		}
		if (i == SHORT_REASONS - 1 || (s->what == what && s->file == file)) {
			s->count++;
			s->blocked += blocked;
			s->runnable += runnable;
			return;
		}
	}
}

static __noinline void sum(struct task_struct___sched *task, struct thread_state *t, __u64 now, __u64 blocked)
{
	__u32 what = t->func | (__u32)(t->flags | t->woken_flags) << 16 | SHORT_KNOWN;
	bool on_file = t->func < 512 && (fd_calls[(t->func >> 6) & 7] >> (t->func & 63) & 1);

	if (t->who >> 32 && t->who >> 32 != t->tgid && !(t->woken_flags & OFFCPU_IRQ))
		what |= SHORT_OTHERS;
	if (!t->short_count)
		t->short_from = t->out;
	t->short_count++;
	add(t, what, on_file ? t->args[1] : 0, blocked, now - t->out - blocked);
	count(&sched_counts, SWITCH_SUMMED);
	/* With thousands of threads there are many sums as well: beyond the budget they become longer. */
	if (now - t->short_from > FLUSH_NS && slice.sums < slice_budget) {
		__sync_fetch_and_add(&slice.sums, 1);
		flush(task, t, now);
	}
}

/* Handles a thread that takes a CPU. */
static __always_inline void enter(struct task_struct___sched *task, struct thread_state *t, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 dur = now - t->out, blocked = 0;
	struct room room;

	if (t->woken) /* the wake-up may slightly precede the switch */
		blocked = t->woken > t->out ? t->woken - t->out : 1;
	if (!(t->flags & OFFCPU_MARK) && ((dur < detail.short_ns && t->busy) || !affordable(now, dur))) {
		sum(task, t, now, t->flags & OFFCPU_PREEMPTED ? 0 : t->woken ? blocked : dur);
	} else {
		flush(task, t, t->out);
		room = event_of(task, true, t->func, t->flags | t->woken_flags | EVENT_TIMED, t->cpu | cpu << 16,
				t->out);
		if (room.event)
			submit(room, dur, blocked, t->who, t->args[0], t->args[1]);
	}
	t->out = 0;
	t->in = now;
	t->woken = 0;
	t->woken_flags = 0;
	t->who = 0;
	t->cpu = cpu;
}

#endif
