// The victim's calls through the runtime API.
#include "victim.h"

typedef void *handle;
typedef struct { unsigned x, y, z; } dim3;
struct config {
  dim3 grid, block;
  size_t shared;
  handle stream, attrs;
  unsigned n;
};
enum { H2D = 1, D2H = 2, D2D = 3 }; // cudaMemcpyKind

static struct {
  void **(*registerFatBinary)(const void *);
  void (*registerFatBinaryEnd)(void **),
      (*registerFunction)(
          void **, const void *, const char *, const char *, int, void *, void *, void *, void *, int *);
  int (*cudaSetDevice)(int), (*cudaFree)(void *), (*cudaMalloc)(void **, size_t),
      (*cudaHostAlloc)(void **, size_t, unsigned), (*cudaDeviceSynchronize)(void);
  int (*cudaLaunchKernel)(const void *, dim3, dim3, void **, size_t, handle),
      (*cudaLaunchKernelExC)(const struct config *, const void *, void **);
  int (*cudaLaunchCooperativeKernel)(const void *, dim3, dim3, void **, size_t, handle);
  int (*cudaMallocAsync)(void **, size_t, handle), (*cudaFreeAsync)(void *, handle);
  int (*cudaMemcpy)(void *, const void *, size_t, int), (*cudaMemcpyAsync)(void *, const void *, size_t, int, handle);
  int (*cudaMemset)(void *, int, size_t), (*cudaMemsetAsync)(void *, int, size_t, handle);
  int (*cudaStreamCreateWithFlags)(handle *, unsigned), (*cudaStreamSynchronize)(handle), (*cudaStreamQuery)(handle),
      (*cudaStreamWaitEvent)(handle, handle, unsigned);
  int (*cudaEventCreate)(handle *), (*cudaEventRecord)(handle, handle), (*cudaEventSynchronize)(handle);
  int (*cudaStreamBeginCapture)(handle, int), (*cudaStreamEndCapture)(handle, handle *),
      (*cudaGraphInstantiate)(handle *, handle, unsigned long long);
  int (*cudaGraphLaunch)(handle, handle), (*cudaLaunchHostFunc)(handle, void (*)(void *), void *);
  int (*cudaGraphExecUpdate)(handle, handle, void *), (*cudaGraphDestroy)(handle), (*cudaDeviceReset)(void);
} lib;

static const struct {
  const char *name;
  size_t at;
  const char *pt; // suffix of the per-thread default stream variant, or null
} symbols[] = {
#define S(field, name, pt) {name, offsetof(__typeof__(lib), field), pt},
#define N(field) S(field, #field, NULL)
#define Z(field) S(field, #field, "_ptsz")
    S(registerFatBinary, "__cudaRegisterFatBinary", NULL) S(registerFatBinaryEnd, "__cudaRegisterFatBinaryEnd", NULL)
        S(registerFunction, "__cudaRegisterFunction", NULL) N(cudaSetDevice) N(cudaFree) N(cudaMalloc) N(cudaHostAlloc)
            N(cudaDeviceSynchronize) Z(cudaLaunchKernel) Z(cudaLaunchKernelExC) Z(cudaLaunchCooperativeKernel)
                Z(cudaMallocAsync) Z(cudaFreeAsync) S(cudaMemcpy, "cudaMemcpy", "_ptds") Z(cudaMemcpyAsync)
                    S(cudaMemset, "cudaMemset", "_ptds") Z(cudaMemsetAsync) N(cudaStreamCreateWithFlags)
                        Z(cudaStreamSynchronize) Z(cudaStreamQuery) Z(cudaStreamWaitEvent) N(cudaEventCreate)
                            Z(cudaEventRecord) N(cudaEventSynchronize) Z(cudaStreamBeginCapture) Z(cudaStreamEndCapture)
                                N(cudaGraphInstantiate) Z(cudaGraphLaunch) Z(cudaLaunchHostFunc) N(cudaGraphExecUpdate)
                                    N(cudaGraphDestroy) N(cudaDeviceReset)};

#define NAME(x) cuda##x
#define HOST_ALLOC cudaHostAlloc
#include "calls.h"

static void **binary;
static struct {
  char *name; // its address is what the runtime knows the kernel by
} kernels[64];
static void *device_buffer[2];

static int setup(void *(*sym)(const char *)) {
  resolve(sym);
  kernel_count = 0;
  forget();
  binary = lib.registerFatBinary("image");
  lib.registerFatBinaryEnd(binary);
  CALL(cudaFree, NULL); // the usual way to have a context made now
  return 0;
}

