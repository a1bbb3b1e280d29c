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
#define KEEP_AFTER (2 * FIRST_RETRY) /* of failed tries the subscription outlives the window */
#define ARM_TIMEOUT (50 * MS) /* for the daemon to arm the gates */
#define RETRY_FLUSH (100 * MS)
#define MAX_AMENDED 3         /* windows opened only to end with a finalize */
#define PROVEN (300 * MS)     /* kinds on for so long before a finalize, once they were off without one */

struct loop {
	uint64_t opened;  /* when the last window opened, ns CLOCK_MONOTONIC: the next comes a period later; 0: at next */
	uint64_t next;    /* when the next window may open, ns */
	uint64_t wanted;  /* since when the end is wanted; 0: it is not */
	uint64_t pressed; /* since when the deadline runs; 0: it does not yet */
	uint64_t flushed;
	uint64_t retry_flush; /* no flush before this, ns */
	uint64_t flush_asked; /* since when the gates are asked for to flush, ns; 0: they are not */
	uint32_t calls;   /* of the window when the end was wanted */
	uint64_t retry;   /* no try to end the window before this, ns */
	uint64_t backoff; /* after the next one that fails, ns */
	int amended;      /* windows that were tried to leave nothing behind */
	int refused;      /* the last window could not be opened: wait, in every mode */
};

/* The kernel's word on it comes at once, where the daemon has asked for it. */
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

/* A mode that we do not know is a daemon that we do not know. */
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

/* Sleeps until the daemon wakes us, but no longer than to a time, nor than its heartbeat is good for. */
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

static void said_opened(void)
{
	struct agent_slot s = { .ts = the.window.opened, .kind = AGENT_OPENED, .args = { 0, 0, the.window.entered } };

	ring_write(&s);
}

static void said_refused(int error)
{
	struct agent_slot s = { .ts = now(), .kind = AGENT_WINDOW, .ret = END_REFUSED, .args = { (uint64_t)error } };

	ring_write(&s);
}

/* Several threads launch graphs: no window, and a subscription that was kept is given up, which no window will do any
 * more. */
static int turned_away(void)
{
	if (the.kept && window_release(0))
		the.kept = 0;
	return ERROR_GRAPH_THREADS;
}

/*
 * 0, or why there is no window: CUptiResult, enum agent_error, or less than 0 where that is no error. Subscribing may
 * take minutes. Where nobody wants the window any more by then it is opened all the same, to end well: only a finalize
 * takes back what a subscription makes, two threads and 10 MB (CUPTI 13.0).
 */
static int enter(void)
{
	int error = the.kept ? 0 : library_find();

	if (!error && graphs_several())
		error = turned_away();
	if (!error)
		error = window_subscribe();
	if (error)
		return error;
	if (!exiting() && !graphs_several())
		return window_open();
	if (!the.kept) /* no callback was on; behind one of a kept subscription a thread may be still */
		window_unsubscribe();
	return exiting() ? -1 : turned_away();
}

static void next_at(struct loop *l, uint64_t t)
{
	l->opened = 0;
	l->next = t;
}

/* When the next window is due: the daemon may change the period while it is waited for. */
static uint64_t next(const struct loop *l)
{
	return l->opened ? l->opened + within(load(&the.ring->period_ns), 10 * MS, 3600 * SECOND) : l->next;
}

static void open_one(struct loop *l)
{
	int error;

	set_state(STATE_OPENING, 0);
	name_thread("cupti"); /* what CUPTI starts in here is its own, and says so */
	error = enter();
	name_thread(NAME);
	l->wanted = l->pressed = l->retry = l->retry_flush = l->flush_asked = 0;
	l->backoff = FIRST_RETRY;
	l->flushed = now();
	l->refused = error != 0;
	if (!error) {
		store(&the.ring->began, the.window.opened);
		set_state(STATE_OPEN, 0);
		devices_say();
		said_opened();
		return;
	}
	if (error < 0) { /* CUDA is not used yet: look again soon, it costs next to nothing */
		next_at(l, now() + within(load(&the.ring->period_ns), 100 * MS, SECOND));
		set_state(STATE_IDLE, 0);
		return;
	}
	next_at(l, now() + BACKOFF);
	said_refused(error);
	set_state(STATE_REFUSED, error);
}

static void acknowledge_flush(uint64_t asked)
{
	store(&the.ring->flushed, (uint32_t)asked);
}

