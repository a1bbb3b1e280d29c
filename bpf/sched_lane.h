/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Where events of sched.bpf.c go (sched_state.h includes this): into the lane of the CPU,
 * and where that is full, or a CPU or an architecture has none, into its ring. A ring
 * takes events of programs that interrupt each other, which costs a lock and two calls of
 * helpers, 90 ns; at a switch interrupts are off, so that a CPU has one writer at a time,
 * and a place in an array and a counter do.
 */
#ifndef INFERSCOPE_SCHED_LANE_H
#define INFERSCOPE_SCHED_LANE_H

#include "rings.h"

#define LANE_EVENTS 1024

/* internal/capture/ring/lanes.go reads it. Who writes and who reads have lines of their own, and those that are fetched
 * with them. */
struct lane {
	__u64 head;	/* events that were written so far; the program writes it */
	__u64 pad[15];
	__u64 tail;	/* of these the daemon has read; it writes it */
	__u64 pad2[15];
	struct event events[LANE_EVENTS];
};

/* On x86 stores become visible in their order. Elsewhere the counter would need a
 * barrier, which the instructions that all supported kernels know do not have. */
#if defined(__TARGET_ARCH_x86)
/* By CPU; replaced at load by that of package ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

static __always_inline struct lane *lane_of(__u32 cpu)
{
	struct lane *lane = bpf_map_lookup_elem(&lanes, &cpu);

	return lane && lane->head - *(volatile __u64 *)&lane->tail < LANE_EVENTS ? lane : NULL;
}
#else
static __always_inline struct lane *lane_of(__u32 cpu) { return NULL; }
#endif

static __always_inline void count(void *map, __u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(map, &reason);

	if (n)
		(*n)++;
}

/* Room for an event. */
struct room {
	struct event *event; /* NULL: there is none, which is counted */
	struct lane *lane;   /* NULL: it is in the ring */
};

/* With alone no other program of this file can come in between before submit. */
static __always_inline struct room reserve(bool alone)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct room room = {.lane = alone ? lane_of(cpu) : NULL};
	void *ring;

	if (room.lane) {
		room.event = &room.lane->events[room.lane->head % LANE_EVENTS];
		return room;
	}
	ring = bpf_map_lookup_elem(&rings, &cpu);
	room.event = ring ? bpf_ringbuf_reserve(ring, sizeof(struct event), 0) : NULL;
	if (!room.event)
		count(&losses, LOSS_RING_FULL);
	return room;
}

static __always_inline void submit(struct room room, __u64 dur, __u64 arg0, __u64 arg1, __u64 arg2, __u64 arg3)
{
	struct event *e = room.event;

	e->dur = dur;
	e->args[0] = arg0;
	e->args[1] = arg1;
	e->args[2] = arg2;
	e->args[3] = arg3;
	if (room.lane) {
		barrier();
		(*(volatile __u64 *)&room.lane->head)++;
	} else {
		bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	}
}

#endif
