/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for a target with an agent, in tests of the daemon's side: it makes a ring as
 * the agent does, and writes what its standard input asks for. Built with agent/abi.h, so it
 * also shows that both sides mean the same bytes.
 *
 *   ring SLOTS [MODE]       makes a ring, prints "ring FD"; MODE: unsealed, foreign
 *   name ID KIND TEXT       AGENT_NAME and its AGENT_TEXTs
 *   kernels THREADS N NAME  N kernels from each of so many threads, each with its number in args[2]
 *   call CBID ID            a launch with correlation id ID
 *   open, window END        AGENT_OPENED, AGENT_WINDOW
 *   device, sync, stuck, die
 *   garbage                 a slot of a kind that does not exist
 *   mode                    prints "mode M HEARTBEAT_AGE_MS"
 *   stay, leave             does not end when it is told to, until it is let
 *   thread                  prints the thread that will write calls: "thread TID"
 * Each command but stuck answers "done". The agent's own rules are kept by a thread: MODE_QUIT and
 * 1.5 s without a heartbeat end it, a flush is answered.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

static struct agent_ring *ring;
static uint32_t slots;
static int ring_fd = -1;
static int stays; /* the agent's thread is busy leaving CUPTI */

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static struct agent_slot *slot(uint64_t p)
{
	return (struct agent_slot *)((char *)ring + AGENT_DATA) + p % slots;
}

