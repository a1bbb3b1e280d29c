/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two stages on two GPUs, for tests, in the default stream of each: in a step GPU 0 runs ten kernels, a megabyte goes to
 * GPU 1, which runs ten kernels too, and the thread waits for them. It says "ready PID", does steps until a line comes on
 * stdin, says "done", and ends at the next line. Driver API only; it ends with 1 where a call failed.
 */
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(
    void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuMemAlloc_v2(unsigned long long *, size_t), cuEventCreate(void **, unsigned), cuEventRecord(void *, void *),
    cuStreamWaitEvent(void *, void *, unsigned);
int cuMemcpyPeerAsync(unsigned long long, void *, unsigned long long, void *, size_t, void *);

#define CHECK(call)                                     \
	do {                                            \
		int e_ = (call);                        \
		if (e_) {                               \
			fprintf(stderr, #call ": %d\n", e_); \
			_exit(1);                       \
		}                                       \
	} while (0)

enum { GPUS = 2, KERNELS = 10, BYTES = 1 << 20 };

static struct stage {
	void *context, *function, *done;
	unsigned long long buffer;
} stages[GPUS];

static void compute(struct stage *s)
{
	for (int i = 0; i < KERNELS; i++)
		CHECK(cuLaunchKernel(s->function, 24, 1, 1, 512, 1, 1, 0, NULL, NULL, NULL));
}

static void step(void)
{
	struct stage *first = &stages[0], *second = &stages[1];

	CHECK(cuCtxSetCurrent(first->context));
	compute(first);
	CHECK(cuEventRecord(first->done, NULL));
	CHECK(cuCtxSetCurrent(second->context));
	CHECK(cuStreamWaitEvent(NULL, first->done, 0));
	CHECK(cuMemcpyPeerAsync(second->buffer, second->context, first->buffer, first->context, BYTES, NULL));
	compute(second);
	CHECK(cuCtxSynchronize());
}

int main(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	void *module;
	char line[64];

	CHECK(cuInit(0));
	for (int i = 0; i < GPUS; i++) {
		struct stage *s = &stages[i];

		CHECK(cuDevicePrimaryCtxRetain(&s->context, i));
		CHECK(cuCtxSetCurrent(s->context));
		CHECK(cuModuleLoadData(&module, ""));
		CHECK(cuModuleGetFunction(&s->function, module, "counted_us200"));
		CHECK(cuMemAlloc_v2(&s->buffer, BYTES));
		CHECK(cuEventCreate(&s->done, 2));
	}
	printf("ready %d\nwaiting %d\n", (int)getpid(), (int)getpid());
	fflush(stdout);
	while (poll(&input, 1, 0) == 0)
		step();
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	printf("done\nwaiting %d\n", (int)getpid());
	fflush(stdout);
	return fgets(line, sizeof(line), stdin) ? 0 : 1;
}
