/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef INFERSCOPE_SAMPLE_PYTHON_H
#define INFERSCOPE_SAMPLE_PYTHON_H

/*
 * Walks the CPython frames of the sampled thread, starting at its thread state, with
 * offsets that internal/capture/profile reads from the interpreter's file.
 *
 * The walk is a bpf_loop where the kernel has it (5.17), else a bounded loop, of which the
 * verifier checks 160 iterations: loading the programs then takes 2 s instead of 0.1 s.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define PYTHON_FRAMES 128
#define PYTHON_STEPS (PYTHON_FRAMES + 32) /* some frames are skipped */
#define KERNEL_FRAMES 32
#define RETURN_FRAMES 4 /* calls whose return is probed */

/* Bytes read at once of a frame and a code object: they cover the needed fields of CPython 3.6 to 3.14. */
#define FRAME_BYTES 128
#define CODE_BYTES 160

/* Only the fields that are read; "___sample" makes them CO-RE flavours. */
#if defined(__TARGET_ARCH_x86)
struct thread_struct___sample {
	unsigned long fsbase;
} __attribute__((preserve_access_index));
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct___sample {
	struct {
		unsigned long tp_value;
	} uw;
} __attribute__((preserve_access_index));
#endif

/* A call whose return is probed: the kernel keeps the return address that its trampoline replaced. */
struct return_instance___sample {
	unsigned long orig_ret_vaddr;
	struct return_instance___sample *next; /* of the call around it */
} __attribute__((preserve_access_index));

struct uprobe_task___sample {
	struct return_instance___sample *return_instances; /* the innermost */
} __attribute__((preserve_access_index));

struct task_struct___sample {
	struct thread_struct___sample thread;
	struct uprobe_task___sample *utask;
} __attribute__((preserve_access_index));

/* Addresses and offsets of CPython's data, which internal/capture/profile reads from the interpreter's file. */
struct python_layout {
	__u64 key_addr;        /* address of the pthread key of the thread state */
	__u64 none_addr;       /* Py_None, the code of frames entered from C in 3.13; 0: no such frames */
	__u64 code_mask;       /* 3.14 keeps tags in the low bits of pointers to code */
	__u64 current_addr;    /* of the pointer to the state that holds the GIL, 3.7 to 3.11; 0: see state_status */
	__u64 gc_addr;         /* of the collector's state; 0: it is in that of the interpreter, */
	__u32 gc_offset;       /* there */
	__u32 status_active;   /* the bit of the thread state's status that is set while it holds the GIL */
	__u16 gc_collecting;   /* offsets in the collector's state; 0: not known and not read */
	__u16 gc_generation0;  /* a pointer that must point to */
	__u16 gc_generations;  /* this field, else the layout differs; not checked where gc_generation0 is 0 */
	__u8 state_interp;     /* offsets in PyThreadState */
	__u8 state_status;
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
	__u8 owner_skipped;    /* frames of this owner hold no user code; 0: none */
	__u8 lasti_is_pointer; /* into the code; before 3.11 it is an index */
	__u8 code_argcount;    /* and PyCodeObject */
	__u8 code_kwonly;
	__u8 code_flags;
	__u8 code_firstlineno;
	__u8 code_size;
	__u8 present;          /* the process runs CPython */
	__u8 entry;            /* how to recognise a frame called by C code: enum python_entry, or */
			       /* the value of frame_owner in it */
};

enum python_entry {
	PYTHON_ENTRY_BELOW = 0, /* since 3.12 there is a frame without code below it */
	PYTHON_ENTRY_ALL = 255, /* before 3.11 every frame is one */
};

/* In sample.python, beside an enum python_walk: the thread collects garbage, or its collector has called Python. */
#define PYTHON_COLLECTING 0x80

/* In python_frame.code, whose own top bit is never set: C code has called the frame. */
#define PYTHON_ENTRY (1ULL << 63)

