/* SPDX-License-Identifier: Apache-2.0 */
/* A shared object that says hello and does nothing else. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
#include "image.h"

__attribute__((section(".inferscope"), used,
    visibility("default"))) volatile struct params image_params = { .magic = IMAGE_PARAMS, .fd = -1 };

static uint32_t starts;

static uint64_t monotonic(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void answer(const struct params *p, uint64_t entered)
{
	struct hello h = {.pid = getpid(), .tid = (int32_t)syscall(SYS_gettid), .starts = ++starts, .entered = entered};
	sigset_t set;

	if (p->sleep_us)
		usleep(p->sleep_us);
	h.stack = (uint64_t)(uintptr_t)&h;
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	memcpy(&h.blocked, &set, sizeof(h.blocked));
	h.left = monotonic();
	pwrite(p->fd, (char *)&h + 4, sizeof(h) - 4, (off_t)p->hello_at + 4);
	h.magic = IMAGE_HELLO;
	pwrite(p->fd, &h, 4, (off_t)p->hello_at);
	close(p->fd);
}

__attribute__((constructor)) static void loaded(void)
{
	uint64_t entered = monotonic();
	struct params p = image_params;

	if (p.fd >= 0)
		answer(&p, entered);
}

/* Called where the image is mapped already. */
__attribute__((visibility("default"))) int image_start(int fd)
{
	uint64_t entered = monotonic();
	struct params p;

	if (pread(fd, &p, sizeof(p), 0) != sizeof(p) || p.magic != IMAGE_PARAMS)
		return -1;
	answer(&p, entered);
	return 0;
}
