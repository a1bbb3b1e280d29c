// Streams and events.
#include "sim.h"

static void note_stream(const struct sim_stream *s) {
  void (*hook)(const struct sim_stream_info *) = __atomic_load_n(&cudasim_hooks.on_stream, __ATOMIC_ACQUIRE);
  if (!hook) return;
  struct sim_stream_info i = {s->id, s->ctx ? s->ctx->id : 0, s->flags & STREAM_NON_BLOCKING, s->priority};
  hook(&i);
}

static CUresult new_stream(uint32_t fn, CUstream *out, unsigned flags, int priority) {
  ENTER_ID(fn);
  NEED_CONTEXT(dev);
  NEED(out && flags <= 1, E_INVALID_VALUE);
  *out = stream_new(dev, flags, priority);
  NEED(*out, E_OUT_OF_MEMORY);
  c.ptr = c.stream = (uint64_t)*out;
  c.stream_id = (*out)->id;
  note_stream(*out);
  LEAVE(OK);
}
API(cuStreamCreate)(CUstream *out, unsigned flags) { return new_stream(FN_cuStreamCreate, out, flags, 0); }
API(cuStreamCreateWithPriority)(CUstream *out, unsigned flags, int priority) {
  return new_stream(FN_cuStreamCreateWithPriority, out, flags, priority);
}

API(cuStreamDestroy_v2)(CUstream s) {
  ENTER(cuStreamDestroy_v2);
  c.stream = (uint64_t)s;
  NEED((uintptr_t)s > 2 && LIVE(s, MAGIC_STREAM), E_INVALID_HANDLE);
  c.stream_id = s->id;
  s->magic = 0; // kept: its last operations may still be running, and handles stay unique
  LEAVE(OK);
}

