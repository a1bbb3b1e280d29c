/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's own thread: opens and ends windows as the daemon asks, and shuts the agent down when the daemon ends. */
#include "agent.h"

#define HEARTBEAT_TIMEOUT (3 * SECOND / 2) /* after the last heartbeat the daemon counts as ended */
#define MAX_HEARTBEAT_AHEAD (60 * SECOND)  /* a heartbeat further in the future is invalid */
#define FLUSH (500 * MS)
#define SHORT_WINDOW (2 * SECOND) /* a window up to this length delivers all records at its end */
#define BACKOFF (10 * SECOND) /* after CUPTI was refused */
#define SHUTDOWN_DEADLINE (300 * MS) /* for ending a window when no daemon waits for it */
#define EXIT_TIMEOUT (100 * MS) /* for threads to be seen outside of CUPTI, before a mark is left for the next agent */
#define CANCELLED_WINDOW (20 * MS) /* length of a window that is no longer wanted when it opens */
#define GATE_LEAD (100 * MS)  /* the gates are requested this long before a subscription */
#define GATE_LEAD_END (20 * MS) /* and this long before the end of a window: from then on every call passes them */
#define FIRST_RETRY (20 * MS) /* after a try at which not all threads came out of the driver; each later one after twice
                               * the time */
#define LAST_RETRY (640 * MS)
#define KEEP_AFTER (2 * FIRST_RETRY) /* after failed tries that reach this interval, the subscription is kept */
#define ARM_TIMEOUT (100 * MS) /* for the daemon to arm the gates */
#define RETRY_FLUSH (100 * MS)
#define MAX_AMENDED 3         /* windows opened only to end with a finalize */
#define PROVEN (300 * MS)     /* how long kinds must be on before a finalize, once they went off without one */

struct loop {
	uint64_t opened;  /* ns CLOCK_MONOTONIC of the last window; the next comes a period later; 0: at next */
	uint64_t next;    /* when the next window may open, ns */
	uint64_t wanted;  /* since when the end is wanted; 0: it is not */
	uint64_t pressed; /* since when the deadline runs; 0: it does not yet */
	uint64_t flushed;
	uint64_t retry_flush; /* no flush before this, ns */
	uint64_t flush_asked; /* since when the gates are requested for a flush, ns; 0: they are not */
	uint32_t calls;   /* of the window when the end was wanted */
	uint64_t retry;   /* no try to end the window before this, ns */
	uint64_t backoff; /* until the try after the next one, ns */
	int amended;      /* windows opened by amend */
	int refused;      /* the last window could not be opened: wait, in every mode */
};

/* Reports whether the kernel has marked the owner of the robust futex as dead; it does so at once. */
static int daemon_died(void)
{
	uint32_t wake = load(&the.ring->wake);

	return wake & FUTEX_OWNER_DIED && !(wake & FUTEX_TID_MASK);
}

int daemon_gone(void)
{
	uint64_t beat = load(&the.ring->heartbeat), t = now();

	return daemon_died() || (beat > t ? beat - t > MAX_HEARTBEAT_AHEAD : t - beat > HEARTBEAT_TIMEOUT);
}

/* An unknown mode means an unknown daemon. */
static uint32_t wanted_mode(void)
{
	uint32_t mode = load(&the.ring->mode);

	return mode > MODE_QUIT || exiting() || daemon_gone() ? MODE_QUIT : mode;
}

static uint64_t within(uint64_t v, uint64_t low, uint64_t high)
{
	return v < low ? low : v > high ? high : v;
}

static uint64_t on_ns(void)
{
	return within(load(&the.ring->on_ns), MS, 3600 * SECOND);
}

/* Sleeps until the daemon wakes us, the given time, or the timeout of its heartbeat. */
static void sleep_until(uint64_t time, uint32_t seen)
{
	uint64_t t = now(), last = load(&the.ring->heartbeat) + HEARTBEAT_TIMEOUT + MS;

	if (last < time)
		time = last;
	if (time > t && load(&the.ring->turns) == the.turns)
		futex_wait(&the.ring->wake, seen, within(time - t, MS, 2 * SECOND));
}

static void set_state(uint32_t state, int error)
{
	store(&the.ring->error, error);
	store(&the.ring->state, state);
}

