// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Samples threads. The perf events count per CPU, or per thread where that is refused, so
 * samples of other processes arrive as well and are dropped first. A perf event runs one
 * BPF program: this one records the thread, the kernel stack and the CPython frames
 * (sample_python.h), then tail-calls the native unwinder, if there is one. So a sample
 * keeps its Python stack where native code cannot be unwound.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "event.h"
#include "sample_python.h"
#include "sample_process.h"

#define BPF_MAP_TYPE_PROG_ARRAY 3

#define NS_PER_WINDOW 100000000ULL /* period of the budget of switch samples */
#define MAX_EVENTS 64 /* perf events of a thread that are searched, including other tools' */

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

/* Only the fields that are read; "___sample" makes them CO-RE flavours. */
struct list_head___sample {
	struct list_head___sample *next;
} __attribute__((preserve_access_index));

struct perf_event___sample;

struct perf_event_context___sample {
	struct list_head___sample event_list;
} __attribute__((preserve_access_index));

struct perf_event___sample {
	struct list_head___sample event_entry;
	struct perf_event_context___sample *ctx;
	void *prog;
} __attribute__((preserve_access_index));

struct bpf_perf_event_data_kern___sample {
	struct perf_event___sample *event;
} __attribute__((preserve_access_index));

enum sample_count {
	SAMPLE_COUNT_LOST = 0,   /* the ring had no room */
	SAMPLE_COUNT_SHED = 1,   /* switch samples beyond the budget */
	SAMPLE_COUNT_DOUBLE = 2, /* samples of a thread's second event */
	SAMPLE_COUNT_SWITCHES = 3, /* switches of any process for which the program ran */
	SAMPLE_COUNTS = 4,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample_scratch);
} sample_scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144); /* internal/capture/profile sets it */
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

/* Exports the type to bpf2go. */
const enum python_walk *export_walk __attribute__((unused));

/* These change while the programs run. */
volatile __u64 switch_budget = 20; /* switch samples of a process in NS_PER_WINDOW */
volatile __u64 thread_events;	   /* not 0: events are of threads, of which one may have two; else of CPUs */

static __always_inline void count(enum sample_count which)
{
	__u64 *n = bpf_map_lookup_elem(&sample_counts, &which);

	if (n)
		(*n)++;
}

/*
 * Begins the next window. The sampling rate of each thread is chosen so that its samples fit
 * into half of the budget if it switches as often as in the last window.
 */
static __always_inline void begin_window(struct sampled_process *p, __u64 now)
{
	__u32 share = switch_budget / 2 ? switch_budget / 2 : 1;

	p->window = now;
	p->switches = 0;
	for (int i = 0; i < SWITCH_SLOTS; i++) {
		p->slots[i].one_of = p->slots[i].switches / share;
		p->slots[i].switches = 0;
		p->slots[i].taken = 0;
	}
}

/*
 * Reports whether this switch of a thread is sampled. The choice is random: taking the first
 * switch after some time would always take the one after a long wait, never the wait itself.
 * The clock is read once per jiffy, so that a burst of switches is cheap. The counts may be
 * slightly off where CPUs race.
 */
static __always_inline int chosen(struct sampled_process *p, struct switch_slot *slot)
{
	__u64 jiffy = bpf_jiffies64(), now;

	if (p->jiffy != jiffy) {
		p->jiffy = jiffy;
		now = bpf_ktime_get_ns();
		if (now - p->window > NS_PER_WINDOW)
			begin_window(p, now);
	}
	slot->switches++;
	return slot->one_of < 2 || bpf_get_prandom_u32() % slot->one_of == 0;
}

/*
 * Reports whether the budget of this process still allows a switch sample. A thread may use
 * half of what the others leave, so that one that switches all the time does not displace
 * those with long waits.
 */
static __always_inline int allowed(struct sampled_process *p, struct switch_slot *slot)
{
	if (p->switches + slot->taken >= switch_budget)
		return 0;
	slot->taken++;
	return __sync_fetch_and_add(&p->switches, 1) < switch_budget;
}

#define READ(to, from) bpf_core_read(&(to), sizeof(to), &(from))

/*
 * Reports whether this is the thread's first event with this program. A thread created while
 * events are opened for its siblings may have an inherited event and one of its own, and its
 * children inherit both.
 */
