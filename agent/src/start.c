/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points: the constructor (dlopen of the image by an armed thread, LD_PRELOAD), inferscope_start (the code is
 * mapped already), and InitializeInjection (CUDA_INJECTION64_PATH). Each only creates a thread. InitializeInjection
 * also creates the ring, by which a new daemon recognises an agent: it must not inject a second one before the first
 * one's thread has run. The other entry points do not, because there a thread of the target is stopped and the daemon
 * waits.
 */
#include "agent.h"

struct agent the = { .ring_fd = -1 };

/* The daemon patches this before the image is loaded; the values here are for CUDA_INJECTION64_PATH. */
EXPORT const struct agent_params inferscope_params __attribute__((section(".inferscope"), used)) = {
	.magic = AGENT_MAGIC, .abi = AGENT_ABI, .fd = -1, .slots = 1u << 16, .mode = MODE_WINDOWS,
	.on_ns = 200 * MS, .period_ns = 2 * SECOND, .deadline_ns = SECOND,
};

/* Returns the parameters as patched: the compiler must not use the values that it compiled. */
static const struct agent_params *patched(void)
{
	const struct agent_params *p = &inferscope_params;

	__asm__("" : "+r"(p));
	return p;
}

/* From the start of a process to the daemon's first heartbeat, in addition to the heartbeat timeout. */
#define START_GRACE (17 * SECOND / 2)

/* Resets the state in a forked child that gets an agent of its own. */
static void forget_parent(void)
{
	ring_close();
	the.ring = NULL; /* its pages are gone (MADV_DONTFORK) */
	the.ring_bytes = 0;
	memset(&the.window, 0, sizeof(the.window));
	the.dormant = the.kept = the.slow = the.slow_out = 0;
	left_forget();
	outside_forget();
	graphs_forget();
	pool_reset();
}

/* Maps the alive page. Fork wipes it, so a missing stamp means that this is a forked child. */
static int make_alive(void)
{
	static uint32_t *stamp;
	struct alive *a = the.alive;

	if (a && *stamp)
		return 0;
	if (a)
		forget_parent();
	if (!a) {
		a = map(4096);
		if (!a)
			return -ENOMEM;
		if (sys(SYS_madvise, a, 4096, MADV_WIPEONFORK)) { /* Linux before 4.14 */
			sys(SYS_munmap, a, 4096, 0);
			return -ENOSYS;
		}
	}
	stamp = (uint32_t *)a + 512;
	*stamp = 1;
	store(&the.alive, a);
	return 0;
}

static void write_hello(const struct agent_params *p, int error)
{
	struct agent_hello h = {
		.abi = AGENT_ABI, .error = error, .ring_fd = error ? -1 : the.ring_fd, .tid = error ? 0 : (int32_t)gettid(),
		.entered = the.entered, .left = the.left,
	};
	uint32_t magic = AGENT_MAGIC;
	int fd = p->fd;
	int64_t at = (int64_t)p->hello_at;

	if (fd < 0)
		return;
	sys6(SYS_pwrite64, fd, (long)&h, sizeof(h), at, 0, 0);
	sys6(SYS_pwrite64, fd, (long)&magic, sizeof(magic), at, 0, 0);
	sys(SYS_close, fd, 0, 0);
}

/* Reports whether NVTX passes its ranges to CUPTI, which needs this variable at the start. The kernel's copy of the
 * environment is safe to read. */
static int find_nvtx(void)
{
	static const char name[] = "NVTX_INJECTION64_PATH=";
	char part[512];
	size_t matched = 0;
	long fd = sys6(SYS_openat, AT_FDCWD, (long)"/proc/self/environ", O_CLOEXEC, 0, 0, 0), n;
	int at_start = 1, hit = 0;

	if (fd < 0)
		return 0;
	while (!hit && (n = sys(SYS_read, fd, part, sizeof(part))) > 0) {
		for (long i = 0; i < n && !hit; i++) {
			matched = at_start && part[i] == name[matched] ? matched + 1 : 0;
			at_start = matched > 0 || !part[i];
			hit = matched == sizeof(name) - 1;
		}
	}
	sys(SYS_close, fd, 0, 0);
	return hit;
}

static void unprepare(void)
{
	if (the.ring_fd < 0)
		return;
	ring_close();
	ring_leave();
}

static int prepare(void)
{
	int bad = ring_make();

	if (!bad)
		bad = names_make();
	if (bad) {
		unprepare();
		return bad;
	}
	left_inherit();
	names_forget();
	the.devices_written = 0;
	the.ranges = find_nvtx();
	exit_watch();
	return 0;
}

void name_thread(const char *name)
{
	sys(SYS_prctl, PR_SET_NAME, name, 0);
}

/* Resets CPU affinity and priority, which our thread inherits: its creator must not wait for our work. */
static void settle(void)
{
	uint64_t cpus[128]; /* 8,192 CPUs */
	int32_t priority = 0;
	long bytes = sys(SYS_sched_getaffinity, sys(SYS_getpid, 0, 0, 0), sizeof(cpus), cpus);

	name_thread(NAME);
	sys(SYS_sched_setscheduler, 0, 0 /* SCHED_OTHER */, &priority);
	if (bytes > 0)
		sys(SYS_sched_setaffinity, 0, bytes, cpus);
}

