/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Events, which BPF programs, the agent and Go share. bpf2go makes the Go types
 * out of this file's BTF; internal/recording/event tests their sizes and offsets.
 */
#ifndef INFERSCOPE_EVENT_H
#define INFERSCOPE_EVENT_H

/* What an event describes. */
enum event_kind {
	EVENT_NONE = 0,
	EVENT_CALL = 1, /* a CUDA API call; see the cookie below for its arguments */
	EVENT_FORK = 2, /* a target made a child: pid is the child, args[0] the parent's pid */
	EVENT_EXEC = 3, /* a target replaced its program; args[1..2] hold the new comm */
	EVENT_EXIT = 4, /* the last thread of a target ended; ret is its exit code as wait(2) gives it */
	EVENT_SAMPLE = 5, /* what a thread was doing, with its stack; see "Samples" below */
	EVENT_OFFCPU = 6, /* a thread was not on a CPU from ts for dur; see "Off-CPU intervals" below */
	EVENT_KERNEL = 7, /* the GPU ran a kernel; see "GPU activity" below, also for the rest */
	EVENT_COPY = 8,
	EVENT_SET = 9,
	EVENT_SYNC = 10,     /* a thread or a stream waited for the GPU */
	EVENT_OVERHEAD = 11, /* CUPTI itself or the driver took time: instrumentation, buffers, lazy loading */
	EVENT_RANGE = 12,    /* a named range of a thread: NVTX, or a scope of the Python package */
	EVENT_SKIPPED = 13,  /* calls that have no event of their own; see "Frequent calls" below */
	EVENT_MEMORY = 80,   /* how much memory of a device is allocated; see "Memory" below, also for the rest */
	EVENT_MEMORY_FLOW = 81,
	EVENT_ALLOCATION = 82,
	EVENT_OUT_OF_MEMORY = 83,
};

enum event_flags {
	EVENT_TIMED = 1,  /* dur holds the time from entry to return */
	EVENT_FAULT = 2,  /* an argument in user memory could not be read: its slots are 0 */
	EVENT_DEREF = 4,  /* args[0] is what the first argument pointed to at the return */
	EVENT_CORRELATED = 8, /* EVENT_CALL from the agent: ret is the call's correlation id, not its result */
	EVENT_NCCL = 16, /* EVENT_CALL, a launch: bits 48-63 of args[1] say which function of NCCL the kernel begins with */
};

/*
 * One timed fact. With 64 bytes an event is one cache line in the ring's data pages,
 * apart from the 8-byte ring header.
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
 * Samples. Their stacks come out of the sampler's own ring (sample.bpf.c), so Go
 * makes these events:
 *   func     enum sample_cause
 *   ret      the CPU
 *   args[0]  index + 1 into the recording's stack tree; 0: nothing is known
 *   args[1]  enum stack_origin
 */
enum sample_cause {
	SAMPLE_CLOCK = 0,  /* the sampling clock: the thread was running */
	SAMPLE_SWITCH = 1, /* the thread left its CPU: the OFFCPU interval that begins here has this stack */
	SAMPLE_CAUSES = 2,
};

enum stack_origin {
	STACK_WHOLE = 0,   /* unwound to the thread's start */
	STACK_SPLICED = 1, /* the unwinder gave up: Python frames by an own walk, native ones as far as they went */
	STACK_PYTHON = 2,  /* Python frames and the leaf only */
	STACK_LEAF = 3,    /* the leaf only */
	STACK_ORIGINS = 4,
};

/*
 * Off-CPU intervals, one event each, sent when the thread runs again:
 *   ts, dur  from leaving a CPU to being on one again
 *   func     system call number at the time of leaving, or OFFCPU_NO_SYSCALL
 *   flags    EVENT_TIMED and enum offcpu_flags
 *   ret      CPU that was left in the low 16 bits, CPU that was taken in the high ones
 *   args[0]  ns from ts to the wake-up; 0 where there was none (preempted) or it was not seen.
 *            The thread was blocked until then, and waited for a CPU from then on.
 *   args[1]  who woke it: tid in the low word, pid in the high one; where it was preempted:
 *            who took the CPU. 0: an interrupt or the idle task.
 *   args[2]  first argument of the system call (futex address, file descriptor, ...)
 *   args[3]  for a file descriptor: inode number in the low 48 bits, S_IFMT >> 12 of its mode in
 *            bits 48-51; for another call: its second argument
 */
