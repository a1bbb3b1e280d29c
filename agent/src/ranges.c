/* SPDX-License-Identifier: Apache-2.0 */
/* NVTX ranges: CUPTI gives a record at the start and one at the end, joined by an id. */
#include "agent.h"

#define OPEN 4096u

struct range {
	uint32_t id; /* 0: free. Two open ranges OPEN ids apart: the older one is lost */
	uint32_t name, thread;
	uint64_t start;
};

static struct range open_ranges[OPEN];

void ranges_forget(void)
{
	for (uint32_t i = 0; i < OPEN; i++)
		store(&open_ranges[i].id, 0);
}

static void write_range(const struct range *r, uint64_t end)
{
	struct agent_slot s = {
		.ts = r->start, .dur = end - r->start, .tid = r->thread, .kind = EVENT_RANGE, .flags = EVENT_TIMED,
		.ret = (int32_t)r->name, .args = { r->id },
	};

	if (ring_write(&s))
		add(&the.window.records, 1);
}

void range_marker(const struct marker_record *m)
{
	struct range *slot = &open_ranges[m->id % OPEN], r;
	struct agent_slot about = { .flags = 1 };

	if (m->object != OBJECT_THREAD || !m->id)
		return;
	if (m->flags & MARKER_END) {
		r = *slot;
		if (r.id != m->id)
			return; /* it began before the window, or its place was taken */
		store(&slot->id, 0);
		if (m->time >= r.start)
			write_range(&r, m->time);
		return;
	}
	r = (struct range){ m->id, name_id(m->name, &about), m->thread, m->time };
	if (m->flags & MARKER_START)
		*slot = r;
	else if (m->flags & MARKER_INSTANT)
		write_range(&r, m->time);
}
