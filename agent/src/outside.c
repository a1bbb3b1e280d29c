/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether every other thread is outside of the driver and of CUPTI. Flushing, unsubscribing and finalizing free memory
 * of CUPTI's, and wait for no thread that is inside of libcupti, be it behind a callback of ours or in CUPTI's own work
 * at a launch, of which no callback tells. A thread that loses its CPU there goes on in freed memory.
 * Measured on an H100 (libcuda 580, CUPTI 13.0): 10 of 778 attachments to programs that hardly get a CPU ended in
 * libcupti or with a broken heap (test/gpu/starved.py).
 *
 * So the gates close first (gate.c): from then on a thread that comes to the driver is held before it. Then each thread
 * is looked for outside, once: it cannot get in again.
 *
 *   - it is held by a gate, and was called by neither library;
 *   - it sleeps in a system call, and there is no return address into libcuda near the top of its stack, and none into
 *     libcupti anywhere;
 *   - it runs: a signal has it look at its own stack in the same way;
 *   - it is one of the driver's own, which sleep inside of it, and has no return address into libcupti on its stack.
 *     CUDA names most of them; one that calls host functions has the name of the thread that made it (an H100, libcuda
 *     580, a JAX program). All of them begin in the same function of the driver's.
 *
 * A word on a stack may be left from an earlier call. Of a thread that was at the exit of a call in its last callback,
 * and whose stack ends above the frame of that (left.c), all that matters is what is near the top; of one that sleeps
 * where the driver never does, nothing. Any other is taken to be inside, and CUPTI stays for longer.
 */
#include "agent.h"

#define MARKS 4096u
#define PROBES 8u
#define STACK (32u << 10) /* bytes of a stack that are looked at; CUPTI's frames, and those of what it calls, take
                           * less */
#define NEAR (1u << 10)   /* between a system call and the driver's frame that makes it, by way of libc */
#define FAR (4u << 10)    /* the same of CUPTI's, generously */
#define ENTRY 4           /* words at a function's entry among which its return address is: a probe may lie behind its
                           * first instructions */
#define LOOK (MS / 10)    /* between two looks at all of them */
#define LOOK_ALONE (MS / 2) /* the same while none is held: nobody waits */
#define HELD (6 * MS)     /* for which a gate holds a thread while others are still inside: CUPTI's own steps come on
                           * top, some 3 ms */
#define PATIENT (1 * MS)  /* a thread that has run for so long without coming by is sent a signal */

struct range {
	uintptr_t from, to;
};

static struct {
	struct range cupti, cuda; /* code */
	uintptr_t start;          /* the return address that a thread of the driver's own has outermost in it; 0: none has
	                           * been seen */
	uint64_t since;           /* when the gates closed, ns; 0: they are open */
	uint64_t held;            /* when the first thread came to them since, ns; 0: none has */
	uint32_t arrivals;        /* futex: threads that have come to them */
	struct mark {
		uint32_t tid;
		uint32_t told; /* it was sent a signal */
		uint64_t at;   /* when it was outside, ns */
		uintptr_t frame; /* of its last callback of an earlier subscription; 0: none is known */
	} marks[MARKS];
} out;

static struct mark *mark_of(uint32_t tid)
{
	for (uint32_t i = 0; i < PROBES; i++)
		if (load(&out.marks[(tid + i) % MARKS].tid) == tid)
			return &out.marks[(tid + i) % MARKS];
	return NULL;
}

/* A place for it where it has none: one that is free, or of a thread that has ended. Nobody else writes there then. */
static struct mark *make_mark(uint32_t tid)
{
	struct mark *known = mark_of(tid);

	for (uint32_t i = 0; !known && i < PROBES; i++) {
		struct mark *m = &out.marks[(tid + i) % MARKS];
		uint32_t is = load(&m->tid);

		if (is && thread_lives(is))
			continue;
		store(&m->at, 0);
		store(&m->told, 0);
		store(&m->frame, 0);
		if (swapped(&m->tid, is, tid))
			known = m;
	}
	return known;
}

static void mark(uint32_t tid)
{
	struct mark *m = make_mark(tid);

	if (m) /* otherwise it is looked at each time */
		store(&m->at, now());
}

void outside_remember(uint32_t tid, uintptr_t frame)
{
	struct mark *m = make_mark(tid);

	if (m)
		store(&m->frame, frame);
}

static int marked(uint32_t tid)
{
	struct mark *m = mark_of(tid);

	return m && load(&m->at) >= load(&out.since);
}

static int in(struct range r, uintptr_t a)
{
	return a >= r.from && a < r.to;
}

