/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records which threads launch graphs. A finalize while another thread launches one kills the process (measured:
 * "unspecified launch failure" in its first window, 6 of 6 programs, whichever kinds were on; libcuda 580, CUPTI 13.0).
 * So once a thread has been seen to launch a graph, only that thread finalizes, in its own call, also in windows in
 * which it launches none; with several such threads nothing finalizes. A graph of its own that still runs does no harm.
 *
 * Also records the graphs that ran while kinds were on. If the kinds then go off without a finalize, a later finalize
 * kills the process, unless the graphs have run again with the kinds on. So after such an end a finalize waits until
 * every one of these graphs has.
 */
#include "agent.h"

static struct graphs graphs;

int graphs_several(void)
{
	return load(&graphs.several) || load(&the.ring->graph_threads);
}

static void note_thread(uint32_t tid)
{
	uint32_t before = load(&graphs.thread);

	if (before == tid || graphs_several())
		return;
	if ((before && thread_lives(before)) || !swapped(&graphs.thread, before, tid))
		store(&graphs.several, 1);
}

/* Reports whether launcher is another live thread than tid. */
static int another(uint32_t launcher, uint32_t tid)
{
	return launcher && launcher != tid && thread_lives(launcher);
}

/* The daemon's probes see every launch, the agent's callbacks those in windows. */
int graphs_allow(uint32_t tid)
{
	return !graphs_several() && !another(load(&graphs.thread), tid) && !another(load(&the.ring->graph_thread), tid);
}

uint32_t graphs_launcher(void)
{
	uint32_t seen = load(&the.ring->graph_thread);

	return seen ? seen : load(&graphs.thread);
}

void graph_seen(uint64_t exec, uint32_t tid, int again)
{
	note_thread(tid);
	store(&graphs.any, 1);
	for (uint32_t i = 0, h = (uint32_t)(exec >> 4 ^ exec >> 16); exec && i < GRAPHS; i++) {
		uint64_t *at = &graphs.exec[(h + i) % GRAPHS];
		uint64_t is = load(at);

		if (is == exec || (!is && (swapped(at, 0, exec) || load(at) == exec))) {
			if (again)
				store(&graphs.seen[(h + i) % GRAPHS], 1);
			return;
		}
	}
	store(&graphs.overflow, 1); /* also a launch whose parameters CUPTI did not give */
}

int graphs_any(void)
{
	return load(&graphs.any) != 0;
}

int graphs_all_seen(void)
{
	for (uint32_t i = 0; i < GRAPHS; i++)
		if (load(&graphs.exec[i]) && !load(&graphs.seen[i]))
			return 0;
	return !load(&graphs.overflow);
}

void graphs_unsee(void)
{
	for (uint32_t i = 0; i < GRAPHS; i++)
		store(&graphs.seen[i], 0);
}

void graphs_forget(void)
{
	for (uint32_t i = 0; i < GRAPHS; i++)
		store(&graphs.exec[i], 0);
	graphs_unsee();
	store(&graphs.overflow, 0);
	store(&graphs.any, 0);
}

void graphs_leave(struct graphs *to)
{
	memcpy(to, &graphs, sizeof(*to));
}

void graphs_inherit(const struct graphs *from)
{
	uint32_t several = graphs.several;

	memcpy(&graphs, from, sizeof(graphs)); /* includes what this image saved before */
	graphs.several |= several;
}
