/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef INFERSCOPE_REQUEST_TLS_H
#define INFERSCOPE_REQUEST_TLS_H

/* Programs attached to OpenSSL functions. */
#include "request_record.h"

/* SSL_read, SSL_write, SSL_read_ex and SSL_write_ex: of a connection, to or from a buffer. */
SEC("uprobe.multi")
int request_tls_enter(struct pt_regs *ctx)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct request_process *p = bpf_map_lookup_elem(&request_processes, &tgid);
	struct tls_connection connection;
	struct tls_call *c;
	__u32 *known;

	if (!p || request_off)
		return 0;
	__sync_fetch_and_add(&p->calls, 1);
	c = bpf_task_storage_get(&request_tls_calls, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!c) {
		count_lost(tgid);
		connection.ssl = PARAM1(ctx);
		connection.tgid = tgid;
		known = bpf_map_lookup_elem(&request_tls_connections, &connection);
		if (known)
			*known |= PROTOCOL_GAP;
		return 0;
	}
	c->connection.ssl = PARAM1(ctx);
	c->connection.tgid = tgid;
	c->origin.ssl = PARAM1(ctx);
	c->origin.socket = 0;
	c->origin.port = 0;
	c->ts = 0;
	c->buffer = PARAM2(ctx);
	c->done = PARAM4(ctx);
	c->sp = SP(ctx);
	c->cookie = bpf_get_attach_cookie(ctx);
	c->tls = request_tls;
	c->within = 1;
	return 0;
}

/*
 * Records n bytes, at most limit, of an HTTP/2 call; more: further records follow. Returns 0 where none can follow, and
 * -1 where there is no room.
 */
static __always_inline int record_tls_frame(struct tls_call *c, __u32 kind, __u32 bytes, __u64 n, int more,
					    const __u64 limit)
{
	struct request_record *r = bpf_ringbuf_reserve(&request_records, sizeof(*r) + limit, 0);

	if (!r)
		return -1;
	fill(r, &c->origin, kind, bytes, c->ts);
	r->flags = REQUEST_H2 | c->flags;
	c->flags = 0;
	asm volatile("" : "+r"(n));
	if (n > limit)
		n = limit;
	if (!bpf_probe_read_user(r + 1, n, (void *)c->buffer)) {
		r->head = n;
		if (more) {
			r->bytes = n;
			r->flags |= REQUEST_MORE;
		}
	} else {
		more = 0;
	}
	c->buffer += n;
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return more;
}

/*
 * Records what was received or sent over HTTP/2: as record_frames does, with one buffer and less of the stack. Returns 0
 * where a piece is missing.
 */
static __always_inline int record_tls_frames(struct tls_call *c, __u32 kind, __u32 bytes)
{
	__u32 i;

	for (i = 0; i + 1 < REQUEST_TLS_PIECES && bytes > REQUEST_HEAD; i++) {
		int next = record_tls_frame(c, kind, bytes, REQUEST_HEAD, 1, REQUEST_HEAD);

		if (next <= 0)
			return !next;
		bytes -= REQUEST_HEAD;
	}
	if (bytes <= REQUEST_SMALL)
		return !record_tls_frame(c, kind, bytes, bytes, 0, REQUEST_SMALL);
	return !record_tls_frame(c, kind, bytes, bytes < REQUEST_HEAD ? bytes : REQUEST_HEAD, 0, REQUEST_HEAD);
}

SEC("uretprobe.multi")
int request_tls_return(struct pt_regs *ctx)
{
	struct tls_call *c = bpf_task_storage_get(&request_tls_calls, bpf_get_current_task_btf(), 0, 0);
	__u64 cookie = bpf_get_attach_cookie(ctx), bytes = (int)RESULT(ctx), first;
	struct buffers b = {};
	__u32 protocol = PROTOCOL_1, *known, kind = cookie & TLS_WRITE ? REQUEST_SENT : REQUEST_RECEIVED;
	int whole;

	if (!c || !c->within || c->cookie != cookie || c->sp != SP_AT_ENTRY(ctx))
		return 0;
	c->within = 0;
	b.base = c->buffer;
	if (cookie & TLS_EX) {
		if (bytes != 1 || bpf_probe_read_user(&c->bytes, sizeof(c->bytes), (void *)c->done))
			return 0;
		bytes = c->bytes;
	}
	if (!bytes || bytes > 0x7fffffff) /* the call failed, or must be repeated */
		return 0;
	known = bpf_map_lookup_elem(&request_tls_connections, &c->connection);
	if (!known) {
		if (cookie & TLS_WRITE || bytes < 9)
			return 0;
		first = first_bytes(&b);
		if (is_preface(first) || is_frame(first, b.base))
			protocol = PROTOCOL_2;
		else if (!is_request(first))
			return 0;
		bpf_map_update_elem(&request_tls_connections, &c->connection, &protocol, BPF_ANY);
	} else {
		protocol = *known;
	}
	c->ts = c->ts ?: bpf_ktime_get_ns();
	c->flags = protocol & PROTOCOL_GAP ? REQUEST_GAP : 0;
	if (protocol & PROTOCOL_2)
		whole = record_tls_frames(c, kind, bytes);
	else
		whole = record(&c->origin, &b, kind, bytes, c->ts, &c->flags);
	if (!whole)
		count_lost(c->connection.tgid);
	if (whole == !(protocol & PROTOCOL_GAP))
		return 0;
	protocol ^= PROTOCOL_GAP;
	bpf_map_update_elem(&request_tls_connections, &c->connection, &protocol, BPF_ANY);
	return 0;
}

/* SSL_free */
SEC("uprobe.multi")
int request_tls_free(struct pt_regs *ctx)
{
	struct tls_connection connection;
	struct request_record *r;

	connection.ssl = PARAM1(ctx);
	connection.tgid = bpf_get_current_pid_tgid() >> 32;
	if (!bpf_map_lookup_elem(&request_tls_connections, &connection))
		return 0;
	bpf_map_delete_elem(&request_tls_connections, &connection);
	r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);
	if (!r) {
		count_lost(connection.tgid);
		return 0;
	}
	fill(r, &(struct origin){ .ssl = connection.ssl }, REQUEST_CLOSED, 0, bpf_ktime_get_ns());
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
