/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUPTI does while a thread is inside of it: a program that calls CUDA and CUPTI, without anything of this project
 * in it but the agent's declarations. Each case runs in a process of its own, for some of them die.
 *
 * A thread, T, is inside a callback (or just inside of the driver) for a while; meanwhile another thread makes calls of
 * CUPTI. How long each of these took, and whether T was inside still when it returned, says whether it waits for T. In
 * some cases T has left CUPTI in that callback (disable, flush, unsubscribe, finalize), and the other one subscribes
 * anew before T has returned from it: the order that kills.
 *
 * cc -O2 -pthread -o inside inside.c -ldl; ./inside LIBCUPTI prints one line of each case, columns by tab; ./inside
 * LIBCUPTI CASE runs one here.
 */
#include "fault.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/wait.h>
#include <time.h>

#include "../../agent/src/cupti.h"

enum { STAY_MS = 300, LEFT_MS = 200, SETTLE_MS = 50, CASE_S = 30, REPEATS = 3 };
enum { CU_CTX_SYNCHRONIZE = 17, CU_LAUNCH_KERNEL = 307 }; /* CUpti_driver_api_trace_cbid */
enum place { LAUNCH_ENTRY, LAUNCH_EXIT, SYNC_EXIT, DRIVER };
enum manner { PLAIN, OWN, SYNC }; /* of the other thread: plain, in the callback of a call of its own that is refused,
                                   * or that has a context */

/*
 * steps: d disable, f flush, u unsubscribe, z finalize, s subscribe, c enable callbacks, k enable a kind, w wait until
 * T has left. Those before a slash are made in a callback where the manner is one of these.
 */
struct test {
	const char *name;
	enum place place;
	const char *by_t; /* steps of T, in its callback, before it stays there */
	enum manner manner;
	const char *steps; /* of the other thread, while T stays */
	int repeats;
};

static const struct test tests[] = {
	{ "T left CUPTI, subscribed again while it is inside", SYNC_EXIT, "dfuz", PLAIN, "sck", REPEATS },
	{ "T left CUPTI, nobody subscribes", SYNC_EXIT, "dfuz", PLAIN, "", 1 },
	{ "T left CUPTI, subscribed again when it is out", SYNC_EXIT, "dfuz", PLAIN, "wsck", REPEATS },
	{ "T unsubscribed, subscribed again while it is inside", SYNC_EXIT, "dfu", PLAIN, "sck", REPEATS },
	{ "T at a launch's entry; dropped, subscribed again", LAUNCH_ENTRY, "", PLAIN, "dfusck", REPEATS },
	{ "T at a launch's exit; dropped, subscribed again", LAUNCH_EXIT, "", PLAIN, "dfusck", REPEATS },
	{ "T at a wait's exit; dropped, subscribed again", SYNC_EXIT, "", PLAIN, "dfusck", REPEATS },
	{ "T in the driver; dropped, subscribed again", DRIVER, "", PLAIN, "dfusck", 1 },
	{ "T at a launch's entry; finalized in an own refused call, again", LAUNCH_ENTRY, "", OWN, "dfuz/sck", REPEATS },
	{ "T at a launch's exit; finalized in an own refused call, again", LAUNCH_EXIT, "", OWN, "dfuz/sck", REPEATS },
	{ "T at a wait's exit; finalized in an own refused call, again", SYNC_EXIT, "", OWN, "dfuz/sck", REPEATS },
	{ "T in the driver; finalized in an own refused call, again", DRIVER, "", OWN, "dfuz/sck", 1 },
	{ "T at a launch's entry; finalized in another's wait, again", LAUNCH_ENTRY, "", SYNC, "dfuz/sck", REPEATS },
	{ "T at a wait's exit; finalized in another's wait, again", SYNC_EXIT, "", SYNC, "dfuz/sck", REPEATS },
	{ "T at a launch's entry; finalized by a plain thread", LAUNCH_ENTRY, "", PLAIN, "dfuz", 1 },
	{ "T at a launch's entry; callbacks and kinds turned on", LAUNCH_ENTRY, "", PLAIN, "ckd", 1 },
};
#define TESTS (sizeof(tests) / sizeof(*tests))

static const char kernels[] = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry quick() { ret; }\n"
			      ".visible .entry spin_ms300() { .reg .u64 %a, %b; .reg .pred %p; mov.u64 %a, %globaltimer;\n"
			      "AGAIN: mov.u64 %b, %globaltimer; sub.u64 %b, %b, %a; setp.lt.u64 %p, %b, 300000000; @%p bra AGAIN; ret; }\n";

