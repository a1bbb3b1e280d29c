/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef INFERSCOPE_REQUEST_RECORD_H
#define INFERSCOPE_REQUEST_RECORD_H

/* Records of transfers: in one piece, or in a piece for each frame of HTTP/2. */
#include "request_buffers.h"

static __always_inline void fill(struct request_record *r, const struct origin *o, __u32 kind, __u32 bytes, __u64 now)
{
	__u64 id = bpf_get_current_pid_tgid();

	r->ts = now;
	r->socket = o->socket;
	r->ssl = o->ssl;
	r->pid = id >> 32;
	r->tid = id;
	r->kind = kind;
	r->bytes = bytes;
	r->head = 0;
	r->tail = 0;
	r->port = o->port;
	r->flags = 0;
}

/*
 * Records a transfer with up to limit bytes of its beginning. vectors is a constant: with several buffers the verifier
 * needs twice the room. Returns 0 where the ring has no room.
 */
static __always_inline int record_head(const struct origin *o, const struct buffers *b, __u32 kind, __u32 bytes,
				       __u64 now, const __u32 *flags, const __u64 limit, const int vectors)
{
	const __u64 room = (vectors ? 2 * limit : limit) + (limit == REQUEST_HEAD ? REQUEST_TAIL : 0);
	struct request_record *r = bpf_ringbuf_reserve(&request_records, sizeof(*r) + room, 0);
	__u8 *data;

	if (!r)
		return 0;
	data = (__u8 *)(r + 1);
	fill(r, o, kind, bytes, now);
	r->flags = *flags;
	r->head = vectors ? gather_head(b, data, bytes, limit) : copy_head(b, data, bytes, limit);
	if (limit == REQUEST_HEAD && bytes > limit)
		r->tail = copy_tail(b, data + room - REQUEST_TAIL, bytes);
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 1;
}

/* Records the beginning of a transfer between an API server and its engine. Returns 0 where there is no room. */
static __always_inline int record_engine(const struct origin *o, const struct buffers *b, __u32 bytes, __u64 now,
					 const __u32 *flags)
{
	if (b->vectors)
		return record_head(o, b, REQUEST_ENGINE_SENT, bytes, now, flags, REQUEST_ENGINE, 1);
	if (bytes <= REQUEST_SMALL)
		return record_head(o, b, REQUEST_ENGINE_SENT, bytes, now, flags, REQUEST_SMALL, 0);
	if (bytes <= REQUEST_STEP)
		return record_head(o, b, REQUEST_ENGINE_SENT, bytes, now, flags, REQUEST_STEP, 0);
	return record_head(o, b, REQUEST_ENGINE_SENT, bytes, now, flags, REQUEST_ENGINE, 0);
}

/* Records what was received or sent. Returns 0 where there is no room. */
static __always_inline int record(const struct origin *o, const struct buffers *b, __u32 kind, __u32 bytes, __u64 now,
				  const __u32 *flags)
{
	if (b->vectors) {
		if (bytes <= REQUEST_TINY)
			return record_head(o, b, kind, bytes, now, flags, REQUEST_TINY, 1);
		if (bytes <= REQUEST_CHUNK)
			return record_head(o, b, kind, bytes, now, flags, REQUEST_CHUNK, 1);
		if (bytes <= REQUEST_SMALL)
			return record_head(o, b, kind, bytes, now, flags, REQUEST_SMALL, 1);
		return record_head(o, b, kind, bytes, now, flags, REQUEST_HEAD, 1);
	}
	if (bytes <= REQUEST_TINY)
		return record_head(o, b, kind, bytes, now, flags, REQUEST_TINY, 0);
	if (bytes <= REQUEST_CHUNK)
		return record_head(o, b, kind, bytes, now, flags, REQUEST_CHUNK, 0);
	if (bytes <= REQUEST_SMALL)
		return record_head(o, b, kind, bytes, now, flags, REQUEST_SMALL, 0);
	return record_head(o, b, kind, bytes, now, flags, REQUEST_HEAD, 0);
}

/*
 * A transfer of HTTP/2, or a long one of an engine, recorded in pieces of one buffer each: all frames are needed, not
 * only the first and last.
 */
struct pieces {
	struct origin origin;
	__u64 now;
	__u64 base;    /* of the one buffer, or of the list of those that are left */
	__u64 vectors; /* in the list; 0: there is one buffer */
	__u64 offset;  /* in the first buffer that is left */
	__u32 kind;
	__u32 left;
	__u32 max_pieces;
	__u32 flags; /* of the next record */
};

/* Not on the stack, where each iteration would be a new verifier state; not per CPU, as a thread may be preempted. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct pieces);
} request_pieces SEC(".maps");

/* Records a piece of n bytes at from, which are not more than limit. Returns 0 where there is no room. */
static __always_inline int record_frame(struct pieces *p, __u64 from, __u32 n, __u32 i, const __u64 limit)
{
	struct request_record *r = bpf_ringbuf_reserve(&request_records, sizeof(*r) + limit, 0);

	if (!r)
		return 0;
	fill(r, &p->origin, p->kind, n, p->now);
	r->flags = REQUEST_H2 | p->flags;
	p->flags = 0;
	if (!bpf_probe_read_user(r + 1, n, (void *)from))
		r->head = n;
	p->left -= n;
	p->offset += n;
	if (p->left && i + 1 < p->max_pieces) {
		r->flags |= REQUEST_MORE;
	} else if (p->left) {
		r->bytes = n + p->left; /* the rest is counted, not copied */
		p->left = 0;
	}
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 1;
}

/*
 * Records piece i. Returns 1 at the end. It is a global function because the verifier checks those once and not in each
 * iteration; bpf_loop would need Linux 5.17.
 */
__noinline int request_piece(struct pieces *p, __u32 i)
{
	struct vector v = {};
	__u64 n;

	if (!p || !p->left)
		return 1;
	v.base = p->base;
	v.bytes = p->offset + p->left;
	if (p->vectors && bpf_probe_read_user(&v, sizeof(v), (void *)p->base))
		return 1;
	n = v.bytes - p->offset;
	if (n > p->left)
		n = p->left;
	if (!n) {
		if (!p->vectors)
			return 1;
		p->base += sizeof(v);
		p->offset = 0;
		return --p->vectors ? 0 : 1;
	}
	if (n <= REQUEST_TINY)
		return !record_frame(p, v.base + p->offset, n, i, REQUEST_TINY);
	if (n <= REQUEST_SMALL)
		return !record_frame(p, v.base + p->offset, n, i, REQUEST_SMALL);
	if (n > REQUEST_HEAD)
		n = REQUEST_HEAD;
	return !record_frame(p, v.base + p->offset, n, i, REQUEST_HEAD);
}

/*
 * Records what was received or sent over HTTP/2, or by an engine, in so many pieces at most. Returns 0 where a piece is
 * missing.
 */
static __always_inline int record_frames(const struct origin *o, const struct buffers *b, __u32 kind, __u32 bytes,
					 __u64 now, const __u32 *flags, __u32 max_pieces)
{
	struct pieces *p = bpf_task_storage_get(&request_pieces, bpf_get_current_task_btf(), 0,
						BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u32 i;

	if (!p)
		return 0;
	p->origin = *o;
	p->now = now;
	p->base = b->base;
	p->vectors = b->vectors;
	p->offset = 0;
	p->kind = kind;
	p->left = bytes;
	p->max_pieces = max_pieces;
	p->flags = *flags;
	for (i = 0; i < REQUEST_PIECES; i++) {
		if (request_piece(p, i))
			break;
	}
	return !p->left;
}

#endif
