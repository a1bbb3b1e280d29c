/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target's side of the gates (bpf/gate.bpf.c). A gate that the daemon has armed sends each thread that passes it a
 * signal that is ignored by default. The kernel delivers it before the thread enters the driver, and the handler in
 * this file lets the thread sleep until the critical section is over. The handler is installed only while the gates are
 * in use; afterwards the previous one is restored.
 *
 * Launches of graphs: the gate signals each thread except the known launcher. A passing thread is counted first, then
 * checks whether a finalize is under way; the finalizing thread announces itself first and then checks whether a thread
 * has passed since the gate was armed. So one of the two sees the other: either the launch waits or the finalize does
 * not happen. The daemon knows the threads that passed before the gate was armed.
 */
#include "agent.h"

#define FIRST_TRY (5 * MS)  /* wait for the driver's lock before other calls are held for the first time; the wait
                             * doubles for each of the next tries */
#define TRIES 3u            /* at growing intervals */
#define TRY_INTERVAL (500 * MS) /* time between all later tries */
#define FIRST_HOLD (1 * MS) /* how long a thread is held in the first try; doubled in each of the next two, then
                             * constant */
#define HANG_TIMEOUT (10 * SECOND) /* a finalize that takes longer hangs: the threads are released */
#define MAX_HOLD (7 * MS)   /* how long a thread is held while others are still inside: MAX_HELD of outside.c, and a
                             * margin for an agent's thread without a CPU. CUPTI takes another 3 ms */
#define OPENINGS 64u        /* of the gates that are recorded: a thread without a CPU may sleep through some */
#define THREADS 256u        /* that are distinguished at other calls; of more, some are held twice in a try */

#if defined(__x86_64__)
#define SA_RESTORER 0x04000000ul
/* What the kernel has a handler return to, where libc does not say. */
__attribute__((naked)) static void restorer(void) { __asm__("movl $15, %eax\n\tsyscall"); /* rt_sigreturn */ }
#else
#define SA_RESTORER 0ul /* the vDSO has it */
static void restorer(void) {}
#endif
/* Values of gate.shut. LOOKING: the agent's thread checks where threads are, and a held thread opens the gates if that
 * takes too long: the agent's thread may wait for a CPU. LEAVING: CUPTI is being removed, and they stay shut. */
enum { OPEN = 0, LOOKING = 1, LEAVING = 2 };
enum { SA_SIGINFO = 4, SA_ONSTACK = 0x08000000, SA_RESTART = 0x10000000, SI_KERNEL = 0x80, SI_TKILL = -6 };

struct action { /* the kernel's struct sigaction */
	void (*handler)(int, const int32_t *info, void *context);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

static struct {
	uint64_t asked;    /* the ring's ask, and << 32 the value of passed at that time */
	uint32_t passed;   /* launches that passed an armed gate, so far */
	uint32_t shut;     /* futex: not OPEN during a finalize, an unsubscribe or a flush */
	uint64_t kept;     /* since when it is LEAVING; 0: it is not */
	struct opening { /* when the gates opened, and kept at that time */
		uint64_t at, kept;
	} opened[OPENINGS];
	uint32_t openings; /* so far */
	uint32_t waiting;  /* futex: number of the agent thread's current wait for the driver's lock; 0: none */
	uint32_t waits;    /* so far */
	uint64_t since;    /* when the last of these began */
	uint32_t signals;  /* for which our handlers are installed, as in the ring */
	struct action before[2], ours[2];
	struct {
		uint32_t tid, wait, tries;
	} threads[THREADS];
} gate;

/* Counts how long a thread was held, without its wait for a CPU afterwards. */
static void count(uint64_t ns)
{
	static const uint64_t up_to[AGENT_HOLDS - 1] = { MS, 2 * MS, 5 * MS, 10 * MS };
	struct agent_ring *r = the.ring;
	uint64_t longest = peek(&r->hold_longest);
	uint32_t i = 0;

	while (i < AGENT_HOLDS - 1 && ns > up_to[i])
		i++;
	add(&r->holds[i], 1);
	add(&r->hold_ns, ns);
	while (ns > longest && !swapped(&r->hold_longest, longest, ns))
		longest = peek(&r->hold_longest);
}

static void note_opened(uint64_t t, uint64_t kept)
{
	struct opening *o = &gate.opened[add(&gate.openings, 1) % OPENINGS];

	store(&o->kept, kept);
	store(&o->at, t);
}

/* Returns when the gates first opened since then, as far as recorded; NULL: they did not. */
static const struct opening *opened_since(uint64_t began)
{
	const struct opening *first = NULL;

	for (const struct opening *o = gate.opened; o < gate.opened + OPENINGS; o++)
		if (load(&o->at) >= began && (!first || peek(&o->at) < peek(&first->at)))
			first = o;
	return first;
}

/* Opens the gates if they are LOOKING. */
static void let_go(void)
{
	uint64_t t = now();

	if (!swapped(&gate.shut, LOOKING, OPEN))
		return;
	note_opened(t, 0);
	futex_wake(&gate.shut);
}

/* Returns how long the gates held a thread since began; before: how long they had held it earlier. Of the time in which
 * they were LOOKING at most MAX_HOLD counts, because then the thread opens them itself. */
static uint64_t kept_for(uint64_t began, uint64_t before)
{
	const struct opening *o = opened_since(began);
	uint64_t until = o ? o->at : now(), kept = o ? o->kept : load(&gate.kept);
	uint64_t most = before < MAX_HOLD ? MAX_HOLD - before : 0, looked;

	if (!kept || kept > until)
		kept = until;
	else if (kept < began)
		kept = began;
	looked = kept - began;
	return until - kept + (looked < most ? looked : most);
}

/* Holds a thread until the gates open, and adds the time to sum, ns; 0: they hang. */
static int hold_once(const void *context, uint64_t *sum)
{
	uint64_t began = now(), waited = 0;
	uint32_t is;

	outside_arrived(context);
	outside_held();
	while ((is = load(&gate.shut)) != OPEN && !opened_since(began) && waited < HANG_TIMEOUT) {
		if (is == LEAVING)
			futex_wait(&gate.shut, is, MS * 100);
		else if (*sum + waited < MAX_HOLD)
			futex_wait(&gate.shut, is, MAX_HOLD - *sum - waited);
		else
			let_go();
		waited = now() - began;
	}
	*sum += kept_for(began, *sum);
	return is == OPEN || opened_since(began);
}

/* Holds a thread while CUPTI is removed. It stays if it gets no CPU before the gates shut again; the time for which
 * they were open does not count. */
static void hold_shut(const void *context)
{
	uint64_t held = 0;

	while (hold_once(context, &held) && load(&gate.shut) != OPEN)
		;
	count(held);
}

static void hold_launch(const void *context)
{
	__atomic_fetch_add(&gate.passed, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&gate.shut, __ATOMIC_SEQ_CST) == OPEN)
		return;
	hold_shut(context);
}

