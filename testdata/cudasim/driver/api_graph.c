// Graphs: entry points that build them.
#include "graph.h"

API(cuGraphCreate)(CUgraph *out, unsigned flags UNUSED) {
  ENTER(cuGraphCreate);
  *out = graph_new();
  c.ptr = (uint64_t)*out;
  LEAVE(*out ? OK : E_OUT_OF_MEMORY);
}

API(cuGraphClone)(CUgraph *out, CUgraph g) {
  ENTER(cuGraphClone);
  NEED(LIVE(g, MAGIC_GRAPH), E_INVALID_VALUE);
  *out = graph_clone(g);
  LEAVE(*out ? OK : E_OUT_OF_MEMORY);
}

API(cuGraphDestroy)(CUgraph g) {
  ENTER(cuGraphDestroy);
  c.ptr = (uint64_t)g;
  NEED(LIVE(g, MAGIC_GRAPH), E_INVALID_VALUE);
  graph_free(g);
  LEAVE(OK);
}

#define DEPS CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t count

static int add(struct sim_call *c, uint32_t type, struct sim_node **out, struct sim_graph *g,
    struct sim_node *const *deps, size_t count) {
  if (!LIVE(g, MAGIC_GRAPH) || !out) return E_INVALID_VALUE;
  *out = graph_add(g, type, deps, count);
  c->ptr = (uint64_t)*out;
  c->ptr2 = (uint64_t)g;
  return *out ? OK : E_OUT_OF_MEMORY;
}

// set_kernel reads version 1 of the params struct, or version 2, which may name the kernel in a later field.
static int set_kernel(struct sim_node *n, const CUDA_KERNEL_NODE_PARAMS *p, int version) {
  struct sim_func *f = p->func ? p->func : version >= 2 ? p->kern : NULL;
  if (!LIVE(f, MAGIC_FUNC)) return E_INVALID_HANDLE;
  launch_op(&n->op, f, &p->gridX, &p->blockX, p->shared);
  n->duration = f->ns;
  n->func = f;
  return OK;
}

static CUresult add_kernel(uint32_t fn, DEPS, const CUDA_KERNEL_NODE_PARAMS *p, int version) {
  ENTER_ID(fn);
  int e = add(&c, NODE_KERNEL, out, g, deps, count);
  LEAVE(e ? e : set_kernel(*out, p, version));
}
API(cuGraphAddKernelNode)(DEPS, const CUDA_KERNEL_NODE_PARAMS *p) {
  return add_kernel(FN_cuGraphAddKernelNode, out, g, deps, count, p, 1);
}
API(cuGraphAddKernelNode_v2)(DEPS, const CUDA_KERNEL_NODE_PARAMS *p) {
  return add_kernel(FN_cuGraphAddKernelNode_v2, out, g, deps, count, p, 2);
}

static void set_copy(struct sim_node *n, const CUDA_MEMCPY3D *p) {
  struct copy k;
  copy_from_3d(p, &k);
  copy_resolve(&k);
  copy_op(&k, &n->op);
  n->duration = copy_ns(&k);
}

API(cuGraphAddMemcpyNode)(DEPS, const CUDA_MEMCPY3D *p, CUcontext ctx UNUSED) {
  ENTER(cuGraphAddMemcpyNode);
  int e = add(&c, NODE_MEMCPY, out, g, deps, count);
  NEED(!e, e);
  set_copy(*out, p);
  LEAVE(OK);
}

static void set_memset(struct sim_node *n, const CUDA_MEMSET_NODE_PARAMS *p) {
  uint64_t bytes = p->width * p->element_size * (p->height ? p->height : 1);
  n->op = (struct sim_op){.kind = OP_MEMSET,
      .engine = ENGINE_COMPUTE, .bytes = bytes, .dst = p->dst, .value = p->value, .dst_kind = RANGE_DEVICE,
      .async = 1};
  n->duration = 1 + (uint64_t)((double)bytes / sim.cfg.memset_gbps);
}

API(cuGraphAddMemsetNode)(DEPS, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx UNUSED) {
  ENTER(cuGraphAddMemsetNode);
  int e = add(&c, NODE_MEMSET, out, g, deps, count);
  NEED(!e, e);
  set_memset(*out, p);
  LEAVE(OK);
}

API(cuGraphAddHostNode)(DEPS, const CUDA_HOST_NODE_PARAMS *p) {
  ENTER(cuGraphAddHostNode);
  int e = add(&c, NODE_HOST, out, g, deps, count);
  NEED(!e, e);
  (*out)->op = (struct sim_op){.kind = OP_HOST, .engine = ENGINE_NONE};
  (*out)->duration = sim.cfg.hostfn_ns;
  (*out)->fn = p->fn;
  (*out)->data = p->data;
  LEAVE(OK);
}

API(cuGraphAddEmptyNode)(DEPS) {
  ENTER(cuGraphAddEmptyNode);
  LEAVE(add(&c, NODE_EMPTY, out, g, deps, count));
}

API(cuGraphAddChildGraphNode)(DEPS, CUgraph child) {
  ENTER(cuGraphAddChildGraphNode);
  NEED(LIVE(child, MAGIC_GRAPH), E_INVALID_VALUE);
  int e = add(&c, NODE_GRAPH, out, g, deps, count);
  NEED(!e, e);
  (*out)->child = graph_clone(child);
  LEAVE((*out)->child ? OK : E_OUT_OF_MEMORY);
}

