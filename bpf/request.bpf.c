// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Records what targets read from and write to sockets on which they receive HTTP requests.
 *
 * There are three possible hooks; the first that the kernel has is used:
 * 1. The tracepoints sock_recv_length and sock_send_length (6.3). The kernel calls them after each transfer of any
 *    socket, with the socket and the number of bytes.
 * 2. The returns of inet_recvmsg, inet_sendmsg and the like of IPv6 and of unix sockets.
 * 3. The returns of all system calls, where those functions cannot be probed (older arm64).
 * Hooks 1 and 2 run for socket transfers only; for processes that are not targets they cost one map lookup. Hook 3 runs
 * for every system call of every process, so it is linked only while there is a target.
 *
 * The address of the bytes in user memory comes from the registers of the current system call. Other ways to transfer
 * on a followed socket are counted without their bytes, or missed: hook 1 counts io_uring, sendmmsg and recvmmsg, and
 * since 6.5 sendfile and splice to a socket; hook 2 counts io_uring, sendmmsg and recvmmsg; hook 3 counts sendfile,
 * sendmmsg and recvmmsg.
 *
 * A socket is followed from the first read that begins with an HTTP method, the HTTP/2 preface, or a client frame of
 * HTTP/2. Package request parses the copied bytes in user space and discards them.
 *
 * Where the server terminates TLS, probes on SSL_read, SSL_write and their _ex variants see the plain text. A socket
 * transfer during such a call is ciphertext: it gives the time and the underlying socket.
 */
#include "request_record.h"

/* Reports whether a TLS record begins with these bytes. */
static __always_inline int is_tls(__u64 word)
{
	__u8 type = word;

	return type >= 0x14 && type <= 0x17 && (__u8)(word >> 8) == 3 && (__u8)(word >> 16) <= 4;
}

/* Returns the OpenSSL call that the thread is in, or NULL. */
static __always_inline struct tls_call *current_tls(void)
{
	struct tls_call *c;

	if (!request_tls)
		return NULL;
	c = bpf_task_storage_get(&request_tls_calls, bpf_get_current_task_btf(), 0, 0);
	return c && c->within && c->tls == request_tls ? c : NULL;
}

/* Adds a transfer to the OpenSSL call that the thread is in. Returns 0 if there is none. */
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

/* A socket of a transfer. */
struct endpoint {
	struct sock *sk; /* NULL where the verifier has no typed pointer; id is set then */
	__u64 id;
	__u16 family, port;
};

/* Returns what is kept with a socket, or NULL. */
static __always_inline struct request_kept *kept_of(const struct endpoint *e)
{
	if (e->sk)
		return bpf_sk_storage_get(&request_kept_sockets, e->sk, 0, 0);
	return bpf_map_lookup_elem(&request_kept_ids, &e->id);
}

