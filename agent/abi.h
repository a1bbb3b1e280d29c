/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between the agent, which runs in the target, and the daemon: a shared-memory ring per process, and the
 * parameters that are patched into the agent's image before it is loaded. The Go side is internal/capture/gpu/abi.go;
 * TestABI compares the two.
 *
 * The daemon trusts nothing in here: the target may write everything at any time. The agent trusts nothing that could
 * harm the target: an unknown mode from the daemon makes it shut down.
 */
#ifndef INFERSCOPE_AGENT_ABI_H
#define INFERSCOPE_AGENT_ABI_H
#include <stdint.h>

#define AGENT_MAGIC 0x41534e49u /* "INSA" */
#define AGENT_ABI 4u            /* version of this file: agent and daemon must have the same */

/*
 * One slot. Its layout is that of struct event (bpf/event.h) with seq in place of pid, which the daemon knows. The slot
 * at position p (from 0, never reset) has the index p % slots, and is complete when seq == (uint32_t)(p / slots) + 1,
 * stored with release.
 */
struct agent_slot {
	uint64_t ts, dur;
	uint32_t seq, tid;
	uint16_t func;
	uint8_t kind, flags;
	int32_t ret;
	uint64_t args[4];
};

/*
 * Kinds of slots: those of enum event_kind (EVENT_CALL, EVENT_KERNEL, ... EVENT_RANGE), and these, from which the
 * daemon makes the recording's tables. In EVENT_CALL func is the driver callback id (CUpti_driver_api_trace_cbid), ret
 * the correlation id, flags EVENT_TIMED | EVENT_CORRELATED, tid the thread in the target's own pid namespace, args as
 * internal/cuda packs that call. In EVENT_KERNEL and EVENT_RANGE ret is the id of an earlier AGENT_NAME.
 */
enum agent_kind {
	AGENT_NAME = 64,   /* ret: id, from 1, per agent; func: bytes of the text; dur: registers | static shared << 32;
	                    * ts: local bytes; flags: 0 kernel, 1 range, 2 device name. The text follows in the next slots,
	                    * each AGENT_TEXT, at adjacent positions. */
	AGENT_TEXT = 65,   /* 59 bytes of text: struct agent_text */
	AGENT_WINDOW = 66, /* a window ended: [ts, ts + dur]; ret: enum agent_end; func: enum agent_window;
	                    * args[0] records written, [1] dropped by CUPTI, [2] ns of subscribe + enable, [3] ns of the
	                    * end; tid: operations that were still running then, which have no slot */
	AGENT_DEVICE = 67, /* ret: device id; args[0] memory bytes, [1] memory bytes/s; [2] SMs | major << 32 | minor << 48;
	                    * tid: id of its AGENT_NAME; ts, dur: its UUID, 16 bytes as cuDeviceGetUuid_v2 gives them;
	                    * flags: DEVICE_PART */
	AGENT_OPENED = 69, /* a window began at ts; args[2] as in AGENT_WINDOW */
	AGENT_STEPS = 70,  /* times of the steps of a window, ns, written just before its AGENT_WINDOW: args holds 8
	                    * uint32_t, by enum agent_step, at most 4294967295; ts: when the first began; dur: the longest
	                    * flush while the window was open, ret: us from the opening to that; tid: ns of enabling the
	                    * callbacks that end it */
	AGENT_HOLD = 71,   /* the gates were closed from ts on, for dur, by tid, the thread that worked meanwhile: args[0]
	                    * ns until all other threads were outside (dur: they never were); [1] and [2]: ns for which
	                    * that thread waited for a CPU before and after that moment */
};

/* func of AGENT_WINDOW: flags. */
enum agent_window {
	WINDOW_CALLS = 1, /* callbacks recorded calls */
	WINDOW_OWN = 2,   /* END_FINALIZED by the agent's own thread: no thread of the target did the work */
	WINDOW_STARVED = 4, /* not finalized, because the thread that would do it waits for CPUs and would have held others
	                     * for too long */
};

/* Flags of an AGENT_DEVICE. */
enum { DEVICE_PART = 1 }; /* a part of a GPU (MIG) */

/* The steps of a window. The last four run in a thread of the target where it ended as END_FINALIZED without
 * WINDOW_OWN, in the agent's otherwise. */
enum agent_step {
	STEP_SUBSCRIBE = 0, /* cuptiSubscribe */
	STEP_SET_UP = 1,    /* buffers, clock, ids of threads */
	STEP_CALLBACKS = 2, /* enabling them */
	STEP_KINDS = 3,     /* enabling the kinds of records */
	STEP_DISABLE = 4,   /* of the kinds */
	STEP_FLUSH = 5,
	STEP_LEAVE = 6,     /* clock back, unsubscribe */
	STEP_FINALIZE = 7,  /* cuptiFinalize */
	STEPS = 8,
};

