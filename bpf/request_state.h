/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef INFERSCOPE_REQUEST_STATE_H
#define INFERSCOPE_REQUEST_STATE_H

/* State of request.bpf.c and what it sends to user space: maps, records and settings. */
#include "kernel.h"
struct sock;
#include <bpf/bpf_helpers.h>
#include "params.h"

#define REQUEST_TINY 128   /* bytes of a transfer that fit into the smallest record */
#define REQUEST_CHUNK 256  /* likewise, of those that most chunks need */
#define REQUEST_SMALL 512  /* likewise, of a small one */
#define REQUEST_HEAD 4096  /* bytes that are copied from the beginning of a transfer at most */
#define REQUEST_STEP 2048  /* of a step of some 20 requests that an engine tells of */
#define REQUEST_ENGINE 8192 /* of a transfer between a server and its engine: as much as libzmq sends of small frames */
#define REQUEST_ENGINE_PIECES 32 /* records of a longer one by an engine, of REQUEST_HEAD bytes each */
#define REQUEST_TAIL 1024  /* bytes from the end of a longer one: a response ends with its token usage */
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
#define SYS_SENDFILE 40
#define SYS_RECVMMSG 299
#define SYS_SENDMMSG 307
#define SYSCALL(r) ((r)->orig_ax)
#define ARG2(r) ((r)->si)
#define ARG3(r) ((r)->dx)
#define ARG4(r) ((r)->r10)
#define FD(r) ((r)->di)
#elif defined(__TARGET_ARCH_arm64)
#define SYS_READ 63
#define SYS_WRITE 64
#define SYS_READV 65
#define SYS_WRITEV 66
#define SYS_SENDTO 206
#define SYS_RECVFROM 207
#define SYS_SENDMSG 211
#define SYS_RECVMSG 212
#define SYS_SENDFILE 71
#define SYS_RECVMMSG 243
#define SYS_SENDMMSG 269
#define SYSCALL(r) ((r)->user_regs.regs[8])
#define ARG2(r) ((r)->user_regs.regs[1])
#define ARG3(r) ((r)->user_regs.regs[2])
#define ARG4(r) ((r)->user_regs.regs[3])
#define FD(r) (((struct pt_regs___request *)(r))->orig_x0) /* the result has taken the place of the parameter */

struct pt_regs___request {
	__u64 orig_x0;
} __attribute__((preserve_access_index));
#endif

struct sock_common___request {
	unsigned short skc_family;
	__u16 skc_num;
} __attribute__((preserve_access_index));

struct sock___request {
	struct sock_common___request __sk_common;
} __attribute__((preserve_access_index));

struct socket___request {
	struct sock *sk;
} __attribute__((preserve_access_index));

enum request_kind {
	REQUEST_RECEIVED = 1,
	REQUEST_SENT = 2,
	REQUEST_PEER_CLOSED = 3, /* the peer has shut down its sending side */
	REQUEST_CLOSED = 4, /* or OpenSSL's connection was freed */
	REQUEST_ENGINE_SENT = 5, /* frames of ZMTP between an API server and its engine, in pieces where they are long */
};

#define REQUEST_MORE 1 /* the transfer goes on in the next record of the thread */
#define REQUEST_H2 2   /* it is one of HTTP/2 */
#define REQUEST_GAP 4  /* transfers of the connection before it were lost */

/*
 * One transfer. Data follows, of a length that fits it: head bytes of its beginning come first; tail bytes of its end
 * are where the last REQUEST_TAIL bytes begin.
 */
struct request_record {
	__u64 ts;
	__u64 socket; /* cookie, or id of an endpoint; 0: not known */
	__u64 ssl;    /* OpenSSL's connection, within the process; 0: no TLS */
	__u32 pid;
	__u32 tid;
	__u32 kind;  /* enum request_kind */
	__u32 bytes; /* that were transferred */
	__u16 head;
	__u16 tail;
	__u16 port; /* local; 0: not known */
	__u16 flags; /* REQUEST_MORE, REQUEST_H2, REQUEST_GAP */
};