static void write_opened(void)
{
	struct agent_slot s = { .ts = the.window.opened, .kind = AGENT_OPENED, .args = { 0, 0, the.window.entered } };

	ring_write(&s);
}

static void write_refused(int error)
{
	struct agent_slot s = { .ts = now(), .kind = AGENT_WINDOW, .ret = END_REFUSED, .args = { (uint64_t)error } };

	ring_write(&s);
}

/* Refuses a window because several threads launch graphs, and gives up a kept subscription: no later window will. */
static int refuse_window(void)
{
	if (the.kept && window_release(0))
		the.kept = 0;
	return ERROR_GRAPH_THREADS;
}

/*
 * Opens a window; returns 0 or why not: a CUptiResult, enum agent_error, or less than 0 where that is no error.
 * Subscribing may take minutes. A window that is no longer wanted by then is opened all the same, to end with a
 * finalize: only that removes the two threads and 10 MB that a subscription creates (CUPTI 13.0).
 */
static int enter(void)
{
	int error = the.kept ? 0 : library_find();

	if (!error && graphs_several())
		error = refuse_window();
	if (!error)
		error = window_subscribe();
	if (error)
		return error;
	if (!exiting() && !gates_lost() && !graphs_several())
		return window_open();
	if (!the.kept) /* no callback was on; with a kept subscription a thread may still be after one */
		window_unsubscribe();
	return exiting() || gates_lost() ? -1 : refuse_window();
}

static void next_at(struct loop *l, uint64_t t)
{
	l->opened = 0;
	l->next = t;
}

/* Returns when the next window is due; the daemon may change the period meanwhile. */
static uint64_t next(const struct loop *l)
{
	return l->opened ? l->opened + within(load(&the.ring->period_ns), 10 * MS, 3600 * SECOND) : l->next;
}

static void open_one(struct loop *l)
{
	int error;

	set_state(STATE_OPENING, 0);
	name_thread("cupti"); /* inherited by the threads that CUPTI creates here */
	error = enter();
	name_thread(NAME);
	l->wanted = l->pressed = l->retry = l->retry_flush = l->flush_asked = 0;
	l->backoff = FIRST_RETRY;
	l->flushed = now();
	l->refused = error != 0;
	if (!error) {
		store(&the.ring->began, the.window.opened);
		set_state(STATE_OPEN, 0);
		devices_write();
		write_opened();
		return;
	}
	if (error < 0) { /* CUDA is not used yet: check again soon, which is cheap */
		next_at(l, now() + within(load(&the.ring->period_ns), 100 * MS, SECOND));
		set_state(STATE_IDLE, 0);
		return;
	}
	next_at(l, now() + BACKOFF);
	write_refused(error);
	set_state(STATE_REFUSED, error);
}

static void acknowledge_flush(uint64_t asked)
{
	store(&the.ring->flushed, (uint32_t)asked);
}

static void rest(struct loop *l, uint32_t mode, uint32_t seen)
{
	uint64_t t = now(), then = next(l);
	int heard = load(&the.ring->wake) != 0; /* without a daemon nothing holds launches while a window ends */
	int due = t >= then || (mode == MODE_CONTINUOUS && !l->refused) || (mode == MODE_OFF && !the.window.starved);

	acknowledge_flush(load(&the.ring->flush));
	if (!heard || gates_lost() || (mode == MODE_OFF && !the.kept)) {
		gate_ask(ASK_NOTHING);
		if (!l->refused) /* a refusal stays the state until the next try */
			set_state(the.kept ? STATE_KEPT : STATE_IDLE, 0);
		sleep_until(~0ull, seen);
		return;
	}
	if (due && (the.kept || left_alone())) {
		gate_ask(the.kept && graphs_several() ? ASK_ALL : ASK_IN); /* usually already requested */
		open_one(l);
		return;
	}
	if (due || then - t <= GATE_LEAD)
		gate_ask(the.kept && graphs_several() ? ASK_ALL : ASK_IN);
	else
		gate_ask(ASK_NOTHING);
	if (due)
		futex_wait(&the.ring->wake, seen, POLL / 4);
	else
		sleep_until(then - t > GATE_LEAD ? then - GATE_LEAD : then, seen);
}

