// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * What targets read from and write to sockets on which somebody sends them HTTP requests.
 *
 * The kernel calls sock_recv_length and sock_send_length (6.3) after each transfer of any socket, with the socket and
 * the number of bytes; where the bytes lie in user memory is told by the registers of the system call that is under
 * way. So no system call pays for this but those on sockets, and those of processes that are not targets pay for one
 * look into a map. io_uring transfers outside of such a system call: it is counted, its bytes are not seen.
 *
 * A socket is followed from the first read on that begins with an HTTP method, with the preface of HTTP/2, or with a
 * frame of HTTP/2 as clients send it. What is copied here is looked at in user space and forgotten: package request.
 *
 * Where the server terminates TLS, probes at SSL_read, SSL_write and their twins see what the socket does not show. A
 * transfer on a socket during such a call is one of ciphertext: it gives the time, and the socket beneath.
 */
#include "kernel.h"
struct sock;
#include <bpf/bpf_helpers.h>
#include "params.h"

#define REQUEST_SMALL 512  /* bytes of a transfer that fit into a small record */
#define REQUEST_HEAD 4096  /* bytes that are copied from the beginning of a transfer at most */
#define REQUEST_ENGINE 8192 /* of a transfer between a server and its engine: as much as libzmq sends at a time */
#define REQUEST_TAIL 1024  /* bytes from the end of a longer one: usage stands at the end of an answer */
#define REQUEST_VECTORS 16 /* buffers of one transfer */
#define REQUEST_PIECES 1024 /* records of one transfer of HTTP/2, and buffers: gRPC writes up to 260 */
#define REQUEST_TLS_PIECES 16 /* likewise over TLS, of REQUEST_HEAD bytes each */
#define REQUEST_SOCKETS 65536
#define REQUEST_PROCESSES 16384

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define MSG_PEEK 2
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8

#if defined(__TARGET_ARCH_x86)
#define SYS_READ 0
#define SYS_WRITE 1
#define SYS_READV 19
#define SYS_WRITEV 20
#define SYS_SENDTO 44
#define SYS_RECVFROM 45
#define SYS_SENDMSG 46
#define SYS_RECVMSG 47
#define SYSCALL(r) ((r)->orig_ax)
#define ARG2(r) ((r)->si)
#define ARG3(r) ((r)->dx)
#elif defined(__TARGET_ARCH_arm64)
#define SYS_READ 63
#define SYS_WRITE 64
#define SYS_READV 65
#define SYS_WRITEV 66
#define SYS_SENDTO 206
#define SYS_RECVFROM 207
#define SYS_SENDMSG 211
#define SYS_RECVMSG 212
#define SYSCALL(r) ((r)->user_regs.regs[8])
#define ARG2(r) ((r)->user_regs.regs[1])
#define ARG3(r) ((r)->user_regs.regs[2])
#endif

struct sock_common___request {
	unsigned short skc_family;
	__u16 skc_num;
} __attribute__((preserve_access_index));

struct sock___request {
	struct sock_common___request __sk_common;
} __attribute__((preserve_access_index));

enum request_kind {
	REQUEST_RECEIVED = 1,
	REQUEST_SENT = 2,
	REQUEST_PEER_CLOSED = 3, /* the other side will not send any more */
	REQUEST_CLOSED = 4, /* or OpenSSL's connection was freed */
	REQUEST_ENGINE_SENT = 5, /* frames of ZMTP between an API server and its engine */
};

#define REQUEST_MORE 1 /* the transfer goes on in the next record of the thread */
#define REQUEST_H2 2   /* it is one of HTTP/2 */
#define REQUEST_GAP 4  /* transfers of HTTP/1.1 before it were lost */

/* One transfer; head bytes of its beginning follow, and then tail bytes of its end. */
struct request_record {
	__u64 ts;
	__u64 socket; /* cookie; 0: not known */
	__u64 ssl;    /* OpenSSL's connection, within the process; 0: no TLS */
	__u32 pid;
	__u32 tid;
	__u32 kind;  /* enum request_kind */
	__u32 bytes; /* that were transferred */
	__u16 head;
	__u16 tail;
	__u16 port; /* local; 0: not known */
	__u16 flags; /* REQUEST_MORE, REQUEST_H2 */
};

