/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that every other thread is outside of the driver and of CUPTI. Flushing, unsubscribing and finalizing free
 * memory of CUPTI without waiting for threads inside libcupti, whether after one of our callbacks or in CUPTI's own
 * work at a launch, for which there is no callback. A thread that loses its CPU there continues in freed memory.
 * Measured on an H100 (libcuda 580, CUPTI 13.0): 10 of 778 attachments to programs that hardly get a CPU crashed in
 * libcupti or with a corrupted heap (test/gpu/starved.py).
 *
 * So the gates close first (gate.c): from then on a thread that calls the driver is held before it enters. Then each
 * thread must be seen outside once; it cannot enter again. A thread is outside if
 *
 *   - it is held by a gate, and neither library called it;
 *   - it sleeps in a system call, and there is no return address into libcuda near the top of its stack, and none into
 *     libcupti anywhere;
 *   - it runs, and a signal handler makes the same check of its own stack;
 *   - it is a thread of the driver, which sleeps inside it, and has no return address into libcupti on its stack. CUDA
 *     names most of its threads; one that calls host functions has the name of the thread that created it (an H100,
 *     libcuda 580, a JAX program). All of them start in the same function of the driver.
 *
 * A word on a stack may be left over from an earlier call. If the last callback of a thread was at the exit of a call
 * and its stack ends above that frame (left.c), only the words near the top count; if it sleeps in a system call that
 * the driver never makes, none do. Any other thread counts as inside, and CUPTI stays for longer.
 */
#include "agent.h"

#define MARKS 4096u
#define PROBES 8u
#define STACK (32u << 10) /* bytes of a stack that are checked; the frames of CUPTI and its callees take less */
#define NEAR (1u << 10)   /* bytes between a system call and the driver's frame that makes it through libc */
#define FAR (4u << 10)    /* the same for CUPTI, with a margin */
#define ENTRY 4           /* words from the stack pointer at a probe that contain the return address: the probe may be
                           * behind the first instructions */
#define CHECK_INTERVAL (MS / 10)    /* between two checks of all threads */
#define IDLE_CHECK_INTERVAL (MS / 2) /* the same while no thread is held */
#define MAX_HELD (6 * MS)     /* how long a gate holds a thread while others are still inside; CUPTI's steps add about
                           * 3 ms */
#define SIGNAL_AFTER (1 * MS)  /* a thread that runs for so long without calling the driver is sent a signal */

struct range {
	uintptr_t from, to;
};

static struct {
	struct range cupti, cuda; /* code */
	uintptr_t start;          /* the outermost return address of the driver's own threads; 0: not known */
	uint64_t since;           /* when the gates closed, ns; 0: they are open */
	uint64_t held;            /* when the first thread arrived at them since, ns; 0: none has */
	uint32_t arrivals;        /* futex: threads that arrived at them */
	struct mark {
		uint32_t tid;
		uint32_t signalled; /* it was sent a signal */
		uint64_t at;   /* when it was outside, ns */
		uintptr_t frame; /* of its last callback in an earlier subscription; 0: not known */
	} marks[MARKS];
} out;

static struct mark *mark_of(uint32_t tid)
{
	for (uint32_t i = 0; i < PROBES; i++)
		if (load(&out.marks[(tid + i) % MARKS].tid) == tid)
			return &out.marks[(tid + i) % MARKS];
	return NULL;
}

/* Returns the mark of a thread, or a new one in a free place or that of an ended thread; NULL where there is none. */
static struct mark *make_mark(uint32_t tid)
{
	struct mark *known = mark_of(tid);

	for (uint32_t i = 0; !known && i < PROBES; i++) {
		struct mark *m = &out.marks[(tid + i) % MARKS];
		uint32_t is = load(&m->tid);

		if (is && thread_lives(is))
			continue;
		store(&m->at, 0);
		store(&m->signalled, 0);
		store(&m->frame, 0);
		if (swapped(&m->tid, is, tid))
			known = m;
	}
	return known;
}

