/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: signatures of nccl.h 2.30, and a kernel of the simulated driver for each operation. Ranks do not
 * wait for each other, unless CUDASIM_NCCL_MEET names a file that they share: then a kernel ends when all have come, of
 * a send and its receive both, and a process may have one communicator. In a group the kernels are launched at its
 * outermost end, as NCCL does. A send or receive of a million elements takes 2 ms, and a smaller one 10 us. Launches have
 * the parameters of NCCL 2.28.9, and the functions that are asked for here. With CUDASIM_NCCL_COPIES=1 copy engines carry
 * out all-gather, all-to-all, gather and scatter, as in src/ce_coll.cc of NCCL: a copy of a flag, those of the data (a
 * batch but in the default stream), and a copy of another flag; nobody waits for flags.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../include/cuda_types.h"
#include "../include/hooks.h"

#define EXPORT __attribute__((visibility("default")))

typedef void *handle;
extern struct sim_hooks cudasim_hooks;
extern int cuCtxGetDevice(int *);
extern int cuModuleLoadData(handle *, const void *), cuModuleGetFunction(handle *, handle, const char *);
extern int cuLaunchKernelEx(const CUlaunchConfig *, handle, void **, void **);
extern int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, handle);
extern int cuMemcpyBatchAsync_v2(uint64_t *, uint64_t *, size_t *, size_t, void *, size_t *, size_t, handle);

struct id {
	char bytes[128];
};

enum { OPERATIONS = 10, PENDING = 1024, RANKS = 64, MANY = 1000000, CHANNELS = 24 };
enum { ALL_GATHER = 2, ALL_TO_ALL = 3, GATHER = 6, SCATTER = 7, SEND_RECEIVE = 8, LONG_SEND_RECEIVE = 9 };
enum { INVALID = 4 /* ncclInvalidArgument */ };

#define MAGIC 0x0280028002800280ull

/* meet is when ranks came. A rank is one operation ahead of the last one at most, so that two starts are enough. */
struct meet {
	uint64_t came, start[2];
};

/* pair is a send or a receive of this rank, and who has the other end. */
struct pair {
	struct sim_meeting meeting; /* the first field */
	struct meet *own, *other;
	uint64_t next; /* operation between the two in this direction */
};

/* comm begins with NCCL's magic number, and has four fields from the hash on in the order of its struct ncclComm. */
struct comm {
	uint64_t magic;
	struct sim_meeting meeting;
	uint64_t hash;
	int rank, ranks, device;
	struct meet *all;
	uint64_t next; /* operation */
	uint64_t window; /* device memory that copy engines use; 0: kernels do all */
	struct pair sends[RANKS], receives[RANKS]; /* by the rank that has the other end */
};

/* shared is what all ranks map: ends are by sender and receiver, first the sender's. */
struct shared {
	struct meet all[RANKS], ends[RANKS][RANKS][2];
};

static const char *const kernels[OPERATIONS] = {
	"ncclDevKernel_AllReduce_Sum_f32_RING_LL_us50", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL_us20", "ncclDevKernel_AllGather_RING_LL_us20",
	"ncclDevKernel_AlltoAll_RING_LL_us20", "ncclDevKernel_Broadcast_RING_LL_us10", "ncclDevKernel_Reduce_Sum_f32_RING_LL_us10",
	"ncclDevKernel_Gather_RING_LL_us10", "ncclDevKernel_Scatter_RING_LL_us10", "ncclDevKernel_SendRecv_us10",
	"ncclDevKernel_SendRecv_us2000",
};

/* functions are indices of NCCL 2.28.9's device functions for operations; all-reduces have several, see reduction. */
static const unsigned functions[OPERATIONS] = {
	258 /* AllReduce Sum f32 RING LL */, 617 /* ReduceScatter Sum f32 PAT SIMPLE */, 1 /* AllGather NVLS SIMPLE */,
	669 /* SendRecv */, 342 /* Broadcast RING LL */, 432 /* Reduce Sum f32 RING LL */, 669, 669, 669, 669,
};
enum { RING_SIMPLE = 260, TREE_BFLOAT16 = 242 /* LL128 */ };

