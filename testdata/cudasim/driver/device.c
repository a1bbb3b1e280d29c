// The virtual device: when each operation starts and ends is decided when it is queued, under the device's lock.
#include <stdio.h>
#include "sim.h"

static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

void device_init(struct sim_device *d, uint32_t index) {
  pthread_mutex_init(&d->lock, NULL);
  d->index = index;
  d->primary = (struct sim_context){.magic = MAGIC_CTX, .id = index + 1, .dev = d, .primary = 1};
  if (sim.next_ctx <= index + 1) sim.next_ctx = index + 2;
  d->legacy = stream_new(d, 0, 0);
  d->legacy->id = 7;
}

struct sim_stream *stream_new(struct sim_device *d, uint32_t flags, int priority) {
  struct sim_stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->magic = MAGIC_STREAM;
  s->id = __atomic_fetch_add(&sim.next_stream, 1, __ATOMIC_RELAXED);
  s->flags = flags;
  s->priority = priority;
  s->dev = d;
  s->ctx = tls.ctx;
  return s;
}

// resolve_stream turns a handle into a stream: 0 is the legacy or the per-thread default stream, 1 the legacy one,
// 2 the per-thread one.
int resolve_stream(CUstream h, int per_thread, struct sim_stream **out) {
  struct sim_device *d;
  int e = need_context(&d);
  if (unlikely(e)) return e;
  uintptr_t v = (uintptr_t)h;
  if (v > 2) {
    if (unlikely((v & 7) || h->magic != MAGIC_STREAM)) return E_INVALID_HANDLE;
    *out = h;
    return OK;
  }
  if (v == 1 || (v == 0 && !per_thread)) {
    *out = d->legacy;
    return OK;
  }
  struct sim_stream **mine = &tls.per_thread[d->index];
  if (!*mine) *mine = stream_new(d, 0, 0);
  *out = *mine;
  return *mine ? OK : E_OUT_OF_MEMORY;
}

// ready is when everything an operation in this stream must follow is over. The legacy stream follows, and is followed
// by, all streams that were not made non-blocking.
static uint64_t ready(const struct sim_stream *s) {
  const struct sim_device *d = s->dev;
  if (s == d->legacy) return max64(s->tail, d->blocking_tail);
  return s->flags & STREAM_NON_BLOCKING ? s->tail : max64(s->tail, d->legacy_tail);
}

static void advance(struct sim_stream *s, uint64_t end) {
  struct sim_device *d = s->dev;
  s->tail = max64(s->tail, end);
  d->all_tail = max64(d->all_tail, s->tail);
  if (s == d->legacy) d->legacy_tail = max64(d->legacy_tail, s->tail);
  else if (!(s->flags & STREAM_NON_BLOCKING)) d->blocking_tail = max64(d->blocking_tail, s->tail);
}

// settle waits until the kernel that waits for other ranks, if there is one, has its end.
static void settle(struct sim_device *d) {
  struct sim_meeting *with = d->meets.with;
  if (!with) return;
  struct sim_op *op = &d->meets.op;
  op->end = max64(op->start, with->last(with)) + d->meets.duration;
  d->meets.with = NULL;
  pthread_mutex_lock(&d->lock);
  d->free_at[op->engine][0] = max64(d->free_at[op->engine][0], op->end);
  advance(d->meets.stream, op->end);
  pthread_mutex_unlock(&d->lock);
  op_publish(op, &d->meets.call);
}

uint64_t stream_done(struct sim_stream *s) {
  settle(s->dev);
  pthread_mutex_lock(&s->dev->lock);
  uint64_t t = ready(s);
  pthread_mutex_unlock(&s->dev->lock);
  return t;
}

void stream_delay(struct sim_stream *s, uint64_t until) {
  pthread_mutex_lock(&s->dev->lock);
  advance(s, until);
  pthread_mutex_unlock(&s->dev->lock);
}

