// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Turns CUDA calls into events. Package probe attaches these programs to the
 * functions of libcuda and libcudart in one of three ways, and loads only those
 * of the way that the kernel has:
 *
 *   session  call_entry; call_session for what is timed          kernel 6.13 on
 *   multi    call_entry; call_enter and call_return              kernel 6.6 on
 *   perf     the same three, one perf event each (perf_*)        kernel 5.15 on
 *
 * A program may be preempted by another thread that runs it on the same CPU, so
 * whatever is per CPU is changed atomically or under the ring's own lock, and the
 * stack stays below 64 bytes (shapes.h says why; a test of package probe checks it).
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "event.h"
#include "shapes.h"

#define FRAMES 4 /* a runtime call, the driver call inside it, and room for twice that */

/* A timed call that has not returned. */
struct frame {
	__u64 ts;
	__u64 cookie;
	__u64 sp; /* at the entry: names the call, together with the cookie */
	__u64 flags;
	struct place place;
};

/* The timed calls of one thread that have not returned, the innermost last. */
struct calls {
	__u32 depth;
	__u32 over; /* calls that found no room: their returns are expected to match nothing */
	struct frame frames[FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct calls);
} calls SEC(".maps");

#include "rings.h"

/* BTF keeps only types that a variable or a function has, and bpf2go exports BTF to
 * Go. No program refers to these variables, so that no map is made for them. */
const struct event *export_event __attribute__((unused));
const enum event_kind *export_kind __attribute__((unused));
const enum event_flags *export_flags __attribute__((unused));
const enum call_shape *export_shape __attribute__((unused));
const enum loss_reason *export_loss __attribute__((unused));

static __always_inline void lose(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&losses, &reason);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline struct event *reserve(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct event *e = ring ? bpf_ringbuf_reserve(ring, sizeof(*e), 0) : NULL;

	if (!e)
		lose(LOSS_RING_FULL);
	return e;
}

/* Whether this is the agent's own thread (agent/src/agent.h names it). It makes calls to get out of CUPTI, which are none of the program's. */
static __always_inline int is_agent(void)
{
	const __u64 *comm = (const __u64 *)bpf_get_current_task_btf()->comm;

	return comm[0] == 0x6f63737265666e69ULL && comm[1] == 0x6570ULL;
}

/* What every event has; the caller fills ret, flags and args. */
static __always_inline void head(struct event *e, __u64 ts, __u64 dur, __u64 cookie)
{
	__u64 id = bpf_get_current_pid_tgid();

	e->ts = ts;
	e->dur = dur;
	e->pid = id >> 32;
	e->tid = id;
	e->func = COOKIE_FUNC(cookie);
	e->kind = EVENT_CALL;
}

