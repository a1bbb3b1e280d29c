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

/* Records what a process sent to its engine, or the engine to it. */
static __always_inline int record_engine(const struct origin *o, const struct buffers *b, __u32 bytes, __u64 now)
{
	struct request_engine *r;

	count(REQUEST_COUNT_TRANSFERS);
	if (bytes <= REQUEST_SMALL) {
		struct request_small *s = bpf_ringbuf_reserve(&request_records, sizeof(*s), 0);

		if (!s) {
			count(REQUEST_COUNT_LOST);
			return 0;
		}
		fill(&s->record, o, REQUEST_ENGINE_SENT, bytes, now);
		s->record.head = copy_head(b, s->data, bytes, REQUEST_SMALL);
		bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
		return 0;
	}
	r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);
	if (!r) {
		count(REQUEST_COUNT_LOST);
		return 0;
	}
	fill(&r->record, o, REQUEST_ENGINE_SENT, bytes, now);
	r->record.head = copy_head(b, r->data, bytes, REQUEST_ENGINE);
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Records what was received or sent. Returns 0 where there is no room. */
static __always_inline int record(const struct origin *o, const struct buffers *b, __u32 kind, __u32 bytes, __u64 now,
				  const __u32 *flags)
{
	count(REQUEST_COUNT_TRANSFERS);
	if (bytes <= REQUEST_SMALL) {
		struct request_small *r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);

		if (!r) {
			count(REQUEST_COUNT_LOST);
			return 0;
		}
		fill(&r->record, o, kind, bytes, now);
		r->record.flags = *flags;
		r->record.head = copy_head(b, r->data, bytes, REQUEST_SMALL);
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	} else {
		struct request_large *r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);

		if (!r) {
			count(REQUEST_COUNT_LOST);
			return 0;
		}
		fill(&r->record, o, kind, bytes, now);
		r->record.flags = *flags;
		r->record.head = copy_head(b, r->data, bytes, REQUEST_HEAD);
		if (bytes > REQUEST_HEAD)
			r->record.tail = copy_tail(b, r->data + 2 * REQUEST_HEAD, bytes);
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	}
	return 1;
}

/* A transfer of HTTP/2 that is recorded in pieces of one buffer each: every frame counts, not just the first and the last. */
struct pieces {
	struct origin origin;
	__u64 now;
	__u64 base;    /* of the one buffer, or of the list of those that are left */
	__u64 vectors; /* in the list; 0: there is one buffer */
	__u64 offset;  /* in the first buffer that is left */
	__u32 kind;
	__u32 left;
};

/* On the stack, each turn of the loop would be another state to the verifier; and a thread may be preempted. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct pieces);
} request_pieces SEC(".maps");

/* Fills the record of a piece of n bytes at from; data has limit bytes, and n is not more. */
static __always_inline void piece(struct pieces *p, struct request_record *r, __u8 *data, __u64 from, __u32 n, __u32 i)
{
	fill(r, &p->origin, p->kind, n, p->now);
	r->flags = REQUEST_H2;
	if (!bpf_probe_read_user(data, n, (void *)from))
		r->head = n;
	p->left -= n;
	p->offset += n;
	if (!p->left)
		return;
	if (i + 1 < REQUEST_PIECES) {
		r->flags |= REQUEST_MORE;
	} else {
		r->bytes = n + p->left; /* what is not copied is counted */
		p->left = 0;
	}
}

static long record_piece(__u32 i, struct pieces **state)
{
	struct pieces *p = *state;
	struct vector v = { .base = p->base, .bytes = p->offset + p->left };
	__u64 n;

	if (!p->left)
		return 1;
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
	if (n <= REQUEST_SMALL) {
		struct request_small *r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);

		if (!r) {
			count(REQUEST_COUNT_LOST);
			return 1;
		}
		piece(p, &r->record, r->data, v.base + p->offset, n, i);
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	} else {
		struct request_large *r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);

		if (!r) {
			count(REQUEST_COUNT_LOST);
			return 1;
		}
		if (n > REQUEST_HEAD)
			n = REQUEST_HEAD;
		piece(p, &r->record, r->data, v.base + p->offset, n, i);
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	}
	return 0;
}

/* Records what was received or sent over HTTP/2. */
static __always_inline int record_frames(const struct origin *o, const struct buffers *b, __u32 kind, __u32 bytes,
					 __u64 now)
{
	struct pieces *p = bpf_task_storage_get(&request_pieces, bpf_get_current_task_btf(), 0,
						BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!p) {
		count(REQUEST_COUNT_LOST);
		return 0;
	}
	p->origin = *o;
	p->now = now;
	p->base = b->base;
	p->vectors = b->vectors;
	p->offset = 0;
	p->kind = kind;
	p->left = bytes;
	count(REQUEST_COUNT_TRANSFERS);
	bpf_loop(REQUEST_PIECES, record_piece, &p, 0);
	return 0;
}

#endif
