/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One window: subscribe (the lock: nothing before it), enable, record, and out. The way out is a finalize inside
 * a callback at the exit of a synchronizing call, with the kinds still on; or, after a deadline, disable, which leaves
 * graphs that ran slower. Unsubscribing and finalizing free what a thread inside of CUPTI still uses: neither is done
 * before all threads are proven to be outside (outside.c), but for a subscription under which nothing was ever on. So
 * is a flush. A subscription begins, and buffers are registered, only beside threads that have left all earlier ones
 * (left.c). No other order of these calls is safe.
 * Nor is any where several threads launch CUDA graphs (graphs.c).
 * That call is one that the agent's own thread makes (window_end): the target need make none. Only where the
 * target launches graphs is it the next one of the thread that does.
 *
 * cuptiSubscribe takes a lock of the driver's for writing, which every call into the driver holds for reading, and
 * readers go first: where several threads are nearly always inside, it waits for seconds to minutes (measured:
 * libcuda 580, CUPTI 13.0). There a window without graphs ends by turning the kinds off, which is safe and cheap, and
 * the next one turns them on again: the subscription is kept. It is given up in the good way when no more windows are
 * wanted. cuptiFinalize takes the same lock: a thread of the target that finalized would lie still for as long, so
 * there the agent's does.
 */
#include "agent.h"

/* What is recorded. Markers only where NVTX reaches CUPTI: they are the last. */
static const uint8_t kinds[] = { KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMCPY_PEER, KIND_MEMSET, KIND_OVERHEAD,
	KIND_MARKER };

#define OWN_CALL 17 /* cuCtxSynchronize */
#define PATIENCE 50 /* times POLL for which a window's last word waits for room in the ring: without it all of the
                     * window is lost */
#define OWN (6 * MS)    /* for which all threads are waited for to be outside, where the agent's thread ends a window */
#define LEISURE (200 * MS) /* the same for a flush, in the midst of a window */
#define LAST (50 * MS)  /* the same when nothing is to stay */
#define THEIRS (2 * MS) /* the same where one of the target's does, which waits meanwhile; at later tries for longer */
#define MOST (100 * MS) /* a way out that is longer is not taken in window after window: threads are held meanwhile */
#define TRIES 3         /* after which that is doubled, twice */
#define ARRIVAL 20000 /* ns from before the driver to CUPTI's callback: a microsecond, as a rule */
#define KEEP_AFTER (300 * MS) /* what a subscription may take that is made anew for each window */

static uint64_t realtime(void)
{
	struct timespec64 t = { 0, 0 };

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.seconds * SECOND + (uint64_t)t.nanoseconds;
}

/* Notes what a step took that began at since; returns its end. */
static uint64_t took(enum agent_step step, uint64_t since)
{
	uint64_t t = now(), ns = t - since;

	the.window.took[step] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
	return t;
}

static void kinds_off(void)
{
	for (uint32_t i = 0; i < COUNT(kinds); i++)
		if (the.window.kinds & 1u << i)
			the.cupti.disable(kinds[i]);
	the.window.kinds = 0;
}

/* Kernels are what it is about; any other kind that this CUPTI or device refuses is done without. */
static int kinds_on(void)
{
	for (uint32_t i = 0; i < COUNT(kinds); i++) {
		int bad = kinds[i] == KIND_MARKER && !the.ranges ? 1 : the.cupti.enable(kinds[i]);

		if (!bad)
			the.window.kinds |= 1u << i;
		else if (kinds[i] == KIND_CONCURRENT_KERNEL)
			return bad;
	}
	return 0;
}

/* Overheads and markers carry threads: as gettid counts them, for the time of the window. */
static void thread_ids_on(void)
{
	uint32_t type = 0;

	the.window.thread_ids = 0;
	if (the.cupti.thread_ids && the.cupti.set_thread_ids && !the.cupti.thread_ids(&type) &&
	    !the.cupti.set_thread_ids(THREAD_ID_SYSTEM))
		the.window.thread_ids = type + 1;
}