#define OFFCPU_COMPAT 0x4000 /* in the number of a call of the 32-bit table; its arguments are not known */
#define OFFCPU_NO_SYSCALL 0xffff
#define OFFCPU_STOPPED 0xfffe /* stopped by a signal or a tracer, wherever it was */
enum offcpu_flags {
	OFFCPU_MARK = 4,           /* not an interval of this kind: func is enum offcpu_mark */
	OFFCPU_PREEMPTED = 8,        /* it was runnable, and another thread took the CPU */
	OFFCPU_UNINTERRUPTIBLE = 16, /* state D: a page fault, disk, or a lock in the kernel */
	OFFCPU_FAULT = 32,           /* a page fault that had to wait for the disk (major) */
	OFFCPU_IRQ = 64,             /* woken from an interrupt: args[1] is who ran at the time, not who woke it */
	OFFCPU_OPEN = 128,           /* still off the CPU at the end of the window; made when a recording is taken */
};

/*
 * Further events that complete the partition of a thread's time. ret is as above;
 * fields not named here are 0.
 */
enum offcpu_mark {
	OFFCPU_BORN = 0,   /* the thread was made at ts, and waited for its first CPU for dur */
	OFFCPU_DIED = 1,   /* the thread ended at ts; dur is 0 */
	OFFCPU_WAITED = 2, /* it waited for a CPU when it was first looked at, at ts, and for dur from then on */
	OFFCPU_RUNS = 3,   /* it was on a CPU at ts, where it is first looked at, or (OFFCPU_OPEN) at the end of the
	                    * window */
	OFFCPU_SHORT = 4,  /* too many to send one by one: in [ts, ts + dur] it was blocked for args[0] ns, waited
	                      for a CPU for args[1] ns, and ran for the rest; args[2] intervals. There is one such
	                      event for each reason, with the same ts and dur: ret says which, and args[3] is as in an
	                      interval, for a call on a descriptor */
};

/* ret of OFFCPU_SHORT: func of the intervals, and what they have in common. 0: they are of several reasons. */
#define SHORT_FLAGS(ret) ((__u8)((ret) >> 16)) /* their OFFCPU_PREEMPTED, _UNINTERRUPTIBLE, _FAULT, _IRQ */
#define SHORT_OTHERS (1 << 24)		       /* threads of other processes ended them */
#define SHORT_KNOWN (1 << 30)		       /* always, where ret is not 0 */

/*
 * GPU activity. The agent (agent/abi.h) writes it; no BPF program does. Where a
 * row is not about a thread, tid is the CUPTI stream id. All of KERNEL, COPY, SET:
 *   ts, dur  on the GPU, in CLOCK_MONOTONIC ns; EVENT_TIMED always
 *   func     device in the low byte, CUPTI context id in the high one (255: that or more)
 *   args[0]  correlation id of the call in the low word, CUPTI graph id in the high one (0: not out of a graph)
 *   args[1]  CUPTI graph node id, 0 where it is not out of a graph
 * KERNEL
 *   ret      index + 1 into the recording's kernels; 0: its name was lost
 *   args[2], args[3]  grid and block, as launches pack them
 * COPY
 *   ret      CUpti_ActivityMemcpyKind in the low byte (1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, ...); CUpti_ActivityMemoryKind
 *            of the source in the next, of the destination in the third (1 pageable, 2 pinned, 3 device, 4 array,
 *            5 managed, 6 device static, 7 managed static); asynchronous: bit 24
 *   args[2]  bytes
 *   args[3]  source device in the low word, destination device in the high one; both the row's own unless peer to peer
 * SET
 *   ret      CUpti_ActivityMemoryKind; args[2] bytes; args[3] value
 * SYNC
 *   ret      CUpti_ActivitySynchronizationType: 1 event, 2 stream waits for event, 3 stream, 4 context
 *   tid      stream id, or 0xffffffff; args[0] correlation id; args[2] event id
 * OVERHEAD
 *   ret      CUpti_ActivityOverheadKind >> 16, 0 for the driver compiler; tid is a thread where one is known, else 0
 * RANGE
 *   ret      index + 1 into the recording's ranges' names; tid is the thread; args[0] id; args[1] parent's id
 *   func     0: NVTX; 1: a scope of the Python package (internal/capture/annotate), which no agent writes. Of a scope:
 *   args[2]  asyncio task, a number from 1; 0: none
 *   args[3]  index + 1 into the recording's attributes (JSON objects); 0: none
 */

