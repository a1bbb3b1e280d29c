/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: signatures of nccl.h 2.30, and a kernel of the simulated driver for each operation. Ranks do not
 * wait for each other. In a group the kernels are launched at its outermost end, as NCCL does.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

typedef void *handle;
extern int cuModuleLoadData(handle *, const void *), cuModuleGetFunction(handle *, handle, const char *);
extern int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);

struct id {
	char bytes[128];
};

struct comm {
	int ranks, rank;
};

enum { OPERATIONS = 9, PENDING = 1024 };

static const char *const kernels[OPERATIONS] = {
	"ncclDevKernel_AllReduce_Sum_f32_RING_LL_us50", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL_us20", "ncclDevKernel_AllGather_RING_LL_us20",
	"ncclDevKernel_AlltoAll_RING_LL_us20", "ncclDevKernel_Broadcast_RING_LL_us10", "ncclDevKernel_Reduce_Sum_f32_RING_LL_us10",
	"ncclDevKernel_Gather_RING_LL_us10", "ncclDevKernel_Scatter_RING_LL_us10", "ncclDevKernel_SendRecv_us10",
};

static __thread struct {
	handle function, stream;
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

static int launch(handle f, handle stream)
{
	return cuLaunchKernel(f, 24, 1, 1, 512, 1, 1, 0, stream, NULL, NULL);
}

static int work(int operation, struct comm *comm, handle stream)
{
	handle f = function(operation);

	if (!comm)
		return 4; /* ncclInvalidArgument */
	if (!depth)
		return launch(f, stream);
	if (waiting == PENDING)
		abort();
	pending[waiting].function = f;
	pending[waiting++].stream = stream;
	return 0;
}

EXPORT int ncclCommInitRank(struct comm **to, int ranks, struct id id, int rank)
{
	struct comm *c = calloc(1, sizeof(*c));

	if (!c)
		abort();
	(void)id;
	c->ranks = ranks;
	c->rank = rank;
	*to = c;
	return 0;
}

EXPORT int ncclCommDestroy(struct comm *c)
{
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
		launch(pending[i].function, pending[i].stream);
	waiting = 0;
	return 0;
}

#define UNUSED __attribute__((unused))

EXPORT int ncclAllReduce(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int op, struct comm *comm, handle stream)
{
	return work(0, comm, stream);
}

EXPORT int ncclReduceScatter(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int op, struct comm *comm, handle stream)
{
	return work(1, comm, stream);
}

EXPORT int ncclAllGather(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, struct comm *comm, handle stream)
{
	return work(2, comm, stream);
}

EXPORT int ncclAlltoAll(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, struct comm *comm, handle stream)
{
	return work(3, comm, stream);
}

EXPORT int ncclBroadcast(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int root, struct comm *comm, handle stream)
{
	return work(4, comm, stream);
}

EXPORT int ncclBcast(void *buffer, size_t count, int type, int root, struct comm *comm, handle stream)
{
	return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

EXPORT int ncclReduce(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int op, UNUSED int root, struct comm *comm, handle stream)
{
	return work(5, comm, stream);
}

EXPORT int ncclGather(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int root, struct comm *comm, handle stream)
{
	return work(6, comm, stream);
}

EXPORT int ncclScatter(UNUSED const void *from, UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int root, struct comm *comm, handle stream)
{
	return work(7, comm, stream);
}

EXPORT int ncclSend(UNUSED const void *from, UNUSED size_t count, UNUSED int type, UNUSED int peer, struct comm *comm, handle stream)
{
	return work(8, comm, stream);
}

EXPORT int ncclRecv(UNUSED void *to, UNUSED size_t count, UNUSED int type, UNUSED int peer, struct comm *comm, handle stream)
{
	return work(8, comm, stream);
}