static struct cupti api;
static struct {
	int (*init)(unsigned), (*device)(int *, int), (*retain)(void **, int), (*current)(void *), (*synchronize)(void);
	int (*module)(void **, const void *), (*function)(void **, void *, const char *);
	int (*launch)(
	    void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
} cu;

static const struct test *test;
static void *subscriber, *context;
static atomic_int armed, inside, out, own_armed, done, opened;
static _Atomic pthread_t own_thread;
static uint8_t memory[8][64 << 10] __attribute__((aligned(8)));
static atomic_int used;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_ms(int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

static void die(const char *what, int code)
{
	dprintf(2, "%s: %d\n", what, code);
	_exit(3);
}

static void request(uint8_t **buffer, size_t *bytes, size_t *records)
{
	*buffer = memory[atomic_fetch_add(&used, 1) % 8];
	*bytes = sizeof(memory[0]);
	*records = 0;
}

static void complete(void *c, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	(void)c, (void)stream, (void)buffer, (void)size, (void)valid;
}

static void on_call(void *user, uint32_t domain, uint32_t id, const struct callback_data *);

static void callbacks(void)
{
	api.callback(1, subscriber, DOMAIN_DRIVER, CU_CTX_SYNCHRONIZE);
	api.callback(1, subscriber, DOMAIN_DRIVER, CU_LAUNCH_KERNEL);
}

static int step(char what)
{
	int bad = 0;

	switch (what) {
	case 'd': return api.disable(KIND_CONCURRENT_KERNEL);
	case 'f': return api.flush(FLUSH_FORCED);
	case 'u': return api.unsubscribe(subscriber);
	case 'z': opened = 0; return api.finalize();
	case 's':
		bad = api.subscribe(&subscriber, on_call, NULL);
		opened = !bad;
		return bad ? bad : api.buffers(request, complete);
	case 'c': callbacks(); return 0;
	case 'k': return api.enable(KIND_CONCURRENT_KERNEL);
	case 'w':
		while (!out)
			sleep_ms(1);
		return 0;
	}
	return -1;
}

/* Says of each step how long it took, and whether T was inside when it was over. */
static void steps(const char *which)
{
	for (; *which && *which != '/'; which++) {
		uint64_t t = now();
		int bad = step(*which);

		printf("%c %.1f%s", *which, (double)(now() - t) / 1e6, out ? " out; " : " inside; ");
		if (bad)
			printf("(error %d) ", bad);
		fflush(stdout);
	}
}

static void quietly(const char *which)
{
	for (; *which; which++)
		step(*which);
}

static void stay(void)
{
	inside = 1;
	quietly(test->by_t);
	sleep_ms(test->by_t[0] ? LEFT_MS : STAY_MS);
}

static int is_place(uint32_t id, uint32_t site)
{
	switch (test->place) {
	case LAUNCH_ENTRY: return id == CU_LAUNCH_KERNEL && site == SITE_ENTER;
	case LAUNCH_EXIT: return id == CU_LAUNCH_KERNEL && site == SITE_EXIT;
	case SYNC_EXIT: return id == CU_CTX_SYNCHRONIZE && site == SITE_EXIT;
	case DRIVER: break;
	}
	return 0;
}

static void on_call(void *user, uint32_t domain, uint32_t id, const struct callback_data *d)
{
	int one = 1;

	(void)user, (void)domain;
	if (own_armed && pthread_equal(pthread_self(), own_thread)) {
		if (id == CU_CTX_SYNCHRONIZE && d->site == SITE_EXIT && atomic_compare_exchange_strong(&own_armed, &one, 0))
			steps(test->steps);
		return;
	}
	if (armed && is_place(id, d->site) && atomic_compare_exchange_strong(&armed, &one, 0))
		stay();
}

static void *other(void *unused)
{
	const char *rest = strchr(test->steps, '/');

	own_thread = pthread_self();
	if (test->manner == SYNC && cu.current(context))
		die("cuCtxSetCurrent", -1);
	while (!inside)
		sleep_ms(1);
	sleep_ms(SETTLE_MS);
	if (test->manner == PLAIN) {
		steps(test->steps);
	} else {
		own_armed = 1;
		cu.synchronize();
		if (own_armed)
			printf("no callback came; ");
		else if (rest)
			steps(rest + 1);
	}
	done = 1;
	return unused;
}

static void *find(void *library, const char *name)
{
	void *f = dlsym(library, name);

	if (!f)
		die(name, 0);
	return f;
}

static void find_cuda(void)
{
	void *l = dlopen("libcuda.so.1", RTLD_NOW);

	if (!l)
		die(dlerror(), 0);
	*(void **)&cu.init = find(l, "cuInit"), *(void **)&cu.device = find(l, "cuDeviceGet");
	*(void **)&cu.retain = find(l, "cuDevicePrimaryCtxRetain"), *(void **)&cu.current = find(l, "cuCtxSetCurrent");
	*(void **)&cu.synchronize = find(l, "cuCtxSynchronize"), *(void **)&cu.module = find(l, "cuModuleLoadData");
	*(void **)&cu.function = find(l, "cuModuleGetFunction"), *(void **)&cu.launch = find(l, "cuLaunchKernel");
}

static void find_cupti(const char *path)
{
	void *l = dlopen(path, RTLD_NOW);

	if (!l)
		die(dlerror(), 0);
	*(void **)&api.subscribe = find(l, "cuptiSubscribe"), *(void **)&api.unsubscribe = find(l, "cuptiUnsubscribe");
	*(void **)&api.callback = find(l, "cuptiEnableCallback"),
	       *(void **)&api.buffers = find(l, "cuptiActivityRegisterCallbacks");
	*(void **)&api.enable = find(l, "cuptiActivityEnable"), *(void **)&api.disable = find(l, "cuptiActivityDisable");
	*(void **)&api.flush = find(l, "cuptiActivityFlushAll"), *(void **)&api.finalize = find(l, "cuptiFinalize");
}

static void check(int code, const char *what)
{
	if (code)
		die(what, code);
}

/* One case, in this process: ends with 0 where nothing was harmed. */
static int run(const char *cupti)
{
	void *module, *quick, *spin;
	pthread_t t;
	int device;

	fault_show();
	alarm(CASE_S);
	find_cuda();
	check(cu.init(0), "cuInit");
	check(cu.device(&device, 0), "cuDeviceGet");
	check(cu.retain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cu.current(context), "cuCtxSetCurrent");
	check(cu.module(&module, kernels), "cuModuleLoadData");
	check(cu.function(&quick, module, "quick"), "cuModuleGetFunction quick");
	check(cu.function(&spin, module, "spin_ms300"), "cuModuleGetFunction spin_ms300");
	check(cu.launch(quick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
	check(cu.synchronize(), "cuCtxSynchronize");
	find_cupti(cupti);
	check(step('s'), "cuptiSubscribe");
	callbacks();
	check(step('k'), "cuptiActivityEnable");
	check(pthread_create(&t, NULL, other, NULL), "pthread_create");
	sleep_ms(SETTLE_MS);
	armed = test->place != DRIVER;
	if (test->place == DRIVER) {
		check(cu.launch(spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
		inside = 1;
	} else {
		check(cu.launch(quick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
	}
	check(cu.synchronize(), "cuCtxSynchronize");
	out = 1;
	for (int i = 0; !done || i < 100; i++) { /* T goes on: what was broken shows */
		check(cu.launch(quick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel afterwards");
		check(cu.synchronize(), "cuCtxSynchronize afterwards");
	}
	pthread_join(t, NULL);
	if (opened)
		quietly("dfu");
	check(cu.launch(quick, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel at the end");
	check(cu.synchronize(), "cuCtxSynchronize at the end");
	fflush(stdout);
	_exit(0); /* not through the libraries' destructors */
}

/* Reads all that a process writes, in one line. */
static void read_all(int fd, char *to, size_t room)
{
	size_t n = 0;
	ssize_t got;

	while (n + 1 < room && (got = read(fd, to + n, room - n - 1)) > 0)
		n += (size_t)got;
	to[n] = 0;
	for (char *p = to; *p; p++)
		if (*p == '\n' || *p == '\t')
			*p = ' ';
}

/* Runs a case in a process of its own, and prints its line. Freed memory is filled with a pattern there, or as malloc
 * leaves it. */
static void child(const char *self, const char *cupti, size_t i, int n)
{
	char said[1024], number[16], complaint[2048], *how = "unharmed";
	int pipes[2][2], status;
	char ended[64];
	pid_t pid;

	if (pipe(pipes[0]) || pipe(pipes[1]))
		die("pipe", errno);
	snprintf(number, sizeof(number), "%zu", i);
	pid = fork();
	if (!pid) {
		dup2(pipes[0][1], 1);
		dup2(pipes[1][1], 2);
		for (int p = 0; p < 4; p++)
			close(pipes[p / 2][p % 2]);
		setenv("GLIBC_TUNABLES", n % 2 ? "glibc.malloc.perturb=0" : "glibc.malloc.perturb=165", 1);
		execl(self, self, cupti, number, (char *)NULL);
		_exit(127);
	}
	close(pipes[0][1]), close(pipes[1][1]);
	read_all(pipes[0][0], said, sizeof(said));
	read_all(pipes[1][0], complaint, sizeof(complaint));
	close(pipes[0][0]), close(pipes[1][0]);
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status)) {
		snprintf(ended, sizeof(ended), WTERMSIG(status) == SIGALRM ? "HANGS" : "DEAD, signal %d", WTERMSIG(status));
		how = ended;
	} else if (WEXITSTATUS(status)) {
		snprintf(ended, sizeof(ended), "BROKEN, exit code %d", WEXITSTATUS(status));
		how = ended;
	}
	printf("%s\t%s\t%s\t%s\t%s\n", tests[i].name, n % 2 ? "as it is" : "pattern", said, how, complaint);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc == 3 && (size_t)atoi(argv[2]) < TESTS) {
		test = &tests[atoi(argv[2])];
		return run(argv[1]);
	}
	if (argc != 2) {
		fprintf(stderr, "usage: %s LIBCUPTI\n", argv[0]);
		return 2;
	}
	printf("case\tfreed memory\tms of each step, T was\tend\tsaid\n");
	for (size_t i = 0; i < TESTS; i++)
		for (int n = 0; n < tests[i].repeats; n++)
			child("/proc/self/exe", argv[1], i, n);
	return 0;
}