static void thread_ids_back(void)
{
	if (the.window.thread_ids)
		the.cupti.set_thread_ids(the.window.thread_ids - 1);
	the.window.thread_ids = 0;
}

/* A profiler of the target's own that comes later must find the clock that it expects. */
static void clock_back(void)
{
	the.cupti.clock(realtime);
}

static void reset(void)
{
	struct window *w = &the.window;

	w->calls = w->kinds = w->unfinished = 0;
	w->records = w->dropped = w->off = w->left = 0;
	memset(w->took, 0, sizeof(w->took));
	w->want_took = w->caller = w->several = w->own = w->given_up = 0;
	w->tried = w->tries = 0;
	w->flush_took = w->flush_at = 0;
	w->began = now();
	if (!the.dormant)
		graphs_forget();
	graphs_unsee();
	ranges_forget();
	pending_forget();
}

/* Who has refused us: CUPTI says it from 13.3 on, to one who asks to subscribe by a function of that version. Should
 * that let us in
 * - the other one has just gone, or it is not as exclusive as the first - nothing is done with it. */
static void ask_holder(void)
{
	char name[AGENT_HOLDER] = "";
	struct subscriber_params p = { .size = sizeof(p), .name = NAME, .holder = name, .holder_size = sizeof(name) };

	if (!the.cupti.subscribe_named || the.ring->holder[0])
		return;
	if (the.cupti.subscribe_named(&the.window.subscriber, on_call, NULL, &p))
		copy_text(the.ring->holder, name, sizeof(name));
	else
		window_unsubscribe();
}

/*
 * While a thread of the target captures a graph, calls of other threads that may be unsafe fail, and spoil it, unless
 * their thread has said that it is relaxed about it (cuThreadExchangeStreamCaptureMode in the driver's reference):
 * nothing that the agent's thread calls waits for the target's work.
 */
static void relax(void)
{
	int mode = CAPTURE_RELAXED;

	if (the.cuda.capture_mode)
		the.cuda.capture_mode(&mode);
}

int window_subscribe(void)
{
	struct window *w = &the.window;
	int bad = pool_make();

	if (bad)
		return bad;
	reset();
	relax();
	outside_learn();
	if (the.kept)
		return 0;
	store(&the.ring->opening, w->began);
	gate_wait(1);
	bad = the.cupti.subscribe(&w->subscriber, on_call, NULL);
	if (bad == ERROR_BUSY)
		ask_holder();
	else
		the.ring->holder[0] = 0;
	gate_wait(0);
	store(&the.ring->opening, 0);
	the.slow = !bad && took(STEP_SUBSCRIBE, w->began) - w->began > KEEP_AFTER;
	return bad; /* where it failed, not a thing was changed */
}

void window_unsubscribe(void)
{
	the.cupti.unsubscribe(the.window.subscriber);
}

/* What a subscription needs once. */
static int set_up(void)
{
	int bad = the.cupti.buffers(pool_request, records_complete);

	if (!bad)
		bad = the.cupti.clock(now);
	if (!bad)
		thread_ids_on();
	return bad;
}

/* Calls before kinds, and off after them: no graph runs with the kinds on of which nobody knows. */
static int turn_on(void)
{
	size_t earlier = 0;
	uint64_t t = now();
	int bad;

	/* What was lost since the last window, such as the record of the call that it ended in, is none of this one's. */
	the.cupti.dropped(NULL, 0, &earlier);
	calls_enable(1, 0);
	t = took(STEP_CALLBACKS, t);
	bad = kinds_on();
	took(STEP_KINDS, t);
	return bad;
}

void window_leave(void)
{
	thread_ids_back();
	clock_back();
	window_unsubscribe();
	left_off();
}

static void callbacks_off(void)
{
	calls_enable(0, 0);
	calls_enable(0, 1); /* of an end that was wanted */
	left_off();
}

