/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records driver calls through CUPTI callbacks, for a few ids only. At the end of a window further callbacks are on, at
 * the exits of calls that have waited for the GPU: the only place where CUPTI can be finalized.
 */
#include "agent.h"

/* How a call's parameters are packed: as the probes do for the same row of internal/cuda. */
enum shape {
	NOT_WANTED,
	LAUNCH,     /* struct launch_params */
	LAUNCH_EX,  /* struct launch_ex_params */
	GRAPH,      /* graph, stream */
	COPY,       /* destination, source, bytes */
	COPY_ASYNC_ON, /* and a stream */
	COPY_PEER,  /* destination, its context, source, its context, bytes, stream */
	SET,        /* destination, value, elements */
	SET_ASYNC,  /* and a stream */
	WAIT,       /* nothing is written */
};
#define ENDS 0x80 /* its exit may end a window */
#define IDS 1024
#define END_RETRY_INTERVAL (5 * MS) /* between two tries of the target's threads to end a window */

/*
 * By CUpti_driver_api_trace_cbid; headers_test.go checks every id. ENDS marks the calls in which a finalize was
 * measured to be safe (names with Synchronize, cuMemcpyDtoH_v2) and their variants with the per-thread default stream;
 * asynchronous copies are not among them.
 */
static const uint8_t wanted[IDS] = {
	[307 /* cuLaunchKernel */] = LAUNCH,
	[442 /* cuLaunchKernel_ptsz */] = LAUNCH,
	[477 /* cuLaunchCooperativeKernel */] = LAUNCH,
	[478 /* cuLaunchCooperativeKernel_ptsz */] = LAUNCH,
	[652 /* cuLaunchKernelEx */] = LAUNCH_EX,
	[653 /* cuLaunchKernelEx_ptsz */] = LAUNCH_EX,
	[514 /* cuGraphLaunch */] = GRAPH,
	[515 /* cuGraphLaunch_ptsz */] = GRAPH,
	[276 /* cuMemcpyHtoD_v2 */] = COPY,
	[278 /* cuMemcpyDtoH_v2 */] = COPY | ENDS,
	[280 /* cuMemcpyDtoD_v2 */] = COPY,
	[305 /* cuMemcpy */] = COPY,
	[397 /* cuMemcpyHtoD_v2_ptds */] = COPY,
	[398 /* cuMemcpyDtoH_v2_ptds */] = COPY | ENDS,
	[399 /* cuMemcpyDtoD_v2_ptds */] = COPY,
	[408 /* cuMemcpy_ptds */] = COPY,
	[277 /* cuMemcpyHtoDAsync_v2 */] = COPY_ASYNC_ON,
	[279 /* cuMemcpyDtoHAsync_v2 */] = COPY_ASYNC_ON,
	[281 /* cuMemcpyDtoDAsync_v2 */] = COPY_ASYNC_ON,
	[306 /* cuMemcpyAsync */] = COPY_ASYNC_ON,
	[418 /* cuMemcpyAsync_ptsz */] = COPY_ASYNC_ON,
	[421 /* cuMemcpyHtoDAsync_v2_ptsz */] = COPY_ASYNC_ON,
	[422 /* cuMemcpyDtoHAsync_v2_ptsz */] = COPY_ASYNC_ON,
	[423 /* cuMemcpyDtoDAsync_v2_ptsz */] = COPY_ASYNC_ON,
	[319 /* cuMemcpyPeerAsync */] = COPY_PEER,
	[426 /* cuMemcpyPeerAsync_ptsz */] = COPY_PEER,
	[249 /* cuMemsetD8_v2 */] = SET,
	[251 /* cuMemsetD32_v2 */] = SET,
	[411 /* cuMemsetD8_v2_ptds */] = SET,
	[413 /* cuMemsetD32_v2_ptds */] = SET,
	[216 /* cuMemsetD8Async */] = SET_ASYNC,
	[220 /* cuMemsetD32Async */] = SET_ASYNC,
	[428 /* cuMemsetD8Async_ptsz */] = SET_ASYNC,
	[430 /* cuMemsetD32Async_ptsz */] = SET_ASYNC,
	[17 /* cuCtxSynchronize */] = WAIT | ENDS,
	[121 /* cuEventSynchronize */] = WAIT | ENDS,
	[126 /* cuStreamSynchronize */] = WAIT | ENDS,
	[440 /* cuStreamSynchronize_ptsz */] = WAIT | ENDS,
	[800 /* cuCtxSynchronize_v2 */] = WAIT | ENDS,
};

/* Turns on or off the callbacks of the calls that are written (ends 0), or of those that end a window.
 * A CUPTI that does not know an id yet refuses it: that function is not there either. */
void calls_enable(uint32_t on, int ends)
{
	for (uint32_t id = 0; id < IDS; id++) {
		int shape = wanted[id] & ~ENDS, hit = ends ? wanted[id] & ENDS : shape != NOT_WANTED && shape != WAIT;

		if (hit && !(ends && shape != WAIT))
			the.cupti.callback(on, the.window.subscriber, DOMAIN_DRIVER, id);
	}
}

/* As lay_nccl of bpf/shapes.h does. The call has succeeded, so that the driver has read what is read here. */
static void pack_nccl(struct agent_slot *s, const uint64_t *extra)
{
	const struct nccl_args *a;

	if (extra[0] != 1 || extra[2] != 2 || *(const size_t *)extra[3] < sizeof(*a))
		return;
	a = (const struct nccl_args *)extra[1];
	if (s->args[2] != pack_grid((uint32_t)__builtin_popcountll(a->channels), 1, 1) || a->storage >= NCCL_STORAGES ||
	    s->args[1] >> 48)
		return;
	s->args[1] |= (uint64_t)(a->batch >> 17) << 48;
	s->flags |= EVENT_NCCL;
}

