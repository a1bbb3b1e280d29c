/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Output of sched.bpf.c (included by sched_state.h). Events go into the lane of the CPU, or
 * into its ring where the lane is full or missing. A ring allows programs that interrupt
 * each other, which costs a lock and two helper calls, 90 ns. At a switch interrupts are
 * off, so a CPU has one writer at a time, and an array with a counter is enough.
 */
#ifndef INFERSCOPE_SCHED_LANE_H
#define INFERSCOPE_SCHED_LANE_H

#include "rings.h"

#define LANE_EVENTS 1024

/* Read by internal/capture/ring/lanes.go. Writer and reader each have their own cache line and the adjacent one that
 * is fetched with it. */
struct lane {
	__u64 head;	/* events written, by the program */
	__u64 pad[15];
	__u64 tail;	/* events read, by the daemon */
	__u64 pad2[15];
	struct event events[LANE_EVENTS];
};

/* x86 keeps the order of stores. Other architectures need a barrier, which the BPF
 * instructions of the oldest supported kernels do not have. */
#if defined(__TARGET_ARCH_x86)
/* By CPU; package ring replaces the map at load. */
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

/* alone: no other program of this file can interrupt the caller before submit. */
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