static int thread_setup(void) {
  CALL(cudaSetDevice, 0);
  return 0;
}

// The name comes last: another thread that finds it launches the kernel at once.
static const void *kernel(const char *name) {
  for (int i = 0; i < kernel_count; i++) {
    const char *known = __atomic_load_n(&kernels[i].name, __ATOMIC_ACQUIRE);
    if (known && !strcmp(known, name)) return &kernels[i];
  }
  int at = kernel_count < 64 ? __atomic_fetch_add(&kernel_count, 1, __ATOMIC_RELAXED) : 63;
  lib.registerFunction(binary, &kernels[at], name, name, -1, NULL, NULL, NULL, NULL, NULL);
  __atomic_store_n(&kernels[at].name, strdup(name), __ATOMIC_RELEASE);
  return &kernels[at];
}

static int launch(const struct shape *s, uint64_t n) {
  const void *f = kernel(s->kernel);
  dim3 g = {s->grid[0], s->grid[1], s->grid[2]}, b = {s->block[0], s->block[1], s->block[2]};
  struct config c = {g, b, s->shared, streams[s->stream], NULL, 0};
  for (uint64_t i = 0; i < n; i++) {
    if (s->how == 'x') CALL(cudaLaunchKernelExC, &c, f, NULL);
    else if (s->how == 'c') CALL(cudaLaunchCooperativeKernel, f, g, b, NULL, s->shared, c.stream);
    else CALL(cudaLaunchKernel, f, g, b, NULL, s->shared, c.stream);
  }
  return 0;
}

static int need_device(size_t bytes) {
  if (bytes <= device_size) return 0;
  device_size = buffer_size(bytes);
  CALL(cudaMalloc, &device_buffer[0], device_size);
  CALL(cudaMalloc, &device_buffer[1], device_size);
  return 0;
}

static int copy(const struct transfer *t, uint64_t n) {
  int e = need_device(t->bytes);
  if (!e && t->dir != DIR_D2D) e = need_host(t->bytes, t->pinned);
  if (e) return e;
  void *h = host_buffer[t->pinned];
  handle s = streams[t->stream];
  void *d = t->dir == DIR_H2D ? device_buffer[0] : t->dir == DIR_D2H ? h : device_buffer[1];
  const void *from = t->dir == DIR_H2D ? h : device_buffer[0];
  int kind = t->dir == DIR_H2D ? H2D : t->dir == DIR_D2H ? D2H : D2D;
  for (uint64_t i = 0; i < n; i++) {
    if (t->async) CALL(cudaMemcpyAsync, d, from, t->bytes, kind, s);
    else CALL(cudaMemcpy, d, from, t->bytes, kind);
  }
  return 0;
}

static int fill(size_t bytes, int async, int stream, uint64_t n) {
  int e = need_device(bytes);
  if (e) return e;
  for (uint64_t i = 0; i < n; i++) {
    if (async) CALL(cudaMemsetAsync, device_buffer[0], 0, bytes, streams[stream]);
    else CALL(cudaMemset, device_buffer[0], 0, bytes);
  }
  return 0;
}

static int alloc(size_t bytes, void **out, int async) {
  if (async) CALL(cudaMallocAsync, out, bytes, NULL);
  else CALL(cudaMalloc, out, bytes);
  return 0;
}

static int release(void *p, int async) {
  if (async) CALL(cudaFreeAsync, p, NULL);
  else CALL(cudaFree, p);
  return 0;
}

static int sync_all(void) {
  CALL(cudaDeviceSynchronize);
  return 0;
}

static int stream_new(int nonblocking, int i) {
  CALL(cudaStreamCreateWithFlags, &streams[i], (unsigned)nonblocking);
  return 0;
}

static int event_record(int ev, int s) {
  if (!events[ev]) CALL(cudaEventCreate, &events[ev]);
  CALL(cudaEventRecord, events[ev], streams[s]);
  return 0;
}

static int reset(void) {
  CALL(cudaDeviceReset);
  forget();
  CALL(cudaFree, NULL);
  return 0;
}

const struct api runtime_api = {"libcudart.so.13", setup, thread_setup, launch, copy, fill, alloc, release, sync_all,
    stream_new, stream_sync, stream_query, event_record, event_wait, event_sync, capture_begin, capture_end,
    graph_launch, host_func, graph_update, reset, NULL, NULL};
