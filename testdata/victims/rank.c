/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a program that exchanges data by the simulated NCCL: rank RANK RANKS TURNS. It prints "ready" and
 * "waiting", and at a line of its input makes a communicator and does TURNS turns, each of them 13 operations; then it
 * prints "done" and "waiting", and ends at the next line. rank RANK RANKS TURNS copies does the same with turns of
 * operations that copy engines can carry out (CUDASIM_NCCL_COPIES=1), and copies of OWN_BYTES of the program's own.
 *
 * All ranks, each a child with a GPU of its own, of which one is late: rank all RANKS TURNS LATE DELAY_US WHAT. A turn
 * is one all-reduce. Before it rank LATE spends DELAY_US: WHAT is cpu (it computes), gpu (kernels) or hang (it
 * computes, and comes no more in the second half of the turns); or uneven: kernels of DELAY_US of one rank after the
 * other, and of a quarter of that of all others meanwhile. CUDASIM_NCCL_MEET must name a file and CUDASIM_DEVICES be
 * enough. It prints "rank RANK PID" of each and "waiting", at a line of its input ends the turns, which are TURNS at
 * most, and prints before "done" "skew NS": the median of how much later LATE called than the first of the others, by
 * their own clocks. With hang it prints "done" at once.
 *
 * Stages of a pipeline, each a child with a GPU of its own: rank pipe STAGES TURNS BATCHES COMPUTE_US ELEMENTS. In a turn
 * each stage receives every one of BATCHES from the stage before it, runs kernels of COMPUTE_US and sends ELEMENTS on;
 * the last one's result goes to all by a broadcast, without which none begins the next turn. It prints the same
 * lines, without "skew", and makes so many TURNS after the second line that it reads.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
struct id {
	char bytes[128];
};
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuCtxSynchronize(void);
extern int cuModuleLoadData(handle *, const void *), cuModuleGetFunction(handle *, handle, const char *);
extern int cuLaunchKernel(
    handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
extern int cuStreamCreate(handle *, unsigned), cuMemAlloc_v2(uint64_t *, size_t),
    cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, handle);
extern int ncclCommInitRank(handle *, int, struct id, int), ncclCommDestroy(handle), ncclGroupStart(void),
    ncclGroupEnd(void);
extern int ncclAllReduce(const void *, void *, size_t, int, int, handle, handle),
    ncclReduceScatter(const void *, void *, size_t, int, int, handle, handle);
extern int ncclAllGather(const void *, void *, size_t, int, handle, handle),
    ncclAlltoAll(const void *, void *, size_t, int, handle, handle);
extern int ncclGather(const void *, void *, size_t, int, int, handle, handle),
    ncclScatter(const void *, void *, size_t, int, int, handle, handle);
extern int ncclBcast(void *, size_t, int, int, handle, handle),
    ncclReduce(const void *, void *, size_t, int, int, int, handle, handle);
extern int ncclSend(const void *, size_t, int, int, handle, handle), ncclRecv(void *, size_t, int, int, handle, handle);