/* Delivers what CUPTI has; only while no other thread may be finalizing it. Retried later where threads are inside. */
static int flush(struct loop *l)
{
	uint64_t asked = load(&the.ring->flush), began = now();
	int flushed = window_flush();

	l->retry_flush = now() + (flushed ? 0 : RETRY_FLUSH);
	if (!flushed)
		return 0;
	pending_flushed(began);
	l->flushed = now();
	acknowledge_flush(asked);
	return 1;
}

/* During a window a flush first requests the gates, and waits until the daemon has armed them. */
static void flush_gated(struct loop *l, uint32_t seen)
{
	uint64_t t = now();

	if (gate_ready() && gate_closes()) {
		l->flush_asked = 0;
		flush(l);
		return;
	}
	if (!l->flush_asked)
		l->flush_asked = t;
	if (t - l->flush_asked < FLUSH) {
		futex_wait(&the.ring->wake, seen, POLL / 4);
		return;
	}
	l->flush_asked = 0;
	l->retry_flush = t + 2 * FLUSH;
}

/* Returns when the next unrequested flush is due: FLUSH after the oldest call without a record, at least every 10
 * FLUSH, and at the earliest FLUSH after the last one. */
static uint64_t flush_time(const struct loop *l)
{
	uint64_t oldest = pending_oldest(), latest = l->flushed + 10 * FLUSH;
	uint64_t due = oldest && oldest + FLUSH < latest ? oldest + FLUSH : latest;

	return due > l->flushed + FLUSH ? due : l->flushed + FLUSH;
}

static int flush_due(const struct loop *l)
{
	return now() >= l->retry_flush &&
	    ((uint32_t)load(&the.ring->flush) != the.ring->flushed || now() >= flush_time(l));
}

/* Returns when to check for a flush again: a call made from now on is due in FLUSH at the earliest. */
static uint64_t look_time(const struct loop *l)
{
	uint64_t due = flush_time(l), t = now() + FLUSH;

	if (due < l->retry_flush)
		due = l->retry_flush;
	return due < t ? due : t;
}

/* Reports whether a finalize is safe: always, unless kinds went off without one before. */
static int may_finalize(void)
{
	return !the.dormant || (now() - the.window.opened >= PROVEN && the.window.calls && graphs_all_seen());
}

/* Reports whether the window should end. A cancelled one stays open briefly, to see which threads make calls. */
static int end_due(uint32_t mode)
{
	if (mode == MODE_CONTINUOUS)
		return 0;
	return now() - the.window.opened >= (mode == MODE_WINDOWS ? on_ns() : CANCELLED_WINDOW) || exiting();
}

static uint64_t deadline(uint32_t mode)
{
	uint64_t d = within(load(&the.ring->deadline_ns), MS, 60 * SECOND);

	if (exiting())
		return 0;
	return mode == MODE_QUIT && daemon_gone() && d > SHUTDOWN_DEADLINE ? SHUTDOWN_DEADLINE : d;
}

/*
 * Reports whether the deadline of a window has passed. It starts once the target makes calls at which the
 * window cannot end. An open window costs an idle target nothing, and its first synchronizing call ends it
 * with a finalize; the deadline starts at once only where the daemon waits for the end.
 */
static int overdue(struct loop *l, uint32_t mode)
{
	if (the.dormant && now() - the.window.opened < PROVEN && !exiting())
		return 0; /* a finalize is not possible yet */
	if (!l->pressed && (mode != MODE_WINDOWS || peek(&the.window.calls) != l->calls))
		l->pressed = now();
	return l->pressed && now() - l->pressed >= deadline(mode);
}

static void ended(struct loop *l, int how)
{
	gate_ask(ASK_NOTHING);
	the.dormant = how != END_FINALIZED;
	the.kept = how == END_KEPT;
	if (the.kept)
		store(&the.ring->inside_count, 0); /* the next window needs no subscription */
	else
		left_alone(); /* publishes the threads that must be seen outside */
	if (!the.dormant)
		pool_reset();
	store(&the.ring->graphs, the.dormant ? (graphs_any() ? 1 : 2) : 0);
	window_written(how);
	pool_trim(0);
	set_state(the.kept ? STATE_KEPT : STATE_IDLE, 0);
	l->opened = the.window.opened;
}

