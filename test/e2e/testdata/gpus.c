/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program on several GPUs, for tests: a thread for each device, which launches kernels of "counted" in their names
 * and waits for them, until a line comes on stdin. Thread i pauses between rounds, longer the higher i is, so that
 * devices are busy for different shares of the time. Driver API only; says "ready PID", and ends with 1 where a call
 * failed.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned), cuDeviceGetCount(int *), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *),
    cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(
    void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

#define CHECK(call)                                     \
	do {                                            \
		int e_ = (call);                        \
		if (e_) {                               \
			fprintf(stderr, #call ": %d\n", e_); \
			_exit(1);                       \
		}                                       \
	} while (0)

static volatile int ending;
static int warm;

static void *work(void *number)
{
	int device = (int)(long)number;
	void *context, *module, *function;
	char name[32];

	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, ""));
	snprintf(name, sizeof(name), "counted_gpu%d_us200", device);
	CHECK(cuModuleGetFunction(&function, module, name));
	__atomic_fetch_add(&warm, 1, __ATOMIC_RELEASE);
	while (!ending) {
		for (int i = 0; i < 3; i++)
			CHECK(cuLaunchKernel(function, 1 + (unsigned)device, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
		CHECK(cuCtxSynchronize());
		usleep(500 + 1500 * (unsigned)device);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[16];
	int count;

	CHECK(cuInit(0));
	CHECK(cuDeviceGetCount(&count));
	for (long i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	while (__atomic_load_n(&warm, __ATOMIC_ACQUIRE) < count)
		usleep(1000);
	printf("ready %d\nwaiting %d\n", (int)getpid(), (int)getpid());
	fflush(stdout);
	getchar();
	ending = 1;
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
