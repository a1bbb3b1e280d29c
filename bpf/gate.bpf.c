// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Keeps threads of a process out of the CUDA driver for moments (package quiesce): all of them while CUPTI is taken out
 * of it, for one that is inside then, or launches a graph, dies (agent/src/outside.c, graphs.c), and some while the
 * agent waits for the driver's lock, which it gets when no thread is inside.
 *
 * The programs hold nobody. While the daemon has armed them they send the thread that comes by a signal whose default
 * is to be ignored. The signal is delivered on the way back to the program, before the driver's first instruction but
 * the one that the kernel emulates for the probe, and the agent's handler lets the thread sleep (agent/src/gate.c). So
 * no CPU is burnt, and nothing that the target writes matters here.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define BPF_MAP_TYPE_LRU_HASH 9 /* include/uapi/linux/bpf.h */
#define LAUNCHERS 64    /* threads that launch graphs: of more than 16 nobody wants to know more (internal/capture/gpu,
                         * takeovers) */
#define THREADS 1024    /* that make other calls, and are told apart */
#define APART 1000000ULL /* ns between two signals to one thread at other calls */

struct task_struct___gate {
	struct {
		unsigned long sig[1];
	} blocked;
} __attribute__((preserve_access_index));

/* By the daemon. */
struct gate_control {
	__u32 armed;
	__u32 signal;
	__u32 launcher; /* the thread that launches graphs: it is the one that finalizes; 0: none is known to */
	__u32 each;     /* a thread is sent a signal each time that it comes by, not once in a while */
	__u32 agent;    /* the agent's own thread, which is never held; 0: not known */
	__u32 pad;
};

/* By the programs, so far. */
struct gate_state {
	__u64 launched_at; /* CLOCK_MONOTONIC ns: when the launcher last came by */
	__u64 signals;
	__u64 blocked;     /* threads that were to be sent one, and block it, or could not be */
	__u64 overflow;    /* launchers that there was no room for */
	__u64 passes;      /* launches by others than the launcher */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gate_control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gate_state);
} state SEC(".maps");

/* Threads that have launched a graph, but the launcher, since they are known to the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, LAUNCHERS);
	__type(key, __u32);
	__type(value, __u64);
} launchers SEC(".maps");

/* When a thread was last sent a signal at another call. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, THREADS);
	__type(key, __u32);
	__type(value, __u64);
} told SEC(".maps");

const struct gate_control *export_control __attribute__((unused));
const struct gate_state *export_state __attribute__((unused));

static __always_inline void tell(const struct gate_control *c, struct gate_state *s)
{
	const struct task_struct___gate *task = (void *)bpf_get_current_task();
	__u64 blocked = BPF_CORE_READ(task, blocked.sig[0]);

	if (blocked >> ((c->signal - 1) & 63) & 1 || bpf_send_signal_thread(c->signal))
		__sync_fetch_and_add(&s->blocked, 1);
	else
		__sync_fetch_and_add(&s->signals, 1);
}

/*
 * On the functions that launch graphs. A thread is noted first, and then it is looked whether the gate is armed; the
 * daemon arms it first, and then looks who was noted: one of the two sees the other.
 */
SEC("uprobe.multi")
int launch(struct pt_regs *ctx)
{
	__u32 zero = 0, tid = bpf_get_current_pid_tgid();
	struct gate_control *c = bpf_map_lookup_elem(&control, &zero);
	struct gate_state *s = bpf_map_lookup_elem(&state, &zero);
	__u64 now;

	if (!c || !s)
		return 0;
	if (c->launcher == tid) {
		s->launched_at = bpf_ktime_get_ns();
		return 0;
	}
	if (!bpf_map_lookup_elem(&launchers, &tid)) {
		now = bpf_ktime_get_ns();
		if (bpf_map_update_elem(&launchers, &tid, &now, BPF_ANY))
			__sync_fetch_and_add(&s->overflow, 1);
	}
	__sync_fetch_and_add(&s->passes, 1); /* a full barrier between the two, on x86 */
	if (*(volatile __u32 *)&c->armed)
		tell(c, s);
	return 0;
}

/* On other calls: those that can wait for the GPU, and while CUPTI is taken out all in which it has a part. */
SEC("uprobe.multi")
int call(struct pt_regs *ctx)
{
	__u32 zero = 0, tid;
	struct gate_control *c = bpf_map_lookup_elem(&control, &zero);
	struct gate_state *s = bpf_map_lookup_elem(&state, &zero);
	__u64 now, *last;

	if (!c || !s || !*(volatile __u32 *)&c->armed)
		return 0;
	tid = bpf_get_current_pid_tgid();
	if (tid == c->launcher || tid == c->agent)
		return 0;
	if (c->each) {
		tell(c, s);
		return 0;
	}
	now = bpf_ktime_get_ns();
	last = bpf_map_lookup_elem(&told, &tid);
	if (last && now - *last < APART)
		return 0;
	bpf_map_update_elem(&told, &tid, &now, BPF_ANY);
	tell(c, s);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