static void rest(struct loop *l, uint32_t mode, uint32_t seen)
{
	uint64_t t = now(), then = next(l);
	int heard = load(&the.ring->wake) != 0; /* before a daemon has come nobody holds launches while a window ends */
	int due = t >= then || (mode == MODE_CONTINUOUS && !l->refused) || mode == MODE_OFF;

	acknowledge_flush(load(&the.ring->flush));
	if (!heard || (mode == MODE_OFF && !the.kept)) {
		gate_ask(ASK_NOTHING);
		if (!l->refused) /* that stays true until it is looked at again */
			set_state(STATE_IDLE, 0);
		sleep_until(~0ull, seen);
		return;
	}
	if (due && (the.kept || left_alone())) {
		gate_ask(the.kept && graphs_several() ? ASK_ALL : ASK_IN); /* as a rule it has been */
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

/* Hands over what CUPTI has; only while no other thread may be finalizing it. Where threads are inside it is tried
 * again later. */
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

/* In the midst of a window the gates are asked for with the flush, and close when the daemon has put them up. */
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

/* When the next flush is due by itself: FLUSH after the oldest call of which no record has come, and every second;
 * never within FLUSH of the last one. */
static uint64_t flush_time(const struct loop *l)
{
	uint64_t oldest = pending_oldest(), latest = l->flushed + 10 * FLUSH;
	uint64_t due = oldest && oldest + FLUSH < latest ? oldest + FLUSH : latest;

	return due > l->flushed + FLUSH ? due : l->flushed + FLUSH;
}

static int flush_due(const struct loop *l)
{
	return now() >= l->retry_flush && ((uint32_t)load(&the.ring->flush) != the.ring->flushed || now() >= flush_time(l));
}

/* A call made from now on is due FLUSH from now at the earliest: so long nobody need look. */
static uint64_t look_time(const struct loop *l)
{
	uint64_t due = flush_time(l), t = now() + FLUSH;

	if (due < l->retry_flush)
		due = l->retry_flush;
	return due < t ? due : t;
}

/* Whether a finalize is safe: always, but where kinds went off without one before. */
static int may_finalize(void)
{
	return !the.dormant || (now() - the.window.opened >= PROVEN && the.window.calls && graphs_all_seen());
}

/* One that nobody wants any more is open for a moment all the same: to see which threads make calls. */
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
 * The deadline of a window runs while the target makes calls, none of which we can end at. An idle one
 * pays nothing for an open window, and its first synchronizing call will end it well; only where
 * somebody waits for the end does the time run at once.
 */
static int overdue(struct loop *l, uint32_t mode)
{
	if (the.dormant && now() - the.window.opened < PROVEN && !exiting())
		return 0; /* it could not end well yet */
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
		left_alone(); /* who is to be seen outside */
	if (!the.dormant)
		pool_reset();
	store(&the.ring->graphs, the.dormant ? (graphs_any() ? 1 : 2) : 0);
	window_said(how);
	pool_trim(0);
	set_state(the.kept ? STATE_KEPT : STATE_IDLE, 0);
	l->opened = the.window.opened;
}

/* Has the gates hold the thread that launches graphs, too, which they do not while it may finalize. */
static void hold_all(void)
{
	uint64_t t = now();

	if (exiting() || daemon_gone() || graphs_allow(0))
		return;
	gate_ask(ASK_ALL);
	while (!(gate_ready() && gate_closes()) && now() - t < ARM_TIMEOUT && !exiting() && !daemon_gone())
		futex_wait(&the.ring->wake, load(&the.ring->wake), POLL / 4);
}

static void drop(struct loop *l, uint32_t mode)
{
	int how;

	hold_all();
	how = window_drop(mode == MODE_QUIT);

	if (how)
		ended(l, how);
}

/* Whether the subscription outlives the window. Not where a graph ran in it: that one would stay slower until CUPTI is
 * finalized. */
static int keeps(uint32_t mode)
{
	return mode == MODE_WINDOWS && (the.slow || the.slow_out) && !graphs_any() && !exiting();
}

/*
 * Whether the agent's own thread ends the window, at once: always, but with graphs, which another thread may be
 * launching then. It needs no call of the target's, only that all its threads are outside of the driver for a moment
 * (outside.c).
 */
static int ends_itself(void)
{
	return graphs_allow(0);
}

/* 0: not all threads were outside. The gates are opened meanwhile, and asked for again with the next try. */
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

static void record(struct loop *l, uint32_t mode, uint32_t seen)
{
	uint64_t until, end = the.window.opened + on_ns();
	int flushes = !end_due(mode) && flush_due(l) && (mode == MODE_CONTINUOUS || on_ns() > SHORT_WINDOW);

	if (graphs_several()) { /* never to end well: the sooner, the fewer graphs are left slower */
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
		if (l->wanted) /* it was to end, and is to go on */
			set_state(STATE_OPEN, 0);
		l->wanted = l->pressed = 0;
		if (mode == MODE_QUIT || mode == MODE_OFF) {
			futex_wait(&the.ring->wake, seen, MS); /* not bound to the heartbeat: it may be long past */
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
		window_keep();
		ended(l, END_KEPT);
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
			futex_wait(&the.ring->wake, seen, POLL / 4); /* not bound to the heartbeat: it may be long past */
		return;
	}
	if (ends_itself() && now() >= l->retry && end_itself(l, mode))
		return;
	if (mode == MODE_WINDOWS && l->backoff > KEEP_AFTER && !graphs_any()) {
		/* So many threads do not leave together soon: CUPTI stays, idle. */
		window_keep();
		ended(l, END_KEPT);
		return;
	}
	window_want();
}

static void close(struct loop *l, uint32_t mode)
{
	uint64_t waited = now() - l->wanted;

	futex_wait(&the.window.phase, PHASE_WANTED, waited < SECOND ? POLL / 4 : 10 * POLL);
	if (load(&the.window.phase) != PHASE_WANTED)
		return;
	gate_renew();
	if (overdue(l, mode) || graphs_several())
		drop(l, mode);
	else if (ends_itself() && now() >= l->retry)
		window_unwant(); /* to be tried by this thread once more */
	else if ((!end_due(mode) || flush_due(l)) && !window_unwant() && end_due(mode)) {
		flush(l);
		window_want();
	}
}

/* Before it goes for good: graphs that were left slower are at their speed again after one more window that
 * ends in the good way, and one is needed to give up a subscription. Not where somebody is in a hurry, and a process
 * that exits is left as it is; whether it was worth it: 0 means go. */
static int amend(struct loop *l)
{
	if (!the.dormant || exiting() || l->amended >= (the.kept && !daemon_gone() ? MAX_AMENDED : 1) ||
	    (!the.kept && (graphs_several() || daemon_gone())))
		return 0;
	if (!the.kept && !left_alone())
		return 0; /* nobody knows for how long */
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
		left_stay();
	}
	set_state(STATE_GONE, 0);
	ring_close();
	ring_leave();
	pool_trim(1);
}
