// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Keeps threads of a process out of the CUDA driver for a moment (package quiesce). All threads are held while CUPTI is
 * removed, because a thread that is inside or launches a graph at that time would crash (agent/src/outside.c,
 * graphs.c). Some are held while the agent waits for the driver's lock, which it gets only when no thread is inside.
 *
 * The programs themselves hold no thread. While the daemon has armed them, they send each passing thread a signal that
 * is ignored by default. The kernel delivers it before the thread runs the driver's code, and the handler of the agent
 * puts the thread to sleep (agent/src/gate.c). So no CPU time is burnt, and nothing that the target writes matters
 * here.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define LAUNCHERS 64 /* launch threads that are told apart; beyond 16 no finalize is tried (takeovers, capture/gpu) */
#define THREADS 1024 /* threads that make other calls */
#define SIGNAL_INTERVAL 1000000ULL /* ns between two signals to one thread at other calls */

struct task_struct___gate {
	struct {
		unsigned long sig[1];
	} blocked;
} __attribute__((preserve_access_index));

/* Written by the daemon. */
struct gate_control {
	__u32 armed;
	__u32 signal;
	__u32 launcher; /* the thread that launches graphs, which also finalizes; 0: not known */
	__u32 every_call; /* send a signal at every call, not once per SIGNAL_INTERVAL */
	__u32 agent;    /* the agent's own thread, which is never held; 0: not known */
	__u32 pad;
};

/* Written by the programs; counts since the start. */
struct gate_state {
	__u64 launched_at; /* CLOCK_MONOTONIC ns of the last launch by the launcher */
	__u64 signals;
	__u64 blocked;     /* signals not sent: the thread blocks it, or sending failed */
	__u64 overflow;    /* launch threads that found no room */
	__u64 passes;      /* launches by other threads than the launcher */
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

/* Threads other than the launcher that have launched a graph, and when they first did. */
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
} signalled SEC(".maps");

const struct gate_control *export_control __attribute__((unused));
const struct gate_state *export_state __attribute__((unused));

static __always_inline void send_signal(const struct gate_control *c, struct gate_state *s)
{
	const struct task_struct___gate *task = (void *)bpf_get_current_task();
	__u64 blocked = BPF_CORE_READ(task, blocked.sig[0]);

	if (blocked >> ((c->signal - 1) & 63) & 1 || bpf_send_signal_thread(c->signal))
		__sync_fetch_and_add(&s->blocked, 1);
	else
		__sync_fetch_and_add(&s->signals, 1);
}

/*
 * Attached to the functions that launch graphs. The program records the thread before it checks whether the gate is
 * armed; the daemon arms the gate before it reads the recorded threads. So one of the two sees the other.
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
		send_signal(c, s);
	return 0;
}

/*
 * Attached to other calls, only while threads are held: to those that can wait for the GPU, and while CUPTI is removed
 * to all that CUPTI intercepts. Probes of perf events, which take long to remove, stay on the former.
 */
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
	if (c->every_call) {
		send_signal(c, s);
		return 0;
	}
	now = bpf_ktime_get_ns();
	last = bpf_map_lookup_elem(&signalled, &tid);
	if (last && now - *last < SIGNAL_INTERVAL)
		return 0;
	bpf_map_update_elem(&signalled, &tid, &now, BPF_ANY);
	send_signal(c, s);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
