// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Turns CUDA calls into events. Package uprobe attaches these programs to the
 * functions of libcuda and libcudart in one of three ways, and loads only those
 * of the way that the kernel has:
 *
 *   session  call_entry; call_session for what is timed          kernel 6.13 on
 *   multi    call_entry; call_enter and call_return              kernel 6.6 on
 *   perf     the same three, one perf event each (perf_*)        kernel 5.15 on
 *
 * A program may be preempted by another thread that runs it on the same CPU, so
 * per-CPU data is changed atomically or under the ring's own lock, and the stack
 * stays below 64 bytes (shapes.h gives the reason; a test of package uprobe checks it).
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "event.h"
#include "shapes.h"
#include "agent_thread.h"

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
	__u64 skipped; /* stack pointer of the last call without an event: deeper calls are inside it */
	__u32 depth;
	__u32 over; /* calls that found no room; their returns match no frame */
	struct frame frames[FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct calls);
} calls SEC(".maps");

#define SKIP_WINDOW 100000000ULL /* ns between two checks of the call rate */
#define SKIP_PLACES 8192

/* A frequently called function in one thread. */
struct skips {
	__u64 window; /* ns, start of the current window */
	__u64 from;   /* ns of the first skipped call that no EVENT_SKIPPED covers yet */
	__u32 seen;   /* calls in the window */
	__u32 every;  /* one call in this many has an event; 0, 1: each */
	__u32 left;   /* calls until the next that has one */
	__u32 outer;  /* skipped calls made by the program itself */
	__u32 inner;  /* skipped calls made inside those */
	__u32 pid;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SKIP_PLACES);
	__type(key, __u64); /* tid | func << 32 */
	__type(value, struct skips);
} skipped_calls SEC(".maps");

/* Calls of a function per thread and window up to which each has an event. Changes while the programs run. */
volatile __u64 calls_in_window = 500;

#include "rings.h"

const struct skips *export_skips __attribute__((unused));

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

/* Fills the common fields; the caller fills ret, flags and args. */
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

/* Sends an event for a call of which only the entry is known. */
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
 * Reports whether the call of frame f cannot return any more, given a new call with
 * cookie and sp: the stack was unwound past it (longjmp, an exception, a probe removed
 * in between). A call at the same sp by another function may be a tail call, whose
 * return is the return of both.
 */
static __always_inline bool stale(const struct frame *f, __u64 cookie, __u64 sp)
{
	return f->sp < sp || (f->sp == sp && f->cookie == cookie);
}

/* Returns frame i. The mask is in assembly because the verifier needs it and the compiler
 * would drop it as redundant. */
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

