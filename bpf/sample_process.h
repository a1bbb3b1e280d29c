/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The processes whose stacks are taken. sample.bpf.c makes the map; other programs that walk Python frames share it. */
#ifndef INFERSCOPE_SAMPLE_PROCESS_H
#define INFERSCOPE_SAMPLE_PROCESS_H

#include "sample_python.h"

#define SWITCH_SLOTS 32

/* Threads of one process, by tid % SWITCH_SLOTS. */
struct switch_slot {
	__u32 switches; /* of theirs in the window */
	__u32 taken;    /* samples of these */
	__u32 one_of;   /* so many is taken in it, at random; 0: each */
};

/* A process that is sampled. */
struct sampled_process {
	__u64 window;   /* ns, when the present tenth of a second of the switch budget began */
	__u64 switches; /* samples of switches in it */
	__u64 jiffy;    /* of the last look at the clock */
	__u64 taken;    /* samples so far */
	__u64 took;     /* ns that these took until they were handed on to the native unwinder */
	__u64 passed;   /* switches of which no sample was taken */
	struct switch_slot slots[SWITCH_SLOTS];
	struct python_layout python;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32); /* tgid */
	__type(value, struct sampled_process);
} sampled_processes SEC(".maps");

#endif
