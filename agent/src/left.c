/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracks which threads may still be inside of CUPTI. After our callback returns, libcupti reads its list of subscribers
 * and, if that is not empty, continues from the node it came from (13.0). Unsubscribing and
 * finalizing free that node without waiting for threads in a callback, and subscribing does not wait either (measured:
 * test/gpu/inside.c). So a thread that loses its CPU between our return and that read follows freed memory if CUPTI is
 * left and subscribed again meanwhile: three programs on busy hosts crashed in this way. So nobody subscribes in this
 * process before every thread that was in one of our callbacks since the last subscription has provably left it.
 * Elapsed time is no proof. Proof is one of these:
 *
 *   - the thread has ended, according to the kernel;
 *   - it sleeps in a system call (/proc/self/task/TID/syscall), and its stack pointer is above the frame that called
 *     us: CUPTI makes no system call after our return, so it has left that frame. This must be found twice, because a
 *     signal handler may sleep on a stack of its own; a look that finds the thread running proves nothing;
 *   - the daemon's probes saw it return from a call of the driver, or begin another one, later.
 *
 * The agent's own thread has returned when it gets here.
 */
#include "agent.h"

#define PLACES 1024u
#define PROBES 8u          /* places that a thread may have */
#define FRAME (64u << 10)  /* what lies so close above our frame is the caller's */

struct place {
	uint32_t tid;    /* 0: free; set by that thread, cleared by the agent's */
	uint32_t looks;  /* since looked: checks that found it asleep and out; used by the agent's thread */
	uint32_t exit;   /* 1: its last callback was at the exit of a call */
	uint64_t at;     /* when that began, ns */
	uintptr_t frame; /* above the whole frame of the CUPTI function that called us */
};

static struct callers {
	struct place place[PLACES];
	uint32_t overflow; /* threads that have no place: for them nothing can be proven */
} callers;
static uint64_t looked[PLACES]; /* ns: the value of outside_since to which the looks of a place belong */
static uint64_t off; /* since when no callback begins, ns; a thread may have been about to enter one before */

void left_off(void)
{
	store(&off, now());
}

static struct place *place_of(uint32_t tid)
{
	struct place *free = NULL;

	for (uint32_t i = 0; i < PROBES; i++) {
		struct place *p = &callers.place[(tid + i) % PLACES];
		uint32_t is = load(&p->tid);

		if (is == tid)
			return p;
		if (!is && !free)
			free = p;
	}
	return free;
}

void left_note(uint32_t tid, uint64_t t, const void *frame, const struct callback_data *data)
{
	uintptr_t above = (uintptr_t)frame, d = (uintptr_t)data;
	struct place *p = place_of(tid);

	if (!p) {
		store(&callers.overflow, 1);
		return;
	}
	if (d > above && d - above < FRAME)
		above = d;
	store(&p->at, t);
	store(&p->exit, data->site != SITE_ENTER);
	store(&p->frame, above);
	if (peek(&p->tid) != tid && !swapped(&p->tid, 0, tid))
		store(&callers.overflow, 1); /* another thread took the place */
}

/* Reports whether the daemon's probes saw that thread outside after t. */
static int seen_outside(uint32_t tid, uint64_t t)
{
	for (uint32_t i = 0; i < AGENT_OUTS; i++) {
		const struct agent_out *o = &the.ring->seen[i];

		if (load(&o->tid) == tid && load(&o->at) > t && load(&o->tid) == tid)
			return 1;
	}
	return 0;
}

/* Returns the time after which a thread seen outside of the driver has left its last callback and begins no other. */
static uint64_t outside_since(const struct place *p)
{
	uint64_t at = load(&p->at), o = load(&off);

	return at > o ? at : o;
}

static int is_out(struct place *p, uint32_t tid)
{
	uint64_t since = outside_since(p), *of = &looked[p - callers.place];
	struct sleeper s;

	if (tid == the.tid || !thread_lives(tid) || seen_outside(tid, since))
		return 1;
	if (*of != since)
		p->looks = 0;
	*of = since;
	if (sleeps(tid, &s))
		p->looks = s.stack > load(&p->frame) ? p->looks + 1 : 0;
	return p->looks >= 2;
}

int left_above(uint32_t tid, uintptr_t stack, uintptr_t before)
{
	struct place *p = place_of(tid);

	if (p && load(&p->tid) == tid)
		return load(&p->exit) && stack > load(&p->frame);
	return before && stack > before;
}

int left_none(uint32_t but)
{
	for (uint32_t i = 0; i < PLACES; i++) {
		uint32_t tid = load(&callers.place[i].tid);

		if (tid && tid != but && tid != the.tid && thread_lives(tid))
			return 0;
	}
	return !load(&callers.overflow);
}

void left_all(uint32_t but)
{
	for (uint32_t i = 0; i < PLACES; i++) {
		uint32_t tid = load(&callers.place[i].tid);

		if (!tid || tid == but)
			continue;
		outside_remember(tid, load(&callers.place[i].frame));
		store(&callers.place[i].tid, 0);
	}
}

