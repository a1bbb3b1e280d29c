// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// CUDA, through the driver API and, where an action begins with r, the runtime API. Each thread has a stream of its
// own.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "serving.h"

typedef uint64_t ptr_t;
typedef void *handle;
typedef struct { unsigned x, y, z; } dim3;

// What of the two APIs is used here; their headers are not needed to build this.
extern int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle);
extern int cuModuleLoadData(handle *, const void *), cuModuleUnload(handle),
    cuModuleGetFunction(handle *, handle, const char *);
extern int cuLaunchKernel(
    handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
extern int cuMemAlloc_v2(ptr_t *, size_t), cuMemFree_v2(ptr_t), cuMemHostAlloc(void **, size_t, unsigned),
    cuMemFreeHost(void *);
extern int cuMemcpyHtoD_v2(ptr_t, const void *, size_t), cuMemcpyDtoH_v2(void *, ptr_t, size_t);
extern int cuMemcpyHtoDAsync_v2(ptr_t, const void *, size_t, handle),
    cuMemcpyDtoHAsync_v2(void *, ptr_t, size_t, handle);
extern int cuStreamCreate(handle *, unsigned), cuStreamSynchronize(handle), cuStreamWaitEvent(handle, handle, unsigned);
extern int cuEventCreate(handle *, unsigned), cuEventRecord(handle, handle), cuEventSynchronize(handle),
    cuEventQuery(handle);
extern int cuStreamBeginCapture_v2(handle, int), cuStreamEndCapture(handle, handle *),
    cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
extern int cuGraphLaunch(handle, handle), cuLaunchHostFunc(handle, void (*)(void *), void *);
extern void **__cudaRegisterFatBinary(const void *);
extern void __cudaRegisterFunction(
    void **, const void *, const char *, const char *, int, void *, void *, void *, void *, int *);
extern int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, handle), cudaMalloc(void **, size_t),
    cudaFree(void *), cudaStreamSynchronize(handle);

#define CHECK(call) do { int r_ = (call); if (r_) fprintf(stderr, "%s: CUDA error %d\n", #call, r_), exit(1); } while (0)

enum { NAMES = 32, LAG = 2, GRID = 1056, BLOCK = 256, NON_BLOCKING = 1, THREAD_LOCAL = 1 };
uint64_t device_left;
static handle context, module;
static struct {
  pthread_mutex_t lock;
  struct {
    char name[64];
    handle function;
    char host; // its address names the kernel for the runtime
    int registered;
  } list[NAMES];
  int count;
} kernels = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread struct {
  handle stream, other, event, lag[LAG], graph, beside[2], done[2];
  long laps;
  void *pinned, *pageable;
  ptr_t memory;
  size_t pinned_size, pageable_size, memory_size;
} mine;

void device_open(void) {
  int device;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, "image"));
}

static handle stream(void) {
  if (!mine.stream) {
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&mine.stream, NON_BLOCKING));
  }
  return mine.stream;
}

static int find(const char *name) {
  pthread_mutex_lock(&kernels.lock);
  int i = 0;
  while (i < kernels.count && strcmp(kernels.list[i].name, name)) i++;
  if (i == NAMES) die("too many kernels");
  if (i == kernels.count) {
    CHECK(cuModuleGetFunction(&kernels.list[i].function, module, name));
    snprintf(kernels.list[i].name, sizeof kernels.list[i].name, "%s", name);
    kernels.count++;
  }
  pthread_mutex_unlock(&kernels.lock);
  return i;
}

static void launch_of(handle function, handle on, unsigned blocks) {
  CHECK(cuLaunchKernel(function, blocks, 1, 1, BLOCK, 1, 1, 0, on, NULL, NULL));
}

static void launch(handle function, handle on) { launch_of(function, on, GRID); }

static NOINLINE void forward(handle function, handle on, long n) {
  for (long i = 0; i < n; i++) launch(function, on);
}

void device_kernels(const struct action *a) { forward(kernels.list[find(a->word)].function, stream(), a->a); }

void device_small(const struct action *a) {
  handle s = stream(), f = kernels.list[find(a->word)].function;
  for (long i = 0; i < a->a; i++) launch_of(f, s, (unsigned)a->b);
}