int window_open(void)
{
	struct window *w = &the.window;
	uint64_t t = now();
	int bad = the.kept ? 0 : set_up();

	took(STEP_SET_UP, t);
	if (bad) { /* no callback was on */
		window_leave();
		return bad;
	}
	bad = turn_on();
	if (bad) {
		kinds_off();
		callbacks_off();
		the.kept = !window_release(0);
		the.dormant |= the.kept;
		return bad;
	}
	exit_watch_first();
	w->opened = now();
	w->entered = w->opened - w->began;
	store(&w->phase, PHASE_OPEN);
	return 0;
}

/* While the phase is WANTED any thread may finalize: this one keeps its hands off CUPTI. */
void window_want(void)
{
	uint64_t t = now();

	calls_enable(1, 1);
	the.window.want_took = (uint32_t)(now() - t);
	store(&the.window.phase, PHASE_WANTED);
}

int window_unwant(void)
{
	return swapped(&the.window.phase, PHASE_WANTED, PHASE_OPEN) ? 0 : -1;
}

/* Where there is no gate, one that is about to launch a graph has come to its callback after a moment: then it is known
 * who launches. */
static int graphs_out(uint32_t tid)
{
	uint64_t t = now();

	while (!the.ring->gate && now() - t < ARRIVAL)
		;
	return graphs_allow(tid);
}

/* As outside_wait, and none of them goes on before outside_end. */
static int all_out(uint32_t but, uint64_t ns)
{
	if (!outside_wait(but, ns))
		return 0;
	if (gate_keep())
		return 1;
	outside_end();
	return 0;
}

/* In a call of the agent's own the others are outside already. */
static int others_out(uint32_t tid)
{
	uint32_t n;
	int out;

	if (the.window.own == 1)
		return 1;
	n = the.window.tries++ / TRIES;
	out = all_out(tid, THEIRS << (n < 2 ? n : 2));

	the.window.tried = now();
	return out;
}

void window_finish(uint32_t tid, uint32_t before)
{
	uint64_t t;

	if (!others_out(tid) || !graphs_out(tid)) {
		outside_end();
		store(&the.window.phase, before);
		return;
	}
	the.window.off = now();
	kinds_off();
	t = took(STEP_DISABLE, the.window.off);
	the.cupti.flush(FLUSH_FORCED);
	records_lost();
	t = took(STEP_FLUSH, t);
	window_leave();
	t = took(STEP_LEAVE, t);
	/* Where nothing holds such threads, a graph that one launched while kinds were on was noted by its callback. */
	the.window.given_up = !graphs_allow(tid);
	if (!the.window.given_up)
		the.cupti.finalize();
	left_all(tid);
	outside_end();
	the.window.left = took(STEP_FINALIZE, t);
	the.slow_out = the.window.left - the.window.off > MOST;
	store(&the.window.phase, PHASE_DONE);
	futex_wake(&the.window.phase);
}

/* A synchronizing call of this thread's, which has no context: the driver refuses it at once, and touches nothing of
 * the target's. CUPTI calls back at its exit all the same (libcuda 580, CUPTI 13.0). */
static void own_call(void)
{
	if (the.cuda.synchronize)
		the.cuda.synchronize();
}

int window_end(int last)
{
	uint64_t t = now();

	if (!all_out(0, last ? LAST : OWN))
		return 0;
	the.window.own = 1;
	the.cupti.callback(1, the.window.subscriber, DOMAIN_DRIVER, OWN_CALL);
	the.window.want_took = (uint32_t)(now() - t);
	store(&the.window.phase, PHASE_OWN);
	store(&the.ring->leaving, t);
	own_call();
	store(&the.ring->leaving, 0);
	if (swapped(&the.window.phase, PHASE_OWN, PHASE_OPEN)) {
		outside_end();
		the.window.own = 0;
		return 0;
	}
	the.window.own = 2;
	return 1;
}

/*
 * Turns all off, and hands over what was recorded, where all threads are outside (window_flush). Elsewhere CUPTI keeps
 * the buffers that are not full: they come in a later window, or never. Returns whether the threads are outside, and
 * held until outside_end; none is held in a process that exits.
 *
 * The kinds go off with that proof or without it, where the time is up. A thread that is inside meanwhile goes on in
 * what it knows: turning kinds off frees no subscriber and no buffer, only a flush, an unsubscribe and a finalize do, and
 * none of these is made here without the proof. Nor does a finalize follow before the kinds have been on again and every
 * graph that ran under them has, too (may_finalize), be it this image that makes it or the next one (left_stay).
 */
