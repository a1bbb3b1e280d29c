/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One window: subscribe (first, as it is the lock), enable, record, end. A window ends with a finalize inside a
 * callback at the exit of a synchronizing call, with the kinds still on; or, after a deadline, by disabling, which
 * leaves graphs that ran slower. Flushing, unsubscribing and finalizing free memory that a thread inside CUPTI still
 * uses: they are done only when all threads are proven to be outside (outside.c), except for a subscription under which
 * nothing was enabled. A subscription begins, and buffers are registered, only when all threads have left all earlier
 * ones (left.c). No other order of these calls is safe, and none at all where several threads launch graphs (graphs.c).
 *
 * The agent's own thread makes the synchronizing call (window_end), so the target need not make one. Only where the
 * target launches graphs, the window ends at the next such call of the thread that launches them.
 *
 * cuptiSubscribe takes a lock of the driver for writing, which every call into the driver holds for reading, and
 * readers go first: where several threads are nearly always inside, it waits for seconds to minutes (measured: libcuda
 * 580, CUPTI 13.0). There a window without graphs ends by turning the kinds off, which is safe and cheap, and the next
 * one turns them on again: the subscription is kept until no more windows are wanted, and then ended with a finalize.
 * cuptiFinalize takes the same lock and would block a thread of the target for as long, so there the agent's thread
 * makes that call.
 */
#include "agent.h"

/* The recorded kinds. Markers, only where NVTX reaches CUPTI, come last. */
static const uint8_t kinds[] = { KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMCPY_PEER, KIND_MEMSET, KIND_OVERHEAD,
	KIND_MARKER };

#define OWN_CALL 17 /* cuCtxSynchronize */
#define WRITE_RETRIES 50 /* of POLL each, for room in the ring for AGENT_WINDOW: without it the whole window is lost */
#define END_TIMEOUT (6 * MS)    /* for all threads to be outside, where the agent's thread ends a window */
#define FLUSH_TIMEOUT (200 * MS) /* the same for a flush during a window */
#define SHUTDOWN_TIMEOUT (50 * MS)  /* the same when nothing may stay enabled */
#define TARGET_END_TIMEOUT (2 * MS) /* the same where a thread of the target ends it; later tries take longer */
#define MAX_END (100 * MS) /* an end that takes longer is not repeated in each window: threads are held meanwhile */
#define TRIES_PER_DOUBLING 3         /* after so many tries TARGET_END_TIMEOUT is doubled, twice */
#define CALLBACK_DELAY 20000 /* ns between the entry of a driver call and CUPTI's callback; usually 1 us */
#define STARVED_TRIES 4       /* to deliver the records of a starved window */
#define STARVED_RETRY (10 * MS) /* between two of them */
#define KEEP_AFTER (300 * MS) /* a subscription that takes longer is kept between windows */

static uint64_t realtime(void)
{
	struct timespec64 t = { 0, 0 };

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.seconds * SECOND + (uint64_t)t.nanoseconds;
}

/* Records the time that a step took since it began; returns its end. */
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

/* Kernels are required; other kinds that this CUPTI or device refuses are skipped. */
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

/* Overhead and marker records carry thread ids: use those of gettid for the time of the window. */
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

/* Restores the clock that a later profiler in the target expects. */
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
	w->tried = w->tries = w->starved = 0;
	w->flush_took = w->flush_at = 0;
	w->began = now();
	if (!the.dormant)
		graphs_forget();
	graphs_unsee();
	ranges_forget();
	pending_forget();
}

/* Reads the name of the current subscriber, which CUPTI returns from 13.3 on to a subscription by cuptiSubscribe_v2.
 * Should that succeed, because the other one has just left or is not exclusive, it is undone. */
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
 * Sets the relaxed capture mode (cuThreadExchangeStreamCaptureMode). Otherwise a potentially unsafe call by the agent's
 * thread would fail and invalidate a graph that a thread of the target is capturing. Nothing that the agent's thread
 * calls waits for work of the target.
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
	return bad; /* where it failed, nothing was changed */
}

void window_unsubscribe(void)
{
	the.cupti.unsubscribe(the.window.subscriber);
}

/* Sets up a new subscription. */
static int set_up(void)
{
	int bad = the.cupti.buffers(pool_request, records_complete);

	if (!bad)
		bad = the.cupti.clock(now);
	if (!bad)
		thread_ids_on();
	return bad;
}