/* The parameters of a kernel: ncclDevKernelArgs and an ncclDevWorkBatch for each channel. */
struct parameters {
	void *comm;
	uint64_t channels;
	uint32_t storage, mask;
	void *work;
	struct {
		uint32_t flags, offset;
		uint64_t works;
	} batches[CHANNELS];
};

static __thread struct {
	handle function, stream;
	unsigned index;
	struct comm *comm;
	struct sim_meeting *meeting;
	size_t bytes, copies; /* of each, by copy engines; 0: a kernel */
} pending[PENDING];
static __thread int depth, waiting;

static handle function(int operation)
{
	static __thread handle module, known[OPERATIONS];

	if (!module && cuModuleLoadData(&module, "image"))
		abort();
	if (!known[operation] && cuModuleGetFunction(&known[operation], module, kernels[operation]))
		abort();
	return known[operation];
}

static struct comm *comm_of(struct sim_meeting *m)
{
	return (struct comm *)((char *)m - offsetof(struct comm, meeting));
}

static void come(struct sim_meeting *m, uint64_t start)
{
	struct comm *c = comm_of(m);
	struct meet *own = &c->all[c->rank];

	own->start[c->next & 1] = start;
	__atomic_store_n(&own->came, ++c->next, __ATOMIC_RELEASE);
}

static uint64_t last(struct sim_meeting *m)
{
	struct comm *c = comm_of(m);
	uint64_t latest = 0;

	for (int i = 0; i < c->ranks; i++) {
		while (__atomic_load_n(&c->all[i].came, __ATOMIC_ACQUIRE) < c->next)
			usleep(100);
		if (c->all[i].start[(c->next - 1) & 1] > latest)
			latest = c->all[i].start[(c->next - 1) & 1];
	}
	return latest;
}

static void come_to_pair(struct sim_meeting *m, uint64_t start)
{
	struct pair *p = (struct pair *)m;

	p->own->start[p->next & 1] = start;
	__atomic_store_n(&p->own->came, ++p->next, __ATOMIC_RELEASE);
}

static uint64_t last_of_pair(struct sim_meeting *m)
{
	struct pair *p = (struct pair *)m;
	uint64_t at = (p->next - 1) & 1;

	while (__atomic_load_n(&p->other->came, __ATOMIC_ACQUIRE) < p->next)
		usleep(100);
	return p->own->start[at] > p->other->start[at] ? p->own->start[at] : p->other->start[at];
}

static void share(struct comm *c)
{
	const char *name = getenv("CUDASIM_NCCL_MEET");
	size_t size = sizeof(struct shared);
	struct shared *shared;
	int fd;

	if (!name)
		return;
	fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)size) || c->ranks > RANKS)
		abort();
	shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		abort();
	close(fd);
	c->all = shared->all;
	c->meeting.come = come;
	c->meeting.last = last;
	for (int i = 0; i < c->ranks; i++) {
		struct sim_meeting meeting = { come_to_pair, last_of_pair };
		struct meet *sends = shared->ends[c->rank][i], *receives = shared->ends[i][c->rank];

		c->sends[i] = (struct pair){ meeting, &sends[0], &sends[1], 0 };
		c->receives[i] = (struct pair){ meeting, &receives[1], &receives[0], 0 };
	}
}

static int launch(handle f, unsigned index, handle stream, struct comm *comm, struct sim_meeting *meeting)
{
	unsigned channels = index == RING_SIMPLE ? CHANNELS : 2;
	CUlaunchConfig config = { channels, 1, 1, 512, 1, 1, 0, stream, NULL, 0 };
	struct parameters p = { .comm = comm, .channels = (1ull << channels) - 1 };
	size_t size = offsetof(struct parameters, batches[channels]);
	void *extra[] = { (void *)1, &p, (void *)2, &size, NULL };

	for (unsigned i = 0; i < channels; i++)
		p.batches[i].flags = index << 17;
	if (comm->all)
		cudasim_hooks.meet(meeting);
	return cuLaunchKernelEx(&config, f, NULL, extra);
}