/* The slot of a text: everything is text except seq and kind, which stay in their places. */
struct agent_text {
	uint8_t text_a[16];
	uint32_t seq;
	uint8_t text_b[6];
	uint8_t kind;
	uint8_t text_c[37];
};

/* How a window ended. */
enum agent_end {
	END_FINALIZED = 1, /* inside a callback at the exit of a synchronizing call, the target's or the agent's own: CUPTI
	                    * is removed */
	END_DISABLED = 2,  /* no such exit came in time, or several threads launch graphs: kinds off, unsubscribed; graphs
	                    * that ran stay slower */
	END_REFUSED = 3,   /* it never began: args[0] is the error */
	END_KEPT = 4,      /* kinds and callbacks off, still subscribed: subscribing or removing takes too long to do it for
	                    * each window, or a thread was not proven to be outside; no other profiler can subscribe */
};

/* What the daemon wants. */
enum agent_mode {
	MODE_OFF = 0,        /* no GPU records; the open window ends, with a finalize if possible */
	MODE_WINDOWS = 1,    /* records for on_ns in every period_ns */
	MODE_CONTINUOUS = 2, /* records until the mode changes */
	MODE_QUIT = 3,       /* shut down: likewise, and the thread ends; the code stays mapped */
};

/* What the agent is doing. */
enum agent_state {
	STATE_STARTING = 0,
	STATE_IDLE = 1,    /* between windows or off; nothing of CUPTI is on */
	STATE_OPENING = 2, /* subscribe and enable */
	STATE_OPEN = 3,
	STATE_CLOSING = 4, /* waits for an exit to finalize at */
	STATE_REFUSED = 5, /* CUPTI cannot be used: see error */
	STATE_GONE = 6,    /* the thread has ended */
	STATE_KEPT = 7,    /* between windows; subscribed, kinds and callbacks off */
	STATE_LEAVING = 8, /* its own thread finalizes, for which it may wait seconds without holding anybody */
};

/* Why CUPTI cannot be used: error below is one of these, or a CUptiResult. */
enum agent_error {
	ERROR_NONE = 0,
	ERROR_NO_CUPTI = 1001,   /* no libcupti mapped, none of the paths opened */
	ERROR_NO_SYMBOL = 1002,  /* it lacks a function */
	ERROR_TOO_OLD = 1003,    /* its records lack fields */
	ERROR_MEMORY = 1004,
	ERROR_GRAPH_THREADS = 1005, /* several threads launch graphs: CUPTI could not be removed again */
	ERROR_BUSY = 39,         /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: another profiler */
};

#define AGENT_PATH 240
#define AGENT_HOLDER 64
#define AGENT_HOLDS 5
#define AGENT_OUTS 16

/* A thread in the target's pid namespace, and a time, CLOCK_MONOTONIC ns. */
struct agent_out {
	uint32_t tid, pad;
	uint64_t at;
};

/*
 * The ring's first page. Each group is written by one side only. The slots begin at AGENT_DATA. The memfd is sealed
 * against shrinking and growing before it is announced.
 */
