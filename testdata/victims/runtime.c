// The victim's calls through the runtime API.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
} rt;

static const struct {
  const char *name;
  size_t at;
  const char *pt; // suffix of the per-thread default stream variant, or null
} symbols[] = {
#define S(field, name, pt) {name, offsetof(__typeof__(rt), field), pt},
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

#define CALL(fn, ...) do { int r_ = rt.fn(__VA_ARGS__); if (r_) { failed = #fn; return r_; } } while (0)

static handle streams[MAX_STREAMS], events[MAX_EVENTS];
static void **binary;
static struct {
  char *name; // its address is what the runtime knows the kernel by
} kernels[64];
static int kernel_count;
static void *device_buffer[2], *host_buffer[2]; // host: pageable, pinned
static size_t device_size, host_size[2];

static int setup(void *(*sym)(const char *)) {
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", symbols[i].name, per_thread && symbols[i].pt ? symbols[i].pt : "");
    void *p = sym(name);
    if (!p) die("the library has no %s", name);
    *(void **)((char *)&rt + symbols[i].at) = p;
  }
  kernel_count = 0;
  memset(streams, 0, sizeof streams);
  memset(events, 0, sizeof events);
  device_size = host_size[1] = 0;
  binary = rt.registerFatBinary("image");
  rt.registerFatBinaryEnd(binary);
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
  rt.registerFunction(binary, &kernels[at], name, name, -1, NULL, NULL, NULL, NULL, NULL);
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

static int need_host(size_t bytes, int pinned) {
  if (bytes <= host_size[pinned]) return 0;
  host_size[pinned] = buffer_size(bytes);
  if (pinned) CALL(cudaHostAlloc, &host_buffer[1], host_size[1], 0);
  else
    host_buffer[0] =
        mmap(NULL, host_size[0], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return host_buffer[pinned] == MAP_FAILED ? 2 : 0;
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

static int stream_sync(int i) {
  CALL(cudaStreamSynchronize, streams[i]);
  return 0;
}

static int stream_query(int i) { return rt.cudaStreamQuery(streams[i]); }

static int event_record(int ev, int s) {
  if (!events[ev]) CALL(cudaEventCreate, &events[ev]);
  CALL(cudaEventRecord, events[ev], streams[s]);
  return 0;
}

static int event_wait(int ev, int s) {
  CALL(cudaStreamWaitEvent, streams[s], events[ev], 0);
  return 0;
}

static int event_sync(int ev) {
  CALL(cudaEventSynchronize, events[ev]);
  return 0;
}

static int capture_begin(int s) {
  CALL(cudaStreamBeginCapture, streams[s], 0);
  return 0;
}

static int capture_end(int s, void **exec) {
  handle graph;
  CALL(cudaStreamEndCapture, streams[s], &graph);
  CALL(cudaGraphInstantiate, exec, graph, 0);
  return 0;
}

static int graph_launch(void *exec, int s, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) CALL(cudaGraphLaunch, exec, streams[s]);
  return 0;
}

static int host_func(void (*fn)(void *), void *data, int s) {
  CALL(cudaLaunchHostFunc, streams[s], fn, data);
  return 0;
}

static int graph_update(void *exec, int stream, const struct shape *s, uint64_t n) {
  handle graph;
  struct {
    int result;
    handle bad, bad_from;
  } info;
  CALL(cudaStreamBeginCapture, streams[stream], 0);
  int e = launch(s, n);
  if (e) return e;
  CALL(cudaStreamEndCapture, streams[stream], &graph);
  CALL(cudaGraphExecUpdate, exec, graph, &info);
  CALL(cudaGraphDestroy, graph);
  return 0;
}

static int reset(void) {
  CALL(cudaDeviceReset);
  memset(streams, 0, sizeof streams);
  memset(events, 0, sizeof events);
  device_size = host_size[1] = 0;
  CALL(cudaFree, NULL);
  return 0;
}

const struct api runtime_api = {"libcudart.so.13", setup, thread_setup, launch, copy, fill, alloc, release, sync_all,
    stream_new, stream_sync, stream_query, event_record, event_wait, event_sync, capture_begin, capture_end,
    graph_launch, host_func, graph_update, reset, NULL, NULL};