enum request_count {
	REQUEST_COUNT_LOST = 0,	  /* transfers and ends of connections that the ring had no room for */
	REQUEST_COUNT_UNSEEN = 1, /* transfers whose buffers are not known; request.bpf.c lists which the hooks count */
	REQUEST_COUNTS = 2,
};

/* Counts of one process. */
struct request_process {
	__u64 transfers; /* on sockets that are followed */
	__u64 looks;	 /* on others */
	__u64 calls; /* of OpenSSL */
	__u64 muted; /* transfers on muted sockets */
	__u64 syscalls; /* returns that request_syscall saw and that were not socket transfers */
	__u64 lost; /* of what REQUEST_COUNT_LOST counts */
};

/* By tgid. Preallocated: Linux 5.15 warns of uprobe programs with other hash maps. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REQUEST_PROCESSES);
	__type(key, __u32);
	__type(value, struct request_process);
} request_processes SEC(".maps");

#define SOCKET_ENGINE (1ULL << 32)  /* ZMTP goes over it */
#define SOCKET_IGNORED (1ULL << 33) /* it turned out not to carry ZMTP */
#define SOCKET_TLS (1ULL << 34)	    /* ciphertext goes over it */
#define SOCKET_H2 (1ULL << 35)	    /* HTTP/2 goes over it */
#define SOCKET_GAP (1ULL << 36)	    /* the last transfers over it were lost, or not seen */
#define SOCKET_ASKS (1ULL << 37)    /* a server sends requests to its engine over it: their beginning is enough */

/* cookie -> the process that reads from it, or writes to it, and SOCKET_ flags */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, REQUEST_SOCKETS);
	__type(key, __u64);
	__type(value, __u64);
} request_sockets SEC(".maps");

#define REQUEST_MUTE_READS 64	      /* reads without the start of a request, after which a socket is muted */
#define REQUEST_MUTE_NS 1000000000ULL /* how long a muted socket is not inspected */

/*
 * What is kept with a socket. It is muted where its reads do not start a request: it carries another protocol, or the
 * body of a long upload.
 */
struct request_kept {
	__u64 until; /* ns: the socket is muted until then */
	__u64 reads; /* since it was first seen, without a request */
	__u64 cookie;
	__u64 state; /* what request_sockets has of it, to spare the lookup; 0: not known */
	__u32 epoch; /* request_epoch at that time */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct request_kept);
} request_kept_sockets SEC(".maps");

/* The same by endpoint id, for request_syscall; without state, which costs another lookup either way. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, REQUEST_SOCKETS);
	__type(key, __u64);
	__type(value, struct request_kept);
} request_kept_ids SEC(".maps");

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

volatile __u32 request_epoch; /* changes when user space has changed request_sockets */
volatile __u32 request_off; /* not 0: nothing is recorded */
volatile __u32 request_tls; /* changes when probes of OpenSSL are taken off; 0: there are none */

#define TLS_WRITE 1 /* bits of a probe's cookie: it writes */
#define TLS_EX 2    /* it returns 1 and puts the number of bytes elsewhere */

/* The socket and the OpenSSL connection of a transfer. */
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
 * The OpenSSL call that a thread is in. Uprobe programs keep here what does not fit into the 48 bytes of stack that
 * they may use (shapes.h).
 */
struct tls_call {
	struct tls_connection connection;
	struct origin origin; /* of the last transfer on the socket beneath; none: 0 */
	__u64 ts;	      /* likewise */
	__u64 buffer;
	__u64 done; /* address to which the number of bytes is written */
	__u64 bytes; /* that number */
	__u64 sp;
	__u64 cookie;
	__u32 tls; /* request_tls at its entry */
	__u32 within; /* not 0: the call has not returned */
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
#define PROTOCOL_GAP 4 /* a bit: the last transfers were lost */

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

/* Counts what the ring had no room for. */
static __always_inline void count_lost(__u32 tgid)
{
	struct request_process *p = bpf_map_lookup_elem(&request_processes, &tgid);

	count(REQUEST_COUNT_LOST);
	if (p)
		__sync_fetch_and_add(&p->lost, 1);
}

#endif
