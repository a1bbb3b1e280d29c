/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef INFERSCOPE_REQUEST_BUFFERS_H
#define INFERSCOPE_REQUEST_BUFFERS_H

/* Finds, classifies and copies the bytes of a transfer in user memory. */
#include "request_state.h"

/* The buffers of a transfer: either one, or a list of them. */
struct buffers {
	__u64 base;    /* of the one, or of the list */
	__u64 vectors; /* 0: there is one */
};

struct vector {
	__u64 base, bytes;
};

struct message {
	__u64 name, name_bytes, vectors, count;
};

/* Finds the buffers of the system call that the thread is in. Returns 0 where they are not known. */
static __always_inline int find_buffers(struct buffers *b)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct message m;
	__u64 second, third;

	if (!regs)
		return 0;
	second = ARG2(regs);
	third = ARG3(regs);
	/* Force the reads here: the verifier allows one kind of pointer per load. */
	asm volatile("" : "+r"(second), "+r"(third));
	b->base = second;
	b->vectors = 0;
	switch ((int)SYSCALL(regs)) {
	case SYS_READ:
	case SYS_WRITE:
	case SYS_SENDTO:
	case SYS_RECVFROM:
		return 1;
	case SYS_READV:
	case SYS_WRITEV:
		b->vectors = third;
		return third > 0;
	case SYS_SENDMSG:
	case SYS_RECVMSG:
		if (bpf_probe_read_user(&m, sizeof(m), (void *)second))
			return 0;
		b->base = m.vectors;
		b->vectors = m.count;
		return m.count > 0;
	}
	return 0;
}

/* Reads the first 8 bytes. */
static __always_inline __u64 first_bytes(const struct buffers *b)
{
	struct vector v = {};
	__u64 word = 0, at = b->base;

	if (b->vectors) {
		if (bpf_probe_read_user(&v, sizeof(v), (void *)at) || v.bytes < 8)
			return 0;
		at = v.base;
	}
	bpf_probe_read_user(&word, sizeof(word), (void *)at);
	return word;
}

#define WORD(a, b, c, d) ((__u32)(a) | (__u32)(b) << 8 | (__u32)(c) << 16 | (__u32)(d) << 24)

/* Reports whether a request begins with these bytes. */
static __always_inline int is_request(__u64 word)
{
	switch ((__u32)word) {
	case WORD('P', 'O', 'S', 'T'):
	case WORD('G', 'E', 'T', ' '):
	case WORD('P', 'U', 'T', ' '):
	case WORD('H', 'E', 'A', 'D'):
	case WORD('D', 'E', 'L', 'E'):
	case WORD('O', 'P', 'T', 'I'):
	case WORD('P', 'A', 'T', 'C'):
		return 1;
	}
	return 0;
}

/* Reports whether these are the first bytes of the HTTP/2 preface (RFC 9113, 3.4). */
static __always_inline int is_preface(__u64 word)
{
	return (__u32)word == WORD('P', 'R', 'I', ' ') && (__u32)(word >> 32) == WORD('*', ' ', 'H', 'T');
}

/*
 * Reports whether a transfer begins with an HTTP/2 frame that a client sends on an open connection: HEADERS,
 * WINDOW_UPDATE or PING. A frame header is 3 bytes of length, type, flags and 4 bytes of stream id; word holds its
 * first 8 bytes, at is their address. Responses that a client reads begin alike: user space tells them apart.
 */
static __always_inline int is_frame(__u64 word, __u64 at)
{
	__u8 length = word >> 16, type = word >> 24, flags = word >> 32, last = 0;

	if (word & 0xff || (__u8)(word >> 40) & 0x80)
		return 0;
	switch (type) {
	case 1: /* HEADERS, whole, of a stream that a client began */
		return !(flags & ~0x2d) && flags & 4 && word & 0xffff00 && (__u8)(word >> 8) <= 0x40 &&
		       !bpf_probe_read_user(&last, 1, (void *)(at + 8)) && last & 1;
	case 6: /* PING */
		return !(word & 0xff00) && length == 8 && flags <= 1 && !(word >> 40) &&
		       !bpf_probe_read_user(&last, 1, (void *)(at + 8)) && !last;
	case 8: /* WINDOW_UPDATE */
		return !(word & 0xff00) && length == 4 && !flags;
	}
	return 0;
}

