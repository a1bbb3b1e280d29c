/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * How many intervals are sent one by one (sched_state.h includes this). All CPUs share
 * a budget, and each takes a part of it at a time: a word that every event of every CPU
 * writes costs more than the rest of the switch.
 */
#ifndef INFERSCOPE_SCHED_BUDGET_H
#define INFERSCOPE_SCHED_BUDGET_H

/* The slice that all CPUs are in. */
struct {
	__u64 number;
	__u64 sent; /* intervals that CPUs have taken for sending */
	__u64 sums; /* likewise: sums that were sent because they were old */
} slice OWN_LINE;

/* What a CPU has taken of a slice's budget and not sent yet. */
struct share {
	__u64 slice;
	__u64 left;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct share);
} shares SEC(".maps");

/* The part of affordable that CPUs do together. */
static __noinline bool take(struct share *mine, __u64 this, __u64 dur)
{
	__u64 sent;

	if (slice.number != this) { /* two CPUs may both come here: the slice has a few more then */
		slice.number = this;
		slice.sent = 0;
		slice.sums = 0;
	}
	sent = slice.sent;
	if (sent < slice_budget) {
		__sync_fetch_and_add(&slice.sent, slice_share);
		mine->slice = this;
		mine->left = slice_share - 1;
		return true;
	}
	if (sent >= 3 * slice_budget || dur < (sent >= 2 * slice_budget ? 10000000ULL : 100000ULL))
		return false;
	__sync_fetch_and_add(&slice.sent, 1);
	return true;
}

/*
 * Whether an interval may have an event of its own. Within a slice the first
 * slice_budget may; then only what is longer than 0.1 ms, then than 10 ms, then nothing.
 */
static __always_inline bool affordable(__u64 now, __u64 dur)
{
	__u64 this = now >> SLICE_SHIFT;
	__u32 zero = 0;
	struct share *mine = bpf_map_lookup_elem(&shares, &zero);

	if (!mine)
		return false;
	if (mine->slice == this && mine->left) {
		mine->left--;
		return true;
	}
	return take(mine, this, dur);
}

#endif
