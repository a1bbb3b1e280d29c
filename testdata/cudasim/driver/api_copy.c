// Every cuMemcpy entry point, down to one struct copy.
#include "sim.h"

static CUresult run(uint32_t fn, int pt, struct copy k, CUstream s) {
  ENTER_ID(fn);
  LEAVE(copy_run(&k, s, pt, &c));
}

// linear shows the parameters as cuMemcpyHtoDAsync_v2_params and its kin have them; the synchronous ones lack the last.
static CUresult linear(uint32_t fn, int pt, struct copy k, CUstream s) {
  PARAMS(copy_params, k.dst, k.src, k.bytes, s);
  return run(fn, pt, k, s);
}

#define ADDR(p) ((uint64_t)(p))
#define LINEAR(d, s, n, k, a) ((struct copy){.dst = ADDR(d), .src = ADDR(s), .bytes = (n), .kind = (k), .async = (a)})
// SYNC and ASYNC make an entry point and its per-thread default stream variant.
#define SYNC(name, suffix, D, S, k) \
  API(name)(D d, S s, size_t n) { return linear(FN_##name, 0, LINEAR(d, s, n, k, 0), NULL); } \
  API(name##suffix)(D d, S s, size_t n) { return linear(FN_##name##suffix, 1, LINEAR(d, s, n, k, 0), NULL); }
#define ASYNC(name, suffix, D, S, k) \
  API(name)(D d, S s, size_t n, CUstream h) { return linear(FN_##name, 0, LINEAR(d, s, n, k, 1), h); } \
  API(name##suffix)(D d, S s, size_t n, CUstream h) { return linear(FN_##name##suffix, 1, LINEAR(d, s, n, k, 1), h); }

SYNC(cuMemcpyHtoD_v2, _ptds, CUdeviceptr, const void *, COPY_HTOD)
SYNC(cuMemcpyDtoH_v2, _ptds, void *, CUdeviceptr, COPY_DTOH)
SYNC(cuMemcpyDtoD_v2, _ptds, CUdeviceptr, CUdeviceptr, COPY_DTOD)
SYNC(cuMemcpy, _ptds, CUdeviceptr, CUdeviceptr, 0)
ASYNC(cuMemcpyHtoDAsync_v2, _ptsz, CUdeviceptr, const void *, COPY_HTOD)
ASYNC(cuMemcpyDtoHAsync_v2, _ptsz, void *, CUdeviceptr, COPY_DTOH)
ASYNC(cuMemcpyDtoDAsync_v2, _ptsz, CUdeviceptr, CUdeviceptr, COPY_DTOD)
ASYNC(cuMemcpyAsync, _ptsz, CUdeviceptr, CUdeviceptr, 0)

#define PEER_ARGS CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n
static CUresult peer(uint32_t fn, int pt, PEER_ARGS, int async, CUstream h) {
  uint8_t kind = dc && sc && dc->dev == sc->dev ? COPY_DTOD : COPY_PTOP;
  struct copy k = LINEAR(d, s, n, kind, (uint8_t)async);
  if (LIVE(sc, MAGIC_CTX)) k.peer[0] = sc->dev->index, k.peer[1] = sc->id;
  if (LIVE(dc, MAGIC_CTX)) k.peer[2] = dc->dev->index, k.peer[3] = dc->id;
  return run(fn, pt, k, h);
}
API(cuMemcpyPeer)(PEER_ARGS) { return peer(FN_cuMemcpyPeer, 0, d, dc, s, sc, n, 0, NULL); }
API(cuMemcpyPeer_ptds)(PEER_ARGS) { return peer(FN_cuMemcpyPeer_ptds, 1, d, dc, s, sc, n, 0, NULL); }
API(cuMemcpyPeerAsync)(PEER_ARGS, CUstream h) { return peer(FN_cuMemcpyPeerAsync, 0, d, dc, s, sc, n, 1, h); }
API(cuMemcpyPeerAsync_ptsz)(PEER_ARGS, CUstream h) { return peer(FN_cuMemcpyPeerAsync_ptsz, 1, d, dc, s, sc, n, 1, h); }

// batch makes copies one after the other; the legacy default stream is refused, as CUDA does. fail is where the index of
// one that failed goes; null: nowhere.
static CUresult batch(uint32_t fn, int pt, const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes,
    size_t count, size_t *fail, CUstream h) {
  ENTER_ID(fn);
  uint64_t bytes = 0;
  NEED(h != NULL || pt, E_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    struct copy k = LINEAR(dsts[i], srcs[i], sizes[i], 0, 1);
    int e = copy_run(&k, h, pt, &c);
    if (e && fail) *fail = i;
    NEED(!e, e);
    bytes += sizes[i];
  }
  c.bytes = bytes;
  LEAVE(OK);
}
#define BATCH_ARGS CUdeviceptr *d, CUdeviceptr *s, size_t *n, size_t count, void *attributes UNUSED, \
    size_t *indices UNUSED, size_t used UNUSED
#define BATCH(suffix, pt) \
  API(cuMemcpyBatchAsync##suffix)(BATCH_ARGS, size_t *fail, CUstream h) { \
    return batch(FN_cuMemcpyBatchAsync##suffix, pt, d, s, n, count, fail, h); \
  } \
  API(cuMemcpyBatchAsync_v2##suffix)(BATCH_ARGS, CUstream h) { \
    return batch(FN_cuMemcpyBatchAsync_v2##suffix, pt, d, s, n, count, NULL, h); \
  }
BATCH(, 0)
BATCH(_ptsz, 1)

// side is one end of a 2D or 3D copy: its address, and its memory kind where the caller's word settles it (0 where
// not).
static void side(int type, const void *host, CUdeviceptr device, uint64_t *addr, uint8_t *kind) {
  *addr = type == MEM_HOST || (type == MEM_UNIFIED && !device) ? ADDR(host) : type == MEM_ARRAY ? 4 : device;
  *kind = type == MEM_DEVICE || type == MEM_ARRAY ? RANGE_DEVICE : 0;
}

static CUresult run2d(uint32_t fn, int pt, const CUDA_MEMCPY2D *p, int async, CUstream h) {
  struct copy k = {.bytes = p->width * p->height, .async = (uint8_t)async};
  side(p->src_type, p->src_host, p->src_device, &k.src, &k.src_kind);
  side(p->dst_type, p->dst_host, p->dst_device, &k.dst, &k.dst_kind);
  return run(fn, pt, k, h);
}
#define SYNC2D(name) API(name)(const CUDA_MEMCPY2D *p) { return run2d(FN_##name, 0, p, 0, NULL); } \
  API(name##_ptds)(const CUDA_MEMCPY2D *p) { return run2d(FN_##name##_ptds, 1, p, 0, NULL); }
SYNC2D(cuMemcpy2D_v2)
SYNC2D(cuMemcpy2DUnaligned_v2)
API(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D *p, CUstream h) { return run2d(FN_cuMemcpy2DAsync_v2, 0, p, 1, h); }
API(cuMemcpy2DAsync_v2_ptsz)(const CUDA_MEMCPY2D *p, CUstream h) {
  return run2d(FN_cuMemcpy2DAsync_v2_ptsz, 1, p, 1, h);
}

void copy_from_3d(const CUDA_MEMCPY3D *p, struct copy *k) {
  *k = (struct copy){.bytes = p->width * p->height * p->depth, .async = 1};
  side(p->src_type, p->src_host, p->src_device, &k->src, &k->src_kind);
  side(p->dst_type, p->dst_host, p->dst_device, &k->dst, &k->dst_kind);
}

static CUresult run3d(uint32_t fn, int pt, const CUDA_MEMCPY3D *p, int async, CUstream h) {
  struct copy k;
  copy_from_3d(p, &k);
  k.async = (uint8_t)async;
  return run(fn, pt, k, h);
}
API(cuMemcpy3D_v2)(const CUDA_MEMCPY3D *p) { return run3d(FN_cuMemcpy3D_v2, 0, p, 0, NULL); }
API(cuMemcpy3D_v2_ptds)(const CUDA_MEMCPY3D *p) { return run3d(FN_cuMemcpy3D_v2_ptds, 1, p, 0, NULL); }
API(cuMemcpy3DAsync_v2)(const CUDA_MEMCPY3D *p, CUstream h) { return run3d(FN_cuMemcpy3DAsync_v2, 0, p, 1, h); }
API(cuMemcpy3DAsync_v2_ptsz)(const CUDA_MEMCPY3D *p, CUstream h) {
  return run3d(FN_cuMemcpy3DAsync_v2_ptsz, 1, p, 1, h);
}
// The peer struct has the same layout, with contexts in its two reserved words.
API(cuMemcpy3DPeer)(const CUDA_MEMCPY3D *p) { return run3d(FN_cuMemcpy3DPeer, 0, p, 0, NULL); }
API(cuMemcpy3DPeer_ptds)(const CUDA_MEMCPY3D *p) { return run3d(FN_cuMemcpy3DPeer_ptds, 1, p, 0, NULL); }
API(cuMemcpy3DPeerAsync)(const CUDA_MEMCPY3D *p, CUstream h) { return run3d(FN_cuMemcpy3DPeerAsync, 0, p, 1, h); }
API(cuMemcpy3DPeerAsync_ptsz)(const CUDA_MEMCPY3D *p, CUstream h) {
  return run3d(FN_cuMemcpy3DPeerAsync_ptsz, 1, p, 1, h);
}

// fill is a memset: bytes over bandwidth on the compute engine; it never waits for the device.
static CUresult fill(uint32_t fn, int pt, CUdeviceptr d, uint64_t bytes, uint32_t value, int async, CUstream h) {
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)h;
  c.ptr = d;
  c.bytes = bytes;
  int e = resolve_stream(h, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  NEED(d, E_INVALID_VALUE);
  uint64_t ns = 1 + (uint64_t)((double)bytes / sim.cfg.memset_gbps);
  struct sim_op op = {.kind = OP_MEMSET,
      .engine = ENGINE_COMPUTE, .bytes = bytes, .dst = d, .value = value, .dst_kind = RANGE_DEVICE,
      .async = (uint8_t)async};
  if (s->capture) LEAVE(async ? capture_add(s, &op, ns, NULL, NULL) : E_STREAM_CAPTURE_UNSUPPORTED);
  stream_put(s, &op, ns, &c);
  LEAVE(OK);
}

static CUresult fill1(uint32_t fn, int pt, struct fill_params p, size_t size, int async) {
  tls.params = &p;
  return fill(fn, pt, p.dst, p.count * size, p.value, async, p.stream);
}

#define FILL(bits, T) \
  API(cuMemsetD##bits##_v2)(CUdeviceptr d, T v, size_t n) { \
    return fill1(FN_cuMemsetD##bits##_v2, 0, (struct fill_params){d, v, n, NULL}, sizeof(T), 0); \
  } \
  API(cuMemsetD##bits##_v2_ptds)(CUdeviceptr d, T v, size_t n) { \
    return fill1(FN_cuMemsetD##bits##_v2_ptds, 1, (struct fill_params){d, v, n, NULL}, sizeof(T), 0); \
  } \
  API(cuMemsetD##bits##Async)(CUdeviceptr d, T v, size_t n, CUstream h) { \
    return fill1(FN_cuMemsetD##bits##Async, 0, (struct fill_params){d, v, n, h}, sizeof(T), 1); \
  } \
  API(cuMemsetD##bits##Async_ptsz)(CUdeviceptr d, T v, size_t n, CUstream h) { \
    return fill1(FN_cuMemsetD##bits##Async_ptsz, 1, (struct fill_params){d, v, n, h}, sizeof(T), 1); \
  } \
  API(cuMemsetD2D##bits##_v2)(CUdeviceptr d, size_t pitch UNUSED, T v, size_t w, size_t n) { \
    return fill(FN_cuMemsetD2D##bits##_v2, 0, d, w * n * sizeof(T), v, 0, NULL); \
  } \
  API(cuMemsetD2D##bits##_v2_ptds)(CUdeviceptr d, size_t pitch UNUSED, T v, size_t w, size_t n) { \
    return fill(FN_cuMemsetD2D##bits##_v2_ptds, 1, d, w * n * sizeof(T), v, 0, NULL); \
  } \
  API(cuMemsetD2D##bits##Async)(CUdeviceptr d, size_t pitch UNUSED, T v, size_t w, size_t n, CUstream h) { \
    return fill(FN_cuMemsetD2D##bits##Async, 0, d, w * n * sizeof(T), v, 1, h); \
  } \
  API(cuMemsetD2D##bits##Async_ptsz)(CUdeviceptr d, size_t pitch UNUSED, T v, size_t w, size_t n, CUstream h) { \
    return fill(FN_cuMemsetD2D##bits##Async_ptsz, 1, d, w * n * sizeof(T), v, 1, h); \
  }
FILL(8, uint8_t)
FILL(16, uint16_t)
FILL(32, uint32_t)