static void mark(uint32_t tid)
{
	struct mark *m = make_mark(tid);

	if (m) /* otherwise it is checked each time */
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

/* Reports whether a call instruction precedes that address of mapped code, as it does a return address. */
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

/* Returns the worst of these words of a stack. */
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

/* Reads through /proc/self/mem, which the default seccomp profile of containerd allows; bytes, or less than 0. */
static long read_by_file(uintptr_t at, void *to, size_t bytes)
{
	long fd = sys6(SYS_openat, AT_FDCWD, (long)"/proc/self/mem", O_CLOEXEC, 0, 0, 0), got;

	if (fd < 0)
		return fd;
	got = sys6(SYS_pread64, fd, (long)to, (long)bytes, (long)at, 0, 0);
	sys(SYS_close, fd, 0, 0);
	return got;
}

/* Reads words of this process's memory; returns how many could be read. */
static size_t read_words(uintptr_t at, uintptr_t *words, size_t n)
{
	struct iov to = { words, n * sizeof(*words) }, from = { (void *)at, n * sizeof(*words) };
	long got = sys6(SYS_process_vm_readv, sys(SYS_getpid, 0, 0, 0), (long)&to, 1, (long)&from, 1, 0);

	if (got == -EPERM || got == -ENOSYS)
		got = read_by_file(at, words, from.bytes);
	return got > 0 ? (size_t)got / sizeof(*words) : 0;
}

/* Classifies a stack, whose memory may vanish with its thread: the kernel reads it. Less than 0: it cannot be read. */
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

/* Returns the outermost return address into the driver near the top of a stack; 0: there is none. */
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

long task_read(uint32_t tid, const char *file, char *to, size_t room)
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
	long n = task_read(tid, "/syscall", line, sizeof(line));
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

/* CUDA names its threads; CUPTI's threads inherit the name that our thread has while it creates them. */
static int is_named(uint32_t tid, const char *name)
{
	char is[24];

	return task_read(tid, "/comm", is, sizeof(is)) > 0 && found(is, name) == is;
}

/* Classifies a thread by its stack pointer and program counter; less than 0: the stack cannot be read. */
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
		return FREE; /* a thread of the driver */
	return near;
}

/* Reports whether the system call is one that neither the driver nor CUPTI makes: waiting for input, connections,
 * events or children. */
static int call_is_program(const struct sleeper *s)
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

/* Classifies a sleeping thread; less than 0: it does not sleep. */
static int asleep_where(uint32_t tid)
{
	struct sleeper s, again;
	int where;

	if (!sleeps(tid, &s))
		return -1;
	where = call_is_program(&s) ? FREE : where_is(tid, s.stack, s.code);
	if (!sleeps(tid, &again) || again.stack != s.stack) /* the stack has changed while it was read */
		return -1;
	return where;
}

/* Has a running thread check its own stack, in a signal handler (outside_look). */
static void signal_thread(uint32_t tid)
{
	struct mark *m = make_mark(tid);
	uint32_t signal = gate_signal();

	if (!m || !signal || now() - load(&out.since) < SIGNAL_AFTER)
		return;
	if (load(&m->signalled) == (uint32_t)load(&out.since))
		return;
	store(&m->signalled, (uint32_t)load(&out.since));
	sys(SYS_tgkill, sys(SYS_getpid, 0, 0, 0), tid, signal);
}

/* Learns the start function from a thread of the driver, recognised by its name. */
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
		signal_thread(tid);
	return !thread_lives(tid);
}

struct entry { /* struct linux_dirent64 */
	uint64_t inode;
	int64_t next;
	uint16_t length;
	uint8_t type;
	char name[];
};

uint64_t number(const char **text)
{
	uint64_t n = 0;

	for (; **text >= '0' && **text <= '9'; ++*text)
		n = n * 10 + (uint64_t)(**text - '0');
	while (**text == ' ')
		++*text;
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
			const char *name = e->name;
			uint32_t tid = (uint32_t)number(&name);

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
 * Checks all threads until they are outside or the process begins to exit, for at most ns, and for at most MAX_HELD
 * once a gate holds a thread. A thread of the target that waits for the answer (but) is not held by a gate: it waits
 * for ns.
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
		futex_wait(&out.arrivals, seen, held || but ? CHECK_INTERVAL : IDLE_CHECK_INTERVAL);
		t = now();
	} while (t - began < ns && (!held || t - held < MAX_HELD) && exiting() == exits);
	return 0;
}

/* Reports whether no thread can enter: the gates hold them, or without gates no other thread has ever called. */
static int closed(uint32_t but, int gated)
{
	return gated ? gate_closes() : left_none(but);
}

int outside_wait(uint32_t but, uint64_t ns)
{
	int gated = gate_closes(); /* must not change meanwhile: a thread seen outside before the gates of a new daemon
	                            * closed may be inside again */

	if (!but && !gate_all() && !graphs_allow(0))
		return 0; /* the thread that launches graphs is not held */
	store(&out.held, 0);
	section_close();
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

uint64_t outside_held_for(void)
{
	uint64_t held = load(&out.held);

	return held ? now() - held : 0;
}

void outside_end(void)
{
	uint64_t t;

	store(&out.since, 0);
	t = now();
	gate_open();
	section_end(t);
}

void outside_forget(void)
{
	store(&out.since, 0);
	out.start = 0;
	memset(out.marks, 0, sizeof(out.marks));
	gate_forget();
	section_forget();
}

/* Returns where a thread was when the signal arrived. */
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
	if (marked(gettid())) /* it was outside, and returns to the driver */
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
