/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: one per process, so its state is one static structure. What a callback may touch - this
 * structure, the alive page, the pages of the ring, the tables - stays mapped for ever, whatever else
 * happens: no thread can be about to fault in it. Turning the agent off changes only what is behind
 * those addresses.
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
#define POLL (20 * MS) /* between two looks at what nobody wakes us for */

#pragma GCC visibility push(hidden)

/* On a page that a forked child finds zeroed (MADV_WIPEONFORK): there everything of the agent is off. */
struct alive {
	uint32_t awake;   /* 1 while callbacks may write into the ring */
	uint32_t running; /* 1 from a start to the end of its thread */
};

/* Which way an open window ends; futex of the agent's thread. */
enum phase {
	PHASE_CLOSED = 0,
	PHASE_OPEN = 1,   /* recording */
	PHASE_WANTED = 2, /* the next exit of a synchronizing call ends it */
	PHASE_TAKEN = 3,  /* one thread is ending it */
	PHASE_DONE = 4,   /* that thread has finalized CUPTI */
	PHASE_OWN = 5,    /* the exit of a call that the agent's own thread makes now ends it: no thread of the target
	                   * may */
};

/* How long a thread has waited for a CPU so far, and how often it got one. */
struct waits {
	uint32_t tid; /* 0: of none */
	uint64_t ns, times;
};

struct window {
	uint32_t phase;       /* enum phase */
	uint32_t calls;       /* wanted calls that were seen in it */
	uint32_t caller;      /* thread that made the first of them; 0: none was seen yet */
	uint32_t several;     /* 1: another one made calls, too */
	uint32_t given_up;    /* 1: a thread began to launch graphs in the last moment, and CUPTI was not finalized */
	uint64_t tried;       /* when a thread of the target last tried to end it, ns */
	uint32_t tries;       /* so far */
	uint32_t own;         /* the agent's own thread: 1 tried to end it, 2 has ended it */
	uint32_t starved;     /* 1: a finalize was not begun because the thread that would make it waits for CPUs */
	struct waits waits;   /* of the thread that launches graphs, when the window opened */
	void *subscriber;
	uint32_t kinds;       /* bit i: the i-th kind of window.c is on */
	uint32_t thread_ids;  /* CUpti_ActivityThreadIdType before it, + 1; 0: not changed */
	uint64_t began;       /* before it was subscribed, ns CLOCK_MONOTONIC */
	uint64_t opened;      /* when everything was on */
	uint64_t entered;     /* ns that subscribe + enable took */
	uint64_t off, left;   /* when the first kind went off, and when all was done */
	uint64_t records, dropped;
	uint32_t unfinished; /* operations that were running when a flush was forced */
	uint32_t took[STEPS];   /* ns */
	uint32_t want_took;     /* ns of enabling the callbacks that end it */
	uint64_t flush_took, flush_at; /* the longest flush while it was open, ns, and its beginning */
};

struct agent {
	struct alive *alive;
	struct agent_ring *ring;
	size_t ring_bytes;  /* of the largest ring so far: what is mapped at ring for ever */
	uint32_t mask, shift;
	int ring_fd;
	uint64_t ring_inode;
	struct agent_params params;
	uint64_t entered, left; /* by the thread that started us */
	uint32_t tids_agree;    /* threads of which libc_tid said what gettid says: the one that started us, and ours */
	uint32_t started;       /* futex: 1 when that thread is about to return */
	uint32_t tid;           /* of the agent's thread */

	struct cupti cupti;
	struct cuda cuda;
	int have_cupti, have_cuda, ranges; /* ranges: NVTX reaches CUPTI in this process */
	uint64_t retry;                    /* do not open a window before this, ns CLOCK_MONOTONIC */
	size_t overhead_size; /* bytes of an overhead record of this CUPTI */
	int devices_written;
	int dormant; /* kinds went off without a finalize: finalizing has conditions now, see graphs.c */
	int slow;    /* the last subscription was long in coming: do not give it up for each window */
	int slow_out; /* the last way out was long, and threads were held meanwhile */
	int kept;    /* between windows it was not given up */
	uint32_t turns; /* of the ring, when we last looked what is wanted */
	struct waits waits; /* of the agent's thread, when it last asked for the gates */
	struct window window;
};
extern struct agent the;

/* ring.c */
/* ring_make maps a new ring of the.params.slots slots; 0 or -errno. */
int ring_make(void);
/* ring_close closes the ring's descriptor, if it still is the ring's. */
void ring_close(void);
/* ring_leave puts private memory in the ring's place: late writers write into that. */
void ring_leave(void);
/* ring_take reserves n adjacent positions; -1 where there is no room, which is counted. */
int64_t ring_take(uint32_t n);
/* ring_put writes a slot to a reserved position; seq is filled in here. */
void ring_put(int64_t position, const struct agent_slot *);
/* ring_write reserves and writes one slot; 0 where there was no room. */
int ring_write(const struct agent_slot *);