void device_burst(const struct action *a) {
  handle s = stream(), f = kernels.list[find(a->word)].function;
  plan_begin("launch-overhead");
  for (long i = 0; i < a->a; i++) {
    work_dispatch(a->b);
    launch(f, s);
  }
  plan_end();
}

// The GPU is busy from the first kernel on. That it was idle until then is the waiting's before: it had the queue run
// empty.
void device_eager(const struct action *a) {
  handle s = stream(), f = kernels.list[find(a->word)].function;
  for (long i = 0; i < a->a; i++) {
    work_dispatch(a->b);
    if (!i) plan_late_longer();
    launch(f, s);
  }
}

void device_runtime(const struct action *a) {
  static void **binary;
  handle s = stream();
  int i = find(a->word);
  if (!binary) binary = __cudaRegisterFatBinary("image");
  char *host = &kernels.list[i].host;
  if (!kernels.list[i].registered)
    __cudaRegisterFunction(binary, host, kernels.list[i].name, kernels.list[i].name, -1, NULL, NULL, NULL, NULL, NULL);
  kernels.list[i].registered = 1;
  plan_begin("launch-overhead");
  for (long n = 0; n < a->a; n++) {
    work_dispatch(a->b);
    CHECK(cudaLaunchKernel(host, (dim3){GRID, 1, 1}, (dim3){BLOCK, 1, 1}, NULL, 0, s));
  }
  plan_end();
}

// From the moment that the last work ended to the return the GPU is idle, and it is so for no other reason than the
// waiting.
void device_wait(const struct action *a) {
  (void)a;
  plan_late_begin("host-sync");
  CHECK(cuStreamSynchronize(stream()));
  device_left = plan_now();
  plan_late_end();
}

void device_rwait(const struct action *a) {
  (void)a;
  plan_late_begin("host-sync");
  CHECK(cudaStreamSynchronize(stream()));
  device_left = plan_now();
  plan_late_end();
}

static size_t enough(size_t have, long bytes) { return have > (size_t)bytes ? have : (size_t)bytes; }

static ptr_t memory(long bytes) {
  if (mine.memory_size < (size_t)bytes) CHECK(cuMemAlloc_v2(&mine.memory, mine.memory_size = enough(1 << 20, bytes)));
  return mine.memory;
}

static void *pinned(long bytes) {
  if (mine.pinned_size < (size_t)bytes) CHECK(cuMemHostAlloc(&mine.pinned, mine.pinned_size = (size_t)bytes, 0));
  return mine.pinned;
}

static void *pageable(long bytes) {
  if (mine.pageable_size < (size_t)bytes) mine.pageable = calloc(1, mine.pageable_size = (size_t)bytes);
  return mine.pageable;
}

void device_item(const struct action *a) {
  (void)a;
  stream();
  ptr_t from = memory(4);
  void *to = pageable(4);
  plan_late_begin("host-sync");
  CHECK(cuMemcpyDtoHAsync_v2(to, from, 4, mine.stream));
  device_left = plan_now();
  plan_late_end();
}

void device_lag(const struct action *a) {
  (void)a;
  handle *e = &mine.lag[mine.laps++ % LAG];
  if (*e) CHECK(cuEventSynchronize(*e));
  else CHECK(cuEventCreate(e, 0));
  CHECK(cuEventRecord(*e, stream()));
}

void device_poll(const struct action *a) {
  struct timespec t = {a->a / 1000000, a->a % 1000000 * 1000};
  handle s = stream();
  if (!mine.event) CHECK(cuEventCreate(&mine.event, 0));
  CHECK(cuEventRecord(mine.event, s));
  plan_begin("sleep");
  while (cuEventQuery(mine.event)) nanosleep(&t, NULL);
  plan_end();
}

void device_graph(const struct action *a) {
  handle s = stream(), graph;
  if (!mine.graph) {
    CHECK(cuStreamBeginCapture_v2(s, THREAD_LOCAL));
    device_kernels(a);
    CHECK(cuStreamEndCapture(s, &graph));
    CHECK(cuGraphInstantiateWithFlags(&mine.graph, graph, 0));
  }
  CHECK(cuGraphLaunch(mine.graph, s));
}