/* copy has copy engines carry out an operation. */
static int copy(size_t bytes, size_t copies, handle stream, struct comm *comm)
{
	uint64_t to[RANKS], from[RANKS];
	size_t sizes[RANKS];
	int e = cuMemcpyDtoDAsync_v2(comm->window, comm->window + 4, 4, stream);

	for (size_t i = 0; i < copies; i++) {
		to[i] = comm->window + 8;
		from[i] = comm->window + 16;
		sizes[i] = bytes;
		if (!e && !stream)
			e = cuMemcpyDtoDAsync_v2(to[i], from[i], bytes, stream);
	}
	if (!e && stream && copies)
		e = cuMemcpyBatchAsync_v2(to, from, sizes, copies, NULL, NULL, 0, stream);
	return e ? e : cuMemcpyDtoDAsync_v2(comm->window + 4, comm->window, 4, stream);
}

static int copies(size_t bytes, size_t n, struct comm *comm, handle stream)
{
	if (!depth)
		return copy(bytes, n, stream, comm);
	if (waiting == PENDING)
		abort();
	pending[waiting].comm = comm;
	pending[waiting].bytes = bytes;
	pending[waiting].copies = n;
	pending[waiting++].stream = stream;
	return 0;
}

static int work_with(int operation, unsigned index, struct comm *comm, handle stream, struct sim_meeting *meeting)
{
	handle f = function(operation);

	if (!depth)
		return launch(f, index, stream, comm, meeting);
	if (waiting == PENDING)
		abort();
	pending[waiting].function = f;
	pending[waiting].index = index;
	pending[waiting].comm = comm;
	pending[waiting].meeting = meeting;
	pending[waiting].bytes = 0;
	pending[waiting++].stream = stream;
	return 0;
}

static int work(int operation, struct comm *comm, handle stream)
{
	return comm ? work_with(operation, functions[operation], comm, stream, &comm->meeting) : INVALID;
}

/* work_in_parts is work that copy engines can do: so many copies of count elements. */
static int work_in_parts(int operation, size_t count, int type, int n, struct comm *comm, handle stream)
{
	static const size_t sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };

	if (!comm || !comm->window || !count || type < 0 || type > 9)
		return work(operation, comm, stream);
	return copies(count * sizes[type], (size_t)n, comm, stream);
}

static int pass(size_t count, int peer, struct comm *comm, struct pair *pairs, handle stream)
{
	if (!comm || (comm->all && (peer < 0 || peer >= comm->ranks)))
		return INVALID;
	return work_with(count < MANY ? SEND_RECEIVE : LONG_SEND_RECEIVE, functions[SEND_RECEIVE], comm, stream,
	    &pairs[comm->all ? peer : 0].meeting);
}

EXPORT int ncclCommInitRank(struct comm **to, int ranks, struct id id, int rank)
{
	struct comm *c = calloc(1, sizeof(*c));

	if (!c)
		abort();
	if (cuCtxGetDevice(&c->device))
		abort();
	c->magic = MAGIC;
	c->hash = 5381;
	for (size_t i = 0; i < sizeof(id.bytes); i++)
		c->hash = c->hash * 33 ^ (unsigned char)id.bytes[i];
	c->ranks = ranks;
	c->rank = rank;
	share(c);
	if (getenv("CUDASIM_NCCL_COPIES") && (ranks > RANKS || cuMemAlloc_v2(&c->window, 1 << 20)))
		abort();
	*to = c;
	return 0;
}

