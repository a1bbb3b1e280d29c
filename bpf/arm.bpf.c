// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Stops one thread of a process at a CUDA call. During an injection, package inject
 * attaches this program to a few functions of the target's libcuda. It records their
 * callers and sends a signal to the one armed thread, which the daemon traces. That
 * thread stops as soon as the program returns: at the entry of a function, where it
 * holds no lock of libc.
 *
 * Package inject chooses a signal that is ignored by default, so that the thread is not
 * disturbed if the daemon has died.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define CALLERS 512 /* threads remembered, the most recent ones: some programs create threads all the time */

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

/* A seccomp filter in classic BPF, as installed. The kernel keeps it under CONFIG_CHECKPOINT_RESTORE, which all larger
 * distributions set. */
struct sock_fprog_kern___arm {
	__u16 len; /* instructions */
	void *filter;
} __attribute__((preserve_access_index));

struct bpf_prog___arm {
	struct sock_fprog_kern___arm *orig_prog;
} __attribute__((preserve_access_index));

struct seccomp_filter___arm {
	struct seccomp_filter___arm *prev; /* the filter installed before; every call passes all of them */
	struct bpf_prog___arm *prog;
} __attribute__((preserve_access_index));

struct task_struct___arm {
	struct thread_struct___arm thread;
	struct {
		unsigned long sig[1];
	} blocked;
	struct {
		int mode;
		struct seccomp_filter___arm *filter;
	} seccomp;
} __attribute__((preserve_access_index));

#define FILTERS 8 /* of one thread: a container runtime's, a service manager's, the program's own */
#define FILTER_INSTRUCTIONS 4096 /* BPF_MAXINSNS */
#define SECCOMP_MODE_FILTER 2

/* A thread that called a probed function. */
struct arm_caller {
	__u64 seen;  /* CLOCK_MONOTONIC ns of the last call */
	__u64 calls; /* so far */
	__u64 sp;    /* at the last call */
	__u64 tls;   /* its thread pointer */
};

/* The thread to stop. */
struct arm_order {
	__u32 tid;    /* 0: none; the program clears it after sending the signal */
	__u32 signal; /* to send */
	__u64 number; /* of the order, copied to struct arm_stop */
};

/* Reports that an order was carried out, or (number 0) the first call of a thread, which may live for only
 * milliseconds. */
struct arm_stop {
	__u64 number; /* of the order */
	__u64 at;     /* CLOCK_MONOTONIC ns */
	__u64 ip;     /* address of the probed instruction */
	__u64 sp;     /* before it */
	__s64 error;  /* of bpf_send_signal_thread: 0, or -errno; -EBUSY: the thread blocks the signal */
	__s64 filters; /* seccomp filters in the map, the newest first; -1: not all could be read */
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

/* One seccomp filter of the thread that was stopped. */
struct arm_filter {
	__u64 length;                    /* instructions */
	__u64 code[FILTER_INSTRUCTIONS]; /* struct sock_filter */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FILTERS);
	__type(key, __u32);
	__type(value, struct arm_filter);
} filters SEC(".maps");

const struct arm_caller *export_caller __attribute__((unused));
const struct arm_order *export_order __attribute__((unused));
const struct arm_stop *export_stop __attribute__((unused));
const struct arm_filter *export_filter __attribute__((unused));

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

static __always_inline __u64 instruction_pointer(struct pt_regs *ctx)
{
#if defined(__TARGET_ARCH_x86)
	return ctx->ip;
#elif defined(__TARGET_ARCH_arm64)
	return ctx->user_regs.pc;
#endif
}

/* Reports whether the thread blocks a signal: it would be delivered later, at an unknown place. */
static __always_inline bool blocks(__u32 signal)
{
	struct task_struct___arm *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, blocked.sig[0]) >> ((signal - 1) & 63) & 1;
}

#define EBUSY 16

/* BPF_RB_FORCE_WAKEUP: the daemon sleeps until this record arrives. */
#define FORCE_WAKEUP 2

