// SPDX-License-Identifier: Apache-2.0
/*
 * Calls functions of a CUDA library that needs no GPU to answer, as often as a
 * script says, so that a test can compare what was seen with what was done:
 *
 *   caller LIBRARY NAME[=COUNT[:ARG,ARG...]]...
 *
 * It prints "ready PID ZERO", waits for a line on stdin, runs the script, prints
 * "NAME COUNT RESULT" for each entry and "done", and waits for stdin to end. An
 * argument is a number, or @launch (a CUlaunchConfig of grid 3,2,1, block 64,2,1,
 * 256 bytes of shared memory, stream 0x1), @out (the address of a u64), or @zero (a
 * page-aligned megabyte of zeroes at the address ZERO: a driver that looks into a
 * handle finds no object there, where it would crash at any number).
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGS 11 /* cuLaunchKernel has the most */

struct launch_config {
	uint32_t grid[3];
	uint32_t block[3];
	uint32_t shared;
	uint64_t stream;
	void *attrs;
	uint32_t num_attrs;
};

typedef int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
			uint64_t, uint64_t);

static struct launch_config launch = {{3, 2, 1}, {64, 2, 1}, 256, 0x1, NULL, 0};
static uint64_t out;
static char zero[1 << 20] __attribute__((aligned(4096)));

static uint64_t value(const char *word)
{
	if (!strcmp(word, "@launch"))
		return (uint64_t)&launch;
	if (!strcmp(word, "@out"))
		return (uint64_t)&out;
	if (!strcmp(word, "@zero"))
		return (uint64_t)zero;
	return strtoull(word, NULL, 0);
}

static void parse(char *list, uint64_t *a)
{
	int n = 0;

	for (char *word = strtok(list, ","); word && n < ARGS; word = strtok(NULL, ","))
		a[n++] = value(word);
}

/* Runs one entry of the script; it is taken apart in place. */
static int run(void *library, char *entry)
{
	uint64_t a[ARGS] = {0};
	char *count = strchr(entry, '=');
	char *args = strchr(entry, ':');
	long times = 1;
	int result = 0;
	function call;

	if (count)
		*count++ = 0;
	if (args) {
		*args++ = 0;
		parse(args, a);
	}
	if (count)
		times = strtol(count, NULL, 10);
	call = (function)dlsym(library, entry);
	if (!call) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (long i = 0; i < times; i++)
		result = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
	printf("%s %ld %d\n", entry, times, result);
	return 0;
}

static void wait_for_line(void)
{
	char line[64];

	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

int main(int argc, char **argv)
{
	void *library;

	if (argc < 2) {
		fprintf(stderr, "usage: %s LIBRARY NAME[=COUNT[:ARG,...]]...\n", argv[0]);
		return 2;
	}
	library = dlopen(argv[1], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d %lu\n", getpid(), (unsigned long)zero);
	wait_for_line();
	for (int i = 2; i < argc; i++)
		if (run(library, argv[i]))
			return 1;
	printf("done\n");
	wait_for_line();
	return 0;
}
