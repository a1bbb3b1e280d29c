// Allocation, registration and questions about memory.
#include <sys/mman.h>
#include "sim.h"

static int note_alloc(struct sim_call *c, size_t bytes, uint64_t ptr) {
  c->bytes = bytes;
  c->ptr = ptr;
  spin_ns(sim.cfg.alloc_ns);
  return OK;
}

API(cuMemAlloc_v2)(CUdeviceptr *ptr, size_t bytes) {
  ENTER(cuMemAlloc_v2);
  NEED_CONTEXT(dev);
  NEED(ptr, E_INVALID_VALUE);
  c.bytes = bytes;
  int e = device_alloc(dev, bytes, ptr);
  LEAVE(e ? e : note_alloc(&c, bytes, *ptr));
}

API(cuMemAllocPitch_v2)(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element UNUSED) {
  ENTER(cuMemAllocPitch_v2);
  NEED_CONTEXT(dev);
  *pitch = (width + 511) & ~511ull;
  c.bytes = *pitch * height;
  int e = device_alloc(dev, c.bytes, ptr);
  LEAVE(e ? e : note_alloc(&c, c.bytes, *ptr));
}

API(cuMemAllocManaged)(CUdeviceptr *ptr, size_t bytes, unsigned flags UNUSED) {
  ENTER(cuMemAllocManaged);
  NEED_CONTEXT(dev);
  void *p = NULL;
  c.bytes = bytes;
  int e = host_alloc(bytes, RANGE_MANAGED, dev->index, &p);
  *ptr = (uint64_t)p;
  LEAVE(e ? e : note_alloc(&c, bytes, *ptr));
}