/* Sends one event for all calls skipped up to now. */
static __noinline int put_skipped(struct skips *s, __u64 cookie, __u64 now)
{
	struct event *e;

	if (!s)
		return 0;
	e = reserve();
	if (!e)
		return 0; /* the next EVENT_SKIPPED counts them as well */
	head(e, s->from, now - s->from, cookie);
	e->kind = EVENT_SKIPPED;
	e->flags = EVENT_TIMED;
	e->ret = s->every;
	e->args[0] = s->outer;
	e->args[1] = s->inner;
	e->args[2] = 0;
	e->args[3] = 0;
	s->outer = 0;
	s->inner = 0;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

static const struct skips none;

/* Returns the state of the function in this thread; NULL where the map has no room. */
static __noinline struct skips *skips_of(__u64 key, __u64 now)
{
	struct skips *s = bpf_map_lookup_elem(&skipped_calls, &key);

	if (s)
		return s;
	bpf_map_update_elem(&skipped_calls, &key, &none, BPF_ANY);
	s = bpf_map_lookup_elem(&skipped_calls, &key);
	if (s) {
		s->window = now;
		s->pid = bpf_get_current_pid_tgid() >> 32;
	}
	return s;
}

/* Begins a new window where the last one is over. */
static __always_inline void update_rate(struct skips *s, __u64 cookie, __u64 now)
{
	if (now - s->window <= SKIP_WINDOW)
		return;
	if (s->outer || s->inner)
		put_skipped(s, cookie, now);
	/* The count of a window that began long ago does not describe the current rate. */
	s->every = now - s->window < 2 * SKIP_WINDOW ? s->seen / (calls_in_window | 1) : 0;
	s->window = now;
	s->seen = 0;
}

/*
 * Reports whether a call gets no event. Calls inside another call share its fate: they have events
 * if and only if it has one.
 */
static __always_inline int skip(struct calls *c, __u64 cookie, __u64 sp, __u64 now)
{
	__u64 key = (__u32)bpf_get_current_pid_tgid() | (cookie & 0xffff) << 32;
	struct skips *s = skips_of(key, now);
	bool inside = c->skipped > sp;

	if (!s)
		return 0;
	update_rate(s, cookie, now);
	s->seen++;
	if (c->depth && !inside)
		return 0; /* its outer call has an event */
	if (!inside) {
		if (s->every < 2) {
			if (s->seen <= 2 * calls_in_window)
				return 0;
			s->every = 2;
		}
		if (!s->left) {
			s->left = bpf_get_prandom_u32() % (2 * s->every - 1);
			c->skipped = 0;
			return 0;
		}
		s->left--;
		c->skipped = sp;
	}
	if (!s->outer && !s->inner)
		s->from = now;
	if (inside)
		s->inner++;
	else
		s->outer++;
	lose(LOSS_SKIPPED);
	return 1;
}

/* Returns the timed calls of this thread after dropping stale ones; NULL (counted) where there is no memory. */
static __always_inline struct calls *calls_of(__u64 cookie, __u64 sp)
{
	struct calls *c = bpf_task_storage_get(&calls, bpf_get_current_task_btf(), 0,
					       BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!c) {
		lose(LOSS_NO_STORAGE);
		return NULL;
	}
	drop_stale(c, cookie, sp);
	if (c->skipped <= sp)
		c->skipped = 0;
	return c;
}

/* Returns a frame for a new call, or NULL (counted) where there is no room. */
static __always_inline struct frame *push(struct calls *c)
{
	if (c->depth >= FRAMES) {
		c->over++;
		lose(LOSS_DEPTH);
		return NULL;
	}
	return frame_at(c, c->depth++);
}

/*
 * Handles the entry of a timed call; returns 0 if its return is wanted. A call that
 * cannot be timed is still counted: its event is sent now, without EVENT_TIMED.
 */
static __always_inline int enter(struct pt_regs *ctx)
{
	__u64 ts = bpf_ktime_get_ns();
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u64 sp = SP(ctx);
	struct calls *c;
	struct frame *f;
	__u32 aux;

	if (is_agent())
		return 1;
	c = calls_of(cookie, sp);
	if (c && cookie & COOKIE_FREQUENT && skip(c, cookie, sp, ts))
		return 1;
	f = c ? push(c) : NULL;
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

/* Returns the frame of the returning call and drops all frames inside it; NULL if there is none. */
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
	else if (!(cookie & COOKIE_FREQUENT)) /* a frequent call's entry may have been skipped */
		lose(LOSS_NO_ENTRY);
	return NULL;
}

/* Replaces the address in *arg by the value there; returns the event flag to set. */
static __always_inline __u8 deref(__u64 *arg)
{
	__u64 at = *arg;

	if (!bpf_probe_read_user(arg, sizeof(*arg), (void *)at))
		return EVENT_DEREF;
	*arg = 0;
	return EVENT_FAULT;
}

/* Handles the return of a timed call. */
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
	/* A failed call wrote no result. */
	if (cookie & COOKIE_DEREF && !e->ret)
		e->flags |= deref(&e->args[0]);
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("uprobe.multi")
int call_entry(struct pt_regs *ctx)
{
	if (!is_agent())
		put_entry(ctx, bpf_ktime_get_ns(), bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe.session")
int call_session(struct pt_regs *ctx)
{
	/*
	 * At the return the instruction pointer is in the caller. The kfunc for this,
	 * bpf_session_is_return, changed its prototype between 6.13 and 7.x, and a
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
	if (!is_agent())
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
