// The victim's calls through the driver API.
#include "victim.h"

typedef uint64_t ptr_t;
typedef void *handle;
struct config {
  unsigned gx, gy, gz, bx, by, bz, shared;
  handle stream, attrs;
  unsigned n;
};

static struct {
  int (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(handle *, int),
      (*cuCtxSetCurrent)(handle);
  int (*cuModuleLoadData)(handle *, const void *), (*cuModuleGetFunction)(handle *, handle, const char *);
  int (*cuLaunchKernel)(
      handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
  int (*cuLaunchKernelEx)(const struct config *, handle, void **, void **);
  int (*cuLaunchCooperativeKernel)(
      handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **);
  int (*cuMemAlloc)(ptr_t *, size_t), (*cuMemAllocAsync)(ptr_t *, size_t, handle), (*cuMemFree)(ptr_t),
      (*cuMemFreeAsync)(ptr_t, handle);
  int (*cuMemHostAlloc)(void **, size_t, unsigned);
  int (*cuMemcpyHtoD)(ptr_t, const void *, size_t), (*cuMemcpyDtoH)(void *, ptr_t, size_t),
      (*cuMemcpyDtoD)(ptr_t, ptr_t, size_t);
  int (*cuMemcpyHtoDAsync)(ptr_t, const void *, size_t, handle), (*cuMemcpyDtoHAsync)(void *, ptr_t, size_t, handle),
      (*cuMemcpyDtoDAsync)(ptr_t, ptr_t, size_t, handle);
  int (*cuMemsetD8)(ptr_t, unsigned char, size_t), (*cuMemsetD8Async)(ptr_t, unsigned char, size_t, handle);
  int (*cuCtxSynchronize)(void), (*cuStreamCreate)(handle *, unsigned), (*cuStreamSynchronize)(handle),
      (*cuStreamQuery)(handle);
  int (*cuStreamWaitEvent)(handle, handle, unsigned), (*cuEventCreate)(handle *, unsigned),
      (*cuEventRecord)(handle, handle), (*cuEventSynchronize)(handle);
  int (*cuStreamBeginCapture)(handle, int), (*cuStreamEndCapture)(handle, handle *),
      (*cuGraphInstantiate)(handle *, handle, unsigned long long);
  int (*cuGraphLaunch)(handle, handle), (*cuLaunchHostFunc)(handle, void (*)(void *), void *);
  int (*cuGraphExecUpdate)(handle, handle, void *), (*cuGraphDestroy)(handle), (*cuDevicePrimaryCtxReset)(int),
      (*cuCtxCreate)(handle *, unsigned, int);
  int (*cuMemcpyPeerAsync)(ptr_t, handle, ptr_t, handle, size_t, handle);
} lib;

static const struct {
  const char *name;
  size_t at;
  const char *pt; // suffix of the per-thread default stream variant, or null
} symbols[] = {
#define S(field, name, pt) {name, offsetof(__typeof__(lib), field), pt},
#define N(field) S(field, #field, NULL)
    N(cuInit) N(cuDeviceGet) N(cuDevicePrimaryCtxRetain) N(cuCtxSetCurrent) N(cuModuleLoadData) N(
        cuModuleGetFunction) N(cuCtxSynchronize) N(cuMemHostAlloc) S(cuLaunchKernel, "cuLaunchKernel",
        "_ptsz") S(cuLaunchKernelEx, "cuLaunchKernelEx", "_ptsz") S(cuLaunchCooperativeKernel,
        "cuLaunchCooperativeKernel", "_ptsz") S(cuMemAlloc, "cuMemAlloc_v2", NULL) S(cuMemAllocAsync, "cuMemAllocAsync",
        "_ptsz") S(cuMemFree, "cuMemFree_v2", NULL) S(cuMemFreeAsync, "cuMemFreeAsync", "_ptsz") S(cuMemcpyHtoD,
        "cuMemcpyHtoD_v2", "_ptds") S(cuMemcpyDtoH, "cuMemcpyDtoH_v2", "_ptds") S(cuMemcpyDtoD, "cuMemcpyDtoD_v2",
        "_ptds") S(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", "_ptsz") S(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",
        "_ptsz") S(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", "_ptsz") S(cuMemsetD8, "cuMemsetD8_v2", "_ptds")
        S(cuMemsetD8Async, "cuMemsetD8Async", "_ptsz") N(cuStreamCreate) S(cuStreamSynchronize, "cuStreamSynchronize",
            "_ptsz") S(cuStreamQuery, "cuStreamQuery", "_ptsz") S(cuStreamWaitEvent, "cuStreamWaitEvent", "_ptsz")
            N(cuEventCreate) S(cuEventRecord, "cuEventRecord", "_ptsz") N(cuEventSynchronize) S(cuStreamBeginCapture,
                "cuStreamBeginCapture_v2", "_ptsz") S(cuStreamEndCapture, "cuStreamEndCapture", "_ptsz")
                S(cuGraphInstantiate, "cuGraphInstantiateWithFlags", NULL) S(cuGraphExecUpdate, "cuGraphExecUpdate_v2",
                    NULL) N(cuGraphDestroy) S(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", NULL)
                    S(cuCtxCreate, "cuCtxCreate_v2", NULL) S(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", "_ptsz")
                        S(cuGraphLaunch, "cuGraphLaunch", "_ptsz") S(cuLaunchHostFunc, "cuLaunchHostFunc", "_ptsz")};

#define NAME(x) cu##x
#define HOST_ALLOC cuMemHostAlloc
#include "calls.h"

static handle context, contexts[MAX_STREAMS], module;
static struct {
  char *name;
  handle f;
} kernels[64];
static ptr_t device_buffer[2];

// use makes a context the current one. Kernels are those of a module, and so of a context.
static int use(handle c) {
  kernel_count = 0;
  CALL(cuCtxSetCurrent, c);
  CALL(cuModuleLoadData, &module, "image");
  return 0;
}

static int setup(void *(*sym)(const char *)) {
  resolve(sym);
  int dev;
  forget();
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &dev, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, dev);
  return use(context);
}

static int thread_setup(void) {
  CALL(cuCtxSetCurrent, context);
  return 0;
}

// kernel finds a function by name, asking the driver once for each name. Threads start after their block was parsed,
// so a race here only asks twice; a name that is counted may not be there yet.
static int kernel(const char *name, handle *out) {
  for (int i = 0; i < kernel_count; i++)
    if (kernels[i].name && !strcmp(kernels[i].name, name)) return *out = kernels[i].f, 0;
  CALL(cuModuleGetFunction, out, module, name);
  int at = kernel_count < 64 ? __atomic_fetch_add(&kernel_count, 1, __ATOMIC_RELAXED) : 63;
  kernels[at].f = *out;
  kernels[at].name = strdup(name);
  return 0;
}

static int launch(const struct shape *s, uint64_t n) {
  handle f, st = streams[s->stream];
  int e = kernel(s->kernel, &f);
  if (e) return e;
  const unsigned *g = s->grid, *b = s->block;
  struct config c = {g[0], g[1], g[2], b[0], b[1], b[2], s->shared, st, NULL, 0};
  for (uint64_t i = 0; i < n; i++) {
    if (s->how == 'x') CALL(cuLaunchKernelEx, &c, f, NULL, NULL);
    else if (s->how == 'c') CALL(cuLaunchCooperativeKernel, f, g[0], g[1], g[2], b[0], b[1], b[2], s->shared, st, NULL);
    else CALL(cuLaunchKernel, f, g[0], g[1], g[2], b[0], b[1], b[2], s->shared, st, NULL, NULL);
  }
  return 0;
}

static int need_device(size_t bytes) {
  if (bytes <= device_size) return 0;
  device_size = buffer_size(bytes);
  CALL(cuMemAlloc, &device_buffer[0], device_size);
  CALL(cuMemAlloc, &device_buffer[1], device_size);
  return 0;
}

static int copy(const struct transfer *t, uint64_t n) {
  int e = need_device(t->bytes);
  if (!e && t->dir != DIR_D2D) e = need_host(t->bytes, t->pinned);
  if (e) return e;
  void *h = host_buffer[t->pinned];
  handle s = streams[t->stream];
  for (uint64_t i = 0; i < n; i++) {
    if (t->dir == DIR_H2D && t->async) CALL(cuMemcpyHtoDAsync, device_buffer[0], h, t->bytes, s);
    else if (t->dir == DIR_H2D) CALL(cuMemcpyHtoD, device_buffer[0], h, t->bytes);
    else if (t->dir == DIR_D2H && t->async) CALL(cuMemcpyDtoHAsync, h, device_buffer[0], t->bytes, s);
    else if (t->dir == DIR_D2H) CALL(cuMemcpyDtoH, h, device_buffer[0], t->bytes);
    else if (t->async) CALL(cuMemcpyDtoDAsync, device_buffer[1], device_buffer[0], t->bytes, s);
    else CALL(cuMemcpyDtoD, device_buffer[1], device_buffer[0], t->bytes);
  }
  return 0;
}

static int fill(size_t bytes, int async, int stream, uint64_t n) {
  int e = need_device(bytes);
  if (e) return e;
  for (uint64_t i = 0; i < n; i++) {
    if (async) CALL(cuMemsetD8Async, device_buffer[0], 0, bytes, streams[stream]);
    else CALL(cuMemsetD8, device_buffer[0], 0, bytes);
  }
  return 0;
}

static int alloc(size_t bytes, void **out, int async) {
  if (async) CALL(cuMemAllocAsync, (ptr_t *)out, bytes, NULL);
  else CALL(cuMemAlloc, (ptr_t *)out, bytes);
  return 0;
}

static int release(void *p, int async) {
  if (async) CALL(cuMemFreeAsync, (ptr_t)p, NULL);
  else CALL(cuMemFree, (ptr_t)p);
  return 0;
}

static int sync_all(void) {
  CALL(cuCtxSynchronize);
  return 0;
}

static int stream_new(int nonblocking, int i) {
  CALL(cuStreamCreate, &streams[i], (unsigned)nonblocking);
  return 0;
}

static int event_record(int ev, int s) {
  if (!events[ev]) CALL(cuEventCreate, &events[ev], 0);
  CALL(cuEventRecord, events[ev], streams[s]);
  return 0;
}

static int reset(void) {
  CALL(cuDevicePrimaryCtxReset, 0);
  forget();
  CALL(cuDevicePrimaryCtxRetain, &context, 0);
  return use(context);
}

static int other_context(int n) {
  forget();
  contexts[0] = context;
  if (contexts[n]) return use(contexts[n]);
  CALL(cuCtxCreate, &contexts[n], 0, 0);
  return use(contexts[n]);
}

static int peer(size_t bytes, uint64_t n) {
  static handle other;
  static ptr_t there;
  int e = need_device(bytes);
  if (e) return e;
  if (!other) {
    CALL(cuDevicePrimaryCtxRetain, &other, 1);
    CALL(cuCtxSetCurrent, other);
    CALL(cuMemAlloc, &there, device_size);
    CALL(cuCtxSetCurrent, context);
  }
  for (uint64_t i = 0; i < n; i++) {
    CALL(cuMemcpyPeerAsync, there, other, device_buffer[0], context, bytes, NULL);
    CALL(cuMemcpyPeerAsync, device_buffer[0], context, there, other, bytes, NULL);
  }
  return 0;
}

const struct api driver_api = {"libcuda.so.1", setup, thread_setup, launch, copy, fill, alloc, release, sync_all,
    stream_new, stream_sync, stream_query, event_record, event_wait, event_sync, capture_begin, capture_end,
    graph_launch, host_func, graph_update, reset, other_context, peer};
