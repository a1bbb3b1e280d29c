// Graphs: instantiation, launch, update, and capture of streams.
#include "graph.h"

static CUresult instantiate(uint32_t fn, CUgraphExec *out, CUgraph g) {
  ENTER_ID(fn);
  NEED_CONTEXT(dev);
  NEED(out && LIVE(g, MAGIC_GRAPH), E_INVALID_VALUE);
  *out = exec_new(g);
  NEED(*out, E_INVALID_VALUE);
  c.ptr = (uint64_t)*out;
  c.ptr2 = (uint64_t)g;
  LEAVE(OK);
}
#define BUFFERS CUgraphNode *bad UNUSED, char *log UNUSED, size_t room UNUSED
API(cuGraphInstantiate)(CUgraphExec *out, CUgraph g, BUFFERS) { return instantiate(FN_cuGraphInstantiate, out, g); }
API(cuGraphInstantiate_v2)(CUgraphExec *out, CUgraph g, BUFFERS) {
  return instantiate(FN_cuGraphInstantiate_v2, out, g);
}
API(cuGraphInstantiateWithFlags)(CUgraphExec *out, CUgraph g, unsigned long long flags UNUSED) {
  return instantiate(FN_cuGraphInstantiateWithFlags, out, g);
}

struct instantiate_params {
  uint64_t flags;
  CUstream upload;
  CUgraphNode bad;
  int result;
};
static CUresult with_params(uint32_t fn, CUgraphExec *out, CUgraph g, struct instantiate_params *p) {
  CUresult e = instantiate(fn, out, g);
  if (p) p->result = e ? 1 : 0;
  return e;
}
API(cuGraphInstantiateWithParams)(CUgraphExec *out, CUgraph g, struct instantiate_params *p) {
  return with_params(FN_cuGraphInstantiateWithParams, out, g, p);
}
API(cuGraphInstantiateWithParams_ptsz)(CUgraphExec *out, CUgraph g, struct instantiate_params *p) {
  return with_params(FN_cuGraphInstantiateWithParams_ptsz, out, g, p);
}

API(cuGraphExecDestroy)(CUgraphExec x) {
  ENTER(cuGraphExecDestroy);
  c.ptr = (uint64_t)x;
  NEED(LIVE(x, MAGIC_EXEC), E_INVALID_VALUE);
  exec_free(x);
  LEAVE(OK);
}

static int run_exec(struct sim_exec *x, struct sim_stream *s, struct sim_call *c) {
  if (!LIVE(x, MAGIC_EXEC)) return E_INVALID_VALUE;
  if (s->capture) return E_STREAM_CAPTURE_UNSUPPORTED;
  exec_run(x, s, c);
  return OK;
}

static CUresult launch(uint32_t fn, int pt, CUgraphExec x, CUstream h) {
  PARAMS(pair_params, x, h);
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)h;
  c.ptr = (uint64_t)x;
  int e = resolve_stream(h, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  LEAVE(run_exec(x, s, &c));
}
API(cuGraphLaunch)(CUgraphExec x, CUstream h) { return launch(FN_cuGraphLaunch, 0, x, h); }
API(cuGraphLaunch_ptsz)(CUgraphExec x, CUstream h) { return launch(FN_cuGraphLaunch_ptsz, 1, x, h); }

static CUresult upload(uint32_t fn, CUgraphExec x) {
  ENTER_ID(fn);
  c.ptr = (uint64_t)x;
  LEAVE(LIVE(x, MAGIC_EXEC) ? OK : E_INVALID_VALUE);
}
API(cuGraphUpload)(CUgraphExec x, CUstream h UNUSED) { return upload(FN_cuGraphUpload, x); }
API(cuGraphUpload_ptsz)(CUgraphExec x, CUstream h UNUSED) { return upload(FN_cuGraphUpload_ptsz, x); }

// update takes over the parameters of another graph of the same shape; 910 and a reason where the shapes differ.
static int update(struct sim_exec *x, struct sim_graph *g, int *reason) {
  if (!LIVE(x, MAGIC_EXEC) || !LIVE(g, MAGIC_GRAPH)) return E_INVALID_VALUE;
  *reason = 2; // topology changed
  if (x->graph->count != g->count) return 910;
  for (size_t i = 0; i < g->count; i++)
    if (x->graph->nodes[i]->type != g->nodes[i]->type) return 910;
  for (size_t i = 0; i < g->count; i++) {
    struct sim_node *to = x->graph->nodes[i], *from = g->nodes[i];
    to->op = from->op, to->duration = from->duration, to->func = from->func, to->fn = from->fn, to->data = from->data;
  }
  *reason = 0;
  return OK;
}

API(cuGraphExecUpdate)(CUgraphExec x, CUgraph g, CUgraphNode *bad, int *result) {
  ENTER(cuGraphExecUpdate);
  c.ptr = (uint64_t)x;
  int reason = 0, e = update(x, g, &reason);
  if (bad) *bad = NULL;
  if (result) *result = reason;
  LEAVE(e);
}

struct update_info {
  int result;
  CUgraphNode bad, bad_from;
};
API(cuGraphExecUpdate_v2)(CUgraphExec x, CUgraph g, struct update_info *info) {
  ENTER(cuGraphExecUpdate_v2);
  c.ptr = (uint64_t)x;
  int reason = 0, e = update(x, g, &reason);
  if (info) *info = (struct update_info){reason, NULL, NULL};
  LEAVE(e);
}