struct request_small {
	struct request_record record;
	__u8 data[2 * REQUEST_SMALL];
};

struct request_large {
	struct request_record record;
	__u8 data[2 * REQUEST_HEAD + REQUEST_TAIL];
};

struct request_engine {
	struct request_record record;
	__u8 data[2 * REQUEST_ENGINE];
};

enum request_count {
	REQUEST_COUNT_TRANSFERS = 0, /* that were recorded */
	REQUEST_COUNT_LOST = 1,	     /* the ring had no room */
	REQUEST_COUNT_UNSEEN = 2,    /* by a system call whose buffers are not known: io_uring, sendfile, splice */
	REQUEST_COUNT_LOOKS = 3,     /* transfers of targets on sockets that are not followed */
	REQUEST_COUNTS = 4,
};

/* tgid -> counts of its own, by enum request_count. */
struct request_process {
	__u64 transfers;
	__u64 looks;
	__u64 calls; /* of OpenSSL */
	__u64 strange; /* transfers on sockets that are passed over for a while */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, REQUEST_PROCESSES);
	__type(key, __u32);
	__type(value, struct request_process);
} request_processes SEC(".maps");

#define SOCKET_ENGINE (1ULL << 32)  /* ZMTP goes over it */
#define SOCKET_IGNORED (1ULL << 33) /* it only looked like it */
#define SOCKET_TLS (1ULL << 34)	    /* ciphertext goes over it */
#define SOCKET_H2 (1ULL << 35)	    /* HTTP/2 goes over it */
#define SOCKET_GAP (1ULL << 36)	    /* the last transfers of HTTP/1.1 over it were lost */

/* cookie -> the process that reads from it, or writes to it, and SOCKET_ flags */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, REQUEST_SOCKETS);
	__type(key, __u64);
	__type(value, __u64);
} request_sockets SEC(".maps");

#define REQUEST_STRANGE 64		    /* reads that begin no request */
#define REQUEST_STRANGE_NS 1000000000ULL    /* for which reads are not looked at after so many */

/* A socket that reads what is no request: of another protocol, or the body of a long upload. */
struct request_strange {
	__u64 until; /* ns: its reads are not looked at before */
	__u64 reads; /* before the first request */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct request_strange);
} request_strangers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8388608);
} request_records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REQUEST_COUNTS);
	__type(key, enum request_count);
	__type(value, __u64);
} request_counts SEC(".maps");

const enum request_kind *export_request_kind __attribute__((unused));
const enum request_count *export_request_count __attribute__((unused));
const struct request_process *export_request_process __attribute__((unused));
const struct request_record *export_request_record __attribute__((unused));

volatile __u32 request_off; /* not 0: nothing is recorded */
volatile __u32 request_tls; /* changes when probes of OpenSSL are taken off; 0: there are none */

#define TLS_WRITE 1 /* bits of a probe's cookie: it writes */
#define TLS_EX 2    /* it returns 1 and puts the number of bytes elsewhere */

/* Where a transfer went. */
struct origin {
	__u64 socket, ssl;
	__u16 port;
};

/* A connection of OpenSSL. */
struct tls_connection {
	__u64 ssl;
	__u64 tgid;
};

/*
 * A call of OpenSSL that a thread is in. Programs at uprobes lay out here what has no room on their stacks: shapes.h
 * tells of the 48 bytes that these may have.
 */
struct tls_call {
	struct tls_connection connection;
	struct origin origin; /* of the last transfer on the socket beneath; none: 0 */
	__u64 ts;	      /* likewise */
	__u64 buffer;
	__u64 done; /* where the number of bytes is put */
	__u64 bytes; /* that number */
	__u64 sp;
	__u64 cookie;
	__u32 tls; /* request_tls at its entry */
	__u32 within; /* not 0: it has not returned */
	__u32 flags; /* of its record */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tls_call);
} request_tls_calls SEC(".maps");

#define PROTOCOL_1 1 /* HTTP/1.1 */
#define PROTOCOL_2 2
#define PROTOCOL_GAP 4 /* a bit: the last transfers of HTTP/1.1 were lost */

