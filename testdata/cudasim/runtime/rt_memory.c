// Memory and copies.
#include "rt.h"

#define NOTE(size, p) (c.bytes = (size), c.ptr = (uint64_t)(p))

RT(cudaMalloc)(void **p, size_t n) {
  RENTER(cudaMalloc);
  c.bytes = n;
  RCONTEXT();
  int e = D(0)->cuMemAlloc((CUdeviceptr *)p, n);
  if (!e) c.ptr = (uint64_t)*p;
  RLEAVE(e);
}
RT(cudaMallocPitch)(void **p, size_t *pitch, size_t w, size_t h) {
  RENTER(cudaMallocPitch);
  RCONTEXT();
  int e = D(0)->cuMemAllocPitch((CUdeviceptr *)p, pitch, w, h, 4);
  if (!e) NOTE(*pitch * h, *p);
  RLEAVE(e);
}
RT(cudaMallocManaged)(void **p, size_t n, unsigned flags) {
  RENTER(cudaMallocManaged);
  c.bytes = n;
  RCONTEXT();
  int e = D(0)->cuMemAllocManaged((CUdeviceptr *)p, n, flags);
  if (!e) c.ptr = (uint64_t)*p;
  RLEAVE(e);
}
static cudaError_t pinned(uint32_t fn, void **p, size_t n, unsigned flags) {
  RENTER_ID(fn);
  c.bytes = n;
  RCONTEXT();
  int e = D(0)->cuMemHostAlloc(p, n, flags);
  if (!e) c.ptr = (uint64_t)*p;
  RLEAVE(e);
}
RT(cudaHostAlloc)(void **p, size_t n, unsigned flags) { return pinned(RFN_cudaHostAlloc, p, n, flags); }
RT(cudaMallocHost)(void **p, size_t n) { return pinned(RFN_cudaMallocHost, p, n, 0); }

SIMPLE(cudaFree, (void *p), (c.ptr = (uint64_t)p, p ? D(0)->cuMemFree((CUdeviceptr)p) : 0))
SIMPLE(cudaFreeHost, (void *p), (c.ptr = (uint64_t)p, D(0)->cuMemFreeHost(p)))
SIMPLE(cudaHostRegister, (void *p, size_t n, unsigned flags), (NOTE(n, p), D(0)->cuMemHostRegister(p, n, flags)))
SIMPLE(cudaHostUnregister, (void *p), (c.ptr = (uint64_t)p, D(0)->cuMemHostUnregister(p)))
SIMPLE(cudaHostGetDevicePointer, (void **out, void *p, unsigned flags),
    D(0)->cuMemHostGetDevicePointer((CUdeviceptr *)out, p, flags))
SIMPLE(cudaMemGetInfo, (size_t *f, size_t *t), D(0)->cuMemGetInfo(f, t))

static int malloc_async(struct sim_call *c, int pt, void **p, size_t n, CUmemoryPool pool, CUstream s) {
  c->bytes = n, c->stream = (uint64_t)s;
  int e = pool ? D(pt)->cuMemAllocFromPoolAsync((CUdeviceptr *)p, n, pool, s)
               : D(pt)->cuMemAllocAsync((CUdeviceptr *)p, n, s);
  if (!e) c->ptr = (uint64_t)*p;
  return e;
}
STREAMED(cudaMallocAsync, _ptsz, (void **p, size_t n, cudaStream_t s), (p, n, s), malloc_async(&c, pt, p, n, NULL, s))
STREAMED(cudaMallocFromPoolAsync, _ptsz, (void **p, size_t n, CUmemoryPool pool, cudaStream_t s), (p, n, pool, s),
    malloc_async(&c, pt, p, n, pool, s))
STREAMED(cudaFreeAsync, _ptsz, (void *p, cudaStream_t s), (p, s),
    (c.ptr = (uint64_t)p, c.stream = (uint64_t)s, D(pt)->cuMemFreeAsync((CUdeviceptr)p, s)))

