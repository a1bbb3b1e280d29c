/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the agent, which lives in the target, and the daemon say to each other: one
 * shared-memory ring per process and what is patched into the agent's image before it
 * is loaded. Both sides are built from this file's numbers: internal/capture/gpu has the Go
 * side, and a test compares the two through the agent's DWARF or a generated table.
 *
 * The daemon trusts nothing in here: everything may be written by the target at any time.
 * The agent trusts nothing that could harm the target: a wild word from the daemon ends it.
 */
#ifndef INFERSCOPE_AGENT_ABI_H
#define INFERSCOPE_AGENT_ABI_H
#include <stdint.h>

#define AGENT_MAGIC 0x41534e49u /* "INSA" */
#define AGENT_ABI 4u            /* of this file: another number is another agent */

/*
 * One slot. Layout of struct event (bpf/event.h), except that pid is seq: the daemon
 * knows whose ring it reads, and fills pid in. A slot at position p (counted from 0 for ever)
 * lies at index p % slots and is whole when seq == (uint32_t)(p / slots) + 1, stored with release.
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
 * Kinds of slots: those of enum event_kind (EVENT_CALL, EVENT_KERNEL, ... EVENT_RANGE) and these,
 * which the daemon turns into the recording's tables. In EVENT_CALL func is the driver callback id
 * (CUpti_driver_api_trace_cbid), ret the correlation id, flags EVENT_TIMED | EVENT_CORRELATED, tid as
 * gettid gives it in the target's own pid namespace; args as internal/cuda packs that call.
 * In EVENT_KERNEL and EVENT_RANGE ret is the id of an AGENT_NAME that was written before.
 */
enum agent_kind {
	AGENT_NAME = 64,   /* ret: id, from 1, per agent; func: bytes of the text; dur: registers | static shared << 32;
	                    * ts: local bytes; flags: 0 kernel, 1 range, 2 device name. The text follows in the next slots,
	                    * each AGENT_TEXT. Reserved together, so they are adjacent positions. */
	AGENT_TEXT = 65,   /* 59 bytes of text: everything but seq and kind: see struct agent_text */
	AGENT_WINDOW = 66, /* a window ended: [ts, ts + dur]; ret: enum agent_end; func: enum agent_window;
	                    * args[0] records written, [1] dropped by CUPTI, [2] ns of subscribe + enable, [3] ns of the way
	                    * out; tid: operations that had not ended when it did, and so have no slot */
	AGENT_DEVICE = 67, /* ret: device id; args[0] memory bytes, [1] memory bytes/s; [2] SMs | major << 32 | minor << 48;
	                    * tid: id of its AGENT_NAME; ts, dur: its UUID, 16 bytes as cuDeviceGetUuid_v2 gives them;
	                    * flags: DEVICE_PART */
	AGENT_STREAM = 68, /* not written so far (docs/gpu-agent.md says why); tid: stream id; func: context id; ret:
	                    * priority; flags: CUpti_ActivityStreamFlag */
	AGENT_OPENED = 69, /* a window began at ts; args as far as known */
	AGENT_STEPS = 70,  /* what the steps of a window took, ns, written just before its AGENT_WINDOW: in args enum
	                    * agent_step as 8 uint32_t, 4294967295 where it was more; ts: when the first began; dur: the
	                    * longest flush while it was open, ret: us from its opening to that; tid: ns of enabling the
	                    * callbacks that end it */
	AGENT_HOLD = 71,   /* gates were closed from ts on, for dur, by tid, the thread that then works: args[0] ns until
	                    * all other threads were outside (all of dur: they were not), [1] ns of these, [2] ns of the
	                    * rest for which it waited for a CPU */
};

