/* SPDX-License-Identifier: Apache-2.0 */
/* A library for CUDA_INJECTION64_PATH that loads the one of INJECTED and starts it as CUDA does, and says what that
 * took: "load NS start NS" on standard output. cc -O2 -shared -fPIC -o injection.so injection.c -ldl */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int InitializeInjection(void)
{
	const char *path = getenv("INJECTED");
	long long began = now(), loaded;
	void *library = path ? dlopen(path, RTLD_NOW) : NULL;
	int (*start)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
	int result;

	loaded = now();
	result = start ? start() : 0;
	printf("load %lld start %lld\n", loaded - began, now() - loaded);
	fflush(stdout);
	return result;
}
