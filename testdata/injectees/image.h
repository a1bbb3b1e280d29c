/* SPDX-License-Identifier: Apache-2.0 */
/* What the test image and the test say to each other: internal/capture/gpu/inject's image_test.go has the Go side. */
#ifndef IMAGE_H
#define IMAGE_H
#include <stdint.h>

#define IMAGE_PARAMS 0x5041524du /* magic of struct params */
#define IMAGE_HELLO 0x48454c4cu  /* magic of struct hello */

struct params {
	uint32_t magic;
	int32_t fd;        /* of the file that holds this */
	uint64_t hello_at; /* offset in it at which to answer */
	uint32_t sleep_us; /* how long to take */
	uint32_t pad;
};

/* Written at hello_at, magic last. */
struct hello {
	uint32_t magic;
	int32_t pid, tid;
	uint32_t starts;        /* of this copy of the image, this one included */
	uint64_t entered, left; /* CLOCK_MONOTONIC ns */
	uint64_t stack;         /* address of a variable on the stack */
	uint64_t blocked;       /* signals blocked meanwhile, signal n is bit n-1 */
};

#endif
