/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a victim by the tests: a thread that brings the agent in when it is told to, as the injector
 * does with an armed thread. Lines from the FIFO named by STARTER_IN, answers to the one named by STARTER_OUT:
 *   load PATH     open PATH as a file, say its descriptor, wait for a line, dlopen /proc/self/fd/N
 *   inject PATH   dlopen PATH and call InitializeInjection, as CUDA does; says its result. The agent's thread does
 *                 nothing yet
 *   go on         lets it, after an inject
 *   start PATH    open PATH, call inferscope_start with it, in an agent that is loaded; says its result and errno
 * With STARTER_LINGER the agent's thread sleeps so many ms at the beginning of each window: where it looks for libraries.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *agent;
static sem_t gate;

/* A thread that is made while an agent is injected is one whose turn has not come. */
static struct {
	int on;
	void *(*run)(void *);
	void *arg;
} late;

static void *wait_first(void *unused)
{
	while (sem_wait(&gate))
		continue;
	(void)unused;
	return late.run(late.arg);
}

/* In the place of libc's, for all of the process. */
int pthread_create(pthread_t *t, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

	*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	if (!late.on)
		return real(t, attributes, run, arg);
	late.run = run;
	late.arg = arg;
	return real(t, attributes, wait_first, NULL);
}

/* The same. */
int dl_iterate_phdr(int (*each)(struct dl_phdr_info *, size_t, void *), void *data)
{
	int (*real)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
	const char *ms = getenv("STARTER_LINGER");
	char name[16] = "";

	pthread_getname_np(pthread_self(), name, sizeof(name));
	if (ms && !strcmp(name, "cupti"))
		usleep(1000 * (useconds_t)atoi(ms));
	*(void **)&real = dlsym(RTLD_NEXT, "dl_iterate_phdr");
	return real(each, data);
}

static int open_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		abort();
	return fd;
}

static void load(FILE *in, FILE *out, const char *path)
{
	char name[64], line[64];
	static int loads;
	int fd = open_file(path), other = fcntl(fd, F_DUPFD_CLOEXEC, 200 + loads++),
	    kept; /* the loader knows a file that it has by its name, too */

	close(fd);
	fd = other;
	fprintf(out, "%d\n", fd);
	fflush(out);
	if (!fgets(line, sizeof(line), in))
		return;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	errno = 12345;
	agent = dlopen(name, RTLD_NOW);
	kept = errno;
	fprintf(out, "%d %s\n", kept, agent ? "loaded" : dlerror());
}

static void start(FILE *out, const char *path)
{
	int (*entry)(int) = (int (*)(int))dlsym(agent, "inferscope_start");
	int result;

	errno = 12345;
	result = entry(open_file(path));
	fprintf(out, "%d %d\n", result, errno);
}

static void inject(FILE *out, const char *path)
{
	int (*entry)(void);

	agent = dlopen(path, RTLD_NOW);
	entry = agent ? (int (*)(void))dlsym(agent, "InitializeInjection") : NULL;
	late.on = 1;
	fprintf(out, "%d\n", entry ? entry() : -1);
	late.on = 0;
}

static void *serve(void *unused)
{
	FILE *in = fopen(getenv("STARTER_IN"), "re"), *out = fopen(getenv("STARTER_OUT"), "we");
	char line[4096];

	while (in && out && fgets(line, sizeof(line), in)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "load ", 5))
			load(in, out, line + 5);
		else if (!strncmp(line, "inject ", 7))
			inject(out, line + 7);
		else if (!strncmp(line, "start ", 6))
			start(out, line + 6);
		else if (!strcmp(line, "go on"))
			sem_post(&gate);
		fflush(out);
	}
	return unused;
}

__attribute__((constructor)) static void loaded(void)
{
	pthread_t t;

	unsetenv("LD_PRELOAD");
	sem_init(&gate, 0, 0);
	if (getenv("STARTER_IN"))
		pthread_create(&t, NULL, serve, NULL);
}
