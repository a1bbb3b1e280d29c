// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Keeps the threads of a process out of the CUDA driver for a moment. cuptiSubscribe and cuptiFinalize wait until no thread is inside,
 * which, where several threads nearly always are, takes seconds to minutes (libcuda 580, CUPTI 13.0). Package gate puts this program on
 * functions of the driver at which threads come by all the time. While the agent waits, as its ring in the process says, each thread is
 * held there, before it is inside, until the agent has got what it waits for, or the thread's time is up: once in each try.
 *
 * Put on the functions that launch graphs, in every process, it holds launches in the midst of a finalize, which kill
 * (agent/src/graphs.c). A thread that is known for launches does not meet one; this is for those that nobody has seen to launch before.
 *
 * A thread is held by its CPU: nothing has to wake it, and where the daemon dies nothing is left to be undone. A kernel that does not
 * preempt itself lets nobody else run there meanwhile; a real-time task that wakes up, such as the helper that stops a thread
 * (internal/inject), would not look for another CPU. So a thread gives way to those, except for a launch.
 *
 * bpf_loop is of 5.17. Before it, from 5.13 on, a thread is held by walks over a map of which only the length counts.
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
#define LOOKS (1 << 23)    /* more than fit into a thread's time */
#define STEPS 16384        /* of a walk, */
#define STEP_LOOKS 16      /* each so many looks: 15 ms and more, */
#define WALKS 32           /* and one after the other more than a thread's time */
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEPS);
	__type(key, __u32);
	__type(value, __u32);
} steps SEC(".maps");

const struct gate_count *export_count __attribute__((unused));

/* What the agent says of itself: opening, leaving and finalizing of struct agent_ring (agent/abi.h), CLOCK_MONOTONIC ns. */
struct words {
	__u64 opening, leaving, finalizing;
};

/* Set before loading. */
const volatile __u64 words_at = 0; /* where they lie in the process */
const volatile __u8 launches = 0;  /* it is put on those */

/* A thread's time before the driver. */
struct stay {
	__u64 at;    /* of the agent's words the one that it is held for, */
	__u64 since; /* and what that says: when it began */
	__u64 began, until;
	__u64 over;
};

/* Whether the agent waits, or a finalize is under way; not where its words cannot be read. */
static __always_inline int wanted(struct stay *s)
{
	struct words w = {}, *at = (void *)words_at;

	if (bpf_probe_read_user(&w, sizeof(w), at))
		return 0;
	s->at = (__u64)(launches ? &at->finalizing : w.opening ? &at->opening : &at->leaving);
	s->since = launches ? w.finalizing : w.opening ? w.opening : w.leaving;
	return s->since != 0;
}

/* Whether a real-time task waits for this CPU. Kernels that do not group tasks (CONFIG_FAIR_GROUP_SCHED) do not tell. */
static __always_inline int in_the_way(void)
{
	const struct task_struct___gate *task = (void *)bpf_get_current_task();
	unsigned int held = BPF_CORE_READ(task, prio) < MAX_RT_PRIO;

	return bpf_core_field_exists(task->se.cfs_rq) && bpf_core_field_exists(((struct cfs_rq *)0)->rq) &&
	       BPF_CORE_READ(task, se.cfs_rq, rq, rt.rt_nr_running) > held;
}

/* Not 0 when it is over. Without a branch, for verifiers follow each. */
static __always_inline __u64 over(const struct stay *s)
{
	__u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)s->at); /* 0 where it cannot be read */
	return (word ^ s->since) | (s->until - bpf_ktime_get_ns()) >> 63;
}

static long look(__u32 index, void *context) { return over(context) || (!launches && in_the_way()); }

static long step(void *map, const void *key, void *value, void *context)
{
	struct stay *s = context;
	__u64 any = 0;

	for (int i = 0; i < STEP_LOOKS; i++)
		any |= over(s);
	s->over = any || (!launches && in_the_way());
	return s->over != 0;
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

/* The number of the try after so much waiting, ns, of PATIENCE at least. */
static __always_inline __u64 try_of(__u64 waited)
{
	__u64 try = 0;

	while (try < DOUBLED && waited >= PATIENCE << (try + 1))
		try++;
	return try < DOUBLED ? try : DOUBLED + (waited - (PATIENCE << DOUBLED)) / RARELY;
}

/* How long a thread that comes by is held, ns, after so much waiting, and in which try. 0: not at all. */
static __always_inline __u64 patience(__u64 waited, __u64 *try)
{
	if (launches)
		return waited < WAITED ? LAUNCH_HOLD : 0;
	if (waited < PATIENCE)
		return 0;
	*try = try_of(waited);
	return HOLD << (*try < LONGEST ? *try : LONGEST);
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

/* Whether the current thread is to be held, and for how long. */
static __always_inline int enter(struct stay *s)
{
	__u64 try = 0, ns;

	if (!wanted(s))
		return 0;
	s->began = bpf_ktime_get_ns();
	ns = patience(s->began - s->since, &try);
	s->until = s->began + ns;
	return ns && (launches || !held_in(s->since + try));
}

SEC("uprobe.multi")
int gate(struct pt_regs *ctx)
{
	struct stay s = {};

	if (!enter(&s))
		return 0;
	bpf_loop(LOOKS, look, &s, 0);
	count(bpf_ktime_get_ns() - s.began);
	return 0;
}

/* The same before 5.17. */
SEC("uprobe.multi")
int gate_by_walks(struct pt_regs *ctx)
{
	struct stay s = {};

	if (!enter(&s))
		return 0;
	for (int i = 0; i < WALKS && !s.over; i++)
		bpf_for_each_map_elem(&steps, step, &s, 0);
	count(bpf_ktime_get_ns() - s.began);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
