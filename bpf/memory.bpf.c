// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Records the allocations and frees of PyTorch's allocators, with probes on c10::reportMemoryUsageToProfiler and
 * c10::reportOutOfMemoryToProfiler. The allocators call these for every block, with or without a profiler.
 * memory_driver.h does the same for the CUDA driver.
 *
 * Totals are exact and cost a few additions. Stacks are taken of a random sample, as in pprof's heap profile: each byte
 * is equally likely, so an allocation of s bytes is sampled with probability 1 - exp(-s / mean). The mean follows the
 * allocation rate of its size class, so that about memory_budget samples are taken per MEMORY_WINDOW; each record has
 * it.
 *
 * A thread may be preempted in these programs by another that runs them on the same CPU. So only counters are per CPU,
 * records are filled in place in the ring, and the stack stays below 64 bytes (shapes.h gives the reason).
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "event.h"
#include "params.h"
#include "rings.h"
#define WALK_FUNCTION __noinline
#include "sample_process.h"
#include "agent_thread.h"

#define MEMORY_DEVICES 4096
#define MEMORY_LIVE 65536
#define MEMORY_AWAITED 8192
#define MEMORY_EVENT_INTERVAL 10000000LL   /* ns between events of a device whose segments do not change */
#define MEMORY_WINDOW 100000000LL  /* ns after which the mean is adjusted */
#define MEMORY_CLASSES 32
#define MEMORY_BURST 4 /* up to this many times the budget all are sampled: rare allocations are followed completely */
#define MEMORY_STACK 8192	   /* bytes of the thread's stack that are copied at most */

/*
 * Allocations with sizes between two powers of two, from 512 bytes on. Each class has its own budget, so that rare
 * allocations, which tend to live long, are followed completely beside frequent ones.
 */
struct memory_class {
	__u64 mean;   /* bytes for each sample */
	__s64 left;   /* bytes until the next sample */
	__u64 window; /* ns, start of the current window */
	__u64 seen;   /* bytes allocated in it */
	__u64 calls;  /* allocations in it */
	__u64 taken;  /* samples in it */
};

/* The state of one device (or the CPU) in one process. Counters only grow. */
struct memory_device {
	__u64 allocated; /* bytes in blocks, according to the allocator */
	__u64 reserved;	 /* bytes in segments */
	__u64 high;	 /* the most that was allocated since the last event */
	__u64 before;	 /* allocated before the first call that was seen */
	__u64 allocations, frees;
	__u64 allocated_bytes, freed_bytes; /* by these */
	__u64 since;	 /* ns, when the first call was seen */
	__u64 sent;	 /* ns, when the last event was sent */
	__s64 live;	 /* samples not freed yet */
	__u64 samples;	 /* so far */
	__u64 tick, now; /* jiffies, and the ns at which this value was first seen */
	struct memory_class classes[MEMORY_CLASSES];
};

/* A sampled allocation that was not freed. */
struct memory_block {
	__u64 pid; /* in the upper half; device in the lower one */
	__u64 pointer;
};

enum memory_kind {
	MEMORY_ALLOCATION = 1, /* a sample; a struct memory_stack follows */
	MEMORY_FREE = 2,       /* of a sample */
	MEMORY_EXHAUSTED = 3,  /* out of memory; a struct memory_stack follows */
};

struct memory_record {
	__u64 ts;
	__u64 pointer;
	__u64 bytes;
	__u64 mean;
	__u64 allocated;
	__u64 reserved;
	__u32 pid;
	__u32 tid;
	__u32 device; /* c10::DeviceType in the low byte, index in the next */
	__u32 kind;   /* enum memory_kind */
};

/* A record with the stack of the thread: Python frames, registers and the top of the stack. */
struct memory_stack {
	struct memory_record record;
	struct sample_scratch python;
	struct pt_regs regs;
	__u64 stack_bytes;
	__u8 stack[MEMORY_STACK];
};

