/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's state: one static structure, because there is one agent per process. What a callback may touch (this
 * structure, the alive page, the ring, the tables) stays mapped for ever, because a thread may be about to access it at
 * any time. Turning the agent off changes only the contents.
 */
#ifndef INFERSCOPE_AGENT_AGENT_H
#define INFERSCOPE_AGENT_AGENT_H
#include "sys.h"
typedef uint64_t __u64;
typedef uint32_t __u32;
typedef int32_t __s32;
typedef uint16_t __u16;
typedef uint8_t __u8;
#include "../../bpf/event.h"
#include "../abi.h"
#include "cupti.h"

#define MS 1000000ull
#define SECOND 1000000000ull
#define NAME "inferscope" /* of the agent's thread */
#define POLL (20 * MS) /* interval of checks for changes that wake nobody */

#pragma GCC visibility push(hidden)

/* On a page that is zero in a forked child (MADV_WIPEONFORK): there the agent is off. */
struct alive {
	uint32_t awake;   /* 1 while callbacks may write into the ring */
	uint32_t running; /* 1 from a start of the agent to the end of its thread */
};

/* State of a window; futex of the agent's thread. */
enum phase {
	PHASE_CLOSED = 0,
	PHASE_OPEN = 1,   /* recording */
	PHASE_WANTED = 2, /* the next exit of a synchronizing call ends it */
	PHASE_TAKEN = 3,  /* one thread is ending it */
	PHASE_DONE = 4,   /* that thread has finalized CUPTI */
	PHASE_OWN = 5,    /* only the exit of the call that the agent's own thread makes now ends it */
};

/* How long a thread has waited for a CPU, and how often it got one, since it began. */
struct waits {
	uint32_t tid; /* 0: of none */
	uint64_t ns, times;
};

struct window {
	uint32_t phase;       /* enum phase */
	uint32_t calls;       /* recorded calls */
	uint32_t caller;      /* thread that made the first of them; 0: none was seen yet */
	uint32_t several;     /* 1: another thread made calls, too */
	uint32_t given_up;    /* 1: CUPTI was not finalized, because a thread began to launch graphs just before */
	uint64_t tried;       /* when a thread of the target last tried to end it, ns */
	uint32_t tries;       /* of these threads */
	uint32_t own;         /* the agent's own thread: 1 tried to end it, 2 has ended it */
	uint32_t starved;     /* 1: a finalize was not begun because the thread that would make it waits for CPUs */
	struct waits waits;   /* of the thread that launches graphs, when the window opened */
	void *subscriber;
	uint32_t kinds;       /* bit i: the i-th kind of window.c is on */
	uint32_t thread_ids;  /* CUpti_ActivityThreadIdType before the window, + 1; 0: not changed */
	uint64_t began;       /* ns CLOCK_MONOTONIC, before the subscription */
	uint64_t opened;      /* when everything was on */
	uint64_t entered;     /* ns that subscribe + enable took */
	uint64_t off, left;   /* when the first kind went off, and when the end was complete */
	uint64_t records, dropped;
	uint32_t unfinished; /* operations that were running when a flush was forced */
	uint32_t took[STEPS];   /* ns */
	uint32_t want_took;     /* ns of enabling the callbacks that end it */
	uint64_t flush_took, flush_at; /* the longest flush while it was open, ns, and its beginning */
};

struct agent {
	struct alive *alive;
	struct agent_ring *ring;
	size_t ring_bytes;  /* of the largest ring so far; so much stays mapped at ring */
	uint32_t mask, shift;
	int ring_fd;
	uint64_t ring_inode;
	struct agent_params params;
	uint64_t entered, left; /* by the thread that started us */
	uint32_t tids_agree;    /* threads in which libc_tid is right: of the one that started us, and ours */
	uint32_t started;       /* futex: 1 when that thread is about to return */
	uint32_t tid;           /* of the agent's thread */

	struct cupti cupti;
	struct cuda cuda;
	int have_cupti, have_cuda, ranges; /* ranges: NVTX passes its ranges to CUPTI */
	uint64_t retry;                    /* do not open a window before this, ns CLOCK_MONOTONIC */
	size_t overhead_size; /* bytes of an overhead record of this CUPTI */
	int devices_written;
	int dormant; /* kinds went off without a finalize, which is safe now only under conditions: see graphs.c */
	int slow;    /* the last subscription took long: keep it between windows */
	int slow_out; /* the last end of a window took long, and held threads meanwhile */
	int kept;    /* the subscription was kept after the last window */
	uint32_t turns; /* of the ring, when its mode was last read */
	struct waits waits; /* of the agent's thread, when it last asked for the gates */
	struct window window;
};
extern struct agent the;

/* ring.c */
/* ring_make maps a new ring of the.params.slots slots; 0 or -errno. */
int ring_make(void);
/* ring_close closes the ring's descriptor, unless its number belongs to another file by now. */
void ring_close(void);
/* ring_leave replaces the ring by private memory, for late writers. */
void ring_leave(void);
/* ring_take reserves n adjacent positions; -1 where there is no room, which is counted. */
int64_t ring_take(uint32_t n);
/* ring_put writes a slot to a reserved position; seq is filled in here. */
void ring_put(int64_t position, const struct agent_slot *);
/* ring_write reserves and writes one slot; 0 where there was no room. */
int ring_write(const struct agent_slot *);