/* Whether a call stands before that address of mapped code: pointers to functions and to data are none. */
static int returns_to(uintptr_t a)
{
#if defined(__x86_64__)
	const uint8_t *p = (const uint8_t *)a;

	if (p[-5] == 0xe8)
		return 1;
	for (int n = 2; n <= 7; n++) /* ff /2, with an address of up to five more bytes */
		if (p[-n] == 0xff && (p[-n + 1] >> 3 & 7) == 2)
			return 1;
	return 0;
#else
	uint32_t before;

	if (a & 3)
		return 0;
	memcpy(&before, (const void *)(a - 4), 4);
	return before >> 26 == 0x25 || (before & 0xfffffc1f) == 0xd63f0000; /* bl, blr */
#endif
}

enum { FREE = 0, IN_CUDA = 1, IN_CUPTI = 2 };

static int of_address(uintptr_t a)
{
	if (in(out.cupti, a))
		return IN_CUPTI;
	return in(out.cuda, a) ? IN_CUDA : FREE;
}

/* The worst that is among these words of a stack. */
static int of_words(const uintptr_t *words, size_t n)
{
	int worst = FREE;

	for (size_t i = 0; i < n; i++) {
		int is = of_address(words[i]);

		if (is > worst && returns_to(words[i]))
			worst = is;
	}
	return worst;
}

struct iov {
	void *at;
	size_t bytes;
};

/* The same by a file, as the default seccomp profile of containerd lets it: bytes, or less than 0. */
static long read_by_file(uintptr_t at, void *to, size_t bytes)
{
	long fd = sys6(SYS_openat, AT_FDCWD, (long)"/proc/self/mem", O_CLOEXEC, 0, 0, 0), got;

	if (fd < 0)
		return fd;
	got = sys6(SYS_pread64, fd, (long)to, (long)bytes, (long)at, 0, 0);
	sys(SYS_close, fd, 0, 0);
	return got;
}

/* How many words of the target's memory could be read. */
static size_t read_words(uintptr_t at, uintptr_t *words, size_t n)
{
	struct iov to = { words, n * sizeof(*words) }, from = { (void *)at, n * sizeof(*words) };
	long got = sys6(SYS_process_vm_readv, sys(SYS_getpid, 0, 0, 0), (long)&to, 1, (long)&from, 1, 0);

	if (got == -EPERM || got == -ENOSYS)
		got = read_by_file(at, words, from.bytes);
	return got > 0 ? (size_t)got / sizeof(*words) : 0;
}

/* Of a stack that its thread may be about to leave, and its memory with it: the kernel reads it, up to its end. Less
 * than 0: it cannot be read. */
static int of_stack(uintptr_t at, size_t bytes)
{
	uintptr_t words[128];
	int worst = -1;

	at &= ~(uintptr_t)7;
	for (size_t done = 0; done < bytes && worst < IN_CUPTI; done += sizeof(words)) {
		size_t got = read_words(at + done, words, COUNT(words));
		int is = got ? of_words(words, got) : worst;

		if (is > worst)
			worst = is;
		if (got < COUNT(words))
			break;
	}
	return worst;
}

/* The return address into the driver that is outermost near the top of a stack; 0: there is none. */
static uintptr_t outermost(uintptr_t stack)
{
	uintptr_t words[NEAR / sizeof(uintptr_t)];
	size_t n = read_words(stack & ~(uintptr_t)7, words, COUNT(words));

	while (n--)
		if (of_address(words[n]) == IN_CUDA && returns_to(words[n]))
			return words[n];
	return 0;
}

static char *digits(char *to, uint32_t n)
{
	char d[10];
	int i = 0;

	do
		d[i++] = (char)('0' + n % 10);
	while (n /= 10);
	while (i)
		*to++ = d[--i];
	return to;
}

static long read_of(uint32_t tid, const char *file, char *to, size_t room)
{
	char path[64] = "/proc/self/task/";
	long fd, n;

	copy_text(digits(path + 16, tid), file, 16);
	fd = sys6(SYS_openat, AT_FDCWD, (long)path, O_CLOEXEC, 0, 0, 0);
	if (fd < 0)
		return fd;
	n = sys(SYS_read, fd, to, room - 1);
	sys(SYS_close, fd, 0, 0);
	to[n > 0 ? n : 0] = 0;
	return n;
}

