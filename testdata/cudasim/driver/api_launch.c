// Launches and host functions.
#include "sim.h"

struct launch {
  struct sim_func *f;
  uint32_t grid[3], block[3], shared;
  CUstream stream;
};

static void note(struct sim_call *c, const struct launch *l) {
  c->stream = (uint64_t)l->stream;
  c->ptr = (uint64_t)l->f;
  memcpy(c->grid, l->grid, sizeof c->grid);
  memcpy(c->block, l->block, sizeof c->block);
  c->shared = l->shared;
}

static int bad_shape(const struct launch *l) {
  uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
  return !l->grid[0] || !l->grid[1] || !l->grid[2] || !threads || threads > 1024;
}

void launch_op(
    struct sim_op *op, const struct sim_func *f, const uint32_t *grid, const uint32_t *block, uint32_t shared) {
  *op = (struct sim_op){.kind = OP_KERNEL,
      .engine = ENGINE_COMPUTE, .name = f->name, .name_id = f->name_id, .shared = shared,
      .async = 1};
  memcpy(op->grid, grid, sizeof op->grid);
  memcpy(op->block, block, sizeof op->block);
}

static CUresult launch(uint32_t fn, int pt, const struct launch *l) {
  tls.kernel_name = LIVE(l->f, MAGIC_FUNC) ? l->f->name_id : 0;
  ENTER_ID(fn);
  struct sim_stream *s;
  note(&c, l);
  int e = resolve_stream(l->stream, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  NEED(LIVE(l->f, MAGIC_FUNC), E_INVALID_HANDLE);
  NEED(!bad_shape(l), E_INVALID_VALUE);
  c.name = l->f->name_id;
  struct sim_op op;
  launch_op(&op, l->f, l->grid, l->block, l->shared);
  if (unlikely(s->capture != NULL)) LEAVE(capture_add(s, &op, l->f->ns, NULL, NULL));
  stream_put(s, &op, l->f->ns, &c);
  LEAVE(OK);
}

#define SHAPE_ARGS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s
struct launch_params { // cuLaunchKernel_params; the cooperative one lacks the last field
  CUfunction f;
  unsigned gx, gy, gz, bx, by, bz, shared;
  CUstream stream;
  void **params, **extra;
};
_Static_assert(offsetof(struct launch_params, stream) == 40, "cuLaunchKernel_params ABI");
#define SHOW(extra) PARAMS(launch_params, f, gx, gy, gz, bx, by, bz, shared, s, params, extra)
#define LAUNCH(f) &(struct launch){f, {gx, gy, gz}, {bx, by, bz}, shared, s}
API(cuLaunchKernel)(CUfunction f, SHAPE_ARGS, void **params, void **extra) {
  SHOW(extra);
  return launch(FN_cuLaunchKernel, 0, LAUNCH(f));
}
API(cuLaunchKernel_ptsz)(CUfunction f, SHAPE_ARGS, void **params, void **extra) {
  SHOW(extra);
  return launch(FN_cuLaunchKernel_ptsz, 1, LAUNCH(f));
}
API(cuLaunchCooperativeKernel)(CUfunction f, SHAPE_ARGS, void **params) {
  SHOW(NULL);
  return launch(FN_cuLaunchCooperativeKernel, 0, LAUNCH(f));
}
API(cuLaunchCooperativeKernel_ptsz)(CUfunction f, SHAPE_ARGS, void **params) {
  SHOW(NULL);
  return launch(FN_cuLaunchCooperativeKernel_ptsz, 1, LAUNCH(f));
}

struct launch_ex_params { // cuLaunchKernelEx_params
  const CUlaunchConfig *config;
  CUfunction f;
  void **params, **extra;
};
static CUresult launch_ex(uint32_t fn, int pt, const CUlaunchConfig *k, CUfunction f, void **params, void **extra) {
  PARAMS(launch_ex_params, k, f, params, extra);
  if (!k) return launch(fn, pt, &(struct launch){0});
  return launch(fn, pt,
      &(struct launch){f, {k->gridX, k->gridY, k->gridZ}, {k->blockX, k->blockY, k->blockZ}, k->shared, k->stream});
}
API(cuLaunchKernelEx)(const CUlaunchConfig *k, CUfunction f, void **params, void **extra) {
  return launch_ex(FN_cuLaunchKernelEx, 0, k, f, params, extra);
}
API(cuLaunchKernelEx_ptsz)(const CUlaunchConfig *k, CUfunction f, void **params, void **extra) {
  return launch_ex(FN_cuLaunchKernelEx_ptsz, 1, k, f, params, extra);
}

// host_function queues a call of the host: the stream waits for it, at least the time a knob says.
static CUresult host_function(struct sim_call *c, CUstream stream, int pt, CUhostFn fn, void *data) {
  struct sim_stream *s;
  c->stream = (uint64_t)stream;
  c->ptr = (uint64_t)fn;
  int e = resolve_stream(stream, pt, &s);
  if (e) return e;
  if (!fn) return E_INVALID_VALUE;
  c->stream_id = s->id;
  struct sim_op op = {.kind = OP_HOST, .engine = ENGINE_NONE};
  if (s->capture) return capture_add(s, &op, sim.cfg.hostfn_ns, fn, data);
  stream_put(s, &op, sim.cfg.hostfn_ns, c);
  s->hostfn_ticket = hostfn_queue(fn, data, op.start);
  return OK;
}

struct host_params { // cuLaunchHostFunc_params
  CUstream stream;
  CUhostFn fn;
  void *data;
};
static CUresult launch_host(uint32_t fn, int pt, CUstream s, CUhostFn f, void *data) {
  PARAMS(host_params, s, f, data);
  ENTER_ID(fn);
  LEAVE(host_function(&c, s, pt, f, data));
}
API(cuLaunchHostFunc)(CUstream s, CUhostFn f, void *data) { return launch_host(FN_cuLaunchHostFunc, 0, s, f, data); }
API(cuLaunchHostFunc_ptsz)(CUstream s, CUhostFn f, void *data) {
  return launch_host(FN_cuLaunchHostFunc_ptsz, 1, s, f, data);
}

struct callback {
  CUstreamCallback fn;
  CUstream stream;
  void *data;
};

static void run_callback(void *p) {
  struct callback k = *(struct callback *)p;
  free(p);
  k.fn(k.stream, OK, k.data);
}

static CUresult add_callback(uint32_t fn, int pt, CUstream s, CUstreamCallback f, void *data) {
  ENTER_ID(fn);
  struct callback *k = malloc(sizeof *k);
  NEED(k && f, E_INVALID_VALUE);
  *k = (struct callback){f, s, data};
  LEAVE(host_function(&c, s, pt, run_callback, k));
}
API(cuStreamAddCallback)(CUstream s, CUstreamCallback f, void *data, unsigned flags UNUSED) {
  return add_callback(FN_cuStreamAddCallback, 0, s, f, data);
}
API(cuStreamAddCallback_ptsz)(CUstream s, CUstreamCallback f, void *data, unsigned flags UNUSED) {
  return add_callback(FN_cuStreamAddCallback_ptsz, 1, s, f, data);
}