static int hand_over(uint64_t patience)
{
	uint32_t exits = exiting();
	int out = exits ? outside_at_exit(patience) : all_out(0, patience);
	uint64_t t;

	the.window.off = now();
	kinds_off();
	if (!exits)
		callbacks_off();
	t = took(STEP_DISABLE, the.window.off);
	if (out)
		the.cupti.flush(FLUSH_FORCED);
	else if (the.window.calls) /* at least so many: whoever reads the window is to know that it may not be whole */
		add(&the.window.dropped, pending_count() + 1);
	records_lost();
	the.window.left = took(STEP_FLUSH, t);
	return out && !exits;
}

/* Gives the subscription up, all threads being outside. */
static void give_up(void)
{
	window_leave();
	left_all(0);
	outside_end();
}

int window_drop(int last)
{
	int how = END_KEPT;

	if (!swapped(&the.window.phase, PHASE_WANTED, PHASE_TAKEN) && !swapped(&the.window.phase, PHASE_OPEN, PHASE_TAKEN))
		return 0;
	if (hand_over(last ? LAST : OWN)) {
		give_up();
		how = END_DISABLED;
	} else if (exiting()) { /* it takes the subscription with it, soon and beside us */
		how = END_DISABLED;
	}
	the.window.left = took(STEP_LEAVE, the.window.left);
	store(&the.window.phase, PHASE_DONE);
	return how;
}

int window_release(int last)
{
	if (!all_out(0, last ? LAST : OWN))
		return 0;
	give_up();
	return 1;
}

void window_keep(void)
{
	if (hand_over(OWN))
		outside_end();
}

/*
 * A flush, forced or not, takes a buffer away from its thread and frees what leads to it, and takes no lock that the
 * thread takes to make a record: one that loses its CPU there goes on in freed memory (an H100, CUPTI 13.0: 3 of 2,380
 * attachments to programs that hardly get a CPU, all at libcupti+0x838b0). Buffers that are full CUPTI hands over by
 * itself; their threads are done with them.
 */
int window_flush(void)
{
	struct window *w = &the.window;
	uint64_t t, ns;

	if (!all_out(0, LEISURE))
		return 0;
	t = now();
	the.cupti.flush(0);
	ns = now() - t;
	records_lost();
	outside_end();
	if (ns > w->flush_took) {
		w->flush_took = ns;
		w->flush_at = t;
	}
	return 1;
}

_Static_assert(sizeof(((struct agent_slot *)0)->args) == sizeof(the.window.took), "a slot has room for the steps");

static void steps_said(const struct window *w)
{
	struct agent_slot s = { .ts = w->began, .dur = w->flush_took, .tid = w->want_took, .kind = AGENT_STEPS };

	s.ret = w->flush_at > w->opened ? (int32_t)((w->flush_at - w->opened) / 1000) : 0;
	memcpy(s.args, w->took, sizeof(s.args));
	ring_write(&s); /* without it the window is as good */
}

void window_said(int how)
{
	struct window *w = &the.window;
	struct agent_slot s = {
		.ts = w->opened, .dur = w->off - w->opened, .tid = w->unfinished, .kind = AGENT_WINDOW, .flags = EVENT_TIMED,
		.func = WINDOW_CALLS | (w->own == 2 ? WINDOW_OWN : 0), .ret = how,
		.args = { w->records, w->dropped, w->entered, w->left - w->off },
	};

	steps_said(w);
	for (int i = 0; !ring_write(&s) && i < PATIENCE && !exiting(); i++)
		futex_wait(&the.ring->wake, peek(&the.ring->wake), POLL);
	add(&the.ring->windows, 1);
	store(&the.ring->lost, 0);
	store(&the.ring->began, 0);
	store(&w->phase, PHASE_CLOSED);
}