enum memory_count {
	MEMORY_COUNT_LOST = 0,	  /* samples: the ring had no room */
	MEMORY_COUNT_FORGOTTEN = 1, /* samples whose frees are missed: too many are live */
	MEMORY_COUNT_DEVICES = 2, /* calls: too many devices */
	MEMORY_COUNT_UNFREED = 3, /* frees of samples: the ring had no room */
	MEMORY_COUNT_EVENTS = 4,  /* device events: the CPU's ring had no room; the next one includes it */
	MEMORY_COUNT_BLOCKS = 5,  /* allocations of the driver that are not counted: too many are live */
	MEMORY_COUNT_MAPPINGS = 6, /* calls of cuMemUnmap that end more than is looked for */
	MEMORY_COUNTS = 7,
};

/* Hashes are preallocated: Linux before 6.1 warns of other hashes in probes (check_map_prog_compatibility), and some
 * hosts panic on warnings. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MEMORY_DEVICES);
	__type(key, __u64); /* device | pid << 32 */
	__type(value, struct memory_device);
} memory_devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MEMORY_LIVE);
	__type(key, struct memory_block);
	__type(value, __u64); /* ns, when it was allocated */
} memory_live SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8388608);
} memory_records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MEMORY_COUNTS);
	__type(key, enum memory_count);
	__type(value, __u64);
} memory_counts SEC(".maps");

const enum memory_kind *export_memory_kind __attribute__((unused));
const struct memory_device *export_memory_device __attribute__((unused));
const struct memory_block *export_memory_block __attribute__((unused));
const struct memory_record *export_memory_record __attribute__((unused));
const struct memory_stack *export_memory_stack __attribute__((unused));

/*
 * The number of live sampled blocks by the hash of their pointer, so that most frees need no lookup in memory_live. It
 * may be too high, never too low: a block is counted before its allocation returns.
 */
__u32 memory_awaited[MEMORY_AWAITED];

/* These change while the programs run. */
volatile __u64 memory_least = 4096; /* lower limit of the mean, bytes */
volatile __u64 memory_budget = 4;   /* samples of a class in MEMORY_WINDOW; 0: none */

static __always_inline void count(enum memory_count which)
{
	__u64 *n = bpf_map_lookup_elem(&memory_counts, &which);

	if (n)
		__sync_fetch_and_add(n, 1);
}

/* Returns the number of the highest set bit. */
static __always_inline __u32 highest(__u64 x)
{
	__u32 e = 0;

	if (x >> 32) {
		x >>= 32;
		e += 32;
	}
	if (x >> 16) {
		x >>= 16;
		e += 16;
	}
	if (x >> 8) {
		x >>= 8;
		e += 8;
	}
	if (x >> 4) {
		x >>= 4;
		e += 4;
	}
	if (x >> 2) {
		x >>= 2;
		e += 2;
	}
	return e + (x >> 1 != 0);
}

/*
 * Returns an exponentially distributed number with this mean: -ln(u) of a u in (0, 1]. The logarithm is that of
 * the highest bit, plus a parabola that is exact at the powers of two: off by 0.008 at most.
 */
static __always_inline __s64 distance(__u64 mean)
{
	__u64 u = bpf_get_prandom_u32() | 1, f, log;
	__u32 e = highest(u);

	f = (u << (32 - e) & 0xffffffff) >> 16; /* of 1 << 16, between powers of two */
	log = ((__u64)e << 16) + f + ((22527 * f >> 16) * (65536 - f) >> 16);
	log = ((32ULL << 16) - log) * 45426 >> 16; /* ln 2 */
	return (__s64)(mean * log >> 16) + 1;
}

/* Returns the class of a size. The verifier needs the mask, which the compiler would drop as redundant. */
static __always_inline struct memory_class *class_of(struct memory_device *d, __u64 bytes)
{
	__u64 i = highest(bytes >> 9 | 1);

	if (i >= MEMORY_CLASSES)
		i = MEMORY_CLASSES - 1;
	asm volatile("%0 &= %1" : "+r"(i) : "i"(MEMORY_CLASSES - 1));
	return &d->classes[i];
}

