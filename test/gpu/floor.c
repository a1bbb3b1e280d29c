/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUPTI itself costs a program, whoever asks it: a library for CUDA_INJECTION64_PATH that turns records and
 * callbacks on, does nothing with them, and turns them off in the lawful way: a finalize at the exit of a synchronizing
 * call, with the kinds still on. The declarations are the agent's.
 *     cc -O2 -shared -fPIC -pthread -o floor.so floor.c -ldl
 *
 * Its thread reads commands from the fifo FLOOR_IN and answers each with a line in the fifo FLOOR_OUT:
 *   on WHAT   a sum of enum what, with the libcupti of FLOOR_CUPTI: "on"; "less" where this CUPTI cannot be asked for
 *             all of it; "no": nothing is on
 *   off       "off BUFFERS", so many came back; or "late" where no call came to finalize at
 * With FLOOR_STAYS in the environment it subscribes before cuInit and stays subscribed: off turns kinds and callbacks
 * off. For programs with threads that are always inside of the driver, where a later cuptiSubscribe waits for minutes.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../agent/src/cupti.h"

enum what { CALLBACKS = 1, RECORDS = 2, SUBSCRIBED = 4, SYSTEM_IDS = 8, PINNED = 16, ZEROED = 32 };
/* CUpti_ActivityAttribute: buffers come zeroed; what the device writes lies in pinned memory of the host's. */
enum { ATTRIBUTE_ZEROED = 5, ATTRIBUTE_PINNED = 8 };
enum { SIZE = 256 << 10, BUFFERS = 256 }; /* as the agent's, but more: none is waited for */

static const uint32_t kinds[] = { KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMSET };
/* As in agent/src/calls.c; one that this CUPTI lacks is refused. */
static const uint32_t launches[] = { 307, 442, 477, 478, 514, 515, 652, 653 };
static const uint32_t waits[] = { 17, 121, 126, 278, 398, 440, 800 };
#define EACH(i, list) (size_t i = 0; i < sizeof(list) / sizeof(*(list)); i++)

static struct cupti api;
static int (*set_attribute)(int attribute, size_t *bytes, void *value);
static void *subscriber;
static _Alignas(8) uint8_t memory[BUFFERS][SIZE];
static atomic_int busy[BUFFERS], ending; /* ending: 1 at the next exit, 2 it is over */
static atomic_ulong came; /* buffers */
static int zeroed, stays;

static void request(uint8_t **buffer, size_t *bytes, size_t *records)
{
	*buffer = NULL, *bytes = 0, *records = 0;
	for (size_t i = 0; i < BUFFERS; i++) {
		int free = 0;

		if (!atomic_compare_exchange_strong(&busy[i], &free, 1))
			continue;
		*buffer = memory[i], *bytes = SIZE;
		return;
	}
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	(void)context, (void)stream, (void)size;
	if (zeroed) /* CUPTI's thread */
		memset(buffer, 0, valid);
	busy[(size_t)(buffer - memory[0]) / SIZE] = 0;
	came++;
}

static void records_off(void)
{
	for EACH(i, kinds)
		api.disable(kinds[i]);
	api.flush(FLUSH_FORCED);
}

static void finish(void)
{
	records_off();
	api.unsubscribe(subscriber);
	api.finalize();
	ending = 2;
}

static void on_call(void *user, uint32_t domain, uint32_t id, const struct callback_data *d)
{
	int wanted = 1;

	(void)user, (void)domain;
	if (ending != 1 || d->site != SITE_EXIT || !d->result || *d->result)
		return;
	for EACH(i, waits)
		if (waits[i] == id && atomic_compare_exchange_strong(&ending, &wanted, 3))
			finish();
}