/* Callbacks go on before the kinds, and off after them, so that every graph that runs with the kinds on is known. */
static int turn_on(void)
{
	size_t earlier = 0;
	uint64_t t = now();
	int bad;

	/* Records lost since the last window, such as that of the call in which it ended, do not belong to this one. */
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
	calls_enable(0, 1); /* those that window_want enabled */
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
	waits_begin(&w->waits, graphs_launcher());
	store(&w->phase, PHASE_OPEN);
	return 0;
}

/* While the phase is WANTED any thread may finalize, so the agent's thread must not call CUPTI. */
void window_want(void)
{
	uint64_t t = now();

	calls_enable(1, 1);
	the.window.want_took = (uint32_t)(now() - t);
	store(&the.window.phase, PHASE_WANTED);
}

int window_starved(void)
{
	struct window *w = &the.window;
	uint32_t tid = graphs_launcher();

	return load(&w->starved) || (tid && !graphs_allow(0) && !waits_allow(&w->waits, tid, 0));
}

int window_unwant(void)
{
	return swapped(&the.window.phase, PHASE_WANTED, PHASE_OPEN) ? 0 : -1;
}

/* Without a gate, waits until a thread that is about to launch a graph has reached its callback, and is known. */
static int graphs_out(uint32_t tid)
{
	uint64_t t = now();

	while (!the.ring->gate && now() - t < CALLBACK_DELAY)
		;
	return graphs_allow(tid);
}

/* Keeps the threads held until outside_end; fails where the gates have opened, or may be going. */
static int keep_out(void)
{
	section_out();
	return !gates_lost() && gate_keep();
}

/* Like outside_wait, and all threads stay held until outside_end. */
static int all_out(uint32_t but, uint64_t ns)
{
	if (!outside_wait(but, ns))
		return 0;
	if (keep_out())
		return 1;
	outside_end();
	return 0;
}

/* STARVED: the calling thread might lose its CPU during a finalize, and hold others for too long. */
enum outcome { INSIDE = 0, OUT = 1, STARVED = 2 };

/* Like all_out, for a finalize. A flush does not ask for waits_allow: it is short, and without it the records of the
 * window are lost. */
static enum outcome finalize_out(uint32_t but, uint64_t ns)
{
	const struct waits *waits = but ? &the.window.waits : &the.waits;
	uint32_t tid = but ? but : the.tid;
	enum outcome is = STARVED;

	if (!waits_allow(waits, tid, 0))
		return STARVED;
	if (!outside_wait(but, ns))
		return INSIDE;
	if (waits_allow(waits, tid, outside_held_for()))
		is = INSIDE;
	if (is == INSIDE && keep_out())
		return OUT;
	outside_end();
	return is;
}

/* In a call of the agent's own the others are outside already. */
static int others_out(uint32_t tid)
{
	enum outcome is;
	uint32_t n;

	if (the.window.own == 1)
		return 1;
	n = the.window.tries++ / TRIES_PER_DOUBLING;
	is = finalize_out(tid, TARGET_END_TIMEOUT << (n < 2 ? n : 2));
	if (is == STARVED && !graphs_allow(0)) /* otherwise the agent's thread ends the window, and may get a CPU */
		store(&the.window.starved, 1);
	the.window.tried = now();
	return is == OUT;
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
	/* Without gates, a graph that was launched while kinds were on was noted by its callback. */
	the.window.given_up = !graphs_allow(tid);
	if (!the.window.given_up)
		the.cupti.finalize();
	left_all(tid);
	outside_end();
	the.window.left = took(STEP_FINALIZE, t);
	the.slow_out = the.window.left - the.window.off > MAX_END;
	store(&the.window.phase, PHASE_DONE);
	futex_wake(&the.window.phase);
}

/* Makes a synchronizing call in this thread, which has no context: the driver rejects it at once and touches nothing of
 * the target. CUPTI still calls back at its exit (libcuda 580, CUPTI 13.0). */
static void own_call(void)
{
	if (the.cuda.synchronize)
		the.cuda.synchronize();
}

