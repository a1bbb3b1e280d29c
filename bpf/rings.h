/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The rings of events, and counters of those that found no room. Needs event.h. */
#ifndef INFERSCOPE_RINGS_H
#define INFERSCOPE_RINGS_H

/* Package ring replaces rings and losses at load. */
struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOSS_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

#endif