struct python_frame {
	__u64 code;  /* address of the code object, and PYTHON_ENTRY */
	__u32 check; /* checksum of a few fields of it, to detect that it was replaced; 0: it could not be read */
	__u32 lasti; /* index of the instruction */
};

enum python_walk {
	PYTHON_NONE = 0,     /* no CPython in this process */
	PYTHON_WALKED = 1,   /* to the thread's first frame */
	PYTHON_NO_STATE = 2, /* not a Python thread */
	PYTHON_FAULT = 3,    /* memory could not be read during the walk */
	PYTHON_DEEP = 4,     /* more than PYTHON_FRAMES */
};

/* A record of the ring: this, then python frames, then kernel addresses, then addresses that calls whose return is
 * probed return to, leaf first. */
struct sample {
	__u64 ts;
	__u64 ip; /* of the leaf in user mode */
	__u32 pid;
	__u32 tid;
	__u32 cpu;
	__u8 cause;  /* enum sample_cause, and in the high half how many calls' returns are probed */
	__u8 python; /* enum python_walk, and PYTHON_COLLECTING */
	__u8 python_frames;
	__u8 kernel_frames;
};

struct sample_scratch {
	struct sample sample;
	union {
		struct python_frame python[PYTHON_FRAMES];
		__u8 frames[PYTHON_FRAMES * sizeof(struct python_frame) + (KERNEL_FRAMES + RETURN_FRAMES) * 8];
	};
	__u8 frame[FRAME_BYTES + 8];
	__u8 code[CODE_BYTES];
	/* Room for any one-byte offset: the verifier before 5.17 forgets the bounds of a value that was spilled to the
	 * stack. */
	__u8 room[256 + 4 - CODE_BYTES];
};

/* Set before loading. */
const volatile __u8 have_loop = 0;             /* the kernel has bpf_loop */

/*
 * Uprobe programs have little stack (shapes.h), so there each function is separate and has its own. A perf event
 * program, which is not preempted by another, inlines them.
 */
#ifndef WALK_FUNCTION
#define WALK_FUNCTION __always_inline
#endif

/* Returns the thread pointer, the base of thread-local storage. */
static WALK_FUNCTION __u64 thread_pointer(void)
{
	struct task_struct___sample *task = (void *)bpf_get_current_task();

#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(task, thread.fsbase);
#elif defined(__TARGET_ARCH_arm64)
	return BPF_CORE_READ(task, thread.uw.tp_value);
#endif
}

/* Reads a word of the target through the scratch area, to save stack; 0 where it cannot be read. */
static WALK_FUNCTION __u64 word(struct sample_scratch *s, __u64 addr)
{
	__u64 *to = (void *)s->frame;

	return bpf_probe_read_user(to, sizeof(*to), (void *)addr) ? 0 : *to;
}

/*
 * Returns the thread state, by its pthread key first: that stays set while the thread has
 * released the GIL, when CPython's thread-local pointer (3.12 on) is null.
 */
static WALK_FUNCTION __u64 thread_state(struct sample_scratch *s, const struct python_layout *py)
{
	__u64 base = thread_pointer(), at, state;

	if (py->tsd_multiplier) {
		at = base + py->tsd_offset;
		if (py->tsd_indirect)
			at = word(s, at);
		state = at ? word(s, at + (__u64)(__u32)word(s, py->key_addr) * py->tsd_multiplier) : 0;
		if (state)
			return state;
	}
	return py->tls_offset ? word(s, base + py->tls_offset) : 0;
}

static WALK_FUNCTION int holds_gil(struct sample_scratch *s, const struct python_layout *py, __u64 state)
{
	if (py->current_addr)
		return word(s, py->current_addr) == state;
	return (word(s, state + py->state_status) & py->status_active) != 0;
}

/*
 * Reports whether the thread collects garbage, according to the collector's state. That
 * thread holds the GIL, except while a finalizer has released it: then another thread may
 * be taken for it, and internal/capture/profile checks what that one runs.
 */
