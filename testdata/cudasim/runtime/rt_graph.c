// Graphs.
#include "rt.h"

struct kernel_params { // cudaKernelNodeParams
  void *func;
  dim3 grid, block;
  unsigned shared;
  void **params, **extra;
};

static int to_driver(const struct kernel_params *k, CUDA_KERNEL_NODE_PARAMS *p) {
  *p = (CUDA_KERNEL_NODE_PARAMS){.gridX = k->grid.x,
      .gridY = k->grid.y, .gridZ = k->grid.z, .blockX = k->block.x, .blockY = k->block.y, .blockZ = k->block.z,
      .shared = k->shared,
      .params = k->params};
  return rt_kernel(k->func, &p->func);
}

#define DEPS CUgraphNode *out, CUgraph g, const CUgraphNode *deps, size_t n
RT(cudaGraphAddKernelNode)(DEPS, const struct kernel_params *k) {
  RENTER(cudaGraphAddKernelNode);
  RCONTEXT();
  CUDA_KERNEL_NODE_PARAMS p;
  int e = to_driver(k, &p);
  RLEAVE(e ? e : D(0)->cuGraphAddKernelNode(out, g, deps, n, &p));
}
RT(cudaGraphExecKernelNodeSetParams)(CUgraphExec x, CUgraphNode node, const struct kernel_params *k) {
  RENTER(cudaGraphExecKernelNodeSetParams);
  RCONTEXT();
  CUDA_KERNEL_NODE_PARAMS p;
  int e = to_driver(k, &p);
  RLEAVE(e ? e : D(0)->cuGraphExecKernelNodeSetParams(x, node, &p));
}
RT(cudaGraphAddMemcpyNode1D)(DEPS, void *d, const void *s, size_t bytes, int kind UNUSED) {
  RENTER(cudaGraphAddMemcpyNode1D);
  RCONTEXT();
  CUDA_MEMCPY3D p = {.src_type = MEM_UNIFIED,
      .src_device = (CUdeviceptr)s, .dst_type = MEM_UNIFIED, .dst_device = (CUdeviceptr)d, .width = bytes, .height = 1,
      .depth = 1};
  RLEAVE(D(0)->cuGraphAddMemcpyNode(out, g, deps, n, &p, NULL));
}
SIMPLE(cudaGraphAddMemsetNode, (DEPS, const CUDA_MEMSET_NODE_PARAMS *p),
    D(0)->cuGraphAddMemsetNode(out, g, deps, n, p, NULL))
SIMPLE(cudaGraphAddHostNode, (DEPS, const CUDA_HOST_NODE_PARAMS *p), D(0)->cuGraphAddHostNode(out, g, deps, n, p))
SIMPLE(cudaGraphAddEmptyNode, (DEPS), D(0)->cuGraphAddEmptyNode(out, g, deps, n))
SIMPLE(cudaGraphGetNodes, (CUgraph g, CUgraphNode *nodes, size_t *n), D(0)->cuGraphGetNodes(g, nodes, n))
SIMPLE(cudaGraphCreate, (CUgraph *out, unsigned flags), D(0)->cuGraphCreate(out, flags))
SIMPLE(cudaGraphClone, (CUgraph *out, CUgraph g), D(0)->cuGraphClone(out, g))
SIMPLE(cudaGraphDestroy, (CUgraph g), D(0)->cuGraphDestroy(g))
SIMPLE(cudaGraphInstantiate, (CUgraphExec * out, CUgraph g, unsigned long long flags),
    D(0)->cuGraphInstantiate(out, g, flags))
SIMPLE(cudaGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph g, unsigned long long flags),
    D(0)->cuGraphInstantiate(out, g, flags))
STREAMED(cudaGraphInstantiateWithParams, _ptsz, (CUgraphExec * out, CUgraph g, void *p), (out, g, p),
    D(pt)->cuGraphInstantiateWithParams(out, g, p))
SIMPLE(cudaGraphExecUpdate, (CUgraphExec x, CUgraph g, void *info),
    (c.ptr = (uint64_t)x, D(0)->cuGraphExecUpdate(x, g, info)))
SIMPLE(cudaGraphExecDestroy, (CUgraphExec x), (c.ptr = (uint64_t)x, D(0)->cuGraphExecDestroy(x)))
STREAMED(cudaGraphLaunch, _ptsz, (CUgraphExec x, cudaStream_t s), (x, s),
    (c.ptr = (uint64_t)x, c.stream = (uint64_t)s, D(pt)->cuGraphLaunch(x, s)))
STREAMED(
    cudaGraphUpload, _ptsz, (CUgraphExec x, cudaStream_t s), (x, s), (c.ptr = (uint64_t)x, D(pt)->cuGraphUpload(x, s)))
