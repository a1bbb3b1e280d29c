// Three threads name ranges with NVTX, a known number of times, and then wait; the first thread computes until it is
// ended.
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *work(void *unused)
{
	for (int i = 0; i < 50; i++) {
		nvtxRangePushA("outer");
		usleep(1000);
		nvtxRangePushA("inner");
		usleep(500);
		nvtxRangePop();
		nvtxRangePop();
	}
	for (;;)
		pause();
	return unused;
}

int main(void)
{
	pthread_t t;
	printf("%d\n", getpid());
	fflush(stdout);
	for (int i = 0; i < 3; i++)
		if (pthread_create(&t, NULL, work, NULL))
			return 1;
	for (volatile double x = 1;;)
		x = x * 1.0000001;
}
