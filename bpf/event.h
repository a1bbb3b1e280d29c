/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The only structures that BPF programs and Go share. bpf2go makes the Go types
 * out of this file's BTF; internal/event tests their sizes and offsets.
 */
#ifndef INFERSCOPE_EVENT_H
#define INFERSCOPE_EVENT_H

/* What an event says. */
enum event_kind {
	EVENT_NONE = 0,
	EVENT_CALL = 1, /* a CUDA API call; see the cookie below for its arguments */
	EVENT_FORK = 2, /* a target made a child: pid is the child, args[0] the parent's pid */
	EVENT_EXEC = 3, /* a target replaced its program; args[1..2] hold the new comm */
	EVENT_EXIT = 4, /* the last thread of a target ended; ret is its exit code as wait(2) gives it */
};

enum event_flags {
	EVENT_TIMED = 1,  /* dur holds the time from entry to return */
	EVENT_FAULT = 2,  /* an argument in user memory could not be read: its slots are 0 */
	EVENT_DEREF = 4,  /* args[0] is what the first argument pointed to at the return */
};

/*
 * One fact with a time. 64 bytes, so that one event is one cache line in the
 * ring's data pages apart from the 8-byte ring header.
 */
struct event {
	__u64 ts;      /* ns, CLOCK_MONOTONIC (bpf_ktime_get_ns), at the entry */
	__u64 dur;     /* ns, 0 where flags lacks EVENT_TIMED */
	__u32 pid;     /* process (tgid) in the initial pid namespace */
	__u32 tid;     /* thread in the initial pid namespace */
	__u16 func;    /* EVENT_CALL: index into the recording's function table */
	__u8 kind;     /* enum event_kind */
	__u8 flags;    /* enum event_flags */
	__s32 ret;     /* result code where EVENT_TIMED is set; else the value of the aux parameter */
	__u64 args[4]; /* the parameters that the cookie selects, or a shape's own layout */
};

/*
 * The attach cookie of a probe says what to read; it comes from the function
 * table in internal/cuda and fits one u64:
 *
 *   bits  0-15  function index, copied to event.func
 *   bits 16-31  four selectors of 4 bits: the parameter (1 to 15, 0 = none) for args[0] to args[3]
 *   bits 32-35  selector of the aux parameter: entry-only calls carry it in event.ret;
 *               timed calls carry it in bits 56-63 of args[3] (copy kinds fit a byte)
 *   bits 36-39  enum call_shape
 *   bit  40     at the return of a timed call, args[0] becomes the u64 that it points to
 */
#define COOKIE_FUNC(c) ((__u16)(c))
#define COOKIE_SEL(c, i) (((c) >> (16 + 4 * (i))) & 15)
#define COOKIE_AUX(c) (((c) >> 32) & 15)
#define COOKIE_SHAPE(c) (((c) >> 36) & 15)
#define COOKIE_DEREF (1ULL << 40)

/*
 * Launches pack what a person asks about into args:
 *   args[0] function handle or host stub     args[1] stream
 *   args[2] grid:  x | y << 32 | z << 48      (y and z are at most 65,535)
 *   args[3] block: x | y << 11 | z << 22 in the low word, each clipped to its field;
 *           dynamic shared memory in bytes in the high word
 */
enum call_shape {
	SHAPE_PARAMS = 0,        /* what the selectors say */
	SHAPE_LAUNCH = 1,        /* cuLaunchKernel, cuLaunchCooperativeKernel */
	SHAPE_LAUNCH_EX = 2,     /* cuLaunchKernelEx(config *, function, ...) */
	SHAPE_RT_LAUNCH = 3,     /* cudaLaunchKernel(stub, dim3 grid, dim3 block, args, shared, stream) */
	SHAPE_RT_LAUNCH_EX = 4,  /* cudaLaunchKernelExC(config *, stub, args) */
	SHAPE_COPY_2D = 5,       /* CUDA_MEMCPY2D *, [stream]: args[0] dst, [1] src, [2] bytes, [3] stream | kind << 56;
				  * the second parameter is a stream only where the fourth selector is not 0 */
	SHAPE_COPY_3D = 6,       /* CUDA_MEMCPY3D *, [stream]: likewise */
};

/* Why an event was not delivered; index of the per-CPU loss counters. */
enum loss_reason {
	LOSS_RING_FULL = 0,   /* the CPU's ring had no room */
	LOSS_DEPTH = 1,       /* timed calls nested deeper than the per-thread stack */
	LOSS_NO_STORAGE = 2,  /* the kernel had no memory for the per-thread stack */
	LOSS_NO_ENTRY = 3,    /* a return without its entry (the probe was attached inside the call) */
	LOSS_REASONS = 4,
};

#endif