SIMPLE(cudaDeviceGetDefaultMemPool, (CUmemoryPool *out, int dev), D(0)->cuDeviceGetDefaultMemPool(out, dev))
SIMPLE(cudaMemPoolCreate, (CUmemoryPool *out, const void *props), D(0)->cuMemPoolCreate(out, props))
SIMPLE(cudaMemPoolDestroy, (CUmemoryPool p), D(0)->cuMemPoolDestroy(p))
SIMPLE(cudaMemPoolTrimTo, (CUmemoryPool p, size_t keep), D(0)->cuMemPoolTrimTo(p, keep))
SIMPLE(cudaMemPoolSetAttribute, (CUmemoryPool p, int a, void *v), D(0)->cuMemPoolSetAttribute(p, a, v))
SIMPLE(cudaMemPoolGetAttribute, (CUmemoryPool p, int a, void *v), D(0)->cuMemPoolGetAttribute(p, a, v))

enum { KIND_H2H, KIND_H2D, KIND_D2H, KIND_D2D, KIND_DEFAULT }; // cudaMemcpyKind

static uint32_t truth_kind(int kind) {
  static const uint32_t kinds[] = {9, 1, 2, 8, 0}; // the numbers of truth_file.h
  return kind >= 0 && kind <= KIND_DEFAULT ? kinds[kind] : 0;
}

static void note_copy(struct sim_call *c, void *d, const void *s, size_t n, int kind, CUstream st) {
  c->bytes = n, c->ptr = (uint64_t)d, c->ptr2 = (uint64_t)s, c->kind = truth_kind(kind), c->stream = (uint64_t)st;
}

static int copy(struct sim_call *c, int pt, void *d, const void *s, size_t n, int kind) {
  note_copy(c, d, s, n, kind, NULL);
  switch (kind) {
  case KIND_H2D: return D(pt)->cuMemcpyHtoD((CUdeviceptr)d, s, n);
  case KIND_D2H: return D(pt)->cuMemcpyDtoH(d, (CUdeviceptr)s, n);
  case KIND_D2D: return D(pt)->cuMemcpyDtoD((CUdeviceptr)d, (CUdeviceptr)s, n);
  case KIND_H2H: case KIND_DEFAULT: return D(pt)->cuMemcpy((CUdeviceptr)d, (CUdeviceptr)s, n);
  default: return 21; // cudaErrorInvalidMemcpyDirection
  }
}
static int copy_async(struct sim_call *c, int pt, void *d, const void *s, size_t n, int kind, CUstream st) {
  note_copy(c, d, s, n, kind, st);
  switch (kind) {
  case KIND_H2D: return D(pt)->cuMemcpyHtoDAsync((CUdeviceptr)d, s, n, st);
  case KIND_D2H: return D(pt)->cuMemcpyDtoHAsync(d, (CUdeviceptr)s, n, st);
  case KIND_D2D: return D(pt)->cuMemcpyDtoDAsync((CUdeviceptr)d, (CUdeviceptr)s, n, st);
  case KIND_H2H: case KIND_DEFAULT: return D(pt)->cuMemcpyAsync((CUdeviceptr)d, (CUdeviceptr)s, n, st);
  default: return 21;
  }
}
STREAMED(cudaMemcpy, _ptds, (void *d, const void *s, size_t n, int kind), (d, s, n, kind), copy(&c, pt, d, s, n, kind))
STREAMED(cudaMemcpyAsync, _ptsz, (void *d, const void *s, size_t n, int kind, cudaStream_t st), (d, s, n, kind, st),
    copy_async(&c, pt, d, s, n, kind, st))