uint64_t device_done(struct sim_device *d) {
  settle(d);
  pthread_mutex_lock(&d->lock);
  uint64_t t = d->all_tail;
  pthread_mutex_unlock(&d->lock);
  return t;
}

// op_place gives the operation the first free slot of its engine. The caller holds the lock.
void op_place(struct sim_device *d, struct sim_op *op, uint64_t from, uint64_t duration) {
  op->start = from;
  if (op->engine < ENGINES) {
    uint32_t slots = op->engine == ENGINE_COMPUTE ? sim.cfg.slots : 1, best = 0;
    uint64_t *at = d->free_at[op->engine];
    for (uint32_t i = 1; i < slots; i++)
      if (at[i] < at[best]) best = i;
    op->start = max64(from, at[best]);
    at[best] = op->start + duration;
  }
  op->end = op->start + duration;
}

void op_publish(struct sim_op *op, struct sim_call *c) {
  op->call_id = c->id;
  op->parent = c->parent;
  truth_op(op);
  void (*hook)(const struct sim_op *) = __atomic_load_n(&cudasim_hooks.on_op, __ATOMIC_ACQUIRE);
  if (unlikely(hook != NULL)) {
    hook(op);
    spin_ns(cudasim_hooks.op_ns);
  }
}

// queue_room waits, with the lock given up meanwhile, while the stream's launch queue is full.
static uint64_t queue_room(struct sim_stream *s) {
  for (;;) {
    uint64_t now = now_ns(), oldest = s->ring[s->head];
    if (oldest <= now) return now;
    pthread_mutex_unlock(&s->dev->lock);
    wait_until(oldest, (int)sim.cfg.spin);
    pthread_mutex_lock(&s->dev->lock);
  }
}

static uint64_t latency(const struct sim_op *op) {
  return op->kind == OP_KERNEL || op->kind == OP_MEMSET ? sim.cfg.launch_latency_ns
      : op->kind == OP_COPY                             ? sim.cfg.copy_latency_ns
                                                        : 0;
}

// stream_put queues an operation: it starts after its stream, its launch latency and a free engine allow.
void stream_put(struct sim_stream *s, struct sim_op *op, uint64_t duration, struct sim_call *c) {
  struct sim_device *d = s->dev;
  struct sim_meeting *with = tls.meeting;
  tls.meeting = NULL;
  settle(d);
  op->device = d->index;
  op->stream_id = s->id;
  op->context_id = tls.ctx ? tls.ctx->id : d->primary.id;
  pthread_mutex_lock(&d->lock);
  op->submit = queue_room(s);
  op_place(d, op, max64(ready(s), op->submit + latency(op)), duration);
  advance(s, op->end);
  s->ring[s->head] = op->end;
  s->head = s->head + 1 == sim.cfg.queue ? 0 : s->head + 1;
  pthread_mutex_unlock(&d->lock);
  if (!with) {
    op_publish(op, c);
    return;
  }
  d->meets.stream = s, d->meets.op = *op, d->meets.call = *c, d->meets.duration = duration, d->meets.with = with;
  with->come(with, op->start);
}

// sync_to waits until the device has come to a time, and the host functions before it have run.
void sync_to(
    uint64_t until, uint64_t ticket, struct sim_call *c, uint32_t type, uint32_t stream_id, uint32_t event_id) {
  struct sim_context *ctx = tls.ctx;
  uint64_t start = now_ns();
  int spin = sim.cfg.spin || (ctx && (ctx->flags & 7) == 1);
  wait_until(until, spin);
  hostfn_wait(ticket);
  void (*hook)(const struct sim_sync *) = __atomic_load_n(&cudasim_hooks.on_sync, __ATOMIC_ACQUIRE);
  if (!hook || !type) return;
  struct sim_sync s = {type, ctx ? ctx->id : 0, stream_id, event_id, start, now_ns(), c->id};
  hook(&s);
}