#define MUST(call) \
	do { \
		if (call) { \
			fprintf(stderr, "%s failed\n", #call); \
			exit(1); \
		} \
	} while (0)

enum { INT8 = 0, FLOAT32 = 7, BFLOAT16 = 9 };

static void turn(handle comm, void *at)
{
	MUST(ncclAllReduce(at, at, 1024, FLOAT32, 0, comm, NULL));
	MUST(ncclAllReduce(at, at, 4096, FLOAT32, 0, comm, NULL));
	MUST(ncclAllReduce(at, at, 100, BFLOAT16, 0, comm, NULL));
	MUST(ncclReduceScatter(at, at, 512, FLOAT32, 0, comm, NULL));
	MUST(ncclBcast(at, 77, INT8, 0, comm, NULL));
	MUST(ncclReduce(at, at, 10, FLOAT32, 0, 0, comm, NULL));
	MUST(ncclAlltoAll(at, at, 8, FLOAT32, comm, NULL));
	ncclGroupStart();
	for (int i = 0; i < 4; i++)
		MUST(ncclAllGather(at, at, 256, BFLOAT16, comm, NULL));
	ncclGroupEnd();
	ncclGroupStart();
	MUST(ncclSend(at, 300, FLOAT32, 1, comm, NULL));
	MUST(ncclRecv(at, 300, FLOAT32, 1, comm, NULL));
	ncclGroupEnd();
	MUST(cuCtxSynchronize());
	usleep(500);
}

enum { OWN_BYTES = 12345 };

/* copying_turn has operations in a stream and in the default stream, alone and in groups, and own copies between them. */
static void copying_turn(handle comm, void *at)
{
	static handle stream;
	static uint64_t memory;

	if (!stream)
		MUST(cuStreamCreate(&stream, 1) || cuMemAlloc_v2(&memory, 1 << 20));
	MUST(ncclAllGather(at, at, 100000, FLOAT32, comm, stream));
	MUST(cuMemcpyDtoDAsync_v2(memory, memory, OWN_BYTES, stream));
	MUST(ncclAlltoAll(at, at, 1000, FLOAT32, comm, NULL));
	MUST(ncclScatter(at, at, 2000, FLOAT32, 0, comm, stream));
	ncclGroupStart();
	for (int i = 0; i < 3; i++) {
		MUST(ncclAllGather(at, at, 500, BFLOAT16, comm, stream));
		MUST(cuMemcpyDtoDAsync_v2(memory, memory, OWN_BYTES, stream));
	}
	ncclGroupEnd();
	ncclGroupStart();
	MUST(ncclGather(at, at, 700, INT8, 0, comm, stream));
	MUST(ncclAllGather(at, at, 600, INT8, comm, stream));
	ncclGroupEnd();
	MUST(cuMemcpyDtoDAsync_v2(memory, memory, OWN_BYTES, NULL));
	MUST(cuCtxSynchronize());
	usleep(500);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static volatile uint64_t sum;

__attribute__((noinline)) static void straggle(uint64_t ns)
{
	for (uint64_t until = now() + ns; now() < until;)
		for (int i = 0; i < 1000; i++)
			sum += (uint64_t)i * sum;
}

/* what one rank of all does, and when it called each operation */
struct plan {
	int ranks, turns, late;
	uint64_t delay; /* ns */
	const char *what;
	int batches;
	size_t elements;
	uint64_t *times; /* by turn and rank; shared by all */
	uint64_t *shared; /* enum shared */
};

enum shared { FINISHED, /* ranks */ TURN, /* of rank 0 */ LAST, /* turn */ SHARED };

static void queue(uint64_t ns)
{
	static handle module, gemm;

	if (!gemm) {
		MUST(cuModuleLoadData(&module, "image"));
		MUST(cuModuleGetFunction(&gemm, module, "gemm_us100"));
	}
	for (; ns >= 100000; ns -= 100000)
		MUST(cuLaunchKernel(gemm, 132, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL));
}

static void compute(uint64_t ns)
{
	queue(ns);
	MUST(cuCtxSynchronize());
}

static void member(const struct plan *p, int rank)
{
	static float data[1];
	struct id id = { "the same for all ranks" };
	handle context, comm;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, rank));
	MUST(cuCtxSetCurrent(context));
	MUST(ncclCommInitRank(&comm, p->ranks, id, rank));
	for (int i = 0; i < p->turns && i <= (int)__atomic_load_n(&p->shared[LAST], __ATOMIC_ACQUIRE); i++) {
		if (rank == 0)
			__atomic_store_n(&p->shared[TURN], i, __ATOMIC_RELEASE);
		if (!strcmp(p->what, "uneven")) {
			compute(rank == i % p->ranks ? p->delay : p->delay / 4);
		} else if (rank == p->late) {
			if (!strcmp(p->what, "gpu"))
				compute(p->delay);
			else
				straggle(p->delay);
			while (!strcmp(p->what, "hang") && i >= p->turns / 2)
				straggle(p->delay);
		}
		p->times[i * p->ranks + rank] = now();
		MUST(ncclAllReduce(data, data, 1024, FLOAT32, 0, comm, NULL));
		MUST(cuCtxSynchronize());
	}
	MUST(ncclCommDestroy(comm));
}

