/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The sampled processes. sample.bpf.c creates the map; other programs that walk Python frames share it. */
#ifndef INFERSCOPE_SAMPLE_PROCESS_H
#define INFERSCOPE_SAMPLE_PROCESS_H

#include "sample_python.h"

#define SWITCH_SLOTS 32

/* The threads of a process that share a value of tid % SWITCH_SLOTS. */
struct switch_slot {
	__u32 switches; /* in the window */
	__u32 taken;    /* samples of them */
	__u32 one_of;   /* one switch in this many is sampled, at random; 0: each */
};

/* A process that is sampled. */
struct sampled_process {
	__u64 window;   /* ns, start of the current window of the switch budget */
	__u64 switches; /* switch samples in it */
	__u64 jiffy;    /* at which the clock was last read */
	__u64 taken;    /* samples so far */
	__u64 took;     /* ns spent on them before the native unwinder */
	__u64 skipped;   /* switches without a sample */
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