int window_end(int last)
{
	uint64_t t = now();
	enum outcome is = finalize_out(0, last ? SHUTDOWN_TIMEOUT : END_TIMEOUT);

	the.window.starved = is == STARVED;
	if (is != OUT)
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

static void switch_off(uint32_t exits)
{
	the.window.off = now();
	kinds_off();
	if (!exits)
		callbacks_off();
	took(STEP_DISABLE, the.window.off);
}

/* Like all_out, again and again: a thread that waits for a CPU inside of the driver gets one between two tries. */
static int all_out_in_time(uint64_t patience)
{
	for (int i = 0; !all_out(0, patience); i++) {
		if (i >= STARVED_TRIES || gates_lost() || daemon_gone() || exiting())
			return 0;
		futex_wait(&the.ring->wake, load(&the.ring->wake), STARVED_RETRY);
	}
	return 1;
}

/*
 * Turns everything off and, where all threads are outside, delivers the records (window_flush). Otherwise CUPTI keeps
 * the buffers that are not full: they come in a later window, or never. Returns whether the threads are outside, and
 * held until outside_end; none is held in a process that exits.
 *
 * The kinds go off at the timeout even without that proof, and first of all in a starved window, so that threads are
 * held for less of this thread's work. This is safe for a thread inside: turning kinds off frees no subscriber and no
 * buffer; only a flush, an unsubscribe and a finalize do, and they need the proof. A finalize, by this image or the
 * next one (left_save), waits until the kinds have been on again and every graph has run again under them
 * (may_finalize).
 */
static int hand_over(uint64_t patience)
{
	uint32_t exits = exiting();
	int out, early = !exits && load(&the.window.starved);
	uint64_t t;

	if (early)
		switch_off(0);
	out = exits ? outside_at_exit(patience) : early ? all_out_in_time(patience) : all_out(0, patience);
	if (!early)
		switch_off(exits);
	t = now();
	if (out)
		the.cupti.flush(FLUSH_FORCED);
	else if (the.window.calls) /* a lower limit: marks the window as possibly incomplete */
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

	if (!swapped(&the.window.phase, PHASE_WANTED, PHASE_TAKEN) &&
	    !swapped(&the.window.phase, PHASE_OPEN, PHASE_TAKEN))
		return 0;
	if (hand_over(last ? SHUTDOWN_TIMEOUT : END_TIMEOUT)) {
		give_up();
		how = END_DISABLED;
	} else if (exiting()) { /* the exit removes the subscription */
		how = END_DISABLED;
	}
	the.window.left = took(STEP_LEAVE, the.window.left);
	store(&the.window.phase, PHASE_DONE);
	return how;
}

int window_release(int last)
{
	if (!all_out(0, last ? SHUTDOWN_TIMEOUT : END_TIMEOUT))
		return 0;
	give_up();
	return 1;
}

void window_keep(void)
{
	if (hand_over(END_TIMEOUT))
		outside_end();
}

/*
 * A flush, forced or not, takes the buffer from its thread and frees what refers to it, without the lock under which
 * the thread writes a record: a thread that loses its CPU there continues in freed memory (an H100, CUPTI 13.0: 3 of
 * 2,380 attachments to programs that hardly get a CPU, all at libcupti+0x838b0). CUPTI delivers full buffers by itself;
 * their threads no longer use them.
 */
int window_flush(void)
{
	struct window *w = &the.window;
	uint64_t t, ns;

	if (!all_out(0, FLUSH_TIMEOUT))
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

static void write_steps(const struct window *w)
{
	struct agent_slot s = { .ts = w->began, .dur = w->flush_took, .tid = w->want_took, .kind = AGENT_STEPS };

	s.ret = w->flush_at > w->opened ? (int32_t)((w->flush_at - w->opened) / 1000) : 0;
	memcpy(s.args, w->took, sizeof(s.args));
	ring_write(&s); /* the window is valid without it */
}

void window_written(int how)
{
	struct window *w = &the.window;
	struct agent_slot s = {
		.ts = w->opened, .dur = w->off - w->opened, .tid = w->unfinished, .kind = AGENT_WINDOW, .flags = EVENT_TIMED,
		.func = WINDOW_CALLS | (w->own == 2 ? WINDOW_OWN : 0), .ret = how,
		.args = { w->records, w->dropped, w->entered, w->left - w->off },
	};

	if (w->starved && how != END_FINALIZED)
		s.func |= WINDOW_STARVED;
	write_steps(w);
	for (int i = 0; !ring_write(&s) && i < WRITE_RETRIES && !exiting(); i++)
		futex_wait(&the.ring->wake, peek(&the.ring->wake), POLL);
	add(&the.ring->windows, 1);
	store(&the.ring->lost, 0);
	store(&the.ring->began, 0);
	store(&w->phase, PHASE_CLOSED);
}