/* Reserves n adjacent slots; waits for room, so that no test loses any. */
static uint64_t reserve(uint32_t n)
{
	for (;;) {
		uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
		uint64_t tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
		if (head + n - tail > slots) {
			usleep(200);
			continue;
		}
		if (__atomic_compare_exchange_n(&ring->head, &head, head + n, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return head;
	}
}

static void put(uint64_t p, struct agent_slot *s)
{
	struct agent_slot *to = slot(p);
	uint32_t seq = (uint32_t)(p / slots) + 1;
	memcpy(to, s, 16);
	memcpy((char *)to + 20, (char *)s + 20, 44);
	__atomic_store_n(&to->seq, seq, __ATOMIC_RELEASE);
}

static void put_one(struct agent_slot s) { put(reserve(1), &s); }

static void put_name(uint32_t id, int kind, const char *text)
{
	uint32_t len = strlen(text), per = sizeof(struct agent_text) - 5, n = (len + per - 1) / per;
	uint64_t p = reserve(1 + n);
	struct agent_slot head = { .kind = AGENT_NAME, .ret = (int32_t)id, .func = (uint16_t)len, .flags = (uint8_t)kind,
		.dur = 32 | 1024ull << 32, .ts = 16 };
	put(p, &head);
	for (uint32_t i = 0; i < n; i++) {
		struct agent_text t = {.kind = AGENT_TEXT};
		uint8_t flat[59] = {0};
		uint32_t left = len - i * per;
		memcpy(flat, text + i * per, left < per ? left : per);
		memcpy(t.text_a, flat, 16);
		memcpy(t.text_b, flat + 16, 6);
		memcpy(t.text_c, flat + 22, 37);
		put(p + 1 + i, (struct agent_slot *)&t);
	}
}

struct work {
	uint32_t thread, n, name;
};

static void *kernels(void *arg)
{
	struct work *w = arg;
	for (uint32_t i = 0; i < w->n; i++) {
		uint64_t t = now();
		put_one((struct agent_slot){ .ts = t - 1000,
		    .dur = 500, .kind = 7, .tid = w->thread + 7, .ret = (int32_t)w->name,
		    .args = { (uint64_t)i + 1, 0, i, w->thread } });
	}
	return NULL;
}

static uint64_t late; /* ns from a question to its answer */

static void answer(void)
{
	static uint64_t asked, since;

	if (ring->flush != asked) {
		asked = ring->flush;
		since = now();
	}
	if (now() - since >= __atomic_load_n(&late, __ATOMIC_ACQUIRE))
		__atomic_store_n(&ring->flushed, (uint32_t)asked, __ATOMIC_RELEASE);
}

static void *serve(void *arg)
{
	for (;;) {
		usleep(2000);
		answer();
		if ((ring->mode != MODE_QUIT || __atomic_load_n(&stays, __ATOMIC_ACQUIRE)) &&
		    now() - ring->heartbeat < 1500000000ull)
			continue;
		__atomic_store_n(&ring->state, STATE_GONE, __ATOMIC_RELEASE);
		return arg;
	}
}

static void make_ring(uint32_t n, const char *how)
{
	int fd = memfd_create("inferscope-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t size = AGENT_DATA + (size_t)n * sizeof(struct agent_slot);
	if (fd < 0 || ftruncate(fd, size) < 0)
		exit(3);
	if (strcmp(how, "unsealed") != 0)
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	slots = n;
	*ring = (struct agent_ring){ .magic = AGENT_MAGIC,
		.abi = AGENT_ABI,
		.slots = n,
		.pid = strcmp(how, "foreign") ? getpid() : 1,
		.heartbeat = now(),
		.state = STATE_IDLE,
		.cupti_version = 130001,
		.path = "/usr/lib/libcupti.so.13" };
	ring_fd = fd;
	pthread_t t;
	pthread_create(&t, NULL, serve, NULL);
	printf("ring %d\n", fd);
}

static void run_threads(uint32_t threads, uint32_t n, uint32_t name)
{
	pthread_t ids[64];
	struct work w[64];
	for (uint32_t i = 0; i < threads && i < 64; i++) {
		w[i] = (struct work){i, n, name};
		pthread_create(&ids[i], NULL, kernels, &w[i]);
	}
	for (uint32_t i = 0; i < threads && i < 64; i++)
		pthread_join(ids[i], NULL);
}

static void window(int end)
{
	uint64_t t = now(), from = ring->began ? ring->began : t - 1000000;
	ring->began = 0;
	ring->windows++;
	ring->graphs = end == END_DISABLED;
	__atomic_store_n(&ring->state, STATE_IDLE, __ATOMIC_RELEASE);
	put_one((struct agent_slot){
	    .kind = AGENT_WINDOW, .ts = from, .dur = t - from, .ret = end, .func = 1, .args = { 10, 3, 1000, 2000 } });
}

/* What an agent writes; 0 where the line says something else. */
static int writes(const char *line)
{
	uint32_t a, b, c;
	char text[8192] = "";
	if (sscanf(line, "ring %u %63s", &a, text) >= 1)
		make_ring(a, text);
	else if (sscanf(line, "name %u %u %8000s", &a, &b, text) == 3)
		put_name(a, (int)b, text);
	else if (sscanf(line, "kernels %u %u %u", &a, &b, &c) == 3)
		run_threads(a, b, c);
	else if (sscanf(line, "call %u %u", &a, &b) == 2)
		put_one((struct agent_slot){ .ts = now(),
		    .dur = 5, .kind = 1, .flags = 9, .func = (uint16_t)a, .ret = (int32_t)b,
		    .tid = (uint32_t)syscall(SYS_gettid) });
	else if (!strcmp(line, "open")) {
		ring->began = now();
		ring->state = STATE_OPEN;
		put_one((struct agent_slot){.ts = ring->began, .kind = AGENT_OPENED});
	} else if (sscanf(line, "window %u", &a) == 1)
		window((int)a);
	else if (!strcmp(line, "device"))
		put_one((struct agent_slot){
		    .kind = AGENT_DEVICE, .ret = 0, .tid = 1, .args = { 80000000000ull, 4800000000000ull, 132 | 9ull << 32 } });
	else if (sscanf(line, "late %u", &a) == 1)
		__atomic_store_n(&late, a * 1000000ull, __ATOMIC_RELEASE);
	else if (!strcmp(line, "sync"))
		put_one((struct agent_slot){.kind = 10, .ts = now() - 50, .dur = 20, .ret = 3, .tid = 7, .args = {9}});
	else if (!strcmp(line, "garbage"))
		put_one((struct agent_slot){.kind = 200, .ts = now()});
	else if (!strcmp(line, "stuck"))
		reserve(1);
	else
		return 0;
	return 1;
}

/* How an agent is, and what is asked of it. */
static void is(const char *line)
{
	if (!strcmp(line, "refuse")) {
		ring->error = ERROR_BUSY;
		__atomic_store_n(&ring->state, STATE_REFUSED, __ATOMIC_RELEASE);
	} else if (!strncmp(line, "open ", 5)) { /* it waits in cuptiSubscribe since so many ms; 0: it is in */
		long ms = atol(line + 5);

		__atomic_store_n(&ring->opening, ms ? now() - (uint64_t)ms * 1000000 : 0, __ATOMIC_RELEASE);
		__atomic_store_n(&ring->state, ms ? STATE_OPENING : STATE_OPEN, __ATOMIC_RELEASE);
	} else if (!strcmp(line, "die"))
		_exit(0);
	else if (!strcmp(line, "stay"))
		__atomic_store_n(&stays, 1, __ATOMIC_RELEASE);
	else if (!strcmp(line, "leave"))
		__atomic_store_n(&stays, 0, __ATOMIC_RELEASE);
	else if (!strcmp(line, "mode"))
		printf("mode %u %lu\n", ring->mode, (unsigned long)((now() - ring->heartbeat) / 1000000));
	else if (!strcmp(line, "closefd"))
		close(ring_fd);
	else if (!strcmp(line, "thread"))
		printf("thread %ld\n", syscall(SYS_gettid));
	else if (!strncmp(line, "exec ", 5))
		execl("/proc/self/exe", "producer", (char *)NULL);
}

static void command(const char *line)
{
	if (!writes(line))
		is(line);
	printf("done\n");
	fflush(stdout);
}

int main(void)
{
	char line[16384];
	printf("hello %d\n", getpid());
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		command(line);
	}
	return 0;
}