/* Waits until the daemon has armed the gates, which were asked for. */
static void await_gates(void)
{
	uint64_t t = now();

	while (!(gate_ready() && gate_closes()) && now() - t < ARM_TIMEOUT && !exiting() && !daemon_gone() && !gates_lost())
		futex_wait(&the.ring->wake, load(&the.ring->wake), POLL / 4);
}

/* Makes the gates also hold the thread that launches graphs, which they do not do while it may finalize. */
static void hold_all(void)
{
	if (exiting() || daemon_gone() || graphs_allow(0))
		return;
	gate_ask(ASK_ALL);
	await_gates();
}

/* Ends a window and keeps the subscription. This thread may have asked for the gates late, because it got no CPU:
 * without them the records of the window are not delivered. */
static __attribute__((noinline)) void keep(struct loop *l)
{
	await_gates();
	window_keep();
	ended(l, END_KEPT);
}

static void drop(struct loop *l, uint32_t mode)
{
	int how;

	hold_all();
	how = window_drop(mode == MODE_QUIT);

	if (how)
		ended(l, how);
}

/* Reports whether to keep the subscription after the window. Not if a graph ran in it, which would stay slower until a
 * finalize. */
static int keeps(uint32_t mode)
{
	return mode == MODE_WINDOWS && (the.slow || the.slow_out) && !graphs_any() && !exiting();
}

/*
 * Reports whether the agent's own thread ends the window: always, except with graphs, which another thread may be
 * launching. This needs no call of the target, only a moment with all its threads outside of the driver (outside.c).
 */
static int ends_itself(void)
{
	return graphs_allow(0);
}

/* Returns 0 where not all threads were outside. The gates are open until the next try, which requests them again. */
static int end_itself(struct loop *l, uint32_t mode)
{
	set_state(STATE_LEAVING, 0);
	if (window_end(mode == MODE_QUIT))
		return 1;
	set_state(STATE_CLOSING, 0);
	l->retry = now() + l->backoff;
	if (l->backoff < LAST_RETRY)
		l->backoff *= 2;
	return 0;
}

/* Ends a window without a finalize, for which a thread may get no CPU. */
static void end_otherwise(struct loop *l, uint32_t mode)
{
	store(&the.window.starved, 1);
	if (graphs_any() || !graphs_allow(0)) {
		drop(l, mode);
	} else if (load(&the.window.phase) == PHASE_OPEN || !window_unwant()) {
		keep(l);
	}
}

static void record(struct loop *l, uint32_t mode, uint32_t seen)
{
	uint64_t until, end = the.window.opened + on_ns();
	int flushes = !end_due(mode) && flush_due(l) && (mode == MODE_CONTINUOUS || on_ns() > SHORT_WINDOW);

	if (gates_lost() && !exiting()) {
		keep(l);
		return;
	}
	if (graphs_several()) { /* no finalize is possible: an early end leaves fewer graphs slower */
		drop(l, mode);
		return;
	}
	left_tidy();
	if (flushes)
		gate_ask(ASK_ALL);
	else if (mode == MODE_CONTINUOUS)
		gate_ask(ASK_NOTHING);
	else if (mode != MODE_WINDOWS || now() + GATE_LEAD_END >= end)
		gate_ask(ASK_OUT);
	else if (on_ns() > SHORT_WINDOW)
		gate_ask(ASK_NOTHING);
	gate_renew();
	if (!end_due(mode)) {
		if (l->wanted) /* the end was cancelled */
			set_state(STATE_OPEN, 0);
		l->wanted = l->pressed = 0;
		if (mode == MODE_QUIT || mode == MODE_OFF) {
			futex_wait(&the.ring->wake, seen, MS); /* not limited by the heartbeat, which may be over */
			return;
		}
		if (flushes) {
			flush_gated(l, seen);
			return;
		}
		until = mode == MODE_CONTINUOUS || on_ns() > SHORT_WINDOW ? look_time(l) : end;
		if (mode == MODE_WINDOWS && now() + GATE_LEAD_END < end)
			end -= GATE_LEAD_END;
		sleep_until(mode == MODE_WINDOWS && end < until ? end : until, seen);
		return;
	}
	if (keeps(mode)) {
		store(&the.window.starved, !waits_allow(&the.waits, the.tid, 0));
		keep(l);
		return;
	}
	if (!l->wanted) {
		l->wanted = now();
		l->calls = peek(&the.window.calls);
		set_state(STATE_CLOSING, 0);
	}
	if (!may_finalize() || exiting() || !gate_ready()) {
		if (overdue(l, mode))
			drop(l, mode);
		else if (!gate_ready() || !flush_due(l) || !flush(l))
			futex_wait(&the.ring->wake, seen, POLL / 4); /* not limited by the heartbeat, which may be over */
		return;
	}
	if (ends_itself() && now() >= l->retry && end_itself(l, mode))
		return;
	if ((mode == MODE_WINDOWS || (mode == MODE_OFF && window_starved())) && l->backoff > KEEP_AFTER && !graphs_any()) {
		/* With so many threads they are rarely outside together: keep CUPTI, idle. */
		keep(l);
		return;
	}
	if (mode == MODE_QUIT || !window_starved())
		window_want();
	else if (overdue(l, mode))
		end_otherwise(l, mode);
	else /* until the retry: other threads wait for CPUs, too */
		futex_wait(&the.ring->wake, seen, POLL / 4);
}