static void hold_call(void)
{
	uint32_t wait = load(&gate.waiting), tid = gettid(), try = 0;
	uint64_t began = now(), waited = began - load(&gate.since), ns;
	__typeof__(&gate.threads[0]) thread = &gate.threads[tid % THREADS];

	if (!wait || waited < FIRST_TRY)
		return;
	while (try + 1 < TRIES && waited >= FIRST_TRY << (try + 1))
		try++;
	ns = FIRST_HOLD << try;
	try += (uint32_t)(waited / TRY_INTERVAL);
	if (thread->tid == tid && thread->wait == wait && thread->tries > try)
		return;
	thread->tid = tid;
	thread->wait = wait;
	thread->tries = try + 1;
	while (load(&gate.waiting) == wait && now() - began < ns)
		futex_wait(&gate.waiting, wait, ns - (now() - began));
	waited = now() - began;
	count(waited < ns ? waited : ns);
}

/* Passes a signal to the target's own handler, if it has one. */
static void hand_on(const struct action *a, int signal, const int32_t *info, void *context)
{
	if ((uintptr_t)a->handler > 1)
		a->handler(signal, info, context);
}

static void on_launch(int signal, const int32_t *info, void *context)
{
	if (info[2] == SI_KERNEL && load(&the.alive->awake)) /* not in a forked child */
		hold_launch(context);
	hand_on(&gate.before[0], signal, info, context);
}

static void on_other(int signal, const int32_t *info, void *context)
{
	if (gettid() == the.tid || !load(&the.alive->awake))
		return;
	if (info[2] == SI_TKILL && info[4] == sys(SYS_getpid, 0, 0, 0))
		outside_look(context);
	else if (info[2] == SI_KERNEL && load(&gate.shut) && outside_arrived(context))
		hold_shut(context);
	else if (info[2] == SI_KERNEL)
		hold_call();
	hand_on(&gate.before[1], signal, info, context);
}

static int action(uint32_t signal, const struct action *set, struct action *was)
{
	return (int)sys6(SYS_rt_sigaction, (long)signal, (long)set, (long)was, 8, 0, 0);
}

static uint32_t signal_of(uint32_t signals, int i)
{
	return i ? signals >> 16 : signals & 0xffff;
}

static uint64_t mask_of(uint32_t signals)
{
	uint64_t mask = 0;

	for (int i = 0; i < 2; i++)
		if (signal_of(signals, i))
			mask |= 1ull << (signal_of(signals, i) - 1);
	return mask;
}

/* Installs our handler. A target's handler, which is rare, must be one that ours can call; otherwise it stays. */
static int take(uint32_t signals, int i)
{
	struct action *a = &gate.ours[i], *was = &gate.before[i];
	uint32_t signal = signal_of(signals, i);

	if (!signal)
		return 1;
	a->handler = i ? on_other : on_launch;
	a->flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_RESTORER;
	a->restorer = restorer;
	a->mask = mask_of(signals); /* the other signal is delivered after this handler, at the driver's first
	                             * instruction */
	if (action(signal, NULL, was) || was->handler == a->handler)
		return 0;
	if ((uintptr_t)was->handler > 1 && !(was->flags & SA_SIGINFO))
		return 0;
	a->flags |= was->flags & SA_ONSTACK;
	a->mask |= was->mask;
	return !action(signal, a, NULL);
}