static CUresult add_event(uint32_t fn, uint32_t type, DEPS, CUevent ev) {
  ENTER_ID(fn);
  NEED(LIVE(ev, MAGIC_EVENT), E_INVALID_HANDLE);
  int e = add(&c, type, out, g, deps, count);
  NEED(!e, e);
  (*out)->event = ev;
  LEAVE(OK);
}
API(cuGraphAddEventRecordNode)(DEPS, CUevent ev) {
  return add_event(FN_cuGraphAddEventRecordNode, NODE_EVENT_RECORD, out, g, deps, count, ev);
}
API(cuGraphAddEventWaitNode)(DEPS, CUevent ev) {
  return add_event(FN_cuGraphAddEventWaitNode, NODE_WAIT_EVENT, out, g, deps, count, ev);
}

static CUresult add_edges(uint32_t fn, CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
  ENTER_ID(fn);
  NEED(LIVE(g, MAGIC_GRAPH), E_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    NEED(LIVE(from[i], MAGIC_NODE) && LIVE(to[i], MAGIC_NODE), E_INVALID_VALUE);
    struct sim_node *n = to[i], **l = realloc(n->deps, (n->dep_count + 1) * sizeof *l);
    NEED(l, E_OUT_OF_MEMORY);
    n->deps = l;
    l[n->dep_count++] = from[i];
  }
  LEAVE(OK);
}
API(cuGraphAddDependencies)(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t n) {
  return add_edges(FN_cuGraphAddDependencies, g, from, to, n);
}
API(cuGraphAddDependencies_v2)(
    CUgraph g, const CUgraphNode *from, const CUgraphNode *to, const void *data UNUSED, size_t n) {
  return add_edges(FN_cuGraphAddDependencies_v2, g, from, to, n);
}

API(cuGraphGetNodes)(CUgraph g, CUgraphNode *nodes, size_t *count) {
  ENTER(cuGraphGetNodes);
  NEED(LIVE(g, MAGIC_GRAPH) && count, E_INVALID_VALUE);
  if (nodes)
    for (size_t i = 0; i < *count; i++) nodes[i] = i < g->count ? g->nodes[i] : NULL;
  if (!nodes || *count > g->count) *count = g->count;
  LEAVE(OK);
}

API(cuGraphNodeGetType)(CUgraphNode n, int *type) {
  ENTER(cuGraphNodeGetType);
  NEED(LIVE(n, MAGIC_NODE) && type, E_INVALID_VALUE);
  *type = (int)n->type;
  LEAVE(OK);
}

static CUresult get_kernel(uint32_t fn, CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *p, int version) {
  ENTER_ID(fn);
  NEED(LIVE(n, MAGIC_NODE) && n->type == NODE_KERNEL, E_INVALID_VALUE);
  p->func = n->func;
  memcpy(&p->gridX, n->op.grid, sizeof n->op.grid);
  memcpy(&p->blockX, n->op.block, sizeof n->op.block);
  p->shared = n->op.shared;
  p->params = p->extra = NULL;
  if (version >= 2) p->kern = NULL, p->ctx = NULL;
  LEAVE(OK);
}
API(cuGraphKernelNodeGetParams)(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *p) {
  return get_kernel(FN_cuGraphKernelNodeGetParams, n, p, 1);
}
API(cuGraphKernelNodeGetParams_v2)(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *p) {
  return get_kernel(FN_cuGraphKernelNodeGetParams_v2, n, p, 2);
}

static CUresult set_node(uint32_t fn, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p, int version) {
  ENTER_ID(fn);
  NEED(LIVE(n, MAGIC_NODE) && n->type == NODE_KERNEL, E_INVALID_VALUE);
  LEAVE(set_kernel(n, p, version));
}
API(cuGraphKernelNodeSetParams)(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p) {
  return set_node(FN_cuGraphKernelNodeSetParams, n, p, 1);
}
API(cuGraphKernelNodeSetParams_v2)(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p) {
  return set_node(FN_cuGraphKernelNodeSetParams_v2, n, p, 2);
}

// in_exec is the executable graph's own copy of a node: the one with its id.
static struct sim_node *in_exec(struct sim_exec *x, struct sim_node *n, uint32_t type) {
  if (!LIVE(x, MAGIC_EXEC) || !LIVE(n, MAGIC_NODE)) return NULL;
  for (size_t i = 0; i < x->graph->count; i++)
    if (x->graph->nodes[i]->id == n->id && n->type == type) return x->graph->nodes[i];
  return NULL;
}

static CUresult exec_kernel(uint32_t fn, CUgraphExec x, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p, int version) {
  ENTER_ID(fn);
  c.ptr = (uint64_t)x;
  struct sim_node *own = in_exec(x, n, NODE_KERNEL);
  NEED(own, E_INVALID_VALUE);
  LEAVE(set_kernel(own, p, version));
}
API(cuGraphExecKernelNodeSetParams)(CUgraphExec x, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p) {
  return exec_kernel(FN_cuGraphExecKernelNodeSetParams, x, n, p, 1);
}
API(cuGraphExecKernelNodeSetParams_v2)(CUgraphExec x, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p) {
  return exec_kernel(FN_cuGraphExecKernelNodeSetParams_v2, x, n, p, 2);
}

API(cuGraphExecMemcpyNodeSetParams)(CUgraphExec x, CUgraphNode n, const CUDA_MEMCPY3D *p, CUcontext ctx UNUSED) {
  ENTER(cuGraphExecMemcpyNodeSetParams);
  c.ptr = (uint64_t)x;
  struct sim_node *own = in_exec(x, n, NODE_MEMCPY);
  NEED(own, E_INVALID_VALUE);
  set_copy(own, p);
  LEAVE(OK);
}

API(cuGraphExecMemsetNodeSetParams)(
    CUgraphExec x, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx UNUSED) {
  ENTER(cuGraphExecMemsetNodeSetParams);
  c.ptr = (uint64_t)x;
  struct sim_node *own = in_exec(x, n, NODE_MEMSET);
  NEED(own, E_INVALID_VALUE);
  set_memset(own, p);
  LEAVE(OK);
}
