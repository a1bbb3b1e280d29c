/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a program that exchanges data by the simulated NCCL: rank RANK RANKS TURNS. It prints "ready" and "waiting", and at a line
 * of its input makes a communicator and does TURNS turns, each of them 13 operations; then it prints "done" and
 * "waiting", and ends at the next line.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef void *handle;
struct id {
	char bytes[128];
};
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuCtxSynchronize(void);
extern int ncclCommInitRank(handle *, int, struct id, int), ncclCommDestroy(handle), ncclGroupStart(void), ncclGroupEnd(void);
extern int ncclAllReduce(const void *, void *, size_t, int, int, handle, handle), ncclReduceScatter(const void *, void *, size_t, int, int, handle, handle);
extern int ncclAllGather(const void *, void *, size_t, int, handle, handle), ncclAlltoAll(const void *, void *, size_t, int, handle, handle);
extern int ncclBcast(void *, size_t, int, int, handle, handle), ncclReduce(const void *, void *, size_t, int, int, int, handle, handle);
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

	if (argc != 4)
		return 2;
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	puts("ready\nwaiting");
	fflush(stdout);
	next_line();
	MUST(ncclCommInitRank(&comm, atoi(argv[2]), id, atoi(argv[1])));
	for (int i = atoi(argv[3]); i > 0; i--)
		turn(comm, data);
	puts("done\nwaiting");
	fflush(stdout);
	next_line();
	return ncclCommDestroy(comm);
}