// WITH_STREAM makes an entry point and its _ptsz variant that do work(stream, call) on the resolved stream.
#define WITH_STREAM(name, ARGS, work, ...)                                           \
  static CUresult do_##name(uint32_t fn, int pt, ARGS) {                             \
    PARAMS(stream_params, h);                                                        \
    ENTER_ID(fn);                                                                    \
    struct sim_stream *s;                                                            \
    c.stream = (uint64_t)h;                                                          \
    int e = resolve_stream(h, pt, &s);                                               \
    NEED(!e, e);                                                                     \
    c.stream_id = s->id;                                                             \
    LEAVE(work);                                                                     \
  }                                                                                  \
  API(name)(ARGS) { return do_##name(FN_##name, 0, __VA_ARGS__); }                   \
  API(name##_ptsz)(ARGS) { return do_##name(FN_##name##_ptsz, 1, __VA_ARGS__); }
#define P1 CUstream h
#define P2(T, a) CUstream h, T a

static int stream_sync(struct sim_stream *s, struct sim_call *c) {
  if (s->capture) return E_STREAM_CAPTURE_UNSUPPORTED;
  sync_to(stream_done(s), s->hostfn_ticket, c, 3, s->id, 0);
  return OK;
}
WITH_STREAM(cuStreamSynchronize, P1, stream_sync(s, &c), h)

static int stream_query(struct sim_stream *s) {
  return stream_done(s) <= now_ns() && hostfn_done(s->hostfn_ticket) ? OK : E_NOT_READY;
}
WITH_STREAM(cuStreamQuery, P1, stream_query(s), h)
WITH_STREAM(cuStreamGetFlags, P2(unsigned *, out), (*out = s->flags, OK), h, out)
WITH_STREAM(cuStreamGetPriority, P2(int *, out), (*out = s->priority, OK), h, out)
WITH_STREAM(cuStreamGetId, P2(unsigned long long *, out), (*out = s->id, OK), h, out)
WITH_STREAM(cuStreamGetCtx, P2(CUcontext *, out), (*out = s->ctx ? s->ctx : &s->dev->primary, OK), h, out)
WITH_STREAM(cuStreamGetDevice, P2(CUdevice *, out), (*out = (CUdevice)s->dev->index, OK), h, out)

API(cuEventCreate)(CUevent *out, unsigned flags) {
  ENTER(cuEventCreate);
  NEED_CONTEXT(dev);
  struct sim_event *e = calloc(1, sizeof *e);
  NEED(e, E_OUT_OF_MEMORY);
  e->magic = MAGIC_EVENT;
  e->flags = flags;
  e->id = __atomic_fetch_add(&sim.next_event, 1, __ATOMIC_RELAXED);
  *out = e;
  c.ptr = (uint64_t)e;
  LEAVE(OK);
}

API(cuEventDestroy_v2)(CUevent ev) {
  ENTER(cuEventDestroy_v2);
  c.ptr = (uint64_t)ev;
  NEED(LIVE(ev, MAGIC_EVENT), E_INVALID_HANDLE);
  ev->magic = 0;
  free(ev);
  LEAVE(OK);
}

static int record(struct sim_stream *s, struct sim_event *ev, struct sim_call *c) {
  c->ptr = (uint64_t)ev;
  if (!LIVE(ev, MAGIC_EVENT)) return E_INVALID_HANDLE;
  if (s->capture) return capture_event_record(s, ev);
  uint64_t done = stream_done(s), now = now_ns();
  ev->when = done > now ? done : now;
  ev->hostfn_ticket = s->hostfn_ticket;
  ev->capture = NULL;
  ev->recorded = 1;
  return OK;
}

static CUresult event_record(uint32_t fn, int pt, CUevent ev, CUstream h) {
  PARAMS(pair_params, ev, h);
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)h;
  int e = resolve_stream(h, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  LEAVE(record(s, ev, &c));
}
API(cuEventRecord)(CUevent ev, CUstream h) { return event_record(FN_cuEventRecord, 0, ev, h); }
API(cuEventRecord_ptsz)(CUevent ev, CUstream h) { return event_record(FN_cuEventRecord_ptsz, 1, ev, h); }
API(cuEventRecordWithFlags)(CUevent ev, CUstream h, unsigned flags UNUSED) {
  return event_record(FN_cuEventRecordWithFlags, 0, ev, h);
}
API(cuEventRecordWithFlags_ptsz)(CUevent ev, CUstream h, unsigned flags UNUSED) {
  return event_record(FN_cuEventRecordWithFlags_ptsz, 1, ev, h);
}

API(cuEventQuery)(CUevent ev) {
  ENTER(cuEventQuery);
  c.ptr = (uint64_t)ev;
  NEED(LIVE(ev, MAGIC_EVENT), E_INVALID_HANDLE);
  LEAVE(!ev->recorded || (ev->when <= now_ns() && hostfn_done(ev->hostfn_ticket)) ? OK : E_NOT_READY);
}

API(cuEventSynchronize)(CUevent ev) {
  PARAMS(handle_params, ev);
  ENTER(cuEventSynchronize);
  c.ptr = (uint64_t)ev;
  NEED(LIVE(ev, MAGIC_EVENT), E_INVALID_HANDLE);
  if (ev->recorded) sync_to(ev->when, ev->hostfn_ticket, &c, 1, 0, ev->id);
  LEAVE(OK);
}

API(cuEventElapsedTime)(float *ms, CUevent a, CUevent b) {
  ENTER(cuEventElapsedTime);
  c.ptr = (uint64_t)a;
  c.ptr2 = (uint64_t)b;
  NEED(LIVE(a, MAGIC_EVENT) && LIVE(b, MAGIC_EVENT) && a->recorded && b->recorded, E_INVALID_HANDLE);
  uint64_t now = now_ns();
  NEED(a->when <= now && b->when <= now, E_NOT_READY);
  *ms = (float)((double)((int64_t)(b->when - a->when)) / 1e6);
  LEAVE(OK);
}

// note_wait tells CUPTI that a stream was made to wait for an event: a record of the call's own time.
static void note_wait(struct sim_stream *s, const struct sim_event *ev, const struct sim_call *c) {
  void (*hook)(const struct sim_sync *) = __atomic_load_n(&cudasim_hooks.on_sync, __ATOMIC_ACQUIRE);
  if (!hook) return;
  uint64_t now = now_ns();
  struct sim_sync w = {2, tls.ctx ? tls.ctx->id : 0, s->id, ev->id, now, now, c->id};
  hook(&w);
}

static int wait_event(struct sim_stream *s, struct sim_event *ev, struct sim_call *c) {
  c->ptr = (uint64_t)ev;
  if (!LIVE(ev, MAGIC_EVENT)) return E_INVALID_HANDLE;
  if (ev->capture || s->capture) return capture_event_wait(s, ev);
  if (ev->recorded) stream_delay(s, ev->when);
  note_wait(s, ev, c);
  if (ev->hostfn_ticket > s->hostfn_ticket) s->hostfn_ticket = ev->hostfn_ticket;
  return OK;
}

static CUresult stream_wait(uint32_t fn, int pt, CUstream h, CUevent ev) {
  PARAMS(pair_params, h, ev);
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)h;
  int e = resolve_stream(h, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  LEAVE(wait_event(s, ev, &c));
}
API(cuStreamWaitEvent)(CUstream h, CUevent ev, unsigned flags UNUSED) {
  return stream_wait(FN_cuStreamWaitEvent, 0, h, ev);
}
API(cuStreamWaitEvent_ptsz)(CUstream h, CUevent ev, unsigned flags UNUSED) {
  return stream_wait(FN_cuStreamWaitEvent_ptsz, 1, h, ev);
}
