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
#define CALLERS 512 /* threads remembered: the last ones that called; those of a program that makes threads all the time
                     * are soon gone */

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

/* A seccomp filter as it was installed, of classic BPF; the kernel keeps it with CONFIG_CHECKPOINT_RESTORE, as all
 * larger distributions have it. */
struct sock_fprog_kern___arm {
	__u16 len; /* instructions */
	void *filter;
} __attribute__((preserve_access_index));

struct bpf_prog___arm {
	struct sock_fprog_kern___arm *orig_prog;
} __attribute__((preserve_access_index));

struct seccomp_filter___arm {
	struct seccomp_filter___arm *prev; /* the one before it; all of them judge each call */
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

/* Whom to stop. */
struct arm_order {
	__u32 tid;    /* 0: nobody; set to 0 by the program when it has fired */
	__u32 signal; /* what to send */
	__u64 number; /* of the order, for struct arm_stop */
};

/* That it was done, or (number 0) that a thread called that is not among the callers yet: it may live for milliseconds
 * only. */
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

/* Wakes the daemon for a thread that has just made its first call. Where there is no room it finds the thread among the
 * callers. */
static __always_inline void tell(const struct arm_caller *caller, __u32 tid)
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

/* Copies one filter into the map's entry i; 0 where it did. One variable for all that is read on the way: the stack is
 * short (program_test.go). */
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
	asm volatile("" : "+r"(length)); /* else the compiler makes one comparison of two, of which the verifier learns no
	                                  * bound */
	if (length == 0)
		return -1;
	to->length = length;
	return bpf_probe_read_kernel(to->code, length * 8, at);
}

/*
 * Copies the thread's filters, as PTRACE_SECCOMP_GET_FILTER would tell them: that takes CAP_SYS_ADMIN and a reader that
 * is under no filter itself, which a container has not. Here the thread runs this program itself, so nothing can
 * change.
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
	stop->filters = copy_filters();
	stop->error = blocks(order->signal) ? -EBUSY : bpf_send_signal_thread(order->signal);
	bpf_ringbuf_submit(stop, FORCE_WAKEUP);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