static WALK_FUNCTION int collects(struct sample_scratch *s, const struct python_layout *py, __u64 state)
{
	__u64 gc = py->gc_addr;

	if (!py->gc_collecting || !holds_gil(s, py, state))
		return 0;
	if (!gc)
		gc = word(s, state + py->state_interp) + py->gc_offset;
	if ((__u32)word(s, gc + py->gc_collecting) != 1)
		return 0;
	return !py->gc_generation0 || word(s, gc + py->gc_generation0) == gc + py->gc_generations;
}

/* Computes the same checksum as the library's unwinder, which uses it to symbolize. */
static WALK_FUNCTION __u32 checksum(struct sample_scratch *s, const struct python_layout *py, __u64 code)
{
	__u32 args = py->code_argcount, kw = py->code_kwonly, flags = py->code_flags, line = py->code_firstlineno;

	if (args > CODE_BYTES - 4 || kw > CODE_BYTES - 4 || flags > CODE_BYTES - 4 || line > CODE_BYTES - 4)
		return 0;
	if (bpf_probe_read_user(s->code, sizeof(s->code), (void *)code))
		return 0;
	return (*(__u32 *)(s->code + args) << 25) + (*(__u32 *)(s->code + kw) << 18) +
	       (*(__u32 *)(s->code + flags) << 10) + *(__u32 *)(s->code + line);
}

/* Returns the index of the current instruction of the frame in s->frame. */
static WALK_FUNCTION __u32 last_instruction(struct sample_scratch *s, const struct python_layout *py, __u64 code)
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

/* Returns the frame recorded before frame n > 0. The verifier before 5.17 needs the mask, and the compiler would drop
 * it as redundant. */
static __always_inline struct python_frame *before(struct sample_scratch *s, __u64 n)
{
	n--;
	asm volatile("%0 &= %1" : "+r"(n) : "i"(PYTHON_FRAMES - 1));
	return &s->python[n];
}

/* Records one frame and returns the address of the next one; 0 at the end. */
static WALK_FUNCTION __u64 step(struct sample_scratch *s, const struct python_layout *py, __u64 frame)
{
	__u32 code_at = py->frame_code, back_at = py->frame_back, owner_at = py->frame_owner;
	__u32 n = s->sample.python_frames;
	struct python_frame *f;
	__u64 code, back;
	__u8 owner;

	if (code_at > FRAME_BYTES || back_at > FRAME_BYTES || owner_at > FRAME_BYTES || n >= PYTHON_FRAMES)
		return 0;
	if (bpf_probe_read_user(s->frame, sizeof(s->frame), (void *)frame)) {
		s->sample.python = PYTHON_FAULT;
		return 0;
	}
	code = *(__u64 *)(s->frame + code_at) & py->code_mask;
	back = *(__u64 *)(s->frame + back_at);
	owner = s->frame[owner_at];
	if (!code || code == py->none_addr || (py->owner_skipped && owner == py->owner_skipped)) {
		if (n)
			before(s, n)->code |= PYTHON_ENTRY;
		return back;
	}
	f = &s->python[n];
	f->code = code & ~PYTHON_ENTRY;
	if (py->entry == PYTHON_ENTRY_ALL || (py->entry && owner == py->entry))
		f->code |= PYTHON_ENTRY;
	f->lasti = last_instruction(s, py, code);
	f->check = checksum(s, py, code);
	s->sample.python_frames = n + 1;
	return back;
}

/* The state that bpf_loop passes between steps. */
struct walk {
	struct sample_scratch *s;
	const struct python_layout *py;
	__u64 frame;
};

/* One step, for bpf_loop: returns 1 at the end. */
static long walk_step(__u32 i, struct walk *w)
{
	w->frame = step(w->s, w->py, w->frame);
	return w->frame == 0;
}

/* Records the frames of the thread, leaf first, and how the walk ended. */
static __always_inline void walk(struct sample_scratch *s, const struct python_layout *py)
{
	struct walk w = { .s = s, .py = py };
	__u64 state = thread_state(s, py), frame = 0;
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
	if (collects(s, py, state))
		s->sample.python |= PYTHON_COLLECTING;
}

#endif