static int primary(int dev, CUcontext *out) { return D(0)->cuDevicePrimaryCtxRetain(out, dev); }
static int peer(struct sim_call *c, int pt, void *d, int dd, const void *s, int sd, size_t n, int async, CUstream st) {
  CUcontext dc, sc;
  note_copy(c, d, s, n, KIND_D2D, st);
  int e = primary(dd, &dc);
  if (!e) e = primary(sd, &sc);
  if (e) return e;
  return async ? D(pt)->cuMemcpyPeerAsync((CUdeviceptr)d, dc, (CUdeviceptr)s, sc, n, st)
               : D(pt)->cuMemcpyPeer((CUdeviceptr)d, dc, (CUdeviceptr)s, sc, n);
}
SIMPLE(cudaMemcpyPeer, (void *d, int dd, const void *s, int sd, size_t n), peer(&c, 0, d, dd, s, sd, n, 0, NULL))
SIMPLE(cudaMemcpyPeerAsync, (void *d, int dd, const void *s, int sd, size_t n, cudaStream_t st),
    peer(&c, 0, d, dd, s, sd, n, 1, st))

static int symbol(
    struct sim_call *c, int pt, const void *sym, void *host, size_t n, size_t off, int to, int async, CUstream st) {
  CUdeviceptr p;
  int e = rt_symbol(sym, &p, NULL);
  if (e) return e;
  void *dev = (void *)(uintptr_t)(p + off);
  int kind = to ? KIND_H2D : KIND_D2H;
  return async ? copy_async(c, pt, to ? dev : host, to ? host : dev, n, kind, st)
               : copy(c, pt, to ? dev : host, to ? host : dev, n, kind);
}
STREAMED(cudaMemcpyToSymbol, _ptds, (const void *sym, void *s, size_t n, size_t off, int kind), (sym, s, n, off, kind),
    ((void)kind, symbol(&c, pt, sym, s, n, off, 1, 0, NULL)))
STREAMED(cudaMemcpyFromSymbol, _ptds, (void *d, const void *sym, size_t n, size_t off, int kind),
    (d, sym, n, off, kind), ((void)kind, symbol(&c, pt, sym, d, n, off, 0, 0, NULL)))
STREAMED(cudaMemcpyToSymbolAsync, _ptsz, (const void *sym, void *s, size_t n, size_t off, int kind, cudaStream_t st),
    (sym, s, n, off, kind, st), ((void)kind, symbol(&c, pt, sym, s, n, off, 1, 1, st)))
STREAMED(cudaMemcpyFromSymbolAsync, _ptsz, (void *d, const void *sym, size_t n, size_t off, int kind, cudaStream_t st),
    (d, sym, n, off, kind, st), ((void)kind, symbol(&c, pt, sym, d, n, off, 0, 1, st)))
SIMPLE(cudaGetSymbolAddress, (void **out, const void *sym), rt_symbol(sym, (CUdeviceptr *)out, NULL))

static void ends(int kind, int *src, int *dst) {
  static const int from[] = {MEM_HOST, MEM_HOST, MEM_DEVICE, MEM_DEVICE, MEM_UNIFIED},
                   to[] = {MEM_HOST, MEM_DEVICE, MEM_HOST, MEM_DEVICE, MEM_UNIFIED};
  if (kind < 0 || kind > KIND_DEFAULT) kind = KIND_DEFAULT;
  *src = from[kind], *dst = to[kind];
}

static int copy2d(struct sim_call *c, int pt, void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h,
    int kind, int async, CUstream st) {
  CUDA_MEMCPY2D p = {.src_host = s,
      .src_device = (CUdeviceptr)s, .src_pitch = sp, .dst_host = d, .dst_device = (CUdeviceptr)d, .dst_pitch = dp,
      .width = w,
      .height = h};
  note_copy(c, d, s, w * h, kind, st);
  ends(kind, &p.src_type, &p.dst_type);
  return async ? D(pt)->cuMemcpy2DAsync(&p, st) : D(pt)->cuMemcpy2DUnaligned(&p);
}
STREAMED(cudaMemcpy2D, _ptds, (void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind),
    (d, dp, s, sp, w, h, kind), copy2d(&c, pt, d, dp, s, sp, w, h, kind, 0, NULL))