/* Begins a window, with a new mean. */
static __noinline int begin_window(struct memory_class *c, __u64 now)
{
	__u64 budget = memory_budget ? memory_budget : 1, mean, half;

	if (!c)
		return 0;
	/* By the rate since the last window began, but at least half of the old one, so that the next burst does not
	 * find it too small. */
	mean = c->calls > MEMORY_BURST * budget ? c->seen / (budget * ((now - c->window) / MEMORY_WINDOW | 1)) : 0;
	half = c->mean / 2;
	if (mean < half)
		mean = half;
	if (mean < memory_least)
		mean = memory_least;
	if (mean > 1ULL << 40)
		mean = 1ULL << 40;
	c->mean = mean;
	c->left = distance(mean);
	c->window = now;
	c->seen = 0;
	c->calls = 0;
	c->taken = 0;
	return 0;
}

static const struct memory_device nothing;

/* Adds a device at its first call; NULL: there are too many. */
static __noinline struct memory_device *first_call(__u64 key, __u64 before, __u64 now)
{
	struct memory_device *d;

	bpf_map_update_elem(&memory_devices, &key, &nothing, BPF_ANY);
	d = bpf_map_lookup_elem(&memory_devices, &key);
	if (!d) {
		count(MEMORY_COUNT_DEVICES);
		return NULL;
	}
	d->before = before;
	d->since = now;
	d->sent = now;
	d->tick = bpf_jiffies64();
	d->now = now;
	return d;
}

static __always_inline struct event *reserve(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&rings, &cpu);

	return ring ? bpf_ringbuf_reserve(ring, sizeof(struct event), 0) : NULL;
}

static __always_inline void head(struct event *e, const struct memory_device *d, __u64 now, __u16 device)
{
	__u64 id = bpf_get_current_pid_tgid();

	e->ts = d->sent;
	e->dur = now > d->sent ? now - d->sent : 0; /* another thread may have sent one meanwhile */
	e->pid = id >> 32;
	e->tid = id;
	e->func = device;
	e->flags = EVENT_TIMED;
	e->ret = 0;
}