/* stage is what one stage of a pipeline does. */
static void stage(const struct plan *p, int rank)
{
	static float data[1];
	struct id id = { "the same for all ranks" };
	handle context, comm;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, rank));
	MUST(cuCtxSetCurrent(context));
	MUST(ncclCommInitRank(&comm, p->ranks, id, rank));
	for (int i = 0; i <= (int)__atomic_load_n(&p->shared[LAST], __ATOMIC_ACQUIRE); i++) {
		if (rank == 0)
			__atomic_store_n(&p->shared[TURN], i, __ATOMIC_RELEASE);
		for (int b = 0; b < p->batches; b++) {
			if (rank > 0)
				MUST(ncclRecv(data, p->elements, FLOAT32, rank - 1, comm, NULL));
			queue(p->delay);
			if (rank < p->ranks - 1)
				MUST(ncclSend(data, p->elements, FLOAT32, rank + 1, comm, NULL));
		}
		MUST(ncclBcast(data, 1, FLOAT32, p->ranks - 1, comm, NULL));
		MUST(cuCtxSynchronize());
	}
	MUST(ncclCommDestroy(comm));
}

static int ascending(const void *x, const void *y)
{
	int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;

	return (a > b) - (a < b);
}

static void show_skew(const struct plan *p, int turns)
{
	int64_t *behind = calloc((size_t)turns, sizeof(*behind));

	if (!behind)
		abort();
	for (int i = 0; i < turns; i++) {
		const uint64_t *at = &p->times[i * p->ranks];
		uint64_t first = UINT64_MAX;

		for (int r = 0; r < p->ranks; r++)
			if (r != p->late && at[r] < first)
				first = at[r];
		behind[i] = (int64_t)(at[p->late] - first);
	}
	qsort(behind, (size_t)turns, sizeof(*behind), ascending);
	printf("skew %lld\n", (long long)behind[turns / 2]);
	free(behind);
}

static void next_line(void);

static int all(struct plan p)
{
	size_t size = sizeof(*p.times) * ((size_t)p.ranks * (size_t)p.turns + SHARED);
	int hangs = !strcmp(p.what, "hang"), pipe = !strcmp(p.what, "pipe");

	p.times = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p.times == MAP_FAILED || p.ranks < 2 || p.turns < 1)
		return 2;
	p.shared = &p.times[p.ranks * p.turns];
	p.shared[LAST] = INT32_MAX;
	puts("ready\nwaiting");
	fflush(stdout);
	next_line();
	for (int r = 0; r < p.ranks; r++) {
		pid_t child = fork();

		if (child < 0)
			abort();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			(pipe ? stage : member)(&p, r);
			__atomic_add_fetch(&p.shared[FINISHED], 1, __ATOMIC_RELEASE);
			for (;;)
				pause();
		}
		printf("rank %d %d\n", r, (int)child);
	}
	fflush(stdout);
	if (!hangs) {
		puts("waiting");
		fflush(stdout);
		next_line();
		/* Ranks are at one turn, or the next one. */
		__atomic_store_n(
		    &p.shared[LAST], __atomic_load_n(&p.shared[TURN], __ATOMIC_ACQUIRE) + (uint64_t)(pipe ? p.turns : 10),
		    __ATOMIC_RELEASE);
	}
	while (!hangs && __atomic_load_n(&p.shared[FINISHED], __ATOMIC_ACQUIRE) < (uint64_t)p.ranks)
		usleep(1000);
	if (!hangs && !pipe)
		show_skew(&p, p.shared[LAST] < (uint64_t)p.turns ? (int)p.shared[LAST] + 1 : p.turns);
	puts("done\nwaiting");
	fflush(stdout);
	next_line();
	return 0;
}

static void next_line(void)
{
	int c;

	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

int main(int argc, char **argv)
{
	static float data[1];
	struct id id = { "the same for all ranks" };
	handle context, comm;

	if (argc == 7 && !strcmp(argv[1], "all"))
		return all((struct plan){
		    atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), strtoull(argv[5], NULL, 10) * 1000, argv[6], 0, 0, NULL, NULL });
	if (argc == 7 && !strcmp(argv[1], "pipe"))
		return all((struct plan){ atoi(argv[2]), atoi(argv[3]), 0, strtoull(argv[5], NULL, 10) * 1000, "pipe",
		    atoi(argv[4]), strtoull(argv[6], NULL, 10), NULL, NULL });
	if (argc != 4 && (argc != 5 || strcmp(argv[4], "copies")))
		return 2;
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	puts("ready\nwaiting");
	fflush(stdout);
	next_line();
	MUST(ncclCommInitRank(&comm, atoi(argv[2]), id, atoi(argv[1])));
	for (int i = atoi(argv[3]); i > 0; i--)
		(argc == 5 ? copying_turn : turn)(comm, data);
	puts("done\nwaiting");
	fflush(stdout);
	next_line();
	return ncclCommDestroy(comm);
}