#define AGENT_DATA 4096
struct agent_ring {
	/* written once, by the agent, before it is announced */
	uint32_t magic, abi;
	uint32_t slots; /* a power of two */
	int32_t pid;    /* in its own pid namespace */
	uint8_t build[20];
	uint32_t pad0[7];
	/* by the daemon */
	uint64_t heartbeat; /* CLOCK_MONOTONIC ns; older than 1.5 s: the daemon has ended, so the agent shuts down */
	uint64_t tail;      /* position up to which the daemon has read */
	uint64_t on_ns, period_ns, deadline_ns; /* deadline: how long to wait for an exit to finalize at */
	uint32_t mode;      /* enum agent_mode */
	uint32_t wake;      /* shared futex, changed with every change of mode or times. Where the daemon can, a robust one:
	                     * the id of a thread that lives as long as the daemon, and FUTEX_WAITERS. When the thread ends
	                     * the kernel clears the id, sets FUTEX_OWNER_DIED, and wakes the agent */
	uint64_t flush;     /* raised by the daemon (and then wake) to get what CUPTI holds: see flushed */
	/* by the agent */
	uint64_t head;      /* next position to reserve */
	uint64_t dropped;   /* slots that had no room, so far */
	uint64_t began;     /* CLOCK_MONOTONIC ns at which the open window began; 0: none is open */
	uint32_t state;     /* enum agent_state */
	int32_t error;      /* enum agent_error or CUptiResult */
	uint32_t cupti_version;
	uint32_t windows;   /* ended so far */
	uint32_t graphs;    /* 0: CUPTI is removed. Kinds went off without a finalize: 1: after a graph ran, which stays
	                     * slower; 2: no graph ran, but launches may stay slower */
	uint32_t flushed;   /* low word of flush when the agent last delivered everything that CUPTI gives out; also set
	                     * when no window is open */
	uint64_t opening;   /* CLOCK_MONOTONIC ns since when the agent waits in cuptiSubscribe; 0: it does not */
	uint64_t leaving;   /* since when its own thread waits in cuptiFinalize; 0: it does not */
	uint64_t finalizing; /* since when the gates are closed; 0: they are open */
	char path[AGENT_PATH]; /* of the libcupti in use */
	uint64_t lost;      /* records that CUPTI dropped in the open window, so far */
	/* by the daemon */
	uint32_t turns;     /* times that it has woken the agent: in a robust wake only one bit changes */
	uint32_t graph_threads; /* 1: its probes saw several threads launch graphs: no window opens, because CUPTI could not
	                         * be removed again, and nothing finalizes */
	uint32_t graph_thread;  /* the thread that they saw launch graphs, in the target's pid namespace: no other finalizes
	                         * while it lives; 0: none was seen */
	/* by the agent */
	char holder[AGENT_HOLDER]; /* name of the subscriber of CUPTI (ERROR_BUSY); "" where CUPTI does not tell */
	/* by the daemon: the gates (bpf/gate.bpf.c) */
	uint32_t gate;      /* the signals by which they hold threads: at launches of graphs, and << 16 at other calls (0:
	                     * none). 0: there are no gates. Otherwise nothing finalizes before armed == ask */
	uint32_t armed;     /* the ask for which the gates are armed */
	/* by the agent */
	uint32_t ask;       /* raised by the agent to have the gates armed */
	uint32_t asked;     /* enum agent_ask: what for */
	uint32_t inside_count; /* threads that may still be inside of CUPTI after a callback: no subscription begins */
	uint64_t hold_ns, hold_longest;     /* how long threads were held: in total, and the longest time */
	uint32_t holds[AGENT_HOLDS];        /* threads held, by time: up to 1, 2, 5, 10 ms, and longer */
	uint32_t gated;     /* by the daemon: 1: armed for ASK_OUT or ASK_ALL, the gates hold all calls that CUPTI
	                     * intercepts, launches of kernels included */
	struct agent_out inside[AGENT_OUTS]; /* the first of the threads in inside_count, and when their last callbacks
	                                      * began */
	/* by the daemon */
	struct agent_out seen[AGENT_OUTS];   /* those of them that probes saw outside of the driver, and when */
	uint32_t gates_lost; /* 1: this daemon's gates are not attached yet, or are gone: the open window ends as END_KEPT,
	                      * no other opens, and nothing finalizes */
};

/* What the gates are needed for. */
enum agent_ask {
	ASK_NOTHING = 0, /* they are not needed */
	ASK_IN = 1,  /* a subscription */
	ASK_OUT = 2, /* a finalize */
	ASK_TAKEN = 3, /* the target handles a signal of the gates itself: another one is needed */
	ASK_ALL = 4, /* a flush or an unsubscribe by the agent's own thread: the thread that launches graphs is held, too */
};

/*
 * Parameters: in the image (symbol inferscope_params, section .inferscope) when it is loaded, or in a memfd of their
 * own when an agent that is mapped already is started again. The agent reads them, writes its hello at hello_at of the
 * same memfd, and closes it.
 */
struct agent_params {
	uint32_t magic, abi;
	int32_t fd;          /* of the memfd that holds this, in the target; -1: CUDA_INJECTION64_PATH, no hello */
	uint32_t slots;      /* of the ring to create */
	uint32_t mode;       /* enum agent_mode at the start */
	uint32_t pad;
	uint64_t on_ns, period_ns, deadline_ns;
	uint64_t heartbeat;  /* the first heartbeat; 0: 8.5 s after the start */
	uint64_t hello_at;   /* file offset of the hello, behind the image, whose pages are mapped */
	char cupti[AGENT_PATH * 2]; /* path of a libcupti to try if none is mapped; "": the usual names */
};

/* The agent's answer; magic is written last. */
struct agent_hello {
	uint32_t magic, abi;
	int32_t error;       /* 0, or -errno of what failed; then the ring's fd is -1 */
	int32_t ring_fd;     /* in the target; the daemon opens /proc/PID/fd/N; the agent closes it when wake is not 0 */
	int32_t tid;         /* of the agent's thread, in the target's pid namespace */
	uint32_t pad;
	uint64_t entered, left; /* CLOCK_MONOTONIC ns: when the thread that started the agent entered and left its code */
};

#endif