/* Reports whether our handler is still installed. */
static int holds(uint32_t signals, int i)
{
	struct action is;

	return !action(signal_of(signals, i), NULL, &is) && is.handler == gate.ours[i].handler;
}

/* Reports whether we handle the signal that the gates send: a new daemon may have chosen another. */
static int handles(int i)
{
	uint32_t signals = load(&the.ring->gate);

	return signal_of(signals, i) && signals == gate.signals && holds(signals, i);
}

static void give_back(void)
{
	for (int i = 0; i < 2; i++)
		if (signal_of(gate.signals, i) && holds(gate.signals, i))
			action(signal_of(gate.signals, i), &gate.before[i], NULL);
	gate.signals = 0;
}

static int handle(uint32_t signals)
{
	if (gate.signals == signals)
		return 1;
	give_back();
	if (!take(signals, 0))
		return 0;
	gate.signals = signals & 0xffff;
	if (!take(signals, 1)) {
		give_back();
		return 0;
	}
	gate.signals = signals;
	return 1;
}

void gate_ask(enum agent_ask what)
{
	struct agent_ring *r = the.ring;
	uint32_t signals = load(&r->gate), ask = peek(&r->ask);

	if (peek(&r->asked) == what && (what == ASK_NOTHING || gate.signals == signals))
		return;
	if (what == ASK_NOTHING || !(signals & 0xffff)) {
		store(&r->asked, ASK_NOTHING);
		give_back();
		return;
	}
	if (!handle(signals)) {
		store(&r->asked, ASK_TAKEN);
		return;
	}
	ask = ask + 1 ? ask + 1 : 1;
	__atomic_store_n(
	    &gate.asked, ask | (uint64_t)__atomic_load_n(&gate.passed, __ATOMIC_SEQ_CST) << 32, __ATOMIC_SEQ_CST);
	waits_begin(&the.waits, the.tid);
	store(&r->asked, what);
	store(&r->ask, ask);
}

void gate_renew(void)
{
	if (peek(&the.ring->asked) != ASK_OUT || load(&gate.passed) == (uint32_t)(load(&gate.asked) >> 32))
		return;
	store(&the.ring->asked, ASK_NOTHING);
	gate_ask(ASK_OUT);
}

/* Reports whether the gates were asked for to hold all threads. */
static int holding(void)
{
	uint32_t asked = load(&the.ring->asked);

	return asked == ASK_OUT || asked == ASK_ALL;
}

int gates_lost(void)
{
	return load(&the.ring->gates_lost) != 0;
}

int gate_ready(void)
{
	struct agent_ring *r = the.ring;

	return !load(&r->gate) || (holding() && load(&r->armed) == load(&r->ask)) || daemon_gone();
}

int gate_shut(void)
{
	uint64_t asked = __atomic_load_n(&gate.asked, __ATOMIC_SEQ_CST);

	store(&the.ring->finalizing, now());
	__atomic_store_n(&gate.shut, LOOKING, __ATOMIC_SEQ_CST);
	if (!load(&the.ring->gate) || daemon_gone())
		return 1;
	if (load(&the.ring->asked) == ASK_OUT && __atomic_load_n(&gate.passed, __ATOMIC_SEQ_CST) != (uint32_t)(asked >> 32))
		return 0;
	return load(&the.ring->armed) == (uint32_t)asked && holding() && handles(0);
}

int gate_keep(void)
{
	store(&gate.kept, now());
	if (swapped(&gate.shut, LOOKING, LEAVING))
		return 1;
	store(&gate.kept, 0);
	return 0;
}

void gate_open(void)
{
	if (load(&gate.shut) != OPEN) /* otherwise a held thread has opened them */
		note_opened(now(), load(&gate.kept));
	store(&gate.kept, 0);
	store(&gate.shut, OPEN);
	store(&the.ring->finalizing, 0);
	futex_wake(&gate.shut);
}

int gate_all(void)
{
	return !load(&the.ring->gate) || load(&the.ring->asked) == ASK_ALL;
}

int gate_closes(void)
{
	return !load(&the.ring->gate) ||
	    (!daemon_gone() && load(&the.ring->gated) && handles(1));
}

uint32_t gate_signal(void)
{
	return signal_of(gate.signals, 1);
}

void gate_wait(int on)
{
	if (on) {
		gate.waits += gate.waits + 1 ? 1 : 2;
		store(&gate.since, now());
		store(&gate.waiting, gate.waits);
		return;
	}
	store(&gate.waiting, 0);
	futex_wake(&gate.waiting);
}

void gate_forget(void)
{
	store(&gate.shut, OPEN);
	store(&gate.waiting, 0);
}