/* names.c */
int names_make(void);
/* name_id returns the id of a name, and writes it to the ring if it is new; 0 where that failed. about holds flags, dur
 * and ts of its AGENT_NAME. */
uint32_t name_id(const char *text, const struct agent_slot *about);
/* names_forget makes every name be written again, to the next ring. */
void names_forget(void);

/* pool.c */
int pool_make(void);
void pool_request(uint8_t **buffer, size_t *size, size_t *records);
void pool_release(uint8_t *buffer);
void pool_reset(void); /* after a finalize: all are free */
/* pool_trim returns pages to the kernel: those of free buffers but the first ones, or all. */
void pool_trim(int all);

/* records.c */
uint64_t pack_grid(uint32_t x, uint32_t y, uint32_t z); /* as bpf/shapes.h does */
uint64_t pack_block(uint32_t x, uint32_t y, uint32_t z, uint32_t shared);
/* records_complete takes a buffer back from CUPTI and writes its records to the ring. */
void records_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
/* records_lost counts what CUPTI dropped since the last call. Called also where no buffer has come back: without a
 * buffer CUPTI drops everything. */
void records_lost(void);

/* pending.c: calls without a record so far, one per thread, to know when CUPTI must be flushed. */
/* pending_call notes a call that started work on the GPU; t: its end, ns. */
void pending_call(uint32_t tid, uint32_t correlation, uint64_t t);
/* pending_came notes a record of such a call. */
void pending_came(uint32_t correlation);
/* pending_oldest returns when the oldest pending call ended, ns; 0: there is none. */
uint64_t pending_oldest(void);
uint32_t pending_count(void); /* threads with a pending call */
/* pending_flushed notes a flush that began at t. A call that is pending after three flushes makes no record: it is
 * forgotten. */
void pending_flushed(uint64_t t);
void pending_forget(void);

/* ranges.c: NVTX markers, in pairs. */
void range_marker(const struct marker_record *);
void ranges_forget(void);

/* calls.c: the callback of driver functions, and for which of them it is on. */
void on_call(void *user, uint32_t domain, uint32_t id, const struct callback_data *);
void calls_enable(uint32_t on, int ends);

#define GRAPHS 256u

struct graphs {
	uint64_t exec[GRAPHS]; /* CUgraphExec; 0: free */
	uint8_t seen[GRAPHS];  /* launched again since the kinds went on */
	uint32_t overflow;     /* there were more: no finalize any more */
	uint32_t any;
	uint32_t thread;       /* that launches them, in this window or an earlier one; 0: none was seen */
	uint32_t several;      /* 1, for good: another thread launched one, too, while that one lived */
};

/* graphs.c: graphs that ran while kinds were on, and the threads that launch them, to know when a finalize is safe. */
/* graph_seen notes a launch; again: it began after the kinds went on. */
void graph_seen(uint64_t exec, uint32_t tid, int again);
/* graphs_allow reports whether that thread may finalize; 0: one that launches no graphs. */
int graphs_allow(uint32_t tid);
uint32_t graphs_launcher(void); /* the thread that launches them; 0: none was seen */
int graphs_several(void); /* several threads launch them: no thread may finalize, ever */
int graphs_any(void);
int graphs_all_seen(void);
void graphs_unsee(void);
void graphs_forget(void);
void graphs_leave(struct graphs *); /* a copy for the next agent */
void graphs_inherit(const struct graphs *);

/* library.c */
/* library_find finds libcuda and libcupti: 0, a CUptiResult or enum agent_error, or -1 while the process does not use
 * CUDA. */
int library_find(void);
void devices_write(void);

/* window.c */
/* last, below: the agent shuts down, so threads may be held for longer in order that nothing stays. */
int window_subscribe(void); /* 0, CUptiResult or enum agent_error; may wait for minutes */
void window_unsubscribe(void); /* instead of window_open */
void window_leave(void);  /* when everything is off: restores what a subscription changed, and unsubscribes */
int window_open(void);    /* 0, or an error as above; then everything is off again */
int window_release(int last); /* unsubscribes when kinds and callbacks are off; 0: some thread is inside */
void window_keep(void);   /* ends the window at once and keeps the subscription */
void window_want(void);   /* has the next exit of a synchronizing call end the window */
int window_unwant(void);  /* withdraws that; -1: a thread is ending it already */
int window_starved(void); /* the thread that launches graphs waits for CPUs: it does not finalize in this window */
void window_finish(uint32_t tid, uint32_t before); /* called in a callback by the thread that is to end the window;
                                                    * before: the phase, restored where a finalize is not safe */
int window_end(int last); /* ends it in a call of the agent's own thread; 0: not possible, and nothing has changed */
int window_drop(int last); /* turns everything off and, where that is safe, unsubscribes; enum agent_end, or 0 where
                            * another thread is ending the window */