/* An event for a call of which only the entry is known. */
static __always_inline void put_entry(struct pt_regs *ctx, __u64 ts, __u64 cookie)
{
	struct event *e = reserve();
	__u32 aux;

	if (!e)
		return;
	e->flags = lay(ctx, cookie, (struct place *)e, &aux);
	e->ret = aux;
	head(e, ts, 0, cookie);
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

/*
 * Whether frame f is of a call that cannot return any more, seen from a new call
 * with cookie and sp: the stack has been unwound past it (longjmp, an exception,
 * a probe removed in the middle). A call at the same sp by another function may be
 * a tail call, whose return is the return of both.
 */
static __always_inline bool stale(const struct frame *f, __u64 cookie, __u64 sp)
{
	return f->sp < sp || (f->sp == sp && f->cookie == cookie);
}

/* Frame i. The mask is written in assembly because the compiler, which knows that it
 * changes nothing, would leave it out, and the verifier, which does not, needs it. */
static __always_inline struct frame *frame_at(struct calls *c, __u64 i)
{
	asm volatile("%0 &= %1" : "+r"(i) : "i"(FRAMES - 1));
	return &c->frames[i];
}

static __always_inline void drop_stale(struct calls *c, __u64 cookie, __u64 sp)
{
	for (int i = 0; i < FRAMES && c->depth; i++) {
		if (!stale(frame_at(c, c->depth - 1), cookie, sp))
			break;
		c->depth--;
	}
	if (!c->depth)
		c->over = 0;
}

/* A frame for a new call, or NULL (counted) where there is no room. */
static __always_inline struct frame *push(__u64 cookie, __u64 sp)
{
	struct calls *c = bpf_task_storage_get(&calls, bpf_get_current_task_btf(), 0,
					       BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!c) {
		lose(LOSS_NO_STORAGE);
		return NULL;
	}
	drop_stale(c, cookie, sp);
	if (c->depth >= FRAMES) {
		c->over++;
		lose(LOSS_DEPTH);
		return NULL;
	}
	return frame_at(c, c->depth++);
}

/*
 * The entry of a timed call; 0 if its return is wanted. A call that cannot be
 * timed is still counted: its event goes out now, without EVENT_TIMED.
 */
static __always_inline int enter(struct pt_regs *ctx)
{
	__u64 ts = bpf_ktime_get_ns();
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u64 sp = SP(ctx);
	struct frame *f;
	__u32 aux;

	if (is_agent())
		return 1;
	f = push(cookie, sp);
	if (!f) {
		put_entry(ctx, ts, cookie);
		return 1;
	}
	f->ts = ts;
	f->cookie = cookie;
	f->sp = sp;
	f->flags = lay(ctx, cookie, &f->place, &aux);
	if (COOKIE_AUX(cookie))
		f->place.args[3] = (f->place.args[3] & ~(0xffULL << 56)) | (__u64)aux << 56;
	return 0;
}

/* The frame of the call that returns, with all inside it dropped; NULL if there is none. */
static __always_inline struct frame *pop(__u64 cookie, __u64 sp)
{
	struct calls *c = bpf_task_storage_get(&calls, bpf_get_current_task_btf(), 0, 0);
	struct frame *f;

	if (!c) {
		lose(LOSS_NO_ENTRY);
		return NULL;
	}
	for (__u32 i = 0, at = c->depth; i < FRAMES && at; i++) {
		f = frame_at(c, --at);
		if (f->cookie != cookie || f->sp != sp)
			continue;
		c->depth = at;
		return f;
	}
	if (c->over)
		c->over--;
	else
		lose(LOSS_NO_ENTRY);
	return NULL;
}

/* Replaces the address in *arg by what is there; returns what to add to the flags. */
static __always_inline __u8 deref(__u64 *arg)
{
	__u64 at = *arg;

	if (!bpf_probe_read_user(arg, sizeof(*arg), (void *)at))
		return EVENT_DEREF;
	*arg = 0;
	return EVENT_FAULT;
}

/* The return of a timed call. */
static __always_inline int leave(struct pt_regs *ctx)
{
	__u64 ts = bpf_ktime_get_ns();
	__u64 cookie = bpf_get_attach_cookie(ctx);
	struct frame *f = is_agent() ? NULL : pop(cookie, SP_AT_ENTRY(ctx));
	struct event *e = f ? reserve() : NULL;

	if (!f || !e)
		return 0;
	head(e, f->ts, ts - f->ts, cookie);
	e->flags = f->flags | EVENT_TIMED;
	e->ret = RESULT(ctx);
	e->args[0] = f->place.args[0];
	e->args[1] = f->place.args[1];
	e->args[2] = f->place.args[2];
	e->args[3] = f->place.args[3];
	/* A failed call has left nothing to read. */
	if (cookie & COOKIE_DEREF && !e->ret)
		e->flags |= deref(&e->args[0]);
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("uprobe.multi")
int call_entry(struct pt_regs *ctx)
{
	put_entry(ctx, bpf_ktime_get_ns(), bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe.session")
int call_session(struct pt_regs *ctx)
{
	/*
	 * At the return the instruction pointer is in the caller. The kfunc that says
	 * so, bpf_session_is_return, has another prototype in 7.x than in 6.13, and a
	 * program can be compiled for one only.
	 */
	if (IP(ctx) != bpf_get_func_ip(ctx))
		return leave(ctx);
	return enter(ctx); /* 1: no return trap for this call */
}

SEC("uprobe.multi")
int call_enter(struct pt_regs *ctx)
{
	enter(ctx);
	return 0; /* 1 would remove the probe */
}

SEC("uretprobe.multi")
int call_return(struct pt_regs *ctx)
{
	return leave(ctx);
}

SEC("uprobe")
int perf_entry(struct pt_regs *ctx)
{
	put_entry(ctx, bpf_ktime_get_ns(), bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe")
int perf_enter(struct pt_regs *ctx)
{
	enter(ctx);
	return 0;
}

SEC("uretprobe")
int perf_return(struct pt_regs *ctx)
{
	return leave(ctx);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