static int load(void)
{
	static const struct {
		const char *name;
		size_t at;
	} functions[] = {
		{ "cuptiSubscribe", offsetof(struct cupti, subscribe) },
		{ "cuptiUnsubscribe", offsetof(struct cupti, unsubscribe) },
		{ "cuptiEnableCallback", offsetof(struct cupti, callback) },
		{ "cuptiActivityRegisterCallbacks", offsetof(struct cupti, buffers) },
		{ "cuptiActivityEnable", offsetof(struct cupti, enable) },
		{ "cuptiActivityDisable", offsetof(struct cupti, disable) },
		{ "cuptiActivityFlushAll", offsetof(struct cupti, flush) },
		{ "cuptiFinalize", offsetof(struct cupti, finalize) },
	};
	const char *path = getenv("FLOOR_CUPTI");
	void *library = path ? dlopen(path, RTLD_NOW) : NULL;

	if (!library)
		return 0;
	for EACH(i, functions) {
		void *f = dlsym(library, functions[i].name);

		if (!f)
			return 0;
		memcpy((char *)&api + functions[i].at, &f, sizeof(f));
	}
	api.set_thread_ids = (int (*)(uint32_t))dlsym(library, "cuptiSetThreadIdType"); /* these two may be missing */
	set_attribute = (int (*)(int, size_t *, void *))dlsym(library, "cuptiActivitySetAttribute");
	return 1;
}

static int attribute(int which, int value)
{
	uint8_t v = value != 0;
	size_t bytes = sizeof(v);

	return set_attribute && !set_attribute(which, &bytes, &v);
}

/* What on answers where it fails, or NULL. */
static const char *enter(void)
{
	if ((!api.subscribe && !load()) || api.subscribe(&subscriber, on_call, NULL))
		return "no";
	return api.buffers(request, complete) ? "less" : NULL;
}

static const char *on(int what)
{
	const char *bad = stays ? NULL : enter();
	int ids, pinned, zero;

	if (bad)
		return bad;
	ending = 0;
	came = 0;
	ids = api.set_thread_ids && !api.set_thread_ids(what & SYSTEM_IDS ? THREAD_ID_SYSTEM : 0);
	pinned = attribute(ATTRIBUTE_PINNED, what & PINNED);
	zero = attribute(ATTRIBUTE_ZEROED, zeroed = what & ZEROED);
	for EACH(i, launches)
		if (what & CALLBACKS)
			api.callback(1, subscriber, DOMAIN_DRIVER, launches[i]);
	for EACH(i, kinds)
		if (what & RECORDS && api.enable(kinds[i]) && kinds[i] == KIND_CONCURRENT_KERNEL)
			return "less";
	return (ids || !(what & SYSTEM_IDS)) && (pinned || !(what & PINNED)) && (zero || !(what & ZEROED)) ? "on" : "less";
}

/* Whether a synchronizing call came to end at. */
static int off(void)
{
	if (stays) {
		for EACH(i, launches)
			api.callback(0, subscriber, DOMAIN_DRIVER, launches[i]);
		records_off();
		return 1;
	}
	for EACH(i, waits)
		api.callback(1, subscriber, DOMAIN_DRIVER, waits[i]);
	ending = 1;
	for (int ms = 0; ending != 2 && ms < 20000; ms++)
		usleep(1000);
	for EACH(i, busy)
		busy[i] = 0;
	return ending == 2;
}

static void *serve(void *unused)
{
	int in = open(getenv("FLOOR_IN"), O_RDONLY), out = open(getenv("FLOOR_OUT"), O_WRONLY), what;
	char line[64];
	ssize_t n;

	/* One command at a time is written, and answered before the next. No FILE: exit() waits for one that a thread reads
	 * from. */
	while (in >= 0 && out >= 0 && (n = read(in, line, sizeof(line) - 1)) > 0) {
		line[n] = 0;
		if (sscanf(line, "on %d", &what) == 1)
			dprintf(out, "%s\n", on(what));
		else if (off())
			dprintf(out, "off %lu\n", came);
		else
			dprintf(out, "late\n");
	}
	return unused;
}

int InitializeInjection(void)
{
	pthread_t t;

	stays = getenv("FLOOR_STAYS") && !enter();
	if (getenv("FLOOR_IN") && getenv("FLOOR_OUT") && !pthread_create(&t, NULL, serve, NULL))
		pthread_detach(t);
	return 1;
}