/* Connections of OpenSSL that are followed, and their PROTOCOL_. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, REQUEST_SOCKETS);
	__type(key, struct tls_connection);
	__type(value, __u32);
} request_tls_connections SEC(".maps");

static __always_inline void count(enum request_count which)
{
	__u64 *n = bpf_map_lookup_elem(&request_counts, &which);

	if (n)
		__sync_fetch_and_add(n, 1);
}

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
	asm volatile("" : "+r"(second), "+r"(third)); /* read here: the verifier wants one kind of pointer for each load */
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

/* Whether these are the first bytes of a request. */
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

/* Whether these are the first bytes of the preface of HTTP/2 (RFC 9113, 3.4). */
static __always_inline int is_preface(__u64 word)
{
	return (__u32)word == WORD('P', 'R', 'I', ' ') && (__u32)(word >> 32) == WORD('*', ' ', 'H', 'T');
}

/*
 * Whether a transfer begins with a frame of HTTP/2 as clients send it on a connection that is in use: 3 bytes of length,
 * type, flags, 4 bytes of stream. That is the header block of a request, a window's growth, or a ping. word has its first
 * 8 bytes; at is where they lie. The answers that a client reads begin so too: user space tells them apart.
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

/* Where the first bytes lie. */
static __always_inline __u64 first_buffer(const struct buffers *b)
{
	__u64 at = b->base;

	if (b->vectors && bpf_probe_read_user(&at, sizeof(at), (void *)b->base))
		return 0;
	return at;
}

/*
 * Whether a message begins as an engine's does: with an array of msgpack of 8 to 15 elements (vLLM), a pickle with a
 * frame, or an array of 16 to 255 elements (SGLang).
 */
static __always_inline int is_message(const __u8 *m)
{
	return (m[0] >= 0x98 && m[0] <= 0x9f) || (m[0] == 0x80 && (m[1] == 4 || m[1] == 5) && m[2] == 0x95) ||
	       (m[0] == 0xdc && !m[1] && m[2] >= 16);
}

/*
 * Whether these bytes may be frames of ZMTP (rfc.zeromq.org/spec/23) as the processes of an engine send them: a frame of
 * one byte that tells the type of a request, and another; or a message.
 */
static __always_inline int is_engine(const struct buffers *b, __u32 bytes)
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
		return h[2] <= 3 && h[3] <= 3;
	if (h[0] & 2)
		return !(h[1] | h[2] | h[3] | h[4]) && is_message(h + 9);
	return h[1] + 2U <= bytes && is_message(h + 2);
}