static void pack_config(struct agent_slot *s, const struct launch_ex_params *p)
{
	const struct launch_config *c = p->config;

	s->args[0] = p->function;
	if (!c)
		return;
	s->args[1] = c->stream;
	s->args[2] = pack_grid(c->grid[0], c->grid[1], c->grid[2]);
	s->args[3] = pack_block(c->block[0], c->block[1], c->block[2], c->shared);
	if (!p->params && p->extra)
		pack_nccl(s, p->extra);
}

static void pack(struct agent_slot *s, int shape, const void *params)
{
	const struct launch_params *l = params;
	const uint64_t *p = params;

	switch (shape) {
	case LAUNCH:
		s->args[0] = l->function;
		s->args[1] = l->stream;
		s->args[2] = pack_grid(l->grid[0], l->grid[1], l->grid[2]);
		s->args[3] = pack_block(l->block[0], l->block[1], l->block[2], l->shared);
		break;
	case LAUNCH_EX: pack_config(s, params); break;
	case COPY_ASYNC_ON: s->args[3] = p[3]; /* fall through */
	case COPY: s->args[2] = p[2]; /* fall through */
	case GRAPH: s->args[0] = p[0], s->args[1] = p[1]; break;
	case COPY_PEER: s->args[0] = p[0], s->args[1] = p[2], s->args[2] = p[4], s->args[3] = p[5]; break;
	case SET_ASYNC: s->args[2] = p[3]; /* fall through */
	case SET: s->args[0] = p[0], s->args[1] = p[2]; break;
	}
}

/* Avoids a system call per launch, which would dominate the cost. */
static uint32_t caller(void)
{
	return the.tids_agree == 2 ? libc_tid() : gettid();
}

/* Reports whether a call began after the open window was fully on. */
static int began_within(const struct callback_data *d)
{
	return load(&the.window.phase) != PHASE_CLOSED && *d->kept >= peek(&the.window.opened) && *d->kept <= now();
}

/* Called at the entry, to catch calls in progress when the callbacks go off, and at the exit, for those in progress
 * when they went on. */
static void note_graph(const struct callback_data *d)
{
	const uint64_t *p = d->params;

	graph_seen(p ? p[0] : 0, caller(), d->site != SITE_ENTER && began_within(d));
}

/* Records whether several threads make calls: they delay the moment when all are out of the driver. */
static void note_caller(uint32_t tid)
{
	uint32_t first = peek(&the.window.caller);

	if (first != tid && first)
		store(&the.window.several, 1);
	else if (!first && !swapped(&the.window.caller, 0, tid) && peek(&the.window.caller) != tid)
		store(&the.window.several, 1);
}

/* Reports whether the window may end at the exit of this synchronizing call. In PHASE_OWN only the call of the agent's
 * thread counts, whatever its result. */
static int may_end(uint32_t phase, const struct callback_data *d)
{
	switch (phase) {
	case PHASE_WANTED:
		return d->result && !*d->result && gate_ready() && graphs_allow(caller()) &&
		    now() - peek(&the.window.tried) > END_RETRY_INTERVAL;
	case PHASE_OWN: return caller() == the.tid;
	}
	return 0;
}

static void end_window(const struct callback_data *d)
{
	uint32_t phase = peek(&the.window.phase);

	if (may_end(phase, d) && swapped(&the.window.phase, phase, PHASE_TAKEN))
		window_finish(caller(), phase);
}

static void write_call(uint32_t id, int shape, const struct callback_data *d, uint64_t end)
{
	uint64_t began = *d->kept;
	struct agent_slot s = { .ts = end, .tid = caller(), .func = (uint16_t)id, .kind = EVENT_CALL,
		.flags = EVENT_CORRELATED, .ret = (int32_t)d->correlation };

	/* A call that was under way when its callback was turned on has no entry. */
	if (began >= peek(&the.window.began) && began <= end) {
		s.ts = began;
		s.dur = end - began;
		s.flags |= EVENT_TIMED;
	}
	/* The parameters of a failed call may be invalid pointers: they are not followed. */
	if (d->params && (shape != LAUNCH_EX || (d->result && !*d->result)))
		pack(&s, shape, d->params);
	note_caller(s.tid);
	ring_write(&s);
	add(&the.window.calls, 1);
	if (d->result && !*d->result)
		pending_call(s.tid, d->correlation, end);
}

void on_call(void *user, uint32_t domain, uint32_t id, const struct callback_data *d)
{
	int what = id < IDS ? wanted[id] : NOT_WANTED, shape = what & ~ENDS;
	uint64_t t;

	(void)user;
	if (!what || domain != DOMAIN_DRIVER)
		return;
	t = now();
	left_note(caller(), t, __builtin_dwarf_cfa(), d);
	if (!load(&the.alive->awake))
		return;
	if (shape == GRAPH)
		note_graph(d);
	if (d->site == SITE_ENTER) {
		*d->kept = t;
		return;
	}
	if (shape != WAIT && load(&the.window.phase) != PHASE_CLOSED)
		write_call(id, shape, d, t);
	if (what & ENDS)
		end_window(d);
}