int sleeps(uint32_t tid, struct sleeper *s)
{
	char line[256];
	uintptr_t words[16] = { 0 };
	long n = read_of(tid, "/syscall", line, sizeof(line));
	int count = 0;

	if (n <= 0 || line[0] < '0' || line[0] > '9') /* "running", or -1: in none */
		return 0;
	for (const char *c = line; *c && *c != '\n' && count < 16; c++) {
		if (*c == ' ')
			count++;
		else if (*c == 'x')
			words[count] = 0;
		else
			words[count] = words[count] * (count ? 16 : 10) + (uintptr_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
	}
	s->call = (long)words[0]; /* in decimal, as it is written */
	s->argument = words[1];
	s->stack = words[7]; /* number, six arguments, stack pointer, program counter */
	s->code = words[8];
	return count == 8;
}

/* CUDA names the threads that it makes so; those that CUPTI makes have the name that our thread had meanwhile. */
static int is_named(uint32_t tid, const char *name)
{
	char is[24];

	return read_of(tid, "/comm", is, sizeof(is)) > 0 && found(is, name) == is;
}

/* Where a thread is that has this stack and program counter; less than 0: it cannot be read. */
static int where_is(uint32_t tid, uintptr_t stack, uintptr_t code)
{
	struct mark *m = mark_of(tid);
	uintptr_t frame = m ? load(&m->frame) : 0;
	int at = of_address(code), near = of_stack(stack, NEAR);

	if (near < 0)
		return -1;
	if (near < IN_CUPTI && of_stack(stack, left_above(tid, stack, frame) ? FAR : STACK) == IN_CUPTI)
		near = IN_CUPTI;
	if (at > near)
		near = at;
	if (near == IN_CUDA && load(&out.start) && outermost(stack) == load(&out.start))
		return FREE; /* of the driver's own */
	return near;
}

/* Whether it waits for what neither the driver nor CUPTI waits for: input of the program's, connections, events,
 * children. */
static int of_the_program(const struct sleeper *s)
{
	switch (s->call) {
	case SYS_read: return !s->argument; /* standard input */
	case SYS_epoll_wait:
	case SYS_epoll_pwait:
	case SYS_accept:
	case SYS_accept4:
	case SYS_wait4:
	case SYS_waitid: return 1;
	}
	return 0;
}

/* Less than 0: it does not sleep. */
static int asleep_where(uint32_t tid)
{
	struct sleeper s, again;
	int where;

	if (!sleeps(tid, &s))
		return -1;
	where = of_the_program(&s) ? FREE : where_is(tid, s.stack, s.code);
	if (!sleeps(tid, &again) || again.stack != s.stack) /* what was read was its stack */
		return -1;
	return where;
}

/* A thread that runs looks at itself, in a handler of signals (outside_look). */
static void tell(uint32_t tid)
{
	struct mark *m = make_mark(tid);
	uint32_t signal = gate_signal();

	if (!m || !signal || now() - load(&out.since) < PATIENT)
		return;
	if (load(&m->told) == (uint32_t)load(&out.since))
		return;
	store(&m->told, (uint32_t)load(&out.since));
	sys(SYS_tgkill, sys(SYS_getpid, 0, 0, 0), tid, signal);
}

/* From one of the driver's own threads, which is known by its name. */
static void learn_start(uint32_t tid)
{
	struct sleeper s;

	if (!load(&out.start) && sleeps(tid, &s))
		store(&out.start, outermost(s.stack));
}

static int is_outside(uint32_t tid, uint32_t but)
{
	int where;

	if (tid == the.tid || tid == but || marked(tid) || is_named(tid, "cupti"))
		return 1;
	where = asleep_where(tid);
	if (where == IN_CUDA && is_named(tid, "cuda")) {
		where = FREE;
		learn_start(tid);
	}
	if (where == FREE) {
		mark(tid);
		return 1;
	}
	if (where < 0)
		tell(tid);
	return !thread_lives(tid);
}

struct entry { /* struct linux_dirent64 */
	uint64_t inode;
	int64_t next;
	uint16_t length;
	uint8_t type;
	char name[];
};

static uint32_t number(const char *text)
{
	uint32_t n = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		n = n * 10 + (uint32_t)(*text - '0');
	return n;
}

static int all_outside(uint32_t but)
{
	char entries[4096] __attribute__((aligned(8)));
	long fd = sys6(SYS_openat, AT_FDCWD, (long)"/proc/self/task", O_CLOEXEC, 0, 0, 0), n = -1;
	int inside = fd < 0;

	while (!inside && (n = sys(SYS_getdents64, fd, entries, sizeof(entries))) > 0) {
		for (long at = 0; at < n && !inside;) {
			const struct entry *e = (const struct entry *)(entries + at);
			uint32_t tid = number(e->name);

			inside = tid && !is_outside(tid, but);
			at += e->length;
		}
	}
	if (fd >= 0)
		sys(SYS_close, fd, 0, 0);
	return !inside && !n;
}

void outside_held(void)
{
	swapped(&out.held, 0, now());
	add(&out.arrivals, 1);
	futex_wake(&out.arrivals);
}

/*
 * Looks at all of them until they are outside, until the process begins to exit, for no longer than ns, and for no
 * longer than HELD once a thread is held by a gate. A thread of the target's that waits for the answer (but) is no
 * gate's: it waits for all of ns.
 */
static int look(uint32_t but, uint64_t ns, uint32_t exits)
{
	uint64_t began = now(), held, t;
	uint32_t seen;

	do {
		seen = load(&out.arrivals);
		if (all_outside(but))
			return 1;
		held = load(&out.held);
		futex_wait(&out.arrivals, seen, held || but ? LOOK : LOOK_ALONE);
		t = now();
	} while (t - began < ns && (!held || t - held < HELD) && exiting() == exits);
	return 0;
}

/* Whether no thread gets in: by gates, or where there are none, as none other ever called. */
static int closed(uint32_t but, int gated)
{
	return gated ? gate_closes() : left_none(but);
}

int outside_wait(uint32_t but, uint64_t ns)
{
	int gated = gate_closes(); /* all the time, or none of it: who was seen outside before the gates of a new daemon
	                            * closed may be inside again */

	if (!but && !gate_all() && !graphs_allow(0))
		return 0; /* whoever launches graphs is not held */
	store(&out.held, 0);
	store(&out.since, now());
	if (gate_shut() && closed(but, gated) && look(but, ns, 0) && closed(but, gated))
		return 1;
	outside_end();
	return 0;
}

int outside_at_exit(uint64_t ns)
{
	uint32_t exits = exiting();
	int all;

	store(&out.since, now());
	all = look(exits, ns, exits);
	store(&out.since, 0);
	return all;
}

void outside_end(void)
{
	store(&out.since, 0);
	gate_open();
}

void outside_forget(void)
{
	store(&out.since, 0);
	out.start = 0;
	memset(out.marks, 0, sizeof(out.marks));
	gate_forget();
}

/* Where a thread was when the signal came. */
static uintptr_t interrupted(const void *context, uintptr_t *stack, uintptr_t *link)
{
	const uint8_t *c = context;
	uintptr_t code;

#if defined(__x86_64__) /* arch/x86/include/uapi/asm/sigcontext.h: behind uc_flags, uc_link and uc_stack */
	memcpy(stack, c + 160, 8);
	memcpy(&code, c + 168, 8);
	*link = 0;
#else /* arch/arm64/include/uapi/asm/sigcontext.h: behind uc_sigmask and what is kept for it */
	memcpy(link, c + 424, 8);
	memcpy(stack, c + 432, 8);
	memcpy(&code, c + 440, 8);
#endif
	return code;
}

int outside_arrived(const void *context)
{
	uintptr_t stack, link, words[ENTRY];

	if (!load(&out.since))
		return 0;
	if (marked(gettid())) /* it was outside, and comes back */
		return 1;
	interrupted(context, &stack, &link);
	memcpy(words, (const void *)(stack & ~(uintptr_t)7), sizeof(words));
	if (of_words(words, ENTRY) > FREE || of_words(&link, 1) > FREE)
		return 0;
	mark(gettid());
	return 1;
}

void outside_look(const void *context)
{
	uintptr_t stack, link, code = interrupted(context, &stack, &link);

	if (load(&out.since) && of_words(&link, 1) == FREE && where_is(gettid(), stack, code) == FREE)
		mark(gettid());
}

struct header { /* Elf64_Phdr */
	uint32_t type, flags;
	uint64_t offset, address, physical, in_file, bytes, align;
};

static int note_code(struct dl_info *i, size_t size, void *unused)
{
	const char *name = i->name ? i->name : "";
	const struct header *h = i->headers;
	struct range *r = NULL;

	if (found(name, "/libcupti"))
		r = &out.cupti;
	else if (found(name, "/libcuda.") || found(name, "/libcuda-"))
		r = &out.cuda;
	(void)size;
	(void)unused;
	for (uint16_t n = 0; r && n < i->count; n++) {
		uintptr_t from = i->base + h[n].address, to = from + h[n].bytes;

		if (h[n].type != 1 /* PT_LOAD */ || !(h[n].flags & 1 /* PF_X */))
			continue;
		if (!r->to || from < r->from)
			r->from = from;
		if (to > r->to)
			r->to = to;
	}
	return 0;
}

void outside_learn(void)
{
	dl_iterate_phdr(note_code, NULL);
}