/* Returns the address of the first byte. */
static __always_inline __u64 first_buffer(const struct buffers *b)
{
	__u64 at = b->base;

	if (b->vectors && bpf_probe_read_user(&at, sizeof(at), (void *)b->base))
		return 0;
	return at;
}

/*
 * Reports whether a message begins like one between an API server and its engine: a msgpack array of 8 to 15 elements
 * (vLLM), a pickle with a frame, or an array of 16 to 255 elements (SGLang).
 */
static __always_inline int is_message(const __u8 *m)
{
	return (m[0] >= 0x98 && m[0] <= 0x9f) || (m[0] == 0x80 && (m[1] == 4 || m[1] == 5) && m[2] == 0x95) ||
	       (m[0] == 0xdc && !m[1] && m[2] >= 16);
}

/*
 * Returns the flags of a socket over which these bytes are sent, if they may be ZMTP frames (rfc.zeromq.org/spec/23) of
 * an inference engine: a one-byte frame with the request type and a second frame, or a message. 0: they are not.
 */
static __always_inline __u64 engine_flags(const struct buffers *b, __u32 bytes)
{
	struct vector v = {};
	__u64 at = b->base;
	__u8 h[12] = {};

	if (bytes < sizeof(h))
		return 0;
	if (b->vectors) {
		if (bpf_probe_read_user(&v, sizeof(v), (void *)at) || v.bytes < sizeof(h))
			return 0;
		at = v.base;
	}
	if (bpf_probe_read_user(h, sizeof(h), (void *)at) || h[0] > 3)
		return 0;
	if (h[0] == 1 && h[1] == 1)
		return h[2] <= 3 && h[3] <= 3 ? SOCKET_ENGINE | SOCKET_ASKS : 0;
	if (h[0] & 2)
		return !(h[1] | h[2] | h[3] | h[4]) && is_message(h + 9) ? SOCKET_ENGINE : 0;
	return h[1] + 2U <= bytes && is_message(h + 2) ? SOCKET_ENGINE : 0;
}

/* Copies the beginning of the one buffer to data, which has limit bytes. */
static __always_inline __u32 copy_head(const struct buffers *b, __u8 *data, __u64 bytes, const __u64 limit)
{
	__u64 n = bytes < limit ? bytes : limit;

	asm volatile("" : "+r"(n));
	if (n > limit)
		return 0;
	return bpf_probe_read_user(data, n, (void *)b->base) ? 0 : n;
}

/* Copies the beginning of a list of buffers to data, which has 2 * limit bytes; limit is a power of two. */
static __always_inline __u32 gather_head(const struct buffers *b, __u8 *data, __u64 bytes, const __u64 limit)
{
	__u64 n = bytes < limit ? bytes : limit, at = 0;
	__u32 i;
	struct vector v;

	for (i = 0; i < REQUEST_VECTORS; i++) {
		__u64 part, to;

		if (i >= b->vectors || at >= n)
			break;
		if (bpf_probe_read_user(&v, sizeof(v), (void *)(b->base + i * sizeof(v))))
			break;
		part = v.bytes < n - at ? v.bytes : n - at;
		to = at;
		asm volatile("" : "+r"(part), "+r"(to));
		if (part > limit || to >= limit)
			break;
		if (bpf_probe_read_user(data + to, part, (void *)v.base))
			break;
		at += part;
	}
	return at;
}

/* Copies the end of the buffers: at most REQUEST_TAIL bytes, of the last buffer that has any. */
static __always_inline __u32 copy_tail(const struct buffers *b, __u8 *data, __u32 bytes)
{
	__u64 base = b->base, length = bytes;
	__u64 n;
	__u32 i;
	struct vector v;

	if (b->vectors) {
		__u64 left = bytes;

		length = 0;
		for (i = 0; i < REQUEST_VECTORS; i++) {
			if (i >= b->vectors || !left)
				break;
			if (bpf_probe_read_user(&v, sizeof(v), (void *)(b->base + i * sizeof(v))))
				return 0;
			if (!v.bytes)
				continue;
			base = v.base;
			length = v.bytes < left ? v.bytes : left;
			left -= length;
		}
		if (left)
			return 0;
	}
	n = length < REQUEST_TAIL ? length : REQUEST_TAIL;
	asm volatile("" : "+r"(n));
	if (n > REQUEST_TAIL)
		return 0;
	return bpf_probe_read_user(data, n, (void *)(base + length - n)) ? 0 : n;
}

#endif
