// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Records why threads of a target were off the CPU. A map holds the state of each
 * thread; an interval becomes an event when the thread runs again. A recording reads
 * the intervals that are still open from the map.
 *
 * The programs run at every switch of the machine, so threads of other processes must
 * cost no more than two array loads. sched_switch and sched_waking run with interrupts
 * off, so these programs do not interrupt each other on a CPU. A thread is switched by
 * one CPU at a time (under the run queue lock), and woken by one at a time (its pi_lock).
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "event.h"

#include "sched_state.h"
#include "sched_unseen.h"

/* Records what the thread was doing when it blocked. */
static __always_inline void describe(struct task_struct___sched *task, struct thread_state *t, __u32 state)
{
	REGISTERS *regs = regs_of(task);
	__s64 nr = call_of(task, regs);

	if (state & TASK_UNINTERRUPTIBLE)
		t->flags |= OFFCPU_UNINTERRUPTIBLE;
	if (nr < 0 || nr >= OFFCPU_STOPPED) {
		t->func = OFFCPU_NO_SYSCALL;
		t->args[0] = 0;
		t->args[1] = 0;
		/* maj_flt is counted only after the wait, but in_iowait is set already. */
		if ((state & TASK_UNINTERRUPTIBLE) && BPF_CORE_READ_BITFIELD(task, in_iowait))
			t->flags |= OFFCPU_FAULT;
	} else {
		t->func = nr;
		t->args[0] = nr & OFFCPU_COMPAT ? 0 : CALL_ARG0(regs);
		t->args[1] = nr & OFFCPU_COMPAT ? 0 : CALL_ARG1(regs);
		if (nr < 512 && (fd_calls[(nr >> 6) & 7] >> (nr & 63) & 1))
			t->args[1] = file_of(task, (__u32)t->args[0]);
	}
	if (state & TASK_STOPPED_TRACED)
		t->func = OFFCPU_STOPPED;
}

/* Counts a switch, and decides once per slice whether the thread's short waits are summed. */
static __always_inline void note_rate(struct thread_state *t, __u64 now)
{
	__u32 slice = now >> SLICE_SHIFT;

	t->switches++;
	count(&sched_counts, SWITCH_LEFT);
	if (t->slice != slice) {
		t->busy = t->slice + 1 == slice && t->in_slice >= detail.busy_from;
		t->slice = slice;
		t->in_slice = 0;
	}
	if (++t->in_slice > detail.busy_from)
		t->busy = 1;
}

/* Handles a thread that leaves its CPU to next. state 0: it was preempted. */
static __always_inline void leave(struct task_struct___sched *task, struct thread_state *t,
			     struct task_struct___sched *next, __u32 state, __u64 now)
{
	if (t->out)
		unseen(task, t, now);
	else
		learn_clock(task, t);
	note_account(task, t);
	note_rate(t, now);
	t->flags = 0;
	t->cpu = bpf_get_smp_processor_id();
	if (!state) {
		REGISTERS *regs = regs_of(task);
		__s64 nr = call_of(task, regs);

		t->flags = OFFCPU_PREEMPTED;
		t->func = nr < 0 || nr >= OFFCPU_STOPPED ? OFFCPU_NO_SYSCALL : nr;
		t->args[0] = 0;
		t->args[1] = 0;
		t->who = identity(next);
	} else {
		describe(task, t, state);
	}
	t->out = now;
}

static __noinline void die(struct task_struct___sched *task, struct thread_state *t, __u64 now)
{
	__u32 tgid = task->tgid;

	if (t) {
		struct followed_process *p = bpf_map_lookup_elem(&followed, &tgid);

		if (t->out)
			unseen(task, t, now);
		flush(task, t, now);
		if (p)
			__sync_fetch_and_add(&p->switches, t->switches);
		put_mark(task, true, OFFCPU_DIED, now);
		release(task->pid);
	}
	if (!task->signal->live.counter)
		bpf_map_delete_elem(&followed, &tgid);
}

static __always_inline void switch_out(struct task_struct___sched *prev, struct task_struct___sched *next,
				       bool preempt, __u32 state, __u64 now)
{
	struct thread_state *t = thread_of(prev);

	if (!t && !is_followed(prev))
		return;
	if (state & TASK_DEAD) {
		die(prev, t, now);
		return;
	}
	if (!t) {
		t = claim(prev);
		if (!t)
			return;
		publish(prev, t);
	}
	leave(prev, t, next, preempt ? 0 : state, now);
}

static __always_inline void switch_in(struct task_struct___sched *next, __u64 now)
{
	struct thread_state *t = thread_of(next);

	if (t && t->out) {
		if (awaits_waker(t))
			woken_unseen(next, t, now);
		enter(next, t, now);
	} else if (t) {
		t->in = now;
	} else if (is_followed(next)) {
		t = claim(next);
		if (t) {
			t->in = now;
			t->cpu = bpf_get_smp_processor_id();
			publish(next, t);
		}
		put_mark(next, true, OFFCPU_RUNS, now);
	}
}

SEC("tp_btf/sched_switch")
int sched_switch(__u64 *ctx)
{
	struct task_struct___sched *prev = (void *)ctx[1];
	struct task_struct___sched *next = (void *)ctx[2];
	bool out = passes(prev->tgid), in = passes(next->tgid);
	__u64 now;

	if (has_account() && clock_samples < CLOCK_SAMPLES)
		learn_first(prev, next);
	if (!out && !in)
		return 0;
	now = bpf_ktime_get_ns();
	if (out)
		switch_out(prev, next, ctx[0], has_state_argument ? (__u32)ctx[3] : prev->__state, now);
	if (in)
		switch_in(next, now);
	return 0;
}