// alloc_async is stream ordered: the pointer is good at once, the call waits for nothing.
static CUresult alloc_async(uint32_t fn, int pt, CUdeviceptr *ptr, size_t bytes, CUstream stream) {
  ENTER_ID(fn);
  struct sim_stream *s;
  c.stream = (uint64_t)stream;
  c.bytes = bytes;
  int e = resolve_stream(stream, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  e = device_alloc(s->dev, bytes, ptr);
  NEED(!e, e);
  c.ptr = *ptr;
  LEAVE(OK);
}
API(cuMemAllocAsync)(CUdeviceptr *p, size_t n, CUstream s) { return alloc_async(FN_cuMemAllocAsync, 0, p, n, s); }
API(cuMemAllocAsync_ptsz)(CUdeviceptr *p, size_t n, CUstream s) {
  return alloc_async(FN_cuMemAllocAsync_ptsz, 1, p, n, s);
}
API(cuMemAllocFromPoolAsync)(CUdeviceptr *p, size_t n, CUmemoryPool pool UNUSED, CUstream s) {
  return alloc_async(FN_cuMemAllocFromPoolAsync, 0, p, n, s);
}
API(cuMemAllocFromPoolAsync_ptsz)(CUdeviceptr *p, size_t n, CUmemoryPool pool UNUSED, CUstream s) {
  return alloc_async(FN_cuMemAllocFromPoolAsync_ptsz, 1, p, n, s);
}

static CUresult free_async(uint32_t fn, int pt, CUdeviceptr ptr, CUstream stream) {
  ENTER_ID(fn);
  struct sim_stream *s;
  struct range r = {0};
  c.stream = (uint64_t)stream;
  c.ptr = ptr;
  int e = resolve_stream(stream, pt, &s);
  NEED(!e, e);
  c.stream_id = s->id;
  NEED(!ptr || range_remove(ptr, &r), E_INVALID_VALUE);
  c.bytes = r.size;
  LEAVE(OK);
}
API(cuMemFreeAsync)(CUdeviceptr p, CUstream s) { return free_async(FN_cuMemFreeAsync, 0, p, s); }
API(cuMemFreeAsync_ptsz)(CUdeviceptr p, CUstream s) { return free_async(FN_cuMemFreeAsync_ptsz, 1, p, s); }

// cuMemFree waits for the whole device, as the real one does.
API(cuMemFree_v2)(CUdeviceptr ptr) {
  ENTER(cuMemFree_v2);
  NEED_CONTEXT(dev);
  struct range r = {0};
  c.ptr = ptr;
  NEED(!ptr || range_remove(ptr, &r), E_INVALID_VALUE);
  c.bytes = r.size;
  if (ptr) {
    sync_to(device_done(dev), 0, &c, 0, 0, 0);
    spin_ns(sim.cfg.free_ns);
  }
  LEAVE(OK);
}

static CUresult pinned(uint32_t fn, void **ptr, size_t bytes) {
  ENTER_ID(fn);
  NEED_CONTEXT(dev);
  c.bytes = bytes;
  int e = host_alloc(bytes, RANGE_PINNED, dev->index, ptr);
  LEAVE(e ? e : note_alloc(&c, bytes, (uint64_t)*ptr));
}
API(cuMemHostAlloc)(void **ptr, size_t bytes, unsigned flags UNUSED) { return pinned(FN_cuMemHostAlloc, ptr, bytes); }
API(cuMemAllocHost_v2)(void **ptr, size_t bytes) { return pinned(FN_cuMemAllocHost_v2, ptr, bytes); }

API(cuMemFreeHost)(void *ptr) {
  ENTER(cuMemFreeHost);
  NEED_CONTEXT(dev);
  struct range r = {0};
  c.ptr = (uint64_t)ptr;
  sync_to(device_done(dev), 0, &c, 0, 0, 0);
  NEED(!ptr || range_remove((uint64_t)ptr, &r), E_INVALID_VALUE);
  c.bytes = r.size;
  LEAVE(OK);
}

API(cuMemHostRegister_v2)(void *ptr, size_t bytes, unsigned flags UNUSED) {
  ENTER(cuMemHostRegister_v2);
  NEED_CONTEXT(dev);
  c.ptr = (uint64_t)ptr;
  c.bytes = bytes;
  NEED(ptr && bytes, E_INVALID_VALUE);
  LEAVE(range_add((uint64_t)ptr, bytes, RANGE_PINNED, dev->index, 1));
}

API(cuMemHostUnregister)(void *ptr) {
  ENTER(cuMemHostUnregister);
  struct range r;
  c.ptr = (uint64_t)ptr;
  NEED(range_find((uint64_t)ptr, &r) && r.registered, 713);
  LEAVE(range_remove(r.start, &r) ? OK : E_INVALID_VALUE);
}

API(cuMemHostGetDevicePointer_v2)(CUdeviceptr *out, void *ptr, unsigned flags UNUSED) {
  ENTER(cuMemHostGetDevicePointer_v2);
  NEED(memory_kind((uint64_t)ptr) == RANGE_PINNED, E_INVALID_VALUE);
  *out = (uint64_t)ptr;
  LEAVE(OK);
}

API(cuMemHostGetFlags)(unsigned *flags, void *ptr) {
  ENTER(cuMemHostGetFlags);
  NEED(memory_kind((uint64_t)ptr) == RANGE_PINNED, E_INVALID_VALUE);
  *flags = 0;
  LEAVE(OK);
}

API(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total) {
  ENTER(cuMemGetInfo_v2);
  NEED_CONTEXT(dev);
  *total = sim.cfg.memory;
  *free_bytes = sim.cfg.memory - dev->used;
  LEAVE(OK);
}

API(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *size, CUdeviceptr ptr) {
  ENTER(cuMemGetAddressRange_v2);
  struct range r;
  NEED(range_find(ptr, &r), E_NOT_FOUND);
  if (base) *base = r.start;
  if (size) *size = r.size;
  LEAVE(OK);
}

// pointer_attribute answers those that frameworks ask: 1 context, 2 memory type, 3 device pointer, 4 host pointer, 8
// managed, 9 ordinal.
static int pointer_attribute(void *out, int attribute, uint64_t ptr) {
  struct range r;
  if (!range_find(ptr, &r)) return E_INVALID_VALUE;
  switch (attribute) {
  case 1: *(void **)out = &sim.dev[r.device].primary; return OK;
  case 2: *(unsigned *)out = r.kind == RANGE_PINNED ? MEM_HOST : MEM_DEVICE; return OK;
  case 3: *(uint64_t *)out = ptr; return OK;
  case 4: *(void **)out = r.kind == RANGE_DEVICE ? NULL : (void *)(uintptr_t)ptr; return OK;
  case 8: *(unsigned *)out = r.kind == RANGE_MANAGED; return OK;
  case 9: *(int *)out = (int)r.device; return OK;
  case 11: *(uint64_t *)out = r.start; return OK;
  case 12: *(size_t *)out = r.size; return OK;
  default: return E_NOT_SUPPORTED;
  }
}

API(cuPointerGetAttribute)(void *out, int attribute, CUdeviceptr ptr) {
  ENTER(cuPointerGetAttribute);
  LEAVE(pointer_attribute(out, attribute, ptr));
}

API(cuPointerGetAttributes)(unsigned n, int *attributes, void **out, CUdeviceptr ptr) {
  ENTER(cuPointerGetAttributes);
  for (unsigned i = 0; i < n; i++)
    if (pointer_attribute(out[i], attributes[i], ptr) && attributes[i] == 2) *(unsigned *)out[i] = 0;
  LEAVE(OK);
}

// Pools exist as handles; what is allocated from them is ordinary device memory.
struct sim_pool {
  uint32_t magic;
};
static struct sim_pool default_pool = {MAGIC_POOL};

static CUresult some_pool(uint32_t fn, CUmemoryPool *out) {
  ENTER_ID(fn);
  *out = &default_pool;
  LEAVE(OK);
}
API(cuDeviceGetDefaultMemPool)(CUmemoryPool *out, CUdevice dev UNUSED) {
  return some_pool(FN_cuDeviceGetDefaultMemPool, out);
}
API(cuDeviceGetMemPool)(CUmemoryPool *out, CUdevice dev UNUSED) { return some_pool(FN_cuDeviceGetMemPool, out); }

API(cuDeviceSetMemPool)(CUdevice dev UNUSED, CUmemoryPool pool UNUSED) {
  ENTER(cuDeviceSetMemPool);
  LEAVE(OK);
}

API(cuMemPoolCreate)(CUmemoryPool *out, const void *props UNUSED) {
  ENTER(cuMemPoolCreate);
  *out = calloc(1, sizeof **out);
  NEED(*out, E_OUT_OF_MEMORY);
  (*out)->magic = MAGIC_POOL;
  c.ptr = (uint64_t)*out;
  LEAVE(OK);
}

API(cuMemPoolDestroy)(CUmemoryPool pool) {
  ENTER(cuMemPoolDestroy);
  c.ptr = (uint64_t)pool;
  NEED(LIVE(pool, MAGIC_POOL) && pool != &default_pool, E_INVALID_VALUE);
  pool->magic = 0;
  free(pool);
  LEAVE(OK);
}

API(cuMemPoolTrimTo)(CUmemoryPool pool UNUSED, size_t keep UNUSED) {
  ENTER(cuMemPoolTrimTo);
  LEAVE(OK);
}

API(cuMemPoolSetAttribute)(CUmemoryPool pool UNUSED, int attribute UNUSED, void *value UNUSED) {
  ENTER(cuMemPoolSetAttribute);
  LEAVE(OK);
}

API(cuMemPoolGetAttribute)(CUmemoryPool pool UNUSED, int attribute UNUSED, void *value) {
  ENTER(cuMemPoolGetAttribute);
  *(uint64_t *)value = 0;
  LEAVE(OK);
}

API(cuMemPoolSetAccess)(CUmemoryPool pool UNUSED, const void *map UNUSED, size_t count UNUSED) {
  ENTER(cuMemPoolSetAccess);
  LEAVE(OK);
}