/* Wakes the daemon for the first call of a thread. Without room in the ring the daemon still finds the thread in
 * callers. */
static __always_inline void notify_first_call(const struct arm_caller *caller, __u32 tid)
{
	struct arm_stop *first = bpf_ringbuf_reserve(&stops, sizeof(*first), 0);

	if (!first)
		return;
	first->number = 0;
	first->at = caller->seen;
	first->ip = 0;
	first->sp = caller->sp;
	first->error = first->filters = 0;
	first->tls = caller->tls;
	first->tid = tid;
	bpf_ringbuf_submit(first, FORCE_WAKEUP);
}

/* The initial value of an entry; static because the stack is small. */
static const struct arm_caller empty_caller;

/* Only the thread itself changes its entry. An entry whose time is 0 is incomplete. */
static __always_inline void record_caller(struct pt_regs *ctx, __u32 tid)
{
	struct arm_caller *known = bpf_map_lookup_elem(&callers, &tid);
	bool first = !known;

	if (first) {
		bpf_map_update_elem(&callers, &tid, &empty_caller, BPF_ANY);
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
		notify_first_call(known, tid);
}

/* Copies one filter into entry i of the map and returns 0, or less on failure. One variable serves all reads because
 * the stack is small (program_test.go). */
static __always_inline int copy_filter(void *at, __u32 i)
{
	struct arm_filter *to = bpf_map_lookup_elem(&filters, &i);
	__u16 instructions = 0;
	__u32 length;

	if (!to || bpf_core_read(&at, sizeof(at), &((struct seccomp_filter___arm *)at)->prog) ||
	    bpf_core_read(&at, sizeof(at), &((struct bpf_prog___arm *)at)->orig_prog) ||
	    bpf_core_read(&instructions, sizeof(instructions), &((struct sock_fprog_kern___arm *)at)->len) ||
	    bpf_core_read(&at, sizeof(at), &((struct sock_fprog_kern___arm *)at)->filter))
		return -1;
	length = instructions;
	if (length > FILTER_INSTRUCTIONS)
		return -1;
	asm volatile("" : "+r"(length)); /* keeps the compiler from merging two comparisons into one
	                                  * from which the verifier learns no bound */
	if (length == 0)
		return -1;
	to->length = length;
	return bpf_probe_read_kernel(to->code, length * 8, at);
}

/*
 * Copies the thread's filters in the form of PTRACE_SECCOMP_GET_FILTER. That request needs CAP_SYS_ADMIN and a tracer
 * without a filter of its own, which a daemon in a container does not have. The thread itself runs this program, so its
 * filters cannot change meanwhile.
 */
static __always_inline __s64 copy_filters(void)
{
	struct task_struct___arm *task = (void *)bpf_get_current_task();
	void *filter;
	__u32 i;

	if (!bpf_core_field_exists(task->seccomp.filter) || BPF_CORE_READ(task, seccomp.mode) != SECCOMP_MODE_FILTER)
		return 0;
	filter = BPF_CORE_READ(task, seccomp.filter);
	for (i = 0; i < FILTERS && filter; i++) {
		if (copy_filter(filter, i) ||
		    bpf_core_read(&filter, sizeof(filter), &((struct seccomp_filter___arm *)filter)->prev))
			return -1;
	}
	return filter ? -1 : i;
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
		record_caller(ctx, tid);
		return 0;
	}
	stop = bpf_ringbuf_reserve(&stops, sizeof(*stop), 0);
	if (!stop)
		return 0;
	order->tid = 0; /* no race: only the thread that the order names gets here */
	stop->number = order->number;
	stop->at = bpf_ktime_get_ns();
	stop->ip = instruction_pointer(ctx);
	stop->sp = stack_pointer(ctx);
	stop->tls = stop->tid = 0;
	stop->filters = copy_filters();
	stop->error = blocks(order->signal) ? -EBUSY : bpf_send_signal_thread(order->signal);
	bpf_ringbuf_submit(stop, FORCE_WAKEUP);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