/* Returns the owner and the flags of a socket, 0 where it is not followed, and keeps them with it. */
static __always_inline __u64 look_up(const struct endpoint *e, struct request_kept *s, __u64 cookie)
{
	__u64 *known = bpf_map_lookup_elem(&request_sockets, &cookie);

	if (!known)
		return 0;
	if (e->sk && !s)
		s = bpf_sk_storage_get(&request_kept_sockets, e->sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (e->sk && s) {
		s->cookie = cookie;
		s->epoch = request_epoch;
		s->state = *known;
	}
	return *known;
}

/* Notes whether the last transfers over a socket were lost. */
static __always_inline void set_gap(struct request_kept *s, __u64 cookie, int gap)
{
	__u64 *known = bpf_map_lookup_elem(&request_sockets, &cookie);

	if (known && gap)
		*known |= SOCKET_GAP;
	else if (known)
		*known &= ~SOCKET_GAP;
	if (s)
		s->state = 0;
}

/* Counts a read that did not start a request, and mutes the socket after REQUEST_MUTE_READS of them. */
static __always_inline void note_no_request(const struct endpoint *e, __u64 now)
{
	struct request_kept *s, none = {};

	if (e->sk) {
		s = bpf_sk_storage_get(&request_kept_sockets, e->sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	} else {
		bpf_map_update_elem(&request_kept_ids, &e->id, &none, BPF_NOEXIST);
		s = bpf_map_lookup_elem(&request_kept_ids, &e->id);
	}
	if (s && ++s->reads >= REQUEST_MUTE_READS)
		s->until = now + REQUEST_MUTE_NS;
}

/* Handles a transfer of process p, whose id is tgid. */
static __always_inline int transferred(struct request_process *p, __u32 tgid, const struct endpoint *e, __u32 bytes,
				       __u32 kind)
{
	__u64 now, cookie, owner, word;
	struct request_kept *s;
	struct origin o = {};
	struct buffers b;
	const __u16 family = e->family;
	__u32 flags = 0;
	__u64 state;
	int whole;

	if (family != AF_INET && family != AF_INET6 && family != AF_UNIX)
		return 0;
	now = bpf_ktime_get_ns();
	/* Ciphertext of an OpenSSL call is not muted: it gives that call its time and socket. */
	s = kept_of(e);
	if (s && s->until > now && family != AF_UNIX && !current_tls()) {
		__sync_fetch_and_add(&p->muted, 1);
		return 0;
	}
	if (e->sk && s && s->state && s->epoch == request_epoch) {
		cookie = s->cookie;
		state = s->state;
	} else {
		cookie = e->sk ? bpf_get_socket_cookie(e->sk) : e->id;
		state = look_up(e, s, cookie);
	}
	o.socket = cookie;
	o.port = e->port;
	if (state & SOCKET_TLS) {
		within_tls(&o, now);
		return 0;
	}
	if (!state) {
		__sync_fetch_and_add(&p->looks, 1);
		owner = tgid | SOCKET_TLS;
		if (within_tls(&o, now)) {
			bpf_map_update_elem(&request_sockets, &cookie, &owner, BPF_ANY);
			return 0;
		}
		if (bytes < 8 || (kind != REQUEST_RECEIVED && family != AF_UNIX) || !find_buffers(&b))
			return 0;
		if (kind == REQUEST_SENT) {
			owner = engine_flags(&b, bytes);
			if (!owner)
				return 0;
			owner |= tgid;
		} else if (is_request(word = first_bytes(&b)))
			owner = tgid;
		else if (family != AF_UNIX && (is_preface(word) || is_frame(word, first_buffer(&b))))
			owner = tgid | SOCKET_H2;
		else if (!is_tls(word)) {
			if (family != AF_UNIX)
				note_no_request(e, now);
			return 0;
		}
		bpf_map_update_elem(&request_sockets, &cookie, &owner, BPF_ANY);
		if (owner & SOCKET_TLS)
			return 0;
		state = owner;
	} else if (state & SOCKET_IGNORED || (state & SOCKET_ENGINE && kind != REQUEST_SENT)) {
		return 0;
	} else if (!find_buffers(&b)) {
		count(REQUEST_COUNT_UNSEEN);
		set_gap(s, cookie, 1);
		return 0;
	}
	__sync_fetch_and_add(&p->transfers, 1);
	if (state & SOCKET_GAP)
		flags = REQUEST_GAP;
	if (state & SOCKET_ENGINE && (state & SOCKET_ASKS || bytes <= REQUEST_ENGINE))
		whole = record_engine(&o, &b, bytes, now, &flags);
	else if (state & (SOCKET_ENGINE | SOCKET_H2))
		whole = record_frames(&o, &b, state & SOCKET_ENGINE ? REQUEST_ENGINE_SENT : kind, bytes, now, &flags,
				      state & SOCKET_ENGINE ? REQUEST_ENGINE_PIECES : REQUEST_PIECES);
	else
		whole = record(&o, &b, kind, bytes, now, &flags);
	if (!whole)
		count_lost(tgid);
	if (whole == !!flags)
		set_gap(s, cookie, !whole);
	return 0;
}

/* Handles a transfer on a socket to which the verifier has a typed pointer. */
static __always_inline int transferred_on(struct sock *sk, __u32 bytes, __u32 kind)
{
	struct endpoint e = { .sk = sk };
	struct request_process *p;
	__u32 tgid;

	if (request_off)
		return 0;
	tgid = bpf_get_current_pid_tgid() >> 32;
	p = bpf_map_lookup_elem(&request_processes, &tgid);
	if (!p)
		return 0;
	e.family = ((struct sock___request *)sk)->__sk_common.skc_family;
	e.port = ((struct sock___request *)sk)->__sk_common.skc_num;
	return transferred(p, tgid, &e, bytes, kind);
}

SEC("tp_btf/sock_recv_length")
int request_received(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int bytes = ctx[1];

	if (bytes <= 0 || (int)ctx[2] & MSG_PEEK)
		return 0;
	return transferred_on(sk, bytes, REQUEST_RECEIVED);
}

SEC("tp_btf/sock_send_length")
int request_sent(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	int bytes = ctx[1];

	if (bytes <= 0)
		return 0;
	return transferred_on(sk, bytes, REQUEST_SENT);
}

/*
 * Returns of the socket functions, for kernels without these tracepoints. The receiving ones have the parameters
 * (sock, message, size, flags), the sending ones (sock, message, size); the result follows them.
 */
static __always_inline int returned(__u64 *ctx, int result, __u32 kind)
{
	struct socket___request *sock = (void *)ctx[0];
	struct sock *sk = sock->sk;

	if (result <= 0 || !sk)
		return 0;
	return transferred_on(sk, result, kind);
}

#define RETURN_OF_RECEIVE(function)                                                      \
	SEC("fexit/" #function)                                                          \
	int request_##function(__u64 *ctx)                                               \
	{                                                                                \
		return (int)ctx[3] & MSG_PEEK ? 0 : returned(ctx, ctx[4], REQUEST_RECEIVED); \
	}

#define RETURN_OF_SEND(function)                          \
	SEC("fexit/" #function)                           \
	int request_##function(__u64 *ctx)                \
	{                                                 \
		return returned(ctx, ctx[3], REQUEST_SENT); \
	}

RETURN_OF_RECEIVE(inet_recvmsg)
RETURN_OF_RECEIVE(inet6_recvmsg)
RETURN_OF_RECEIVE(unix_stream_recvmsg)
RETURN_OF_SEND(inet_sendmsg)
RETURN_OF_SEND(inet6_sendmsg)
RETURN_OF_SEND(unix_stream_sendmsg)

#include "request_syscall.h"

static __always_inline int changed_state(__u64 cookie, int state)
{
	struct origin o = {};
	struct request_record *r;
	__u64 *owner;

	owner = bpf_map_lookup_elem(&request_sockets, &cookie);
	if (!owner)
		return 0;
	r = bpf_ringbuf_reserve(&request_records, sizeof(*r), 0);
	if (!r) {
		count_lost(*owner);
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

/* Runs in an arbitrary process: the one that the packet interrupted. */
SEC("tp_btf/inet_sock_set_state")
int request_state(__u64 *ctx)
{
	struct request_kept *s;
	int state = ctx[2];

	if (state != TCP_CLOSE && state != TCP_CLOSE_WAIT)
		return 0;
	s = bpf_sk_storage_get(&request_kept_sockets, (void *)ctx[0], 0, 0);
	if (s)
		s->state = 0;
	return changed_state(bpf_get_socket_cookie((void *)ctx[0]), state);
}

/* The same for request_syscall, which identifies sockets by their addresses. */
SEC("tp_btf/inet_sock_set_state")
int request_state_syscall(__u64 *ctx)
{
	__u64 id = ctx[0];
	int state = ctx[2];

	if (state != TCP_CLOSE && state != TCP_CLOSE_WAIT)
		return 0;
	if (state == TCP_CLOSE)
		bpf_map_delete_elem(&request_kept_ids, &id);
	return changed_state(id, state);
}

#include "request_tls.h"

char LICENSE[] SEC("license") = "GPL";