static void close(struct loop *l, uint32_t mode)
{
	uint64_t waited = now() - l->wanted;

	futex_wait(&the.window.phase, PHASE_WANTED, waited < SECOND ? POLL / 4 : 10 * POLL);
	if (load(&the.window.phase) != PHASE_WANTED)
		return;
	gate_renew();
	if (gates_lost())
		window_unwant(); /* record() ends it */
	else if (overdue(l, mode) || graphs_several())
		drop(l, mode);
	else if (ends_itself() && now() >= l->retry)
		window_unwant(); /* this thread tries once more */
	else if ((!end_due(mode) || flush_due(l)) && !window_unwant() && end_due(mode)) {
		flush(l);
		window_want();
	}
}

/* Before the agent ends: opens one more window that ends with a finalize, which restores the speed of graphs and gives
 * up a kept subscription. Not in a process that exits, or when the daemon has died. Returns 0 where none was opened. */
static int amend(struct loop *l)
{
	if (!the.dormant || exiting() || gates_lost() || l->amended >= (the.kept && !daemon_gone() ? MAX_AMENDED : 1) ||
	    (!the.kept && (graphs_several() || daemon_gone())))
		return 0;
	if (!the.kept && !left_alone())
		return 0; /* and may not be for an unknown time */
	l->amended++;
	open_one(l);
	return 1;
}

static int step(struct loop *l)
{
	uint32_t seen = load(&the.ring->wake), mode;

	the.turns = load(&the.ring->turns);
	mode = wanted_mode();
	switch (load(&the.window.phase)) {
	case PHASE_CLOSED:
		if (mode == MODE_QUIT)
			return amend(l);
		rest(l, mode, seen);
		break;
	case PHASE_OPEN: record(l, mode, seen); break;
	case PHASE_WANTED: close(l, mode); break;
	case PHASE_OWN: break; /* only within window_end */
	case PHASE_TAKEN: futex_wait(&the.window.phase, PHASE_TAKEN, POLL); break;
	case PHASE_DONE: ended(l, the.window.given_up ? END_DISABLED : END_FINALIZED); break;
	}
	return 1;
}

void loop_serve(void)
{
	struct loop l = { .next = 0 };
	int first = 1;

	set_state(STATE_IDLE, 0);
	while (step(&l)) {
		if (first && load(&the.ring->wake)) { /* the daemon has it open */
			ring_close();
			first = 0;
		}
	}
	gate_ask(ASK_NOTHING);
	store(&the.alive->awake, 0);
	if (!exiting()) {
		for (uint64_t t = now(); !left_alone() && now() - t < EXIT_TIMEOUT;)
			futex_wait(&the.ring->wake, load(&the.ring->wake), POLL / 4);
		left_save();
	}
	set_state(STATE_GONE, 0);
	ring_close();
	ring_leave();
	pool_trim(1);
}
