// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Follows the processes of a target. A child of a watched process is watched as
 * soon as it exists, so that no grandchild is missed. Fork, exec and exit events go
 * to a small ring of their own; they are rare, so each wakes the reader, which adds
 * about 7 us to a fork of 100 us.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "event.h"

/* Only the fields that are read here; the suffix after "___" makes them CO-RE flavours,
 * independent of the declarations in kernel.h. */
struct signal_struct___process {
	struct {
		int counter;
	} live;
	unsigned int flags;
	int group_exit_code;
} __attribute__((preserve_access_index));

struct id___process {
	__u32 val;
};

struct user_namespace___process {
	int level; /* 0: the initial one */
	struct id___process owner;
} __attribute__((preserve_access_index));

struct cred___process {
	struct id___process uid;
	struct id___process gid;
	struct id___process suid;
	struct id___process sgid;
	struct id___process euid;
	struct id___process egid;
	struct {
		__u64 val;
	} cap_permitted;
	struct user_namespace___process *user_ns;
} __attribute__((preserve_access_index));

struct task_struct___process {
	int pid;
	int tgid;
	int exit_code;
	__u64 start_boottime;
	struct task_struct___process *group_leader;
	struct signal_struct___process *signal;
	const struct cred___process *cred;
	char comm[16];
} __attribute__((preserve_access_index));

/* include/linux/sched/signal.h: exit_group or a fatal signal ended the process. */
#define SIGNAL_GROUP_EXIT 4

/* /proc/PID/stat gives start times in ticks of USER_HZ, which is 100 on every
 * architecture that this runs on (include/asm-generic/param.h). */
#define NS_PER_TICK 10000000ULL

#define MAX_WATCHED 16384
#define EVENTS_BYTES (512 * 1024)

enum process_loss {
	PROCESS_LOSS_RING = 0,    /* the ring had no room for an event */
	PROCESS_LOSS_WATCHED = 1, /* no room in watched: children of this process are missed */
	PROCESS_LOSSES = 2,
};

/* tgid -> start time in ticks, so that a reused pid is not taken for the watched
 * process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WATCHED);
	__type(key, __u32);
	__type(value, __u64);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
} process_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PROCESS_LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} process_losses SEC(".maps");

static __always_inline void count_loss(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&process_losses, &reason);

	if (n)
		(*n)++;
}

static __always_inline int is_watched(struct task_struct___process *task)
{
	__u32 tgid = task->tgid;
	__u64 *ticks = bpf_map_lookup_elem(&watched, &tgid);

	return ticks && *ticks == task->group_leader->start_boottime / NS_PER_TICK;
}

static __always_inline struct event *reserve(__u8 kind, struct task_struct___process *task)
{
	struct event *e = bpf_ringbuf_reserve(&process_events, sizeof(*e), 0);

	if (!e) {
		count_loss(PROCESS_LOSS_RING);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->ts = bpf_ktime_get_ns();
	e->kind = kind;
	e->pid = task->tgid;
	e->tid = task->pid;
	return e;
}

/*
 * Reports whether a process has ids of several users or groups, or capabilities that its user does not have: then only
 * root may see what it does. The rules are those of __ptrace_may_access (kernel/ptrace.c) and cap_ptrace_access_check,
 * without the dumpable flag. The owner of a user namespace has all capabilities in it.
 */
static __always_inline int is_mixed(const struct cred___process *cred)
{
	__u32 uid = cred->uid.val, gid = cred->gid.val;
	__u64 caps = 0;

	if (cred->euid.val != uid || cred->suid.val != uid || cred->egid.val != gid || cred->sgid.val != gid)
		return 1;
	bpf_probe_read_kernel(&caps, sizeof(caps), &cred->cap_permitted);
	return caps && (!cred->user_ns->level || cred->user_ns->owner.val != uid);
}

/*
 * Runs in the parent, after the child can be found in /proc and before it can run.
 * In addition to the fields in event.h, for a child that exits before it can be read
 * from /proc: args[1] is its start_boottime in ns, args[2..3] its comm, ret its real
 * uid, dur whether it is mixed. EVENT_EXEC has ret and dur as well.
 */
SEC("tp_btf/sched_process_fork")
int process_fork(__u64 *ctx)
{
	struct task_struct___process *parent = (void *)ctx[0];
	struct task_struct___process *child = (void *)ctx[1];
	__u32 tgid = child->tgid;
	struct event *e;
	__u64 ticks;

	if (child->pid != child->tgid || !is_watched(parent))
		return 0;
	ticks = child->start_boottime / NS_PER_TICK;
	if (bpf_map_update_elem(&watched, &tgid, &ticks, BPF_ANY))
		count_loss(PROCESS_LOSS_WATCHED);
	e = reserve(EVENT_FORK, child);
	if (!e)
		return 0;
	e->args[0] = parent->tgid;
	e->args[1] = child->start_boottime;
	bpf_get_current_comm(&e->args[2], 16); /* the child inherits it */
	e->ret = child->cred->uid.val;
	e->dur = is_mixed(child->cred);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int process_exec(__u64 *ctx)
{
	struct task_struct___process *task = (void *)ctx[0];
	struct event *e;

	if (!is_watched(task))
		return 0;
	e = reserve(EVENT_EXEC, task);
	if (!e)
		return 0;
	bpf_get_current_comm(&e->args[1], 16);
	e->ret = task->cred->uid.val;
	e->dur = is_mixed(task->cred);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* Returns the status that wait(2) will report, as in wait_task_zombie of kernel/exit.c. */
static __always_inline int exit_code(struct task_struct___process *task)
{
	if (task->signal->flags & SIGNAL_GROUP_EXIT)
		return task->signal->group_exit_code;
	return task->group_leader->exit_code;
}

SEC("tp_btf/sched_process_exit")
int process_exit(__u64 *ctx)
{
	struct task_struct___process *task = (void *)ctx[0];
	__u32 tgid = task->tgid;
	struct event *e;

	if (!is_watched(task) || task->signal->live.counter)
		return 0;
	/* Two last threads may both see live == 0: the one that deletes the entry sends the event. */
	if (bpf_map_delete_elem(&watched, &tgid))
		return 0;
	e = reserve(EVENT_EXIT, task);
	if (!e)
		return 0;
	e->ret = exit_code(task);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
