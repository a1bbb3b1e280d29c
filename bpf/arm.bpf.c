// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Stops one thread of a process at a CUDA call. Package inject puts this program on a
 * handful of functions of the target's libcuda for the moment of an injection. It
 * notes who calls them; the one thread that is armed, and that the daemon traces, it
 * sends a signal, so that the thread stops as soon as the program returns: at the
 * entry of a function, holding no lock of libc's.
 *
 * The signal is one whose default is to be ignored (package inject chooses it): where
 * the daemon has died in between, the thread notices nothing.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define BPF_MAP_TYPE_LRU_HASH 9 /* include/uapi/linux/bpf.h */
#define CALLERS 512 /* threads remembered: the last ones that called; those of a program that makes threads all the time are soon gone */

#if defined(__TARGET_ARCH_x86)
struct thread_struct___arm {
	unsigned long fsbase;
} __attribute__((preserve_access_index));
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct___arm {
	struct {
		unsigned long tp_value;
	} uw;
} __attribute__((preserve_access_index));
#endif

struct task_struct___arm {
	struct thread_struct___arm thread;
	struct {
		unsigned long sig[1];
	} blocked;
} __attribute__((preserve_access_index));

/* A thread that called a probed function. */
struct arm_caller {
	__u64 seen;  /* CLOCK_MONOTONIC ns of the last call */
	__u64 calls; /* so far */
	__u64 sp;    /* at the last call */
	__u64 tls;   /* its thread pointer */
};

/* Whom to stop. */
struct arm_order {
	__u32 tid;    /* 0: nobody; set to 0 by the program when it has fired */
	__u32 signal; /* what to send */
	__u64 number; /* of the order, for struct arm_stop */
};

/* That it was done, or (number 0) that a thread called that is not among the callers yet: it may live for milliseconds only. */
struct arm_stop {
	__u64 number; /* of the order */
	__u64 at;     /* CLOCK_MONOTONIC ns */
	__u64 ip;     /* address of the probed instruction */
	__u64 sp;     /* before it */
	__s64 error;  /* of bpf_send_signal_thread: 0, or -errno; -EBUSY: the thread blocks the signal */
	__u64 tls;    /* its thread pointer; number 0 only */
	__u64 tid;    /* number 0 only */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CALLERS);
	__type(key, __u32);
	__type(value, struct arm_caller);
} callers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arm_order);
} orders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} stops SEC(".maps");

const struct arm_caller *export_caller __attribute__((unused));
const struct arm_order *export_order __attribute__((unused));
const struct arm_stop *export_stop __attribute__((unused));

static __always_inline __u64 thread_pointer(void)
{
	struct task_struct___arm *task = (void *)bpf_get_current_task();

#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(task, thread.fsbase);
#elif defined(__TARGET_ARCH_arm64)
	return BPF_CORE_READ(task, thread.uw.tp_value);
#endif
}

static __always_inline __u64 stack_pointer(struct pt_regs *ctx)
{
#if defined(__TARGET_ARCH_x86)
	return ctx->sp;
#elif defined(__TARGET_ARCH_arm64)
	return ctx->user_regs.sp;
#endif
}

static __always_inline __u64 instruction(struct pt_regs *ctx)
{
#if defined(__TARGET_ARCH_x86)
	return ctx->ip;
#elif defined(__TARGET_ARCH_arm64)
	return ctx->user_regs.pc;
#endif
}

/* A signal that the thread blocks would stop it later, who knows where. */
static __always_inline bool blocks(__u32 signal)
{
	struct task_struct___arm *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, blocked.sig[0]) >> ((signal - 1) & 63) & 1;
}

#define EBUSY 16

/* BPF_RB_FORCE_WAKEUP: the daemon sleeps until this one record comes. */
#define FORCE_WAKEUP 2

/* Wakes the daemon for a thread that has just made its first call. Where there is no room it finds the thread among the callers. */
static __always_inline void tell(const struct arm_caller *caller, __u32 tid)
{
	struct arm_stop *first = bpf_ringbuf_reserve(&stops, sizeof(*first), 0);

	if (!first)
		return;
	first->number = 0;
	first->at = caller->seen;
	first->ip = 0;
	first->sp = caller->sp;
	first->error = 0;
	first->tls = caller->tls;
	first->tid = tid;
	bpf_ringbuf_submit(first, FORCE_WAKEUP);
}

/* What a new entry holds at first; not on the stack, of which there is little. */
static const struct arm_caller nothing;

/* Only the thread itself changes its entry. One whose time is 0 is not whole yet. */
static __always_inline void note(struct pt_regs *ctx, __u32 tid)
{
	struct arm_caller *known = bpf_map_lookup_elem(&callers, &tid);
	bool first = !known;

	if (first) {
		bpf_map_update_elem(&callers, &tid, &nothing, BPF_ANY);
		known = bpf_map_lookup_elem(&callers, &tid);
	}
	if (!known)
		return;
	known->calls++;
	known->sp = stack_pointer(ctx);
	if (first)
		known->tls = thread_pointer();
	known->seen = bpf_ktime_get_ns();
	if (first)
		tell(known, tid);
}

SEC("uprobe.multi")
int arm(struct pt_regs *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid(), zero = 0;
	struct arm_order *order = bpf_map_lookup_elem(&orders, &zero);
	struct arm_stop *stop;

	if (!order)
		return 0;
	if (order->tid != tid) {
		note(ctx, tid);
		return 0;
	}
	stop = bpf_ringbuf_reserve(&stops, sizeof(*stop), 0);
	if (!stop)
		return 0;
	order->tid = 0; /* no one else takes this order: it names this thread */
	stop->number = order->number;
	stop->at = bpf_ktime_get_ns();
	stop->ip = instruction(ctx);
	stop->sp = stack_pointer(ctx);
	stop->tls = stop->tid = 0;
	stop->error = blocks(order->signal) ? -EBUSY : bpf_send_signal_thread(order->signal);
	bpf_ringbuf_submit(stop, FORCE_WAKEUP);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