/* What an AGENT_WINDOW says of its window, beside how it ended. */
enum agent_window {
	WINDOW_CALLS = 1, /* calls were seen by callbacks */
	WINDOW_OWN = 2,   /* END_FINALIZED by the agent's own thread: no thread of the target was held up by its work */
	WINDOW_STARVED = 4, /* it was not finalized because the thread that would do it waits for CPUs: others would have
	                     * been held for too long */
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

/* The text slot: 12 bytes of header where seq and kind stay in their places. */
struct agent_text {
	uint8_t text_a[16];
	uint32_t seq;
	uint8_t text_b[6];
	uint8_t kind;
	uint8_t text_c[37];
};

/* How a window ended. */
enum agent_end {
	END_FINALIZED = 1, /* inside a callback at the exit of a synchronizing call, the target's or the agent's own:
	                    * nothing stays */
	END_DISABLED = 2,  /* no such exit came in time, or several threads launch graphs: kinds off, unsubscribed; graphs
	                    * that ran stay slower */
	END_REFUSED = 3,   /* it never began: CUPTI is taken (error in args[0]) */
	END_KEPT = 4,      /* kinds and callbacks off, still subscribed: getting in or out took too long to do it for each
	                    * window, or a thread could not be proven to be outside; no other profiler gets in meanwhile */
};

/* What the daemon wants. */
enum agent_mode {
	MODE_OFF = 0,        /* no GPU records; end the open window in the good way */
	MODE_WINDOWS = 1,    /* on_ns of records in every period_ns */
	MODE_CONTINUOUS = 2, /* records until told otherwise */
	MODE_QUIT = 3,       /* end the window in the good way, unmap, close, end the thread; code stays mapped */
};

/* What the agent is doing. */
enum agent_state {
	STATE_STARTING = 0,
	STATE_IDLE = 1,    /* between windows or off; nothing of CUPTI is on */
	STATE_OPENING = 2, /* subscribe and enable */
	STATE_OPEN = 3,
	STATE_CLOSING = 4, /* waits for an exit to finalize at */
	STATE_REFUSED = 5, /* CUPTI cannot be used: error says why */
	STATE_GONE = 6,    /* the thread has ended */
	STATE_KEPT = 7,    /* between windows; subscribed, kinds and callbacks off */
	STATE_LEAVING = 8, /* its own thread finalizes: that may wait for its turn for seconds, and nobody waits for it */
};

/* Why CUPTI cannot be used: error below is one of these, or a CUptiResult. */
enum agent_error {
	ERROR_NONE = 0,
	ERROR_NO_CUPTI = 1001,   /* no libcupti mapped, none of the paths opened */
	ERROR_NO_SYMBOL = 1002,  /* it lacks a function */
	ERROR_TOO_OLD = 1003,    /* its records are too short */
	ERROR_MEMORY = 1004,
	ERROR_GRAPH_THREADS = 1005, /* several threads launch graphs: CUPTI could not be taken out again */
	ERROR_BUSY = 39,         /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: another profiler */
};

#define AGENT_PATH 240
#define AGENT_HOLDER 64
#define AGENT_HOLDS 5
#define AGENT_OUTS 16

/* A thread, as the target counts, and a time, CLOCK_MONOTONIC ns. */
struct agent_out {
	uint32_t tid, pad;
	uint64_t at;
};

/*
 * The ring's first page. Each group is written by one side only. Followed at
 * AGENT_DATA by slots * sizeof(struct agent_slot) bytes. The memfd is sealed
 * against shrinking and growing before it is announced.
 */
#define AGENT_DATA 4096
struct agent_ring {
	/* written once, by the agent, before it is announced */
	uint32_t magic, abi;
	uint32_t slots; /* a power of two */
	int32_t pid;    /* as the target sees itself */
	uint8_t build[20];
	uint32_t pad0[7];
	/* by the daemon */
	uint64_t heartbeat; /* CLOCK_MONOTONIC ns; older than 1.5 s: the daemon is gone: quit */
	uint64_t tail;      /* position up to which the daemon has read */
	uint64_t on_ns, period_ns, deadline_ns; /* deadline: how long to wait for an exit to finalize at */
	uint32_t mode;      /* enum agent_mode */
	uint32_t wake;      /* futex, shared: changed with every change of mode or times. Where the daemon can, a robust
	                     * one: the id of a thread that lives as long as it does, and FUTEX_WAITERS; when that ends the
	                     * kernel takes the id out, sets FUTEX_OWNER_DIED, and wakes us */
	uint64_t flush;     /* a number that the daemon raises (then wake) when it wants what CUPTI holds now: see
	                     * flushed */
	/* by the agent */
	uint64_t head;      /* next position to reserve */
	uint64_t dropped;   /* slots that had no room, so far */
	uint64_t began;     /* CLOCK_MONOTONIC ns at which the open window began; 0: none is open */
	uint32_t state;     /* enum agent_state */
	int32_t error;      /* enum agent_error or CUptiResult */
	uint32_t cupti_version;
	uint32_t windows;   /* ended so far */
	uint32_t graphs;    /* 1: a graph ran while kinds were on and no finalize followed: it stays slower; 2: no graph
	                     * ran, but no finalize followed: launches may stay slower; 0: nothing stays */
	uint32_t flushed;   /* low word of flush when the agent has last handed over everything that CUPTI gives out; also
	                     * set when no window is open */
	uint64_t opening;   /* CLOCK_MONOTONIC ns since when the agent waits in cuptiSubscribe; 0: it does not */
	uint64_t leaving;   /* since when its own thread waits in cuptiFinalize; 0: it does not */
	uint64_t finalizing; /* since when a window is ended by a finalize, in whichever thread; 0: none is */
	char path[AGENT_PATH]; /* of the libcupti in use */
	uint64_t lost;      /* records that CUPTI dropped in the open window, so far */
	/* by the daemon */
	uint32_t turns;     /* times that it has woken us: a robust wake has but one bit that changes */
	uint32_t graph_threads; /* 1: its probes saw several threads launch graphs, so that CUPTI could not be taken out
	                         * again: no window, and no finalize */
	uint32_t graph_thread;  /* the one that they saw launch graphs, as the target counts: no other may finalize while
	                         * that lives; 0: none was seen to */
	/* by the agent */
	char holder[AGENT_HOLDER]; /* who holds CUPTI (ERROR_BUSY), as that calls itself; "" where CUPTI does not tell */
	/* by the daemon: the gates (bpf/gate.bpf.c) */
	uint32_t gate;      /* the signals by which they hold threads: of launches of graphs, and << 16 of other calls (0:
	                     * none). 0: there are no gates; otherwise nobody finalizes before armed says so */
	uint32_t armed;     /* ask, once the gates are armed for it */
	/* by the agent */
	uint32_t ask;       /* a number that the agent raises when it wants the gates armed */
	uint32_t asked;     /* enum agent_ask: what for; ASK_NOTHING: they are not needed any more */
	uint32_t inside_count; /* threads that may be inside of a callback of CUPTI's still: no subscription begins */
	uint64_t hold_ns, hold_longest;     /* for which threads were held, in sum, and one of them */
	uint32_t holds[AGENT_HOLDS];        /* threads held, by time: up to 1, 2, 5, 10 ms, and longer */
	uint32_t gated;     /* by the daemon: 1: armed for ASK_OUT or ASK_ALL the gates hold all calls that CUPTI has a part
	                     * in, launches of kernels, too */
	struct agent_out inside[AGENT_OUTS]; /* of these threads the first ones, and when their last callbacks began */
	/* by the daemon */
	struct agent_out seen[AGENT_OUTS];   /* of these the ones that probes saw outside of the driver, and when */
	uint32_t gates_lost; /* 1: this daemon's gates are not there yet, or have gone: the open window ends as END_KEPT,
	                      * and no other opens, not to finalize either */
};

/* What the gates are wanted for. */
enum agent_ask {
	ASK_NOTHING = 0,
	ASK_IN = 1,  /* a subscription */
	ASK_OUT = 2, /* a finalize */
	ASK_TAKEN = 3, /* a signal of the gates is handled by the target: another one is needed */
	ASK_ALL = 4, /* a flush or an unsubscribe by the agent's own thread: the thread that launches graphs is held, too */
};

/*
 * Parameters, in the image (symbol inferscope_params, section .inferscope, found by the daemon at build
 * time through the symbol table) for the first load, or in a memfd of their own for a start of an agent
 * that is mapped already. The agent reads them, then writes its hello at hello_at of the same memfd with pwrite, and
 * closes it.
 */
struct agent_params {
	uint32_t magic, abi;
	int32_t fd;          /* of the memfd that holds this, in the target; -1: loaded at start by CUDA_INJECTION64_PATH,
	                      * no hello: the daemon finds the memfd named inferscope-ring in /proc/PID/fd */
	uint32_t slots;      /* of the ring to make */
	uint32_t mode;       /* enum agent_mode to begin with */
	uint32_t pad;
	uint64_t on_ns, period_ns, deadline_ns;
	uint64_t heartbeat;  /* first heartbeat: until this + 1.5 s a daemon is believed to be there */
	uint64_t hello_at;   /* file offset of the hello, behind the image: the image's own pages are mapped */
	char cupti[AGENT_PATH * 2]; /* path to try when none is mapped; "" = the usual names */
};

/* What the agent answers, at hello_at of the params' memfd: magic is written last. */
struct agent_hello {
	uint32_t magic, abi;
	int32_t error;       /* 0, or -errno of what failed; then the ring's fd is -1 */
	int32_t ring_fd;     /* in the target; the daemon opens /proc/PID/fd/N, the agent closes it after on wake */
	int32_t tid;         /* of the agent's thread, as the target counts */
	uint32_t pad;
	uint64_t entered, left; /* CLOCK_MONOTONIC ns: when the hijacked thread entered and left our code */
};

#endif