/* names.c */
int names_make(void);
/* name_id returns the id of a text with numbers, which was or now is written to the ring; 0 where that failed.
 * about holds flags, dur and ts of its AGENT_NAME. */
uint32_t name_id(const char *text, const struct agent_slot *about);
/* names_forget makes the next ring get every name anew. */
void names_forget(void);

/* pool.c */
int pool_make(void);
void pool_request(uint8_t **buffer, size_t *size, size_t *records);
void pool_release(uint8_t *buffer);
void pool_reset(void); /* after a finalize: all are free */
/* pool_trim gives pages back: of free buffers behind the first ones, or all. */
void pool_trim(int all);

/* records.c */
uint64_t pack_grid(uint32_t x, uint32_t y, uint32_t z); /* as bpf/shapes.h does */
uint64_t pack_block(uint32_t x, uint32_t y, uint32_t z, uint32_t shared);
/* records_complete takes a buffer back from CUPTI and writes what is in it to the ring. */
void records_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
/* records_lost counts what CUPTI dropped since it was last asked. Where it had no buffer at all, none comes back by
 * which that would show. */
void records_lost(void);

/* pending.c: calls of which no record has come yet, one of each thread, to know when CUPTI must be flushed. */
/* pending_call notes a call that began something on the GPU; t: its end, ns. */
void pending_call(uint32_t tid, uint32_t correlation, uint64_t t);
/* pending_came notes a record of such a call. */
void pending_came(uint32_t correlation);
/* pending_oldest returns when the longest pending call ended, ns; 0 where none is. */
uint64_t pending_oldest(void);
uint32_t pending_count(void); /* threads that have a call of which no record has come */
/* pending_flushed notes a flush that began at t: what outlasts three of them makes no record, and is forgotten. */
void pending_flushed(uint64_t t);
void pending_forget(void);

/* ranges.c: NVTX markers, in pairs. */
void range_marker(const struct marker_record *);
void ranges_forget(void);

/* calls.c: the callback of driver functions, and which of them are wanted. */
void on_call(void *user, uint32_t domain, uint32_t id, const struct callback_data *);
void calls_enable(uint32_t on, int ends);

#define GRAPHS 256u

struct graphs {
	uint64_t exec[GRAPHS]; /* CUgraphExec; 0: free */
	uint8_t seen[GRAPHS];  /* since the kinds went on */
	uint32_t overflow;     /* more than fit: no finalize any more */
	uint32_t any;
	uint32_t thread;       /* that launches them, in this window or an earlier one; 0: none was seen to */
	uint32_t several;      /* 1: another thread launched one, too, while that one lived: for good */
};

/* graphs.c: graphs that ran while kinds were on, and whose they are, to know when a finalize is safe. again: it was
 * launched after they went on. */
void graph_seen(uint64_t exec, uint32_t tid, int again);
/* graphs_allow says whether that thread may finalize; 0: one that launches none. */
int graphs_allow(uint32_t tid);
uint32_t graphs_launcher(void); /* the thread that launches them; 0: none was seen to */
int graphs_several(void); /* no thread may, ever */
int graphs_any(void);
int graphs_all_seen(void);
void graphs_unsee(void);
void graphs_forget(void);
void graphs_leave(struct graphs *); /* a copy for the next agent */
void graphs_inherit(const struct graphs *);

/* library.c */
/* library_find finds libcuda and libcupti; ERROR_NONE, -1 where the process does not use CUDA (yet), or an enum
 * agent_error. */
int library_find(void);
void devices_write(void);

/* window.c */
int window_subscribe(void); /* 0, or why not: CUptiResult or enum agent_error; may wait for minutes */
void window_unsubscribe(void); /* instead of window_open */
void window_leave(void);  /* unsubscribes, everything being off, and puts back what a subscription changed */
int window_open(void);    /* 0, or why not; then nothing stays */
int window_release(int last); /* unsubscribes, kinds and callbacks being off, where all threads are outside; 0: they are
                               * not */
void window_keep(void);   /* ends it here and now, but stays subscribed */
void window_want(void);   /* let the next synchronizing exit end it */
int window_starved(void); /* the thread that launches graphs waits for CPUs: it is not to finalize in this window */
int window_unwant(void);  /* 0 where that has begun */
void window_finish(uint32_t tid, uint32_t before); /* in a callback, by the thread that took it, which is tid, out of
                                                    * that phase: as it was where a graph is in the way */
int window_end(int last); /* last: threads may be held for longer, so that nothing stays; ends it in a call of this
                           * thread's own; 0 where CUPTI did not call back, and the window is as it was */
int window_drop(int last); /* kinds and callbacks off here and now, and where that is safe unsubscribe: an enum
                            * agent_end; 0 where another is ending it */
int window_flush(void); /* hands over what CUPTI holds, where all threads are outside; 0: they are not */
void window_written(int how); /* the window's last word: AGENT_WINDOW */

