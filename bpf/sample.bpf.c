// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Samples of threads. A perf event takes one BPF program, so this one runs first:
 * it notes who was sampled where, the kernel stack, and the CPython frames that it
 * walks from the thread's own state, and then tail-calls the native unwinder, if one
 * is there. So a sample keeps its Python stack where native code cannot be unwound.
 *
 * The walk of the CPython frames is a bpf_loop where the kernel has it (5.17). Before,
 * it is a bounded loop that does the same, which the verifier goes through 160 times:
 * the programs then take two seconds to load instead of a tenth of one.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "event.h"

#define BPF_MAP_TYPE_PROG_ARRAY 3

#define PYTHON_FRAMES 128
#define PYTHON_STEPS (PYTHON_FRAMES + 32) /* some frames are skipped */
#define KERNEL_FRAMES 32

/* What is read at once of a frame and of a code object: all that CPython 3.6 to 3.14 keep there of interest. */
#define FRAME_BYTES 128
#define CODE_BYTES 160

#define NS_PER_WINDOW 100000000ULL /* the budget of switch samples is dealt out in tenths of a second */

/* Of the kernel's structures only what is read; "___sample" makes them flavours for CO-RE. */
#if defined(__TARGET_ARCH_x86)
struct thread_struct___sample {
	unsigned long fsbase;
} __attribute__((preserve_access_index));
/* include/uapi/linux/bpf_perf_event.h */
struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};
#define IP(regs) ((regs)->ip)
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct___sample {
	struct {
		unsigned long tp_value;
	} uw;
} __attribute__((preserve_access_index));
struct bpf_perf_event_data {
	struct user_pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};
#define IP(regs) ((regs)->pc)
#endif

struct task_struct___sample {
	struct thread_struct___sample thread;
} __attribute__((preserve_access_index));

/* Where CPython keeps what, by internal/sampler out of the interpreter's own file. */
struct python_layout {
	__u64 key_addr;        /* address of the pthread key of the thread state */
	__u64 none_addr;       /* Py_None, which 3.13 has for code in frames entered from C; 0: no such frames */
	__u64 code_mask;       /* 3.14 keeps tags in the low bits of pointers to code */
	__s32 tls_offset;      /* of the thread state pointer from the thread pointer; 0: only by the key */
	__s16 tsd_offset;      /* how the C library finds the value of a key: of the table from the thread pointer, */
	__u8 tsd_multiplier;   /* bytes for each key; 0: not known */
	__u8 tsd_indirect;     /* the table is behind a pointer */
	__u8 state_frame;      /* offsets in PyThreadState, */
	__u8 cframe_current;   /* _PyCFrame, */
	__u8 frame_is_cframe;
	__u8 frame_back;       /* PyFrameObject or _PyInterpreterFrame, */
	__u8 frame_code;
	__u8 frame_lasti;
	__u8 frame_owner;
	__u8 owner_skipped;    /* this owner's frames have no code of a person's; 0: none */
	__u8 lasti_is_pointer; /* into the code; before 3.11 it is an index */
	__u8 code_argcount;    /* and PyCodeObject */
	__u8 code_kwonly;
	__u8 code_flags;
	__u8 code_firstlineno;
	__u8 code_size;
	__u8 present;          /* the process runs CPython */
	__u8 pad;
};

/* A process that is sampled. */
struct sampled_process {
	__u64 window;   /* ns, when the present tenth of a second of the switch budget began */
	__u64 switches; /* taken in it */
	struct python_layout python;
};

struct python_frame {
	__u64 code;  /* address of the code object */
	__u32 check; /* of a few fields of it: tells whether it is still the same; 0: it could not be read */
	__u32 lasti; /* index of the instruction */
};

enum python_walk {
	PYTHON_NONE = 0,     /* no CPython in this process */
	PYTHON_WALKED = 1,   /* to the thread's first frame */
	PYTHON_NO_STATE = 2, /* not a thread of Python's */
	PYTHON_FAULT = 3,    /* memory on the way could not be read */
	PYTHON_DEEP = 4,     /* more than PYTHON_FRAMES */
};

/* A record of the ring: this, then python frames, then kernel addresses, leaf first. */
struct sample {
	__u64 ts;
	__u64 ip; /* of the leaf in user mode */
	__u32 pid;
	__u32 tid;
	__u32 cpu;
	__u8 cause;  /* enum sample_cause */
	__u8 python; /* enum python_walk */
	__u8 python_frames;
	__u8 kernel_frames;
};