static __always_inline int is_first(struct bpf_perf_event_data *ctx)
{
	struct bpf_perf_event_data_kern___sample *data = (void *)ctx;
	struct perf_event___sample *event = NULL, *other;
	struct perf_event_context___sample *all = NULL;
	struct list_head___sample *at = NULL;
	void *prog = NULL, *others = NULL;

	if (READ(event, data->event) || READ(prog, event->prog) || READ(all, event->ctx) ||
	    READ(at, all->event_list.next))
		return 1;
	for (int i = 0; i < MAX_EVENTS && at != &all->event_list; i++) {
		other = (void *)at - bpf_core_field_offset(other->event_entry);
		if (READ(others, other->prog) || others == prog)
			return other == event;
		if (READ(at, at->next))
			break;
	}
	return 1;
}

/* The kernel is in the upper half of the address space on both architectures. */
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

/*
 * Appends at offset at of frames the return addresses of calls whose return is probed by any tool, and returns how
 * many. On the stack the kernel has replaced them by its trampoline, at which the native unwinder stops.
 */
static __always_inline __u32 returns(struct sample_scratch *s, __u32 at)
{
	struct task_struct___sample *task = (void *)bpf_get_current_task();
	struct return_instance___sample *r;
	__u64 address, before = 0;
	__u32 n = 0;

	if (!bpf_core_field_exists(task->utask) ||
	    !bpf_core_field_exists(((struct uprobe_task___sample *)0)->return_instances))
		return 0;
	r = BPF_CORE_READ(task, utask, return_instances);
	for (int i = 0; i < 2 * RETURN_FRAMES && r && n < RETURN_FRAMES; i++) {
		address = BPF_CORE_READ(r, orig_ret_vaddr);
		/* Two probes of one call, or of a tail call, have the same address. */
		if (address != before && at <= (PYTHON_FRAMES * sizeof(struct python_frame) + KERNEL_FRAMES * 8)) {
			*(__u64 *)(s->frames + at) = address;
			at += 8;
			n++;
		}
		before = address;
		r = BPF_CORE_READ(r, next);
	}
	return n;
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
	kernel = returns(s, bytes);
	s->sample.cause |= kernel << 4;
	bytes += kernel * 8;
	if (bytes > sizeof(s->frames))
		return;
	if (bpf_ringbuf_output(&samples, s, sizeof(s->sample) + bytes, BPF_RB_NO_WAKEUP))
		count(SAMPLE_COUNT_LOST);
}

static __always_inline int take(struct bpf_perf_event_data *ctx, __u8 cause)
{
	__u64 id = bpf_get_current_pid_tgid(), now, ip;
	__u32 pid = id >> 32, tid = id, zero = 0;
	struct sampled_process *p;
	struct switch_slot *slot;
	struct sample_scratch *s;

	if (cause == SAMPLE_SWITCH)
		count(SAMPLE_COUNT_SWITCHES);
	if (!pid) /* the idle task, most frequent in per-CPU events */
		return 0;
	p = bpf_map_lookup_elem(&sampled_processes, &pid);
	if (!p)
		return 0;
	slot = &p->slots[tid % SWITCH_SLOTS];
	if (cause == SAMPLE_SWITCH && !chosen(p, slot)) {
		p->skipped++;
		count(SAMPLE_COUNT_SHED);
		return 0;
	}
	if (thread_events && !is_first(ctx)) {
		count(SAMPLE_COUNT_DOUBLE);
		return 0;
	}
	if (cause == SAMPLE_SWITCH && !allowed(p, slot)) {
		p->skipped++;
		count(SAMPLE_COUNT_SHED);
		return 0;
	}
	now = bpf_ktime_get_ns();
	s = bpf_map_lookup_elem(&sample_scratches, &zero);
	if (!s)
		return 0;
	ip = IP(&ctx->regs);
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
	__sync_fetch_and_add(&p->taken, 1);
	__sync_fetch_and_add(&p->took, bpf_ktime_get_ns() - now);
	bpf_tail_call(ctx, &sample_next, 0);
	return 0;
}

SEC("perf_event")
int sample_clock(struct bpf_perf_event_data *ctx) { return take(ctx, SAMPLE_CLOCK); }

SEC("perf_event")
int sample_switch(struct bpf_perf_event_data *ctx) { return take(ctx, SAMPLE_SWITCH); }

char LICENSE[] SEC("license") = "Dual BSD/GPL";
