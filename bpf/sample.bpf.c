// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Samples of threads. A perf event takes one BPF program, so this one runs first:
 * it notes who was sampled where, the kernel stack, and the CPython frames
 * (sample_python.h), and then tail-calls the native unwinder, if one is there. So a
 * sample keeps its Python stack where native code cannot be unwound.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "event.h"
#include "sample_python.h"

#define BPF_MAP_TYPE_PROG_ARRAY 3

#define SWITCH_SLOTS 32
#define NS_PER_WINDOW 100000000ULL /* the budget of switch samples is dealt out in tenths of a second */

/* include/uapi/linux/bpf_perf_event.h */
#if defined(__TARGET_ARCH_x86)
struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};
#define IP(regs) ((regs)->ip)
#elif defined(__TARGET_ARCH_arm64)
struct bpf_perf_event_data {
	struct user_pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};
#define IP(regs) ((regs)->pc)
#endif

/* A process that is sampled. */
struct sampled_process {
	__u64 window;   /* ns, when the present tenth of a second of the switch budget began */
	__u64 switches; /* taken in it */
	__u8 taken[SWITCH_SLOTS]; /* of these, by thread: tid % SWITCH_SLOTS */
	struct python_layout python;
};

enum sample_count {
	SAMPLE_COUNT_LOST = 0,   /* the ring had no room */
	SAMPLE_COUNT_SHED = 1,   /* switch samples beyond the budget */
	SAMPLE_COUNT_DOUBLE = 2, /* the second sample of a thread that has two events */
	SAMPLE_COUNTS = 3,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tgid */
	__type(value, struct sampled_process);
} sampled_processes SEC(".maps");

/* Threads that may have an inherited event and one of their own -> ns of the last sample. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tid */
	__type(value, __u64);
} sampled_twice SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample_scratch);
} sample_scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144); /* internal/sampler sets it */
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SAMPLE_COUNTS);
	__type(key, enum sample_count);
	__type(value, __u64);
} sample_counts SEC(".maps");

/* The native unwinder's entry program. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sample_next SEC(".maps");

/* Makes the type known to bpf2go. */
const enum python_walk *export_walk __attribute__((unused));

/* Set before loading. */
const volatile __u64 switch_budget = 20;       /* switch samples of a process in NS_PER_WINDOW */
const volatile __u64 half_period_ns = 5050505; /* of the sampling clock */

static __always_inline void count(enum sample_count which)
{
	__u64 *n = bpf_map_lookup_elem(&sample_counts, &which);

	if (n)
		(*n)++;
}

/*
 * Whether the budget of this process still allows a switch sample. A thread may have
 * half of what the others have left, so that one that wakes all the time does not
 * take the stacks of those that wait for long. The counts may be a few off where
 * CPUs race.
 */
static __always_inline int allowed(struct sampled_process *p, __u32 tid, __u64 now)
{
	__u8 *taken = &p->taken[tid % SWITCH_SLOTS];

	if (now - p->window > NS_PER_WINDOW) {
		p->window = now;
		p->switches = 0;
		__builtin_memset(p->taken, 0, sizeof(p->taken));
	}
	if (p->switches + *taken >= switch_budget)
		return 0;
	(*taken)++;
	return __sync_fetch_and_add(&p->switches, 1) < switch_budget;
}

/*
 * Whether this is the other event's sample of a thread that has two: they have one
 * period and count the same running time, so those of one event are never nearer.
 */
static __always_inline int doubled(__u32 tid, __u64 now)
{
	__u64 *last = bpf_map_lookup_elem(&sampled_twice, &tid);

	if (!last)
		return 0;
	if (now - *last < half_period_ns)
		return 1;
	*last = now;
	return 0;
}

/* Both architectures keep the kernel in the upper half of addresses. */
static __always_inline int in_kernel(__u64 ip) { return (__s64)ip < 0; }

static __always_inline __u64 user_ip(void)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	__u64 ip = 0;

#if defined(__TARGET_ARCH_x86)
	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->ip);
#elif defined(__TARGET_ARCH_arm64)
	bpf_probe_read_kernel(&ip, sizeof(ip), &regs->user_regs.pc);
#endif
	return ip;
}

static __always_inline void send(struct bpf_perf_event_data *ctx, struct sample_scratch *s, __u64 ip)
{
	__u32 bytes = s->sample.python_frames * sizeof(struct python_frame);
	long kernel = 0;

	if (bytes > PYTHON_FRAMES * sizeof(struct python_frame))
		return;
	if (in_kernel(ip)) {
		kernel = bpf_get_stack(ctx, s->frames + bytes, KERNEL_FRAMES * 8, 0);
		if (kernel < 0 || kernel > KERNEL_FRAMES * 8)
			kernel = 0;
		s->sample.kernel_frames = (__u64)kernel / 8;
	}
	bytes += kernel;
	if (bytes > sizeof(s->frames))
		return;
	if (bpf_ringbuf_output(&samples, s, sizeof(s->sample) + bytes, BPF_RB_NO_WAKEUP))
		count(SAMPLE_COUNT_LOST);
}

static __always_inline int take(struct bpf_perf_event_data *ctx, __u8 cause)
{
	__u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns(), ip = IP(&ctx->regs);
	__u32 pid = id >> 32, tid = id, zero = 0;
	struct sampled_process *p = bpf_map_lookup_elem(&sampled_processes, &pid);
	struct sample_scratch *s = bpf_map_lookup_elem(&sample_scratches, &zero);

	if (!p || !s)
		return 0;
	if (cause == SAMPLE_SWITCH && !allowed(p, tid, now)) {
		count(SAMPLE_COUNT_SHED);
		return 0;
	}
	if (cause == SAMPLE_CLOCK && doubled(tid, now)) {
		count(SAMPLE_COUNT_DOUBLE);
		return 0;
	}
	__builtin_memset(&s->sample, 0, sizeof(s->sample));
	s->sample.ts = now;
	s->sample.ip = in_kernel(ip) ? user_ip() : ip;
	s->sample.pid = pid;
	s->sample.tid = tid;
	s->sample.cpu = bpf_get_smp_processor_id();
	s->sample.cause = cause;
	if (p->python.present)
		walk(s, &p->python);
	send(ctx, s, ip);
	bpf_tail_call(ctx, &sample_next, 0);
	return 0;
}

SEC("perf_event")
int sample_clock(struct bpf_perf_event_data *ctx) { return take(ctx, SAMPLE_CLOCK); }

SEC("perf_event")
int sample_switch(struct bpf_perf_event_data *ctx) { return take(ctx, SAMPLE_SWITCH); }

char LICENSE[] SEC("license") = "Dual BSD/GPL";