int window_flush(void); /* delivers what CUPTI holds; 0: some thread is inside */
void window_written(int how); /* writes AGENT_WINDOW and closes the window */

/* gate.c: keeps threads of the target outside of the driver for a moment: bpf/gate.bpf.c sends them a signal there,
 * whose handler holds them. */
void gate_ask(enum agent_ask what); /* asks the daemon to arm or disarm the gates */
int gates_lost(void);     /* nothing can hold threads now, so nothing that needs it may begin */
int gate_ready(void);     /* a finalize may begin */
int gate_shut(void);      /* closes the gates; 0: they are not armed, or a launch has passed since */
int gate_keep(void);      /* keeps them closed until gate_open; 0: a thread that was held too long has opened them */
void gate_open(void);
int gate_all(void);       /* the gates also hold the thread that launches graphs; or this process has no gates */
int gate_closes(void);    /* closed gates hold every thread that calls the driver; or this process has no gates */
uint32_t gate_signal(void); /* the signal by which threads are held at calls; 0: there is none */
void gate_forget(void);    /* in a forked child, where no thread is held */
void gate_renew(void);    /* asks again if a launch has passed */
void gate_wait(int on);   /* the agent's thread begins (1) or ends (0) to wait for the driver's lock */

/* waits.c: how long threads wait for a CPU, and critical sections for which gates hold threads. */
void waits_begin(struct waits *, uint32_t tid);
/* waits_allow reports whether that thread may begin a finalize when others have been held for so long: the finalize is
 * expected to end before one is held for 10 ms, or 40 by a thread of the target, or the agent shuts down, or there are
 * no gates. */
int waits_allow(const struct waits *, uint32_t tid, uint64_t held);
void section_forget(void); /* in a forked child, or a new start */
void section_close(void); /* the gates close now; the calling thread does the work of the section */
void section_out(void);   /* all other threads are outside */
void section_end(uint64_t opened); /* the gates have opened: writes AGENT_HOLD */

/* outside.c: proves that all other threads are outside of the driver and CUPTI, and held before they enter again. */
struct sleeper { /* a thread in a system call */
	long call; /* its number, and first argument */
	uintptr_t argument, stack, code;
};
int outside_wait(uint32_t but, uint64_t ns); /* closes the gates, and waits until all threads except that one and the
                                              * agent's are outside: for ns, or 6 ms once a thread is held; 0: they are
                                              * not, and the gates are open */
uint64_t outside_held_for(void); /* ns since a gate began to hold the first of them; 0: none is held */
uint64_t number(const char **text); /* reads a decimal number, and skips it and the blanks after it */
long task_read(uint32_t tid, const char *file, char *to, size_t room); /* reads /proc/self/task/TID/file; bytes, or
                                                                        * -errno */
void outside_held(void); /* a gate holds a thread from now on */
/* outside_at_exit reports whether all threads except the exiting one are outside. None is held, so only a flush is
 * safe then. */
int outside_at_exit(uint64_t ns);
void outside_end(void);   /* opens the gates */
void outside_forget(void); /* in a forked child */
int outside_arrived(const void *context); /* in a signal handler: the thread came to the driver from outside, and is to
                                           * be held */
void outside_look(const void *context);   /* in a signal handler: checks where the thread was */
void outside_learn(void); /* finds the code of the libraries */
void outside_remember(uint32_t tid, uintptr_t frame); /* the frame of a thread's last callback */
int sleeps(uint32_t tid, struct sleeper *); /* reports whether the thread is in a system call, and which */

/* left.c: threads that may still be inside of CUPTI, after a callback of ours: no subscription begins meanwhile. */
void left_note(uint32_t tid, uint64_t t, const void *frame,
    const struct callback_data *data); /* a callback begins: the stack of its caller, and its parameter */
void left_off(void);    /* callbacks go off now */
int left_above(uint32_t tid, uintptr_t stack, uintptr_t before); /* the stack ends above the frame of the thread's last
                                                                  * callback, which was at the exit of a call; before:
                                                                  * the frame of an earlier subscription, 0: unknown */
int left_none(uint32_t but); /* no other thread than that has been in a callback since the last subscription */
void left_all(uint32_t but); /* all threads except that are proven to have left it */
int left_alone(void);   /* reports whether all threads are proven to have left it; callbacks must be off */
void left_tidy(void);   /* forgets threads that have ended */
void left_save(void);   /* leaves a mark for the next agent, which may be of another image: of these threads, and of
                         * kinds that went off without a finalize */
void left_inherit(void);
void left_forget(void); /* in a forked child: it has no other thread */

/* exit.c */
void exit_watch(void); /* once per agent: registers a handler of the target's exit */
void exit_watch_first(void); /* when a subscription exists: one that runs before CUPTI's */
uint32_t exiting(void); /* the thread of the target that is in exit(); 0: none */
void exit_done(void);  /* the agent's thread has ended its work */

/* start.c */
/* name_thread names the calling thread; CUPTI's own threads inherit the name of the one that makes them. */
void name_thread(const char *name);

/* loop.c: the agent's own thread. */
int daemon_gone(void);
void loop_serve(void); /* returns when the agent has shut down */

#pragma GCC visibility pop
#endif
