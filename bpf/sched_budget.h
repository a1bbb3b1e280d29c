/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The budget of intervals that are sent one by one (included by sched_state.h). All CPUs
 * share it, and each takes a part at a time: a word written for every event by every CPU
 * would cost more than the rest of the switch.
 */
#ifndef INFERSCOPE_SCHED_BUDGET_H
#define INFERSCOPE_SCHED_BUDGET_H

/* The current slice of all CPUs. */
struct {
	__u64 number;
	__u64 sent; /* intervals taken by CPUs */
	__u64 sums; /* sums sent because of their age */
} slice OWN_LINE;

/* The unused part of the budget that a CPU has taken. */
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

/* The shared part of affordable. */
static __noinline bool take(struct share *mine, __u64 this, __u64 dur)
{
	__u64 sent;

	if (slice.number != this) { /* two CPUs may race here, which adds a few events to the slice */
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
 * Reports whether an interval may have an event of its own. In a slice the first
 * slice_budget may, then only those over 0.1 ms, then only those over 10 ms, then none.
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
