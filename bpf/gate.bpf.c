// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Keeps the threads of a process out of the CUDA driver for a moment. cuptiSubscribe and cuptiFinalize wait until no thread is inside,
 * which, where several threads nearly always are, takes seconds to minutes (libcuda 580, CUPTI 13.0). Package gate puts this program on
 * functions of the driver at which threads come by all the time. While the agent waits, as its ring in the process says, each thread is
 * held there, before it is inside, until the agent has got what it waits for, or the thread's time is up: once in each try.
 *
 * A second program is put on the functions that launch graphs, in every process: a launch in the midst of a finalize kills
 * (agent/src/graphs.c). A thread that is known for launches does not meet one; this is for those that nobody has seen to launch before.
 *
 * A thread is held by its CPU: nothing has to wake it, and where the daemon dies nothing is left to be undone. bpf_loop is of 5.17. A kernel
 * that does not preempt itself lets nobody else run there meanwhile; a real-time task that wakes up, such as the helper that stops a thread
 * (internal/inject), would not look for another CPU. So a thread gives way to those, except for a launch.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define BPF_MAP_TYPE_LRU_HASH 9 /* include/uapi/linux/bpf.h */
#define MS 1000000ULL
#define PATIENCE (5 * MS)  /* of waiting, before the first try; the next ones come after twice, four times as long, */
#define DOUBLED 7          /* as often as this, */
#define RARELY (1000 * MS) /* and then so far apart */
#define HOLD (1 * MS)      /* a thread's time in the first try; twice and four times as long in the next, */
#define LONGEST 3          /* and eight times from there on */
#define THREADS 1024       /* that are told apart; of more, some are held twice in a try */
#define LAUNCH_HOLD (250 * MS) /* a launch's time: much more than the 2 to 8 ms of a finalize that waits for nobody; */
#define WAITED (10000 * MS)    /* one that has waited for so long hangs, and no more launches with it */
#define LOOKS (1 << 22)    /* more than fit into a thread's time */
#define MAX_RT_PRIO 100    /* include/linux/sched/prio.h: below it a task is a real-time one */

/* A CPU's queues (kernel/sched/sched.h). A task's way to them is that of its group. */
struct rt_rq {
	unsigned int rt_nr_running;
} __attribute__((preserve_access_index));

struct rq {
	struct rt_rq rt;
} __attribute__((preserve_access_index));

struct cfs_rq {
	struct rq *rq;
} __attribute__((preserve_access_index));

struct sched_entity {
	struct cfs_rq *cfs_rq;
} __attribute__((preserve_access_index));

struct task_struct___gate {
	int prio;
	struct sched_entity se;
} __attribute__((preserve_access_index));

/* What came of it so far. */
struct gate_count {
	__u64 held;    /* threads */
	__u64 ns;      /* for which they were, in sum */
	__u64 longest; /* ns */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gate_count);
} counts SEC(".maps");

/* The try in which a thread was held last. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, THREADS);
	__type(key, __u32);
	__type(value, __u64);
} held SEC(".maps");

const struct gate_count *export_count __attribute__((unused));

/* What the agent says of itself: opening, leaving and finalizing of struct agent_ring (agent/abi.h), CLOCK_MONOTONIC ns. */
struct words {
	__u64 opening, leaving, finalizing;
};

/* Where they lie in the process. */
const volatile __u64 words_at = 0;

/* Since when the agent waits, or, launches, a finalize is under way; 0: neither, or its words cannot be read. */
static __always_inline __u64 since_when(int launches)
{
	struct words w = {};

	if (bpf_probe_read_user(&w, sizeof(w), (void *)words_at))
		return 0;
	if (launches)
		return w.finalizing;
	return w.opening ? w.opening : w.leaving;
}

struct visit {
	__u64 since, until;
	int launches;
};

/* Whether a real-time task waits for this CPU. Kernels that do not group tasks (CONFIG_FAIR_GROUP_SCHED) do not tell. */
static __always_inline int in_the_way(void)
{
	const struct task_struct___gate *task = (void *)bpf_get_current_task();

	unsigned int held = BPF_CORE_READ(task, prio) < MAX_RT_PRIO;

	return bpf_core_field_exists(task->se.cfs_rq) && bpf_core_field_exists(((struct cfs_rq *)0)->rq) &&
	       BPF_CORE_READ(task, se.cfs_rq, rq, rt.rt_nr_running) > held;
}

static long look(__u32 index, void *context)
{
	const struct visit *v = context;

	return since_when(v->launches) != v->since || bpf_ktime_get_ns() >= v->until || (!v->launches && in_the_way());
}

static __always_inline void count(__u64 ns)
{
	__u32 zero = 0;
	struct gate_count *c = bpf_map_lookup_elem(&counts, &zero);

	if (!c)
		return;
	__sync_fetch_and_add(&c->held, 1);
	__sync_fetch_and_add(&c->ns, ns);
	if (ns > c->longest)
		c->longest = ns;
}

static __always_inline void hold(struct visit *v, __u64 now)
{
	bpf_loop(LOOKS, look, v, 0);
	count(bpf_ktime_get_ns() - now);
}

static __always_inline int held_in(__u64 try)
{
	__u32 tid = bpf_get_current_pid_tgid();
	__u64 *last = bpf_map_lookup_elem(&held, &tid);

	if (last && *last == try)
		return 1;
	bpf_map_update_elem(&held, &tid, &try, BPF_ANY);
	return 0;
}

/* The number of the try after so much waiting, ns, of PATIENCE at least. */
static __always_inline __u64 try_of(__u64 waited)
{
	__u64 try = 0;

	while (try < DOUBLED && waited >= PATIENCE << (try + 1))
		try++;
	return try < DOUBLED ? try : DOUBLED + (waited - (PATIENCE << DOUBLED)) / RARELY;
}

SEC("uprobe.multi")
int gate(struct pt_regs *ctx)
{
	struct visit v = { .since = since_when(0) };
	__u64 now, try;

	if (!v.since)
		return 0;
	now = bpf_ktime_get_ns();
	if (now < v.since + PATIENCE)
		return 0;
	try = try_of(now - v.since);
	if (held_in(v.since + try))
		return 0;
	v.until = now + (HOLD << (try < LONGEST ? try : LONGEST));
	hold(&v, now);
	return 0;
}

SEC("uprobe.multi")
int launches(struct pt_regs *ctx)
{
	struct visit v = { .since = since_when(1), .launches = 1 };
	__u64 now;

	if (!v.since)
		return 0;
	now = bpf_ktime_get_ns();
	if (now >= v.since + WAITED)
		return 0;
	v.until = now + LAUNCH_HOLD;
	hold(&v, now);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