void device_upload(const struct action *a) {
  handle s = stream();
  CHECK(cuMemcpyHtoDAsync_v2(memory(a->a), pinned(a->a), (size_t)a->a, s));
}

void device_download(const struct action *a) {
  handle s = stream();
  CHECK(cuMemcpyDtoHAsync_v2(pinned(a->a), memory(a->a), (size_t)a->a, s));
}

// The copy of the next step runs beside this step's kernels, which wait for the copy of the step before. b: 0 up, 1
// down.
void device_ahead(const struct action *a) {
  int b = a->b != 0;
  handle s = stream();
  if (!mine.beside[b]) {
    CHECK(cuStreamCreate(&mine.beside[b], NON_BLOCKING));
    CHECK(cuEventCreate(&mine.done[b], 0));
  } else {
    CHECK(cuStreamWaitEvent(s, mine.done[b], 0));
  }
  if (b) CHECK(cuMemcpyDtoHAsync_v2(pinned(a->a), memory(a->a), (size_t)a->a, mine.beside[b]));
  else CHECK(cuMemcpyHtoDAsync_v2(memory(a->a), pinned(a->a), (size_t)a->a, mine.beside[b]));
  CHECK(cuEventRecord(mine.done[b], mine.beside[b]));
}

void device_copyin(const struct action *a) {
  stream();
  ptr_t to = memory(a->a);
  void *from = pageable(a->a);
  plan_begin("sync-copy");
  CHECK(cuMemcpyHtoD_v2(to, from, (size_t)a->a));
  plan_end();
}

void device_copyout(const struct action *a) {
  stream();
  ptr_t from = memory(a->a);
  void *to = pageable(a->a);
  plan_begin("sync-copy");
  CHECK(cuMemcpyDtoH_v2(to, from, (size_t)a->a));
  plan_end();
}

void device_alloc(const struct action *a) {
  ptr_t p;
  stream();
  plan_begin("allocation");
  for (long i = 0; i < a->a; i++) {
    CHECK(cuMemAlloc_v2(&p, (size_t)a->b));
    CHECK(cuMemFree_v2(p));
  }
  plan_end();
}

void device_ralloc(const struct action *a) {
  void *p;
  stream();
  plan_begin("allocation");
  for (long i = 0; i < a->a; i++) {
    CHECK(cudaMalloc(&p, (size_t)a->b));
    CHECK(cudaFree(p));
  }
  plan_end();
}

void device_pin(const struct action *a) {
  void *p;
  stream();
  plan_begin("allocation");
  for (long i = 0; i < a->a; i++) {
    CHECK(cuMemHostAlloc(&p, (size_t)a->b, 0));
    CHECK(cuMemFreeHost(p));
  }
  plan_end();
}

void device_module(const struct action *a) {
  (void)a;
  handle m;
  stream();
  plan_begin("compilation");
  CHECK(cuModuleLoadData(&m, "image"));
  plan_end();
  CHECK(cuModuleUnload(m));
}

static void finished(void *arg) { (void)arg; }

// The work behind the host function begins a->a us after it at the earliest, whatever the host does meanwhile: those
// us, and what starting takes, are the dependency's. The rest of the waiting is waiting for the work itself.
static void behind(const struct action *a, handle before, handle then) {
  enum { STARTING = 300000 }; // ns; the kernels run by then, so that it may be too much
  handle f = kernels.list[find(a->word)].function;
  uint64_t from = plan_now();
  CHECK(cuLaunchHostFunc(before, finished, NULL));
  if (before != then) {
    if (!mine.event) CHECK(cuEventCreate(&mine.event, 0));
    CHECK(cuEventRecord(mine.event, before));
    CHECK(cuStreamWaitEvent(then, mine.event, 0));
  }
  forward(f, then, a->b);
  CHECK(cuStreamSynchronize(then));
  uint64_t begun = from + (uint64_t)a->a * 1000 + STARTING;
  plan_add("dependency", from, begun);
  plan_add("host-sync", begun, plan_now());
}

void device_callback(const struct action *a) { behind(a, stream(), stream()); }

void device_across(const struct action *a) {
  handle s = stream();
  if (!mine.other) CHECK(cuStreamCreate(&mine.other, NON_BLOCKING));
  behind(a, mine.other, s);
}