EXPORT int ncclCommUserRank(const struct comm *c, int *rank)
{
	*rank = c->rank;
	return 0;
}

EXPORT int ncclCommCount(const struct comm *c, int *ranks)
{
	*ranks = c->ranks;
	return 0;
}

EXPORT int ncclCommCuDevice(const struct comm *c, int *device)
{
	*device = c->device;
	return 0;
}

EXPORT int ncclCommDestroy(struct comm *c)
{
	c->magic = 0;
	if (c->window)
		cuMemFree_v2(c->window);
	if (c->all)
		munmap(c->all, sizeof(struct shared)); /* begins with it */
	free(c);
	return 0;
}

EXPORT int ncclGroupStart(void)
{
	depth++;
	return 0;
}

EXPORT int ncclGroupEnd(void)
{
	if (--depth > 0)
		return 0;
	for (int i = 0; i < waiting; i++)
		if (pending[i].bytes)
			copy(pending[i].bytes, pending[i].copies, pending[i].stream, pending[i].comm);
		else
			launch(pending[i].function, pending[i].index, pending[i].stream, pending[i].comm, pending[i].meeting);
	waiting = 0;
	return 0;
}

#define UNUSED __attribute__((unused))

EXPORT int ncclGetVersion(int *version)
{
	*version = 22809;
	return 0;
}

/* reduction is the function for an all-reduce: another one for more data, and for another type. */
static unsigned reduction(size_t count, int type)
{
	if (type == 9) /* bfloat16 */
		return TREE_BFLOAT16;
	return count > 1024 ? RING_SIMPLE : functions[0];
}

EXPORT int ncclAllReduce(UNUSED const void *from, UNUSED void *to, size_t count, int type, UNUSED int op,
    struct comm *comm, handle stream)
{
	return comm ? work_with(0, reduction(count, type), comm, stream, &comm->meeting) : INVALID;
}

EXPORT int ncclReduceScatter(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type,
    UNUSED int op, struct comm *comm, handle stream)
{
	return work(1, comm, stream);
}

EXPORT int ncclAllGather(
    UNUSED const void *from, UNUSED void *to, size_t count, int type, struct comm *comm, handle stream)
{
	return work_in_parts(ALL_GATHER, count, type, comm ? comm->ranks : 0, comm, stream);
}

EXPORT int ncclAlltoAll(
    UNUSED const void *from, UNUSED void *to, size_t count, int type, struct comm *comm, handle stream)
{
	return work_in_parts(ALL_TO_ALL, count, type, comm ? comm->ranks : 0, comm, stream);
}

EXPORT int ncclBroadcast(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type,
    UNUSED int root, struct comm *comm, handle stream)
{
	return work(4, comm, stream);
}

EXPORT int ncclBcast(void *buffer, size_t count, int type, int root, struct comm *comm, handle stream)
{
	return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

EXPORT int ncclReduce(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int op,
    UNUSED int root, struct comm *comm, handle stream)
{
	return work(5, comm, stream);
}

EXPORT int ncclGather(UNUSED const void *from, UNUSED void *to, size_t count, int type, UNUSED int root,
    struct comm *comm, handle stream)
{
	return work_in_parts(GATHER, count, type, 1, comm, stream);
}

EXPORT int ncclScatter(UNUSED const void *from, UNUSED void *to, size_t count, int type, int root, struct comm *comm,
    handle stream)
{
	return work_in_parts(SCATTER, count, type, comm && comm->rank == root ? comm->ranks : 0, comm, stream);
}

EXPORT int ncclSend(
    UNUSED const void *from, size_t count, UNUSED int type, int peer, struct comm *comm, handle stream)
{
	return pass(count, peer, comm, comm ? comm->sends : NULL, stream);
}

EXPORT int ncclRecv(UNUSED void *to, size_t count, UNUSED int type, int peer, struct comm *comm, handle stream)
{
	return pass(count, peer, comm, comm ? comm->receives : NULL, stream);
}