/* Reports whether CUDA loaded this image (CUDA_INJECTION64_PATH); otherwise it was injected. */
static int loaded_by_cuda(const struct agent_params *p)
{
	return p->fd < 0;
}

/* Counts the threads in which libc_tid is right. */
static void tid_agrees(void)
{
	the.tids_agree += libc_tid() == gettid();
}

static void *run(void *unused)
{
	int bad = 0;

	settle();
	the.tid = gettid();
	while (!load(&the.started))
		futex_wait(&the.started, 0, SECOND);
	tid_agrees();
	if (!loaded_by_cuda(&the.params))
		bad = prepare();
	if (!bad)
		store(&the.alive->awake, 1);
	write_hello(&the.params, bad);
	if (!bad)
		loop_serve();
	store(&the.alive->running, 0);
	exit_done();
	return unused;
}

/*
 * Returns the signals that the agent's thread blocks: all but those that a fault raises in the thread itself, and those
 * of libc (32 to 34), which setuid and pthread_cancel send to every thread and wait for.
 */
static uint64_t blocked(void)
{
	static const uint8_t open[] = { 4 /* ILL */, 5 /* TRAP */, 7 /* BUS */, 8 /* FPE */, 11 /* SEGV */, 31 /* SYS */,
		32, 33, 34 };
	uint64_t set = ~0ull;

	for (size_t i = 0; i < COUNT(open); i++)
		set &= ~(1ull << (open[i] - 1));
	return set;
}

static int make_thread(void)
{
	uint64_t set = blocked(), old;
	unsigned long thread;
	int bad;

	if (!pthread_create || !pthread_detach || !dlopen || !dlsym)
		return -ENOSYS;
	the.started = 0;
	sys6(SYS_rt_sigprocmask, SIG_SETMASK, (long)&set, (long)&old, 8, 0, 0);
	bad = pthread_create(&thread, NULL, run, NULL);
	sys6(SYS_rt_sigprocmask, SIG_SETMASK, (long)&old, 0, 8, 0, 0);
	if (!bad)
		pthread_detach(thread);
	return -bad;
}

static int start(const struct agent_params *p)
{
	int bad = make_alive();

	if (bad)
		return bad;
	if (!swapped(&the.alive->running, 0, 1))
		return -EALREADY;
	the.params = *p;
	the.tids_agree = 0;
	tid_agrees();
	if (!the.params.heartbeat)
		the.params.heartbeat = the.entered + START_GRACE;
	if (loaded_by_cuda(p))
		bad = prepare();
	if (!bad) {
		bad = make_thread();
		if (bad)
			unprepare();
	}
	if (bad)
		store(&the.alive->running, 0);
	return bad;
}

/*
 * Starts the agent and restores errno. The agent's thread writes the hello, so this thread need not wait for it. A
 * successful dlopen before us does not change errno (glibc's loader has its own; the tests check it after each dlopen).
 */
static int checked_start(const struct agent_params *p)
{
	int *error = __errno_location ? __errno_location() : NULL, kept = error ? *error : 0, bad = -EPROTO;

	the.entered = now();
	if (p->magic == AGENT_MAGIC && p->abi == AGENT_ABI)
		bad = start(p);
	the.left = now();
	if (bad)
		write_hello(p, bad);
	if (bad != -EALREADY) {
		store(&the.started, 1);
		futex_wake(&the.started);
	}
	if (error)
		*error = kept;
	return bad;
}

/* inferscope_start starts an agent whose code is mapped already; fd is a memfd that begins with its parameters. 0 or
 * -errno. */
EXPORT int inferscope_start(int fd)
{
	struct agent_params p;

	if (sys6(SYS_pread64, fd, (long)&p, sizeof(p), 0, 0, 0) != sizeof(p))
		return -EPROTO;
	p.fd = fd;
	return checked_start(&p);
}

/* InitializeInjection is what CUDA calls in a library named by CUDA_INJECTION64_PATH; 1 is success. */
EXPORT int InitializeInjection(void)
{
	if (loaded_by_cuda(patched()))
		checked_start(patched());
	return 1;
}

/*
 * Renames this image in libc's list. It is listed as /proc/self/fd/N, whose number is soon reused by another file of
 * the program: perhaps a pipe, on which a symbolizer or debugger that opens libraries by name would block. The new
 * name, written in place while dl_iterate_phdr holds the lock, is that of no file.
 */
static int give_name(struct dl_info *image, size_t size, void *start)
{
	static const char name[] = "/memfd:inferscope";
	size_t room = 0;

	(void)size;
	if (image->base != (uintptr_t)start)
		return 0;
	while (image->name[room])
		room++;
	if (room >= sizeof(name) - 1)
		memcpy((char *)(uintptr_t)image->name, name, sizeof(name));
	return 1;
}

extern const char __ehdr_start[] __attribute__((visibility("hidden"))); /* made by the linker: the start of the image */

__attribute__((constructor)) static void loaded(void)
{
	if (loaded_by_cuda(patched()))
		return;
	dl_iterate_phdr(give_name, (void *)(uintptr_t)__ehdr_start);
	checked_start(patched());
}