/*
 * Memory that PyTorch's allocators hand out (memory.bpf.c). In all of them func is the device: c10::DeviceType in the
 * low byte (0 CPU, 1 CUDA), its index in the high one (255: none). What the CUDA driver allocates (memory_driver.h) has
 * types of its own: 0x40 on a GPU, 0x41 pinned, 0x42 managed, 0x43 arrays (without padding), 0x44 mapped from another
 * process or API (0 bytes: of a size that is not known). Their totals begin at the attach, and args[1] of MEMORY and
 * args[3] of OUT_OF_MEMORY equal args[0] and args[2].
 * MEMORY, MEMORY_FLOW
 *   ts, dur  from the device's last such event (at first: from its first call that was seen) to this one; EVENT_TIMED
 *   MEMORY, at the end of that time: args[0] bytes in blocks, args[1] bytes in segments, args[2] the most in blocks
 *            since ts, args[3] bytes in blocks before the first call that was seen
 *   MEMORY_FLOW, since the first call that was seen: args[0] allocations, args[1] frees, args[2] bytes allocated,
 *            args[3] bytes freed. Exact.
 * ALLOCATION, a random sample: each byte is equally likely
 *   ts, dur  from the allocation to the free; EVENT_TIMED. With ALLOCATION_LIVE to the end of the window: not freed.
 *   args[0]  index + 1 into the recording's stack tree; 0: no stack
 *   args[1]  address
 *   args[2]  bytes
 *   args[3]  mean distance of samples, in bytes: it was chosen with probability 1 - exp(-args[2] / args[3])
 *   ret      enum stack_origin
 * OUT_OF_MEMORY, an allocation that failed
 *   ts       when
 *   args[0]  index + 1 into the recording's stack tree; 0: no stack
 *   args[1]  bytes that were asked for, args[2] in blocks, args[3] in segments
 *   ret      enum stack_origin
 */
#define ALLOCATION_LIVE 128 /* in flags: not freed at the end of the window; made when a recording is taken */

/*
 * The attach cookie of a probe selects what to read. It comes from the function table
 * in internal/cuda:
 *
 *   bits  0-15  function index, copied to event.func
 *   bits 16-31  four selectors of 4 bits: the parameter (1 to 15, 0 = none) for args[0] to args[3]
 *   bits 32-35  selector of the aux parameter: entry-only calls carry it in event.ret;
 *               timed calls carry it in bits 56-63 of args[3] (copy kinds fit a byte)
 *   bits 36-39  enum call_shape
 *   bit  40     at the return of a timed call, args[0] becomes the u64 that it points to
 *   bit  41     the function is sampled where a thread calls it very often
 */
#define COOKIE_FUNC(c) ((__u16)(c))
#define COOKIE_SEL(c, i) (((c) >> (16 + 4 * (i))) & 15)
#define COOKIE_AUX(c) (((c) >> 32) & 15)
#define COOKIE_SHAPE(c) (((c) >> 36) & 15)
#define COOKIE_DEREF (1ULL << 40)
#define COOKIE_FREQUENT (1ULL << 41)

/*
 * Frequent calls. Where a thread calls a function very often (allocations, frees), a random sample of the calls
 * has events. The others are counted. EVENT_SKIPPED:
 *   ts, dur  from the first counted call to the end of the count; EVENT_TIMED
 *   func     index into the recording's function table
 *   ret      about one call in this many had an event
 *   args[0]  counted calls made by the program itself
 *   args[1]  counted calls made inside those
 */

/*
 * Launches pack into args:
 *   args[0] function handle or host stub     args[1] stream
 *   args[2] grid:  x | y << 32 | z << 48      (y and z are at most 65,535)
 *   args[3] block: x | y << 11 | z << 22 in the low word, each clipped to its field;
 *           dynamic shared memory in bytes in the high word
 * NCCL's own launches have EVENT_NCCL, and the index of the device function in the top 16 bits of args[1]; no address
 * of user space reaches into them.
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
	LOSS_SKIPPED = 4,     /* a call that is in an EVENT_SKIPPED */
	LOSS_REASONS = 5,
};

#endif
