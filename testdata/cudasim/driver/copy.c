// Copies: direction, duration, and for how long they hold the caller.
#include "sim.h"

// pageable copies to the device up to this size return before the device has them
static const uint64_t staged_bytes = 64 << 10;

static int host_side(uint8_t kind) { return kind == RANGE_PAGEABLE || kind == RANGE_PINNED; }

void copy_resolve(struct copy *k) {
  if (!k->src_kind) k->src_kind = memory_kind(k->src);
  if (!k->dst_kind) k->dst_kind = memory_kind(k->dst);
  if (k->kind) return;
  int from_host = host_side(k->src_kind), to_host = host_side(k->dst_kind);
  k->kind = from_host ? (to_host ? COPY_HTOH : COPY_HTOD) : (to_host ? COPY_DTOH : COPY_DTOD);
}

static int pageable(const struct copy *k) {
  return (k->kind == COPY_HTOD && k->src_kind == RANGE_PAGEABLE) ||
      (k->kind == COPY_DTOH && k->dst_kind == RANGE_PAGEABLE);
}

// copy_ns is how long the copy keeps its engine: bytes over bandwidth (1 GB/s is 1 byte/ns), at least 1 ns.
uint64_t copy_ns(const struct copy *k) {
  double gbps = k->kind == COPY_DTOD ? sim.cfg.d2d_gbps : pageable(k) ? sim.cfg.pageable_gbps : sim.cfg.pinned_gbps;
  return 1 + (uint64_t)((double)k->bytes / gbps);
}

static uint8_t engine(uint8_t kind) {
  switch (kind) {
  case COPY_HTOD: return ENGINE_H2D;
  case COPY_DTOH: return ENGINE_D2H;
  case COPY_HTOH: return ENGINE_NONE;
  default: return ENGINE_D2D;
  }
}

void copy_op(const struct copy *k, struct sim_op *op) {
  *op = (struct sim_op){.kind = OP_COPY,
      .copy_kind = k->kind, .engine = engine(k->kind), .src_kind = k->src_kind, .dst_kind = k->dst_kind,
      .async = k->async, .bytes = k->bytes, .dst = k->dst,
      .src = k->src};
  memcpy(op->peer, k->peer, sizeof op->peer);
}

// hold keeps the caller as the real driver does: synchronous copies with a host side until they are over, asynchronous
// ones not at all unless the host memory is pageable: from the device always, to the device when too large to stage.
static void hold(const struct copy *k, const struct sim_op *op, struct sim_call *c) {
  if (k->kind == COPY_DTOD || k->kind == COPY_PTOP) return;
  int staged = k->kind == COPY_HTOD && pageable(k) && k->bytes <= staged_bytes;
  if (staged) spin_ns((uint64_t)((double)k->bytes / sim.cfg.pageable_gbps));
  else if (!k->async || pageable(k) || k->kind == COPY_HTOH) sync_to(op->end, 0, c, 0, 0, 0);
}

int copy_run(struct copy *k, CUstream stream, int per_thread, struct sim_call *c) {
  struct sim_stream *s;
  c->stream = (uint64_t)stream;
  c->bytes = k->bytes;
  c->ptr = k->dst;
  c->ptr2 = k->src;
  int e = resolve_stream(stream, per_thread, &s);
  if (e) return e;
  c->stream_id = s->id;
  copy_resolve(k);
  c->kind = k->kind;
  if (!k->bytes) return OK;
  if (!k->dst || !k->src) return E_INVALID_VALUE;
  struct sim_op op;
  copy_op(k, &op);
  if (unlikely(s->capture != NULL))
    return k->async ? capture_add(s, &op, copy_ns(k), NULL, NULL) : E_STREAM_CAPTURE_UNSUPPORTED;
  stream_put(s, &op, copy_ns(k), c);
  hold(k, &op, c);
  return OK;
}