int left_alone(void)
{
	uint32_t inside = 0;

	for (uint32_t i = 0; i < PLACES; i++) {
		struct place *p = &callers.place[i];
		uint32_t tid = load(&p->tid);
		uint64_t at = load(&p->at);

		if (!tid)
			continue;
		if (is_out(p, tid) && load(&p->at) == at) {
			p->looks = 0;
			store(&p->tid, 0);
			continue;
		}
		if (inside < AGENT_OUTS) {
			store(&the.ring->inside[inside].at, outside_since(p));
			store(&the.ring->inside[inside].tid, tid);
		}
		inside++;
	}
	inside += load(&callers.overflow);
	store(&the.ring->inside_count, inside);
	return !inside;
}

void left_tidy(void)
{
	for (uint32_t i = 0; i < PLACES; i++) {
		uint32_t tid = load(&callers.place[i].tid);

		if (tid && !thread_lives(tid))
			store(&callers.place[i].tid, 0);
	}
}

void left_forget(void)
{
	for (uint32_t i = 0; i < PLACES; i++)
		store(&callers.place[i].tid, 0);
	store(&callers.overflow, 0);
}

#define MARK "inferscope-inside"

struct handover {
	struct callers callers;
	struct graphs graphs; /* that ran while kinds were on which went off without a finalize */
	uint32_t dormant;     /* 1: kinds did */
};

/*
 * An agent that shuts down while a thread may still be inside leaves a mark for the next one, which may be of another
 * image and share no memory with it. So does an agent that disabled kinds without a finalize: the finalize of the next
 * one would kill the process unless the graphs that ran before had been launched again. The mark is a mapping with a
 * unique name.
 */
void left_save(void)
{
	struct handover *handover;
	long fd, at;

	if (left_alone() && !the.dormant)
		return;
	fd = sys(SYS_memfd_create, MARK, MFD_CLOEXEC, 0);
	if (fd < 0)
		return; /* a next agent of this image knows them anyway */
	if (!sys(SYS_ftruncate, fd, sizeof(*handover), 0)) {
		at = sys6(SYS_mmap, 0, sizeof(*handover), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (at > 0 || at < -4095) {
			handover = (struct handover *)at;
			sys(SYS_madvise, handover, sizeof(*handover), MADV_DONTDUMP);
			memcpy(&handover->callers, &callers, sizeof(callers));
			graphs_leave(&handover->graphs);
			handover->dormant = (uint32_t)the.dormant;
		}
	}
	sys(SYS_close, fd, 0, 0);
}

static void inherit(uintptr_t at)
{
	const struct handover *handover = (const struct handover *)at;
	const struct place *theirs = handover->callers.place;

	for (uint32_t i = 0; i < PLACES; i++) {
		struct place *p = theirs[i].tid ? place_of(theirs[i].tid) : NULL;

		if (!theirs[i].tid)
			continue;
		if (!p) {
			store(&callers.overflow, 1);
			continue;
		}
		p->at = theirs[i].at;
		p->exit = theirs[i].exit;
		p->frame = theirs[i].frame;
		p->looks = 0;
		store(&p->tid, theirs[i].tid);
	}
	if (handover->dormant) {
		the.dormant = 1;
		graphs_inherit(&handover->graphs);
	}
	sys(SYS_munmap, handover, sizeof(*handover), 0);
}

/* Returns where the mapping in a line of /proc/self/maps begins if it is a mark; otherwise 0. */
static uintptr_t mark_in(const char *line)
{
	uintptr_t ends[2] = { 0, 0 };
	int which = 0;

	if (!found(line, "/memfd:" MARK))
		return 0;
	for (; *line && *line != ' '; line++) {
		if (*line == '-')
			which = 1;
		else
			ends[which] = ends[which] << 4 | (uintptr_t)(*line <= '9' ? *line - '0' : *line - 'a' + 10);
	}
	return ends[1] - ends[0] >= sizeof(struct handover) ? ends[0] : 0;
}

/* Takes over the marks of earlier agents. */
void left_inherit(void)
{
	static char line[512];
	uintptr_t marks[8];
	char part[1024];
	size_t used = 0, n = 0;
	long fd = sys6(SYS_openat, AT_FDCWD, (long)"/proc/self/maps", O_CLOEXEC, 0, 0, 0), got;

	if (fd < 0)
		return;
	while ((got = sys(SYS_read, fd, part, sizeof(part))) > 0) {
		for (long i = 0; i < got; i++) {
			if (part[i] != '\n') {
				if (used < sizeof(line) - 1)
					line[used++] = part[i];
				continue;
			}
			line[used] = 0;
			used = 0;
			marks[n] = mark_in(line);
			if (marks[n] && n < COUNT(marks) - 1)
				n++;
		}
	}
	sys(SYS_close, fd, 0, 0);
	for (size_t i = 0; i < n; i++)
		inherit(marks[i]);
}