struct sample_scratch {
	struct sample sample;
	union {
		struct python_frame python[PYTHON_FRAMES];
		__u8 frames[PYTHON_FRAMES * sizeof(struct python_frame) + KERNEL_FRAMES * 8];
	};
	__u8 frame[FRAME_BYTES + 8];
	__u8 code[CODE_BYTES];
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
const volatile __u8 have_loop = 0;             /* the kernel has bpf_loop */

static __always_inline void count(enum sample_count which)
{
	__u64 *n = bpf_map_lookup_elem(&sample_counts, &which);

	if (n)
		(*n)++;
}

static __always_inline __u64 thread_pointer(void)
{
	struct task_struct___sample *task = (void *)bpf_get_current_task();

#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(task, thread.fsbase);
#elif defined(__TARGET_ARCH_arm64)
	return BPF_CORE_READ(task, thread.uw.tp_value);
#endif
}

/*
 * The thread state by its pthread key first: it stays there while the thread has
 * released the GIL, where CPython's own thread-local pointer (3.12 on) is null.
 */
static __always_inline __u64 thread_state(const struct python_layout *py)
{
	__u64 base = thread_pointer(), at, state = 0;
	__u32 key;

	if (py->tsd_multiplier && !bpf_probe_read_user(&key, sizeof(key), (void *)py->key_addr)) {
		at = base + py->tsd_offset;
		if (py->tsd_indirect && bpf_probe_read_user(&at, sizeof(at), (void *)at))
			return 0;
		at += (__u64)key * py->tsd_multiplier;
		if (!bpf_probe_read_user(&state, sizeof(state), (void *)at) && state)
			return state;
	}
	state = 0;
	if (py->tls_offset)
		bpf_probe_read_user(&state, sizeof(state), (void *)(base + py->tls_offset));
	return state;
}

/* The same sum as the library's unwinder makes, which symbolises by it. */
static __always_inline __u32 checksum(struct sample_scratch *s, const struct python_layout *py, __u64 code)
{
	__u32 args = py->code_argcount, kw = py->code_kwonly, flags = py->code_flags, line = py->code_firstlineno;

	if (args > CODE_BYTES - 4 || kw > CODE_BYTES - 4 || flags > CODE_BYTES - 4 || line > CODE_BYTES - 4)
		return 0;
	if (bpf_probe_read_user(s->code, sizeof(s->code), (void *)code))
		return 0;
	return (*(__u32 *)(s->code + args) << 25) + (*(__u32 *)(s->code + kw) << 18) +
	       (*(__u32 *)(s->code + flags) << 10) + *(__u32 *)(s->code + line);
}

static __always_inline __u32 last_instruction(struct sample_scratch *s, const struct python_layout *py, __u64 code)
{
	__u32 at = py->frame_lasti;
	__s64 bytes;

	if (at > FRAME_BYTES)
		return 0;
	if (!py->lasti_is_pointer)
		return *(__u32 *)(s->frame + at);
	bytes = *(__s64 *)(s->frame + at) - (__s64)code - py->code_size;
	if (bytes < -2 || bytes > 0x10000000)
		bytes = -2;
	return (__u32)((__s32)bytes >> 1);
}

/* Notes one frame and returns the next one's address; 0 at the end. */
static __always_inline __u64 step(struct sample_scratch *s, const struct python_layout *py, __u64 frame)
{
	__u32 code_at = py->frame_code, back_at = py->frame_back, owner_at = py->frame_owner;
	__u32 n = s->sample.python_frames;
	struct python_frame *f;
	__u64 code, back;

	if (code_at > FRAME_BYTES || back_at > FRAME_BYTES || owner_at > FRAME_BYTES || n >= PYTHON_FRAMES)
		return 0;
	if (bpf_probe_read_user(s->frame, sizeof(s->frame), (void *)frame)) {
		s->sample.python = PYTHON_FAULT;
		return 0;
	}
	code = *(__u64 *)(s->frame + code_at) & py->code_mask;
	back = *(__u64 *)(s->frame + back_at);
	if (!code || code == py->none_addr || (py->owner_skipped && s->frame[owner_at] == py->owner_skipped))
		return back;
	f = &s->python[n];
	f->code = code;
	f->lasti = last_instruction(s, py, code);
	f->check = checksum(s, py, code);
	s->sample.python_frames = n + 1;
	return back;
}

struct walk {
	struct sample_scratch *s;
	const struct python_layout *py;
	__u64 frame;
};

static long walk_step(__u32 i, struct walk *w)
{
	w->frame = step(w->s, w->py, w->frame);
	return w->frame == 0;
}

static __always_inline void walk(struct sample_scratch *s, const struct python_layout *py)
{
	struct walk w = { .s = s, .py = py };
	__u64 state = thread_state(py), frame = 0;
	int i;

	s->sample.python = PYTHON_NO_STATE;
	if (!state)
		return;
	s->sample.python = PYTHON_FAULT;
	if (bpf_probe_read_user(&frame, sizeof(frame), (void *)(state + py->state_frame)))
		return;
	if (py->frame_is_cframe && bpf_probe_read_user(&frame, sizeof(frame), (void *)(frame + py->cframe_current)))
		return;
	s->sample.python = PYTHON_WALKED;
	if (have_loop && frame) {
		w.frame = frame;
		bpf_loop(PYTHON_STEPS, walk_step, &w, 0);
		frame = w.frame;
	} else {
		for (i = 0; i < PYTHON_STEPS && frame; i++)
			frame = step(s, py, frame);
	}
	if (frame || s->sample.python_frames == PYTHON_FRAMES)
		s->sample.python = PYTHON_DEEP;
}

/* Whether the budget of this process still allows a switch sample. */
static __always_inline int allowed(struct sampled_process *p, __u64 now)
{
	if (now - p->window > NS_PER_WINDOW) {
		p->window = now;
		p->switches = 0;
	}
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
	if (cause == SAMPLE_SWITCH && !allowed(p, now)) {
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