STREAMED(cudaMemcpy2DAsync, _ptsz,
    (void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind, cudaStream_t st),
    (d, dp, s, sp, w, h, kind, st), copy2d(&c, pt, d, dp, s, sp, w, h, kind, 1, st))

struct pitched {
  void *ptr;
  size_t pitch, xsize, ysize;
};
struct copy3d { // cudaMemcpy3DParms
  void *src_array;
  size_t src_pos[3];
  struct pitched src;
  void *dst_array;
  size_t dst_pos[3];
  struct pitched dst;
  size_t width, height, depth;
  int kind;
};
static int copy3d(struct sim_call *c, int pt, const struct copy3d *k, int async, CUstream st) {
  CUDA_MEMCPY3D p = {.src_host = k->src.ptr,
      .src_device = (CUdeviceptr)k->src.ptr, .dst_host = k->dst.ptr, .dst_device = (CUdeviceptr)k->dst.ptr,
      .width = k->width, .height = k->height,
      .depth = k->depth};
  note_copy(c, k->dst.ptr, k->src.ptr, k->width * k->height * k->depth, k->kind, st);
  ends(k->kind, &p.src_type, &p.dst_type);
  return async ? D(pt)->cuMemcpy3DAsync(&p, st) : D(pt)->cuMemcpy3D(&p);
}
STREAMED(cudaMemcpy3D, _ptds, (const struct copy3d *p), (p), copy3d(&c, pt, p, 0, NULL))
STREAMED(cudaMemcpy3DAsync, _ptsz, (const struct copy3d *p, cudaStream_t st), (p, st), copy3d(&c, pt, p, 1, st))

STREAMED(cudaMemset, _ptds, (void *d, int v, size_t n), (d, v, n),
    (NOTE(n, d), D(pt)->cuMemsetD8((CUdeviceptr)d, (unsigned char)v, n)))
STREAMED(cudaMemsetAsync, _ptsz, (void *d, int v, size_t n, cudaStream_t s), (d, v, n, s),
    (NOTE(n, d), c.stream = (uint64_t)s, D(pt)->cuMemsetD8Async((CUdeviceptr)d, (unsigned char)v, n, s)))
STREAMED(cudaMemset2D, _ptds, (void *d, size_t p, int v, size_t w, size_t h), (d, p, v, w, h),
    (NOTE(w * h, d), D(pt)->cuMemsetD2D8((CUdeviceptr)d, p, (unsigned char)v, w, h)))
STREAMED(cudaMemset2DAsync, _ptsz, (void *d, size_t p, int v, size_t w, size_t h, cudaStream_t s), (d, p, v, w, h, s),
    (NOTE(w * h, d), c.stream = (uint64_t)s, D(pt)->cuMemsetD2D8Async((CUdeviceptr)d, p, (unsigned char)v, w, h, s)))

struct pointer_attributes { // cudaPointerAttributes
  int type, device;
  void *device_pointer, *host_pointer;
};
RT(cudaPointerGetAttributes)(struct pointer_attributes *out, const void *p) {
  RENTER(cudaPointerGetAttributes);
  RCONTEXT();
  unsigned type = 0, managed = 0;
  *out = (struct pointer_attributes){0, -2, NULL, NULL};
  if (D(0)->cuPointerGetAttribute(&type, 2, (CUdeviceptr)p)) RLEAVE(0); // plain host memory
  D(0)->cuPointerGetAttribute(&managed, 8, (CUdeviceptr)p);
  D(0)->cuPointerGetAttribute(&out->device, 9, (CUdeviceptr)p);
  out->type = managed ? 3 : (int)type;
  out->device_pointer = (void *)(uintptr_t)p;
  RLEAVE(0);
}