static CUresult begin(uint32_t fn, int pt, CUstream h, CUgraph into, int mode) {
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)h;
  int e = resolve_stream(h, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  NEED(s != s->dev->legacy, E_STREAM_CAPTURE_UNSUPPORTED);
  NEED(!s->capture, E_ILLEGAL_STATE);
  e = capture_begin(s, into);
  if (!e && mode == CAPTURE_GLOBAL) capture_forbid(s);
  LEAVE(e);
}
API(cuStreamBeginCapture)(CUstream h) { return begin(FN_cuStreamBeginCapture, 0, h, NULL, CAPTURE_GLOBAL); }
API(cuStreamBeginCapture_ptsz)(CUstream h) { return begin(FN_cuStreamBeginCapture_ptsz, 1, h, NULL, CAPTURE_GLOBAL); }
API(cuStreamBeginCapture_v2)(CUstream h, int mode) { return begin(FN_cuStreamBeginCapture_v2, 0, h, NULL, mode); }
API(cuStreamBeginCapture_v2_ptsz)(CUstream h, int mode) {
  return begin(FN_cuStreamBeginCapture_v2_ptsz, 1, h, NULL, mode);
}
#define TO_GRAPH CUstream h, CUgraph g, const CUgraphNode *deps UNUSED, const void *data UNUSED, size_t n UNUSED, int mode
API(cuStreamBeginCaptureToGraph)(TO_GRAPH) { return begin(FN_cuStreamBeginCaptureToGraph, 0, h, g, mode); }
API(cuStreamBeginCaptureToGraph_ptsz)(TO_GRAPH) { return begin(FN_cuStreamBeginCaptureToGraph_ptsz, 1, h, g, mode); }

static CUresult end(uint32_t fn, int pt, CUstream h, CUgraph *out) {
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)h;
  int e = resolve_stream(h, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  e = capture_end(s, out);
  NEED(!e, e);
  c.ptr = (uint64_t)*out;
  LEAVE(OK);
}
API(cuStreamEndCapture)(CUstream h, CUgraph *out) { return end(FN_cuStreamEndCapture, 0, h, out); }
API(cuStreamEndCapture_ptsz)(CUstream h, CUgraph *out) { return end(FN_cuStreamEndCapture_ptsz, 1, h, out); }

struct capture_out { // null fields are not wanted
  int *status;
  uint64_t *id;
  CUgraph *graph;
  CUgraphNode **deps;
  size_t *count;
};
static CUresult info(uint32_t fn, int pt, CUstream h, struct capture_out o) {
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)h;
  int e = resolve_stream(h, pt, &s);
  NEED(!e, e);
  struct capture *k = s->capture;
  if (o.status) *o.status = k ? CAPTURE_ACTIVE : CAPTURE_NONE;
  if (k && o.id) *o.id = k->id;
  if (k && o.graph) *o.graph = k->graph;
  if (k && o.deps) *o.deps = k->deps;
  if (k && o.count) *o.count = k->count;
  LEAVE(OK);
}
API(cuStreamIsCapturing)(CUstream h, int *st) {
  return info(FN_cuStreamIsCapturing, 0, h, (struct capture_out){.status = st});
}
API(cuStreamIsCapturing_ptsz)(CUstream h, int *st) {
  return info(FN_cuStreamIsCapturing_ptsz, 1, h, (struct capture_out){.status = st});
}
API(cuStreamGetCaptureInfo)(CUstream h, int *st, uint64_t *id) {
  return info(FN_cuStreamGetCaptureInfo, 0, h, (struct capture_out){st, id, NULL, NULL, NULL});
}
API(cuStreamGetCaptureInfo_ptsz)(CUstream h, int *st, uint64_t *id) {
  return info(FN_cuStreamGetCaptureInfo_ptsz, 1, h, (struct capture_out){st, id, NULL, NULL, NULL});
}
#define INFO2 CUstream h, int *st, uint64_t *id, CUgraph *g, CUgraphNode **d, size_t *n
API(cuStreamGetCaptureInfo_v2)(INFO2) {
  return info(FN_cuStreamGetCaptureInfo_v2, 0, h, (struct capture_out){st, id, g, d, n});
}
API(cuStreamGetCaptureInfo_v2_ptsz)(INFO2) {
  return info(FN_cuStreamGetCaptureInfo_v2_ptsz, 1, h, (struct capture_out){st, id, g, d, n});
}
#define INFO3 CUstream h, int *st, uint64_t *id, CUgraph *g, CUgraphNode **d, void **edges, size_t *n
static CUresult info3(uint32_t fn, int pt, INFO3) {
  if (edges) *edges = NULL;
  return info(fn, pt, h, (struct capture_out){st, id, g, d, n});
}
API(cuStreamGetCaptureInfo_v3)(INFO3) { return info3(FN_cuStreamGetCaptureInfo_v3, 0, h, st, id, g, d, edges, n); }
API(cuStreamGetCaptureInfo_v3_ptsz)(INFO3) {
  return info3(FN_cuStreamGetCaptureInfo_v3_ptsz, 1, h, st, id, g, d, edges, n);
}