/* Sends the two events with the state of the device. */
static __noinline int send(struct memory_device *d, __u64 now, __u64 device)
{
	struct event *e;

	if (!d)
		return 0;
	e = reserve();
	if (!e) {
		count(MEMORY_COUNT_EVENTS);
		return 0;
	}
	head(e, d, now, device);
	e->kind = EVENT_MEMORY;
	e->args[0] = d->allocated;
	e->args[1] = d->reserved;
	e->args[2] = d->high;
	e->args[3] = d->before;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	e = reserve();
	if (!e) {
		count(MEMORY_COUNT_EVENTS);
		return 0;
	}
	head(e, d, now, device);
	e->kind = EVENT_MEMORY_FLOW;
	e->args[0] = d->allocations;
	e->args[1] = d->frees;
	e->args[2] = d->allocated_bytes;
	e->args[3] = d->freed_bytes;
	d->sent = now;
	d->high = d->allocated;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Fills the fields of a record that do not come from the parameters. */
static __always_inline void fill(struct memory_record *r, __u32 kind, __u32 device)
{
	__u64 id = bpf_get_current_pid_tgid();

	r->ts = bpf_ktime_get_ns();
	r->pid = id >> 32;
	r->tid = id;
	r->device = device;
	r->kind = kind;
}

/* Takes the Python stack of the thread. Not inlined: its variables would add to the stack of the hot path. */
static __noinline int take_stack(struct pt_regs *ctx, struct memory_stack *s)
{
	struct sampled_process *p;
	__u32 pid;

	if (!s)
		return 0;
	pid = s->record.pid;
	__builtin_memset(&s->python.sample, 0, sizeof(s->python.sample));
	s->python.sample.ts = s->record.ts;
	s->python.sample.ip = IP(ctx);
	s->python.sample.pid = pid;
	s->python.sample.tid = s->record.tid;
	p = bpf_map_lookup_elem(&sampled_processes, &pid);
	if (p && p->python.present)
		walk(&s->python, &p->python);
	return 0;
}

/* Copies the registers and the top of the stack, or a smaller part where the stack is shallow. */
static __noinline int copy_stack(struct pt_regs *ctx, struct memory_stack *s)
{
	if (!s)
		return 0;
	bpf_probe_read_kernel(&s->regs, sizeof(s->regs), ctx);
	s->stack_bytes = MEMORY_STACK;
	if (!bpf_probe_read_user(s->stack, MEMORY_STACK, (void *)SP(ctx)))
		return 0;
	s->stack_bytes = MEMORY_STACK / 2;
	if (!bpf_probe_read_user(s->stack, MEMORY_STACK / 2, (void *)SP(ctx)))
		return 0;
	s->stack_bytes = MEMORY_STACK / 4;
	if (!bpf_probe_read_user(s->stack, MEMORY_STACK / 4, (void *)SP(ctx)))
		return 0;
	s->stack_bytes = MEMORY_STACK / 8;
	if (!bpf_probe_read_user(s->stack, MEMORY_STACK / 8, (void *)SP(ctx)))
		return 0;
	s->stack_bytes = MEMORY_STACK / 32;
	if (bpf_probe_read_user(s->stack, MEMORY_STACK / 32, (void *)SP(ctx)))
		s->stack_bytes = 0;
	return 0;
}

/* Returns the counter for the hash of pointer. Blocks begin at multiples of 512 bytes. */
static __always_inline __u32 *awaited(__u64 pointer)
{
	__u64 i = (pointer >> 9) * 0x9e3779b97f4a7c15ULL >> 51;

	return &memory_awaited[i & (MEMORY_AWAITED - 1)];
}

/* Adds a sample to the live blocks. */
static __noinline int note_live(struct memory_device *d, struct memory_stack *s)
{
	struct memory_block block;
	__u32 *frees;
	__u64 born; /* copied to the stack: before Linux 6.2 ring memory may not be passed to a map helper */

	if (!d || !s)
		return 0;
	born = s->record.ts;
	block.pid = (__u64)s->record.pid << 32 | s->record.device;
	block.pointer = s->record.pointer;
	frees = awaited(block.pointer);
	__sync_fetch_and_add(frees, 1);
	if (bpf_map_update_elem(&memory_live, &block, &born, BPF_ANY)) {
		__sync_fetch_and_add(frees, -1);
		count(MEMORY_COUNT_FORGOTTEN);
	} else {
		__sync_fetch_and_add(&d->live, 1);
	}
	d->samples++;
	return 0;
}

/* Reserves the record of an allocation that was chosen; NULL where samples are off or there is no room. */
static __always_inline struct memory_stack *reserve_sample(struct memory_class *c, __u32 device)
{
	struct memory_stack *s;
	__u64 mean = c->mean; /* with which this one was chosen */

	/* More than planned in one window: a burst after a quiet period. */
	if (memory_budget && ++c->taken > MEMORY_BURST * memory_budget && c->taken % memory_budget == 0 &&
	    mean < 1ULL << 40)
		c->mean = 2 * mean;
	c->left = distance(c->mean);
	if (!memory_budget)
		return NULL;
	s = bpf_ringbuf_reserve(&memory_records, sizeof(*s), 0);
	if (!s) {
		count(MEMORY_COUNT_LOST);
		return NULL;
	}
	fill(&s->record, MEMORY_ALLOCATION, device);
	s->record.mean = mean;
	return s;
}

/* Takes a sample of this allocation and chooses the distance to the next. */
static __noinline int sample(struct pt_regs *ctx, struct memory_device *d, struct memory_class *c)
{
	struct memory_stack *s;

	if (!d || !c)
		return 0;
	s = reserve_sample(c, (__u16)PARAM5(ctx));
	if (!s)
		return 0;
	s->record.pointer = PARAM1(ctx);
	s->record.bytes = PARAM2(ctx);
	s->record.allocated = PARAM3(ctx);
	s->record.reserved = PARAM4(ctx);
	take_stack(ctx, s);
	copy_stack(ctx, s);
	note_live(d, s);
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Reports that a sampled block was freed. */
static __noinline int send_free(__u64 key, __u64 pointer)
{
	struct memory_record *r = bpf_ringbuf_reserve(&memory_records, sizeof(*r), 0);

	if (!r) {
		count(MEMORY_COUNT_UNFREED);
		return 0;
	}
	fill(r, MEMORY_FREE, (__u32)key);
	r->pointer = pointer;
	r->bytes = 0;
	r->mean = 0;
	r->allocated = 0;
	r->reserved = 0;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Handles a free, which may be of a sample. */
static __noinline int free_block(struct memory_device *d, __u64 key, __u64 pointer)
{
	struct memory_block block = { .pid = key, .pointer = pointer };

	/* A lookup is cheaper than a failing deletion, which takes a lock. */
	if (!d || !bpf_map_lookup_elem(&memory_live, &block) || bpf_map_delete_elem(&memory_live, &block))
		return 0;
	__sync_fetch_and_add(&d->live, -1);
	__sync_fetch_and_add(awaited(pointer), -1);
	return send_free(key, pointer);
}

/* Reports whether an allocation becomes a sample. */
static __always_inline bool chosen(struct memory_class *c, __u64 bytes, __u64 now)
{
	if ((__s64)(now - c->window) > MEMORY_WINDOW) /* another thread may have seen a later tick */
		begin_window(c, now);
	c->seen += bytes;
	c->calls++;
	c->left -= bytes;
	return c->left < 0;
}

/* Returns the time with the resolution of a kernel tick; a tick that has not changed costs one load. */
static __always_inline __u64 coarse_now(struct memory_device *d)
{
	__u64 tick = bpf_jiffies64();

	if (d->tick != tick) {
		d->tick = tick;
		d->now = bpf_ktime_get_ns();
	}
	return d->now;
}

/* reportMemoryUsageToProfiler(pointer, bytes, allocated, reserved, device): bytes are negative where a block is
 * freed. */
static __always_inline int report(struct pt_regs *ctx)
{
	__u64 key = (bpf_get_current_pid_tgid() >> 32 << 32) | (__u16)PARAM5(ctx);
	struct memory_device *d = bpf_map_lookup_elem(&memory_devices, &key);
	__s64 bytes = PARAM2(ctx);
	struct memory_class *c;
	__u64 now;
	bool moved;

	if (!d) {
		d = first_call(key, PARAM3(ctx) - bytes, bpf_ktime_get_ns());
		if (!d)
			return 0;
	}
	now = coarse_now(d);
	moved = d->reserved != PARAM4(ctx);
	d->reserved = PARAM4(ctx);
	d->allocated = PARAM3(ctx);
	if (bytes < 0) {
		__sync_fetch_and_add(&d->frees, 1);
		__sync_fetch_and_add(&d->freed_bytes, -bytes);
		if (d->live > 0 && *awaited(PARAM1(ctx)))
			free_block(d, key, PARAM1(ctx));
	} else {
		__sync_fetch_and_add(&d->allocations, 1);
		__sync_fetch_and_add(&d->allocated_bytes, bytes);
		if (d->allocated > d->high)
			d->high = d->allocated;
		c = class_of(d, bytes);
		if (chosen(c, bytes, now))
			sample(ctx, d, c);
	}
	if (moved || (__s64)(now - d->sent) > MEMORY_EVENT_INTERVAL)
		send(d, bpf_ktime_get_ns(), (__u16)key);
	return 0;
}

/* reportOutOfMemoryToProfiler(bytes, allocated, reserved, device) */
static __always_inline int out_of_memory(struct pt_regs *ctx)
{
	struct memory_stack *s = bpf_ringbuf_reserve(&memory_records, sizeof(*s), 0);

	if (!s) {
		count(MEMORY_COUNT_LOST);
		return 0;
	}
	fill(&s->record, MEMORY_EXHAUSTED, (__u16)PARAM4(ctx));
	s->record.pointer = 0;
	s->record.bytes = PARAM1(ctx);
	s->record.mean = 0;
	s->record.allocated = PARAM2(ctx);
	s->record.reserved = PARAM3(ctx);
	take_stack(ctx, s);
	copy_stack(ctx, s);
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("uprobe.multi")
int memory_report(struct pt_regs *ctx)
{
	return report(ctx);
}

SEC("uprobe.multi")
int memory_exhausted(struct pt_regs *ctx)
{
	return out_of_memory(ctx);
}

#include "memory_driver.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