/*
 * Reports whether a wake-up ends a sleep. sched_waking runs in the waker, possibly while
 * the thread is still leaving its CPU: it then ends this sleep only if the thread is
 * off its run queue already.
 */
static __always_inline bool is_asleep(struct task_struct___sched *task, struct thread_state *t)
{
	if (t->out)
		return !(t->flags & (OFFCPU_PREEMPTED | OFFCPU_MARK));
	if (!task->on_rq)
		return true;
	return bpf_core_field_exists(task->se.sched_delayed) && task->se.sched_delayed;
}

static __always_inline int wake(void *ctx, struct task_struct___sched *task)
{
	struct task_struct___sched *waker = (void *)bpf_get_current_task_btf();
	struct thread_state *t = thread_of(task);

	if (!t || t->woken || !is_asleep(task, t))
		return 0;
	t->woken_flags = !waker->tgid || in_interrupt(ctx, waker, &t->who) ? OFFCPU_IRQ : 0;
	t->who = identity(waker);
	t->woken = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_waking")
int sched_waking(__u64 *ctx)
{
	struct task_struct___sched *task = (void *)ctx[0];

	return passes(task->tgid) ? wake(ctx, task) : 0;
}

/* Runs in the creating thread, so that a new thread is followed before it runs. */
SEC("tp_btf/sched_wakeup_new")
int sched_new(__u64 *ctx)
{
	struct task_struct___sched *task = (void *)ctx[0];
	struct task_struct___sched *parent = (void *)bpf_get_current_task_btf();
	struct thread_state *t;
	__u32 tgid = task->tgid, i = tgid % FILTER_SIZE;
	__u8 on = 1;

	if (!passes(parent->tgid) || !is_followed(parent))
		return 0;
	if (tgid != parent->tgid) {
		struct followed_process child = {.ticks = task->start_boottime / NS_PER_TICK};

		if (bpf_map_update_elem(&followed, &tgid, &child, BPF_ANY)) {
			count(&sched_counts, SWITCH_NO_ROOM);
			return 0;
		}
		/* In this order: the daemon clears a bit before it checks whether it is needed. */
		bpf_map_update_elem(&filter, &i, &on, BPF_ANY);
	}
	t = claim(task);
	if (!t)
		return 0;
	t->out = bpf_ktime_get_ns();
	t->flags = OFFCPU_MARK;
	t->func = OFFCPU_BORN;
	t->cpu = bpf_get_smp_processor_id();
	publish(task, t);
	return 0;
}

/* In an exec by another thread than the group leader, that thread takes over the leader's tid. Interrupts are on. */
SEC("tp_btf/sched_process_exec")
int sched_exec(__u64 *ctx)
{
	struct task_struct___sched *task = (void *)ctx[0];
	__u32 old = ctx[1];
	struct thread_state *t;
	struct room room;
	__u64 now;

	if (old == task->pid || !passes(task->tgid) || !is_followed(task))
		return 0;
	if (!state_of(old))
		return 0;
	now = bpf_ktime_get_ns();
	release(old);
	t = claim(task);
	if (t) {
		t->in = now;
		publish(task, t);
	}
	room = event_of(task, false, OFFCPU_DIED, OFFCPU_MARK, 0, now);
	if (room.event) {
		room.event->tid = old;
		submit(room, 0, 0, 0, 0, 0);
	}
	put_mark(task, false, OFFCPU_RUNS, now);
	return 0;
}

/* Records what a thread is doing now. */
static __always_inline void snapshot(struct task_struct___sched *task, struct thread_state *t)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 state = task->__state;

	t->flags = 0;
	t->cpu = cpu_of(task);
	note_account(task, t);
	if (task->on_cpu) {
		t->in = now;
		t->out = 0;
	} else if (state) {
		t->out = now;
		describe(task, t, state);
	} else {
		t->out = now;
		t->flags = OFFCPU_MARK;
		t->func = OFFCPU_WAITED;
	}
}

/* Adds the existing threads with their current state. Read once for each newly followed process. */
SEC("iter/task")
int sched_seed(__u64 *ctx)
{
	struct task_struct___sched *task = (void *)ctx[1];
	struct thread_state *t;

	if (!task || !passes(task->tgid) || !is_followed(task) || task->__state & TASK_DEAD || thread_of(task))
		return 0;
	/* claim fails for a thread that was switched before: its state is already there. */
	t = claim(task);
	if (!t)
		return 0;
	snapshot(task, t);
	publish(task, t);
	/* This program can be interrupted, so the thread may have been switched meanwhile. */
	if (t->switched) {
		t->switched = 0;
		snapshot(task, t);
	}
	return 0;
}

/* Writes a struct unseen_thread for each thread whose last switch to a CPU or wake-up was missed. */
SEC("iter/task")
int sched_check(__u64 *ctx)
{
	struct bpf_iter_meta___sched *meta = (void *)ctx[0];
	struct task_struct___sched *task = (void *)ctx[1];
	struct thread_state *t;
	struct unseen_thread u;

	if (!has_account() || !clock_samples || !task || !passes(task->tgid))
		return 0;
	t = thread_of(task);
	if (t && is_unseen(task, t, &u))
		bpf_seq_write(meta->seq, &u, sizeof(u));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
