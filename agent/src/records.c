/* SPDX-License-Identifier: Apache-2.0 */
/* CUPTI's activity records, turned into slots. */
#include "agent.h"

static uint16_t place(uint32_t device, uint32_t context)
{
	return (uint16_t)((device & 0xff) | (context < 255 ? context : 255) << 8);
}

static uint64_t at_most(uint64_t v, uint64_t max)
{
	return v < max ? v : max;
}

/* As pack_grid and pack_block of bpf/shapes.h do. */
uint64_t pack_grid(uint32_t x, uint32_t y, uint32_t z)
{
	return x | at_most(y, 0xffff) << 32 | at_most(z, 0xffff) << 48;
}

uint64_t pack_block(uint32_t x, uint32_t y, uint32_t z, uint32_t shared)
{
	return at_most(x, 2047) | at_most(y, 2047) << 11 | at_most(z, 1023) << 22 | (uint64_t)shared << 32;
}

/* Sets start and duration; returns 0 for an operation that had not ended when a flush was forced. */
static int timed(struct agent_slot *s, uint64_t start, uint64_t end)
{
	if (!start || end < start)
		return 0;
	s->ts = start;
	s->dur = end - start;
	s->flags = EVENT_TIMED;
	return 1;
}

static int copy_kinds(uint8_t copy, uint8_t from, uint8_t to, uint8_t flags)
{
	return copy | from << 8 | to << 16 | (flags & COPY_ASYNC) << 24;
}

/* The fields that records of kernels, copies and sets of memory share: each has them at other offsets. */
#define OPERATION(s, event, r)                                                                                         \
	do {                                                                                                           \
		(s)->kind = (event);                                                                                   \
		(s)->tid = (r)->stream;                                                                                \
		(s)->func = place((r)->device, (r)->context);                                                          \
		(s)->args[0] = (r)->correlation | (uint64_t)(r)->graph << 32;                                          \
		(s)->args[1] = (r)->graph_node;                                                                        \
	} while (0)

/* The fields that both kinds of copies share. */
#define COPY(s, r, from, to)                                                                                           \
	do {                                                                                                           \
		OPERATION(s, EVENT_COPY, r);                                                                           \
		(s)->ret = copy_kinds((r)->copy, (r)->source, (r)->destination, (r)->flags);                           \
		(s)->args[2] = (r)->bytes;                                                                             \
		(s)->args[3] = (from) | (uint64_t)(to) << 32;                                                          \
	} while (0)

static int kernel(struct agent_slot *s, const struct kernel_record *r)
{
	struct agent_slot about = { .dur = r->registers | (uint64_t)(uint32_t)r->static_shared << 32, .ts = r->local };

	if (!timed(s, r->start, r->end))
		return 0;
	OPERATION(s, EVENT_KERNEL, r);
	s->ret = (int32_t)name_id(r->name, &about);
	s->args[2] = pack_grid((uint32_t)r->grid[0], (uint32_t)r->grid[1], (uint32_t)r->grid[2]);
	s->args[3] =
	    pack_block((uint32_t)r->block[0], (uint32_t)r->block[1], (uint32_t)r->block[2], (uint32_t)r->dynamic_shared);
	return 1;
}

static int copy(struct agent_slot *s, const struct copy_record *r)
{
	if (!timed(s, r->start, r->end))
		return 0;
	COPY(s, r, r->device, r->device);
	return 1;
}

static int peer(struct agent_slot *s, const struct peer_record *r)
{
	if (!timed(s, r->start, r->end))
		return 0;
	COPY(s, r, r->source_device, r->destination_device);
	return 1;
}

static int set(struct agent_slot *s, const struct set_record *r)
{
	if (!timed(s, r->start, r->end))
		return 0;
	OPERATION(s, EVENT_SET, r);
	s->ret = r->memory;
	s->args[2] = r->bytes;
	s->args[3] = r->value;
	return 1;
}

static int synchronization(struct agent_slot *s, const struct sync_record *r)
{
	if (!timed(s, r->start, r->end))
		return 0;
	s->kind = EVENT_SYNC;
	s->tid = r->stream;
	s->func = place(0, r->context);
	s->ret = (int32_t)r->type;
	s->args[0] = r->correlation;
	s->args[2] = r->event;
	return 1;
}

/* Some versions add data that the client must free (CUpti_ActivityOverhead3). */
static int overhead(struct agent_slot *s, const struct overhead_record *r, size_t size)
{
	if (size >= sizeof(*r) && r->data && free)
		free(r->data);
	if (!timed(s, r->start, r->end))
		return 0;
	s->kind = EVENT_OVERHEAD;
	s->tid = r->object == OBJECT_THREAD ? r->thread : 0;
	s->ret = (int32_t)(r->overhead >> 16);
	if (size >= sizeof(*r))
		s->args[0] = r->correlation;
	return 1;
}

/* Returns the bytes that are read of a record of this kind; 0 for kinds that were not enabled. */
static size_t prefix(uint32_t kind)
{
	switch (kind) {
	case KIND_KERNEL:
	case KIND_CONCURRENT_KERNEL: return sizeof(struct kernel_record);
	case KIND_MEMCPY: return sizeof(struct copy_record);
	case KIND_MEMCPY_PEER: return sizeof(struct peer_record);
	case KIND_MEMSET: return sizeof(struct set_record);
	case KIND_SYNCHRONIZATION: return sizeof(struct sync_record);
	case KIND_OVERHEAD: return offsetof(struct overhead_record, correlation);
	case KIND_MARKER: return sizeof(struct marker_record);
	}
	return 0;
}

/* 1: the slot is to be written; 0: the record had not ended; -1: nothing to write. */
static int decode(struct agent_slot *s, const void *record)
{
	switch (*(const uint32_t *)record) {
	case KIND_KERNEL:
	case KIND_CONCURRENT_KERNEL: return kernel(s, record);
	case KIND_MEMCPY: return copy(s, record);
	case KIND_MEMCPY_PEER: return peer(s, record);
	case KIND_MEMSET: return set(s, record);
	case KIND_SYNCHRONIZATION: return synchronization(s, record);
	case KIND_OVERHEAD: return overhead(s, record, the.overhead_size);
	case KIND_MARKER: range_marker(record); return -1;
	}
	return -1;
}

void records_lost(void)
{
	size_t dropped = 0;

	if (!the.cupti.dropped(NULL, 0, &dropped) && dropped)
		store(&the.ring->lost, add(&the.window.dropped, dropped) + dropped);
}

void records_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	uint64_t written = 0;
	uint32_t unfinished = 0;
	void *r = NULL;

	(void)context, (void)stream;
	if (!load(&the.alive->awake)) { /* in a forked child, or after the end */
		pool_release(buffer);
		return;
	}
	if (valid > size)
		valid = size;
	while (!the.cupti.next(buffer, valid, &r)) {
		struct agent_slot s = { 0 };
		size_t need = prefix(*(uint32_t *)r);
		int decoded;

		if (!need || (uint8_t *)r + need > buffer + size)
			continue;
		decoded = decode(&s, r);
		if (s.kind == EVENT_KERNEL || s.kind == EVENT_COPY || s.kind == EVENT_SET)
			pending_came((uint32_t)s.args[0]);
		if (decoded > 0)
			written += (uint64_t)ring_write(&s);
		unfinished += decoded == 0;
	}
	add(&the.window.records, written);
	add(&the.window.unfinished, unfinished);
	records_lost();
	pool_release(buffer);
}