/* gate.c: threads of the target's that are to stay outside of the driver for a moment are held by a handler of signals
 * that bpf/gate.bpf.c sends them there. */
void gate_ask(enum agent_ask what); /* wants them armed, or not any more */
int gates_lost(void);     /* nothing holds threads of the target now: nothing that needs it begins */
int gate_ready(void);     /* a finalize may begin */
int gate_shut(void);      /* launches of graphs are held from here on; 0: one has come by since it was armed */
int gate_keep(void);      /* they stay shut until gate_open, however long that takes; 0: they have been shut for so long
                           * that a thread has opened them */
void gate_open(void);
int gate_all(void);       /* the gates hold the thread that launches graphs, too; or there are none in this process */
int gate_closes(void);    /* whoever comes to the driver while it is shut is held; or there are no gates in this
                           * process */
uint32_t gate_signal(void); /* by which threads are held at calls; 0: none is free */
void gate_forget(void);    /* in a forked child: nobody is held there */
void gate_renew(void);    /* asks anew where a launch has come by */
void gate_wait(int on);   /* the agent's thread waits for the driver's lock from here on */

/* waits.c: how long threads wait for a CPU, and critical sections for which gates hold threads. */
void waits_begin(struct waits *, uint32_t tid);
/* waits_allow reports whether that thread may begin a finalize, others having been held for so long: it is expected
 * to end before one is held for 40 ms. Always, where nothing may stay or no gate holds anyone. */
int waits_allow(const struct waits *, uint32_t tid, uint64_t held);
void section_forget(void); /* in a forked child, or a new start */
void section_close(void); /* the gates close now; the calling thread is the one that works then */
void section_out(void);   /* all others are outside */
void section_end(uint64_t opened); /* the gates have opened: writes AGENT_HOLD */

/* outside.c: whether all other threads are outside of the driver and CUPTI, and held before they go in again. */
struct sleeper {
	long call; /* its number, and first argument */
	uintptr_t argument, stack, code;
};
int outside_wait(uint32_t but, uint64_t ns); /* closes the gates, and waits so long, or 6 ms once a thread is held,
                                              * until all but this thread and the agent's are outside; 0: they are not,
                                              * and the gates are open */
uint64_t outside_held_for(void); /* ns since a gate has held the first of them; 0: none is held */
uint64_t number(const char **text); /* the decimal number there; skips it and blanks after it */
long task_read(uint32_t tid, const char *file, char *to, size_t room); /* of /proc/self/task/TID; bytes, or -errno */
void outside_held(void); /* a thread is held by a gate from now on */
/* outside_at_exit, whether all threads but the one that exits are outside. None is held, so it is good for a flush
 * alone. */
int outside_at_exit(uint64_t ns);
void outside_end(void);   /* opens them */
void outside_forget(void); /* in a forked child */
int outside_arrived(const void *context); /* in a handler of signals: the thread has come to the driver from outside,
                                           * and is to be held */
void outside_look(const void *context);   /* in one: looks where the thread was */
void outside_learn(void); /* where the libraries are */
void outside_remember(uint32_t tid, uintptr_t frame); /* of a thread's last callback */
int sleeps(uint32_t tid, struct sleeper *); /* in a system call, and there */

/* left.c: threads that may be inside of CUPTI still, behind a callback of ours: nobody subscribes meanwhile. */
void left_note(uint32_t tid, uint64_t t, const void *frame,
    const struct callback_data *data); /* a callback begins: where its caller's stack was, and what it was given */
void left_off(void);    /* callbacks go off now */
int left_above(uint32_t tid, uintptr_t stack, uintptr_t before); /* its stack ends above the frame of its last callback,
                                                                  * at the exit of a call; before: of an earlier
                                                                  * subscription, 0: unknown */
int left_none(uint32_t but); /* no thread but this one has been in a callback since the last subscription */
void left_all(uint32_t but); /* all but this one are proven to have left it */
int left_alone(void);   /* all are proven to have left it. While no callback can begin */
void left_tidy(void);   /* forgets those that have ended */
void left_save(void);   /* leaves word of them, and of kinds that went off without a finalize, to the next agent, whose
                         * image may be another */
void left_inherit(void);
void left_forget(void); /* in a forked child: it has no other thread */

/* exit.c */
void exit_watch(void); /* once per agent: be told of the target's exit */
void exit_watch_first(void); /* once a subscription is there: before CUPTI hears of it */
uint32_t exiting(void); /* the thread of the target that is in exit(); 0: none */
void exit_done(void);  /* the agent's thread has nothing open any more */

/* start.c */
/* name_thread names the calling thread; CUPTI's own threads inherit the name of the one that makes them. */
void name_thread(const char *name);

/* loop.c: the agent's own thread. */
int daemon_gone(void);
void loop_serve(void); /* returns when the agent is to go: all is closed then */

#pragma GCC visibility pop
#endif