/* Copies the beginning of the buffers to data, which has 2 * limit bytes; limit is a power of two. */
static __always_inline __u32 copy_head(const struct buffers *b, __u8 *data, __u64 bytes, const __u64 limit)
{
	__u64 n = bytes < limit ? bytes : limit, at = 0;
	__u32 i;
	struct vector v;

	if (!b->vectors) {
		asm volatile("" : "+r"(n));
		if (n > limit)
			return 0;
		return bpf_probe_read_user(data, n, (void *)b->base) ? 0 : n;
	}
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

/* Whether these are the first bytes of a record of TLS. */
static __always_inline int is_tls(__u64 word)
{
	__u8 type = word;

	return type >= 0x14 && type <= 0x17 && (__u8)(word >> 8) == 3 && (__u8)(word >> 16) <= 4;
}

/* The call of OpenSSL that the thread is in; NULL: there is none. */
static __always_inline struct tls_call *current_tls(void)
{
	struct tls_call *c;

	if (!request_tls)
		return NULL;
	c = bpf_task_storage_get(&request_tls_calls, bpf_get_current_task_btf(), 0, 0);
	return c && c->within && c->tls == request_tls ? c : NULL;
}

/* Tells the call of OpenSSL that the thread is in, if any, of a transfer. Returns 0 if there is none. */
static __always_inline int within_tls(const struct origin *o, __u64 now)
{
	struct tls_call *c = current_tls();

	if (!c)
		return 0;
	c->ts = now;
	c->origin.socket = o->socket;
	c->origin.port = o->port;
	return 1;
}

/* Whether a TCP socket is passed over now. It may be ciphertext of OpenSSL's, which has to know of it. */
static __always_inline int is_strange(struct sock *sk, __u64 now)
{
	struct request_strange *s = bpf_sk_storage_get(&request_strangers, sk, 0, 0);

	return s && s->until > now;
}

/* A read began no request. */
static __always_inline void note_strange(struct sock *sk, __u64 now)
{
	struct request_strange *s =
		bpf_sk_storage_get(&request_strangers, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (s && ++s->reads >= REQUEST_STRANGE)
		s->until = now + REQUEST_STRANGE_NS;
}

static __always_inline int transferred(struct sock *sk, __u32 bytes, __u32 kind)
{
	__u64 now = bpf_ktime_get_ns(), cookie, *known, owner, word;
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct request_process *p = bpf_map_lookup_elem(&request_processes, &tgid);
	struct origin o = {};
	struct buffers b;
	__u32 flags = 0;
	__u64 h2 = 0;
	__u16 family;

	if (!p || request_off)
		return 0;
	family = ((struct sock___request *)sk)->__sk_common.skc_family;
	if (family != AF_INET && family != AF_INET6 && family != AF_UNIX)
		return 0;
	if (family != AF_UNIX && is_strange(sk, now) && !current_tls()) {
		__sync_fetch_and_add(&p->strange, 1);
		return 0;
	}
	cookie = bpf_get_socket_cookie(sk);
	o.socket = cookie;
	o.port = ((struct sock___request *)sk)->__sk_common.skc_num;
	known = bpf_map_lookup_elem(&request_sockets, &cookie);
	if (known && *known & SOCKET_TLS) {
		within_tls(&o, now);
		return 0;
	}
	if (!known) {
		__sync_fetch_and_add(&p->looks, 1);
		owner = tgid | SOCKET_TLS;
		if (within_tls(&o, now)) {
			bpf_map_update_elem(&request_sockets, &cookie, &owner, BPF_ANY);
			return 0;
		}
		if (bytes < 8 || (kind != REQUEST_RECEIVED && family != AF_UNIX) || !find_buffers(&b))
			return 0;
		if (kind == REQUEST_SENT) {
			if (!is_engine(&b, bytes))
				return 0;
			owner = tgid | SOCKET_ENGINE;
			bpf_map_update_elem(&request_sockets, &cookie, &owner, BPF_ANY);
			__sync_fetch_and_add(&p->transfers, 1);
			return record_engine(&o, &b, bytes, now);
		}
		word = first_bytes(&b);
		if (is_request(word))
			owner = tgid;
		else if (family != AF_UNIX && (is_preface(word) || is_frame(word, first_buffer(&b))))
			owner = tgid | SOCKET_H2;
		else if (!is_tls(word)) {
			if (family != AF_UNIX)
				note_strange(sk, now);
			return 0;
		}
		bpf_map_update_elem(&request_sockets, &cookie, &owner, BPF_ANY);
		if (owner & SOCKET_TLS)
			return 0;
		h2 = owner & SOCKET_H2;
	} else if (*known & (SOCKET_ENGINE | SOCKET_IGNORED)) {
		if (kind != REQUEST_SENT || *known & SOCKET_IGNORED)
			return 0;
		__sync_fetch_and_add(&p->transfers, 1);
		if (!find_buffers(&b)) {
			count(REQUEST_COUNT_UNSEEN);
			return 0;
		}
		return record_engine(&o, &b, bytes, now);
	} else if (!find_buffers(&b)) {
		count(REQUEST_COUNT_UNSEEN);
		return 0;
	} else {
		h2 = *known & SOCKET_H2;
	}
	__sync_fetch_and_add(&p->transfers, 1);
	if (h2)
		return record_frames(&o, &b, kind, bytes, now);
	if (known && *known & SOCKET_GAP)
		flags = REQUEST_GAP;
	if (record(&o, &b, kind, bytes, now, &flags) == !flags || !known)
		return 0;
	if (flags)
		*known &= ~SOCKET_GAP;
	else
		*known |= SOCKET_GAP;
	return 0;
}

SEC("tp_btf/sock_recv_length")
int request_received(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int bytes = ctx[1];

	if (bytes <= 0 || (int)ctx[2] & MSG_PEEK)
		return 0;
	return transferred(sk, bytes, REQUEST_RECEIVED);
}

SEC("tp_btf/sock_send_length")
int request_sent(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int bytes = ctx[1];

	if (bytes <= 0)
		return 0;
	return transferred(sk, bytes, REQUEST_SENT);
}

/* Runs in whatever process the packet came to. */
SEC("tp_btf/inet_sock_set_state")
int request_state(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int state = ctx[2];
	struct origin o = {};
	struct request_record *r;
	__u64 cookie, *owner;

	if (state != TCP_CLOSE && state != TCP_CLOSE_WAIT)
		return 0;
	cookie = bpf_get_socket_cookie(sk);
	owner = bpf_map_lookup_elem(&request_sockets, &cookie);
	if (!owner)
		return 0;
	r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);
	if (!r) {
		count(REQUEST_COUNT_LOST);
	} else {
		o.socket = cookie;
		fill(r, &o, state == TCP_CLOSE ? REQUEST_CLOSED : REQUEST_PEER_CLOSED, 0, bpf_ktime_get_ns());
		r->pid = *owner;
		r->tid = 0;
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	}
	if (state == TCP_CLOSE)
		bpf_map_delete_elem(&request_sockets, &cookie);
	return 0;
}

/* SSL_read, SSL_write, SSL_read_ex and SSL_write_ex: of a connection, to or from a buffer. */
SEC("uprobe.multi")
int request_tls_enter(struct pt_regs *ctx)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct request_process *p = bpf_map_lookup_elem(&request_processes, &tgid);
	struct tls_call *c;

	if (!p || request_off)
		return 0;
	__sync_fetch_and_add(&p->calls, 1);
	c = bpf_task_storage_get(&request_tls_calls, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!c) {
		count(REQUEST_COUNT_LOST);
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

/* Records what was received or sent over HTTP/2: as record_frames does, with one buffer and less of the stack. */
static __always_inline int record_tls_frames(struct tls_call *c, __u32 kind, __u32 bytes)
{
	__u32 i, n;

	count(REQUEST_COUNT_TRANSFERS);
	for (i = 0; i < REQUEST_TLS_PIECES && bytes; i++) {
		struct request_large *r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);

		if (!r) {
			count(REQUEST_COUNT_LOST);
			return 0;
		}
		n = bytes < REQUEST_HEAD ? bytes : REQUEST_HEAD;
		fill(&r->record, &c->origin, kind, bytes, c->ts);
		r->record.flags = REQUEST_H2;
		if (!bpf_probe_read_user(r->data, n, (void *)c->buffer)) {
			r->record.head = n;
			if (n < bytes && i + 1 < REQUEST_TLS_PIECES) {
				r->record.bytes = n;
				r->record.flags |= REQUEST_MORE;
			}
		}
		bytes = r->record.flags & REQUEST_MORE ? bytes - n : 0;
		c->buffer += n;
		bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	}
	return 0;
}

SEC("uretprobe.multi")
int request_tls_return(struct pt_regs *ctx)
{
	struct tls_call *c = bpf_task_storage_get(&request_tls_calls, bpf_get_current_task_btf(), 0, 0);
	__u64 cookie = bpf_get_attach_cookie(ctx), bytes = (int)RESULT(ctx), first;
	struct buffers b = {};
	__u32 protocol = PROTOCOL_1, *known;

	if (!c || !c->within || c->cookie != cookie || c->sp != SP_AT_ENTRY(ctx))
		return 0;
	c->within = 0;
	b.base = c->buffer;
	if (cookie & TLS_EX) {
		if (bytes != 1 || bpf_probe_read_user(&c->bytes, sizeof(c->bytes), (void *)c->done))
			return 0;
		bytes = c->bytes;
	}
	if (!bytes || bytes > 0x7fffffff) /* it failed, or is to be called again */
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
	if (protocol == PROTOCOL_2)
		return record_tls_frames(c, cookie & TLS_WRITE ? REQUEST_SENT : REQUEST_RECEIVED, bytes);
	c->flags = protocol & PROTOCOL_GAP ? REQUEST_GAP : 0;
	if (record(&c->origin, &b, cookie & TLS_WRITE ? REQUEST_SENT : REQUEST_RECEIVED, bytes, c->ts, &c->flags) == !c->flags)
		return 0;
	protocol = c->flags ? PROTOCOL_1 : PROTOCOL_1 | PROTOCOL_GAP;
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
		count(REQUEST_COUNT_LOST);
		return 0;
	}
	fill(r, &(struct origin){ .ssl = connection.ssl }, REQUEST_CLOSED, 0, bpf_ktime_get_ns());
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
