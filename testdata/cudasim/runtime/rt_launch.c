// Registered kernels, launches and host functions.
#include <pthread.h>
#include "rt.h"

struct binary {
  const void *image;
  CUlibrary lib; // loaded at first use
};

struct entry { // a host symbol: a kernel's stub function, or a variable
  const void *host;
  char *name;
  struct binary *binary;
  CUfunction f;
  CUdeviceptr ptr;
  size_t size;
  struct entry *next;
};

enum { BUCKETS = 1024 };
static struct entry *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct entry **bucket(const void *host) { return &table[((uintptr_t)host >> 3) % BUCKETS]; }

static struct entry *find(const void *host) {
  struct entry *e = __atomic_load_n(bucket(host), __ATOMIC_ACQUIRE);
  while (e && e->host != host) e = e->next;
  return e;
}

static void enlist(struct binary *b, const void *host, const char *name) {
  struct entry *e = calloc(1, sizeof *e);
  if (!e) return;
  e->host = host, e->name = strdup(name), e->binary = b;
  pthread_mutex_lock(&lock);
  e->next = *bucket(host);
  __atomic_store_n(bucket(host), e, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
}

static int library(struct binary *b, CUlibrary *out) {
  int e = 0;
  if (!b->lib) e = D(0)->cuLibraryLoadData(&b->lib, b->image, NULL, NULL, 0, NULL, NULL, 0);
  *out = b->lib;
  return e;
}

// rt_kernel finds the driver's handle of a registered kernel, loading its library the first time.
int rt_kernel(const void *host, CUfunction *out) {
  struct entry *en = find(host);
  if (!en) return 98; // cudaErrorInvalidDeviceFunction
  if (!en->f) {
    CUlibrary lib;
    CUkernel k;
    int e = library(en->binary, &lib);
    if (!e) e = D(0)->cuLibraryGetKernel(&k, lib, en->name);
    if (!e) e = D(0)->cuKernelGetFunction(&en->f, k);
    if (e) return e;
  }
  *out = en->f;
  return 0;
}

int rt_symbol(const void *host, CUdeviceptr *ptr, size_t *size) {
  struct entry *en = find(host);
  if (!en) return 13; // cudaErrorInvalidSymbol
  if (!en->ptr) {
    CUlibrary lib;
    int e = library(en->binary, &lib);
    if (!e) e = D(0)->cuLibraryGetGlobal(&en->ptr, &en->size, lib, en->name);
    if (e) return e;
  }
  *ptr = en->ptr;
  if (size) *size = en->size;
  return 0;
}

// The registration calls run before main, some of them before there is a driver: not counted in the truth.
void **rt___cudaRegisterFatBinary(void *image);
void **rt___cudaRegisterFatBinary(void *image) {
  struct binary *b = calloc(1, sizeof *b);
  if (b) b->image = image ? image : b;
  return (void **)b;
}
void rt___cudaRegisterFatBinaryEnd(void **handle);
void rt___cudaRegisterFatBinaryEnd(void **handle UNUSED) {}
void rt___cudaUnregisterFatBinary(void **handle);
void rt___cudaUnregisterFatBinary(void **handle UNUSED) {}
char rt___cudaInitModule(void **handle);
char rt___cudaInitModule(void **handle UNUSED) { return 1; }
void rt___cudaRegisterFunction(void **handle, const char *host, char *fun, const char *name, int limit, void *t,
    void *b, void *bd, void *gd, int *ws);
void rt___cudaRegisterFunction(void **handle, const char *host, char *fun UNUSED, const char *name, int limit UNUSED,
    void *t UNUSED, void *b UNUSED, void *bd UNUSED, void *gd UNUSED, int *ws UNUSED) {
  enlist((struct binary *)handle, host, name);
}
void rt___cudaRegisterVar(
    void **handle, char *host, char *addr, const char *name, int ext, size_t size, int constant, int global);
void rt___cudaRegisterVar(void **handle, char *host, char *addr UNUSED, const char *name, int ext UNUSED,
    size_t size UNUSED, int constant UNUSED, int global UNUSED) {
  enlist((struct binary *)handle, host, name);
}

static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} pushed;

unsigned rt___cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
unsigned rt___cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
  return 0;
}
RT(__cudaPopCallConfiguration)(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
  return 0;
}

static void note(struct sim_call *c, const void *f, dim3 g, dim3 b, size_t shared, CUstream s) {
  memcpy(c->grid, &g, sizeof c->grid);
  memcpy(c->block, &b, sizeof c->block);
  c->shared = (uint32_t)shared, c->stream = (uint64_t)s, c->ptr = (uint64_t)f;
}

#define LAUNCH_PARAMS const void *f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s
static cudaError_t launch(uint32_t fn, int pt, LAUNCH_PARAMS, int cooperative) {
  RENTER_ID(fn);
  note(&c, f, g, b, shared, s);
  RCONTEXT();
  CUfunction k;
  int e = rt_kernel(f, &k);
  RNEED(!e, e);
  if (cooperative) RLEAVE(D(pt)->cuLaunchCooperativeKernel(k, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, s, args));
  RLEAVE(D(pt)->cuLaunchKernel(k, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, s, args, NULL));
}
RT(cudaLaunchKernel)(LAUNCH_PARAMS) { return launch(RFN_cudaLaunchKernel, 0, f, g, b, args, shared, s, 0); }
RT(cudaLaunchKernel_ptsz)(LAUNCH_PARAMS) { return launch(RFN_cudaLaunchKernel_ptsz, 1, f, g, b, args, shared, s, 0); }
RT(cudaLaunchCooperativeKernel)(LAUNCH_PARAMS) {
  return launch(RFN_cudaLaunchCooperativeKernel, 0, f, g, b, args, shared, s, 1);
}
RT(cudaLaunchCooperativeKernel_ptsz)(LAUNCH_PARAMS) {
  return launch(RFN_cudaLaunchCooperativeKernel_ptsz, 1, f, g, b, args, shared, s, 1);
}

// __cudaGetKernel and __cudaLaunchKernel are what compilers of CUDA 12 and later put into the stub function.
RT(__cudaGetKernel)(CUkernel *out, const void *f) {
  RENTER(__cudaGetKernel);
  RCONTEXT();
  RLEAVE(rt_kernel(f, out));
}
static cudaError_t launch_handle(
    uint32_t fn, int pt, CUkernel k, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s) {
  RENTER_ID(fn);
  note(&c, k, g, b, shared, s);
  RCONTEXT();
  RLEAVE(D(pt)->cuLaunchKernel(k, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, s, args, NULL));
}
#define HANDLE_PARAMS CUkernel k, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s
RT(__cudaLaunchKernel)(HANDLE_PARAMS) { return launch_handle(RFN___cudaLaunchKernel, 0, k, g, b, args, shared, s); }
RT(__cudaLaunchKernel_ptsz)(HANDLE_PARAMS) {
  return launch_handle(RFN___cudaLaunchKernel_ptsz, 1, k, g, b, args, shared, s);
}

typedef struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  void *attrs;
  unsigned num_attrs;
} cudaLaunchConfig_t;
_Static_assert(
    sizeof(cudaLaunchConfig_t) == 56 && offsetof(cudaLaunchConfig_t, stream) == 32, "cudaLaunchConfig_t ABI");

static cudaError_t launch_ex(uint32_t fn, int pt, const cudaLaunchConfig_t *k, const void *f, void **args) {
  RENTER_ID(fn);
  RNEED(k, 1);
  note(&c, f, k->grid, k->block, k->shared, k->stream);
  RCONTEXT();
  CUfunction h;
  int e = rt_kernel(f, &h);
  RNEED(!e, e);
  CUlaunchConfig d = {k->grid.x, k->grid.y, k->grid.z, k->block.x, k->block.y, k->block.z, (unsigned)k->shared,
      k->stream, k->attrs, k->num_attrs};
  RLEAVE(D(pt)->cuLaunchKernelEx(&d, h, args, NULL));
}
RT(cudaLaunchKernelExC)(const cudaLaunchConfig_t *k, const void *f, void **args) {
  return launch_ex(RFN_cudaLaunchKernelExC, 0, k, f, args);
}
RT(cudaLaunchKernelExC_ptsz)(const cudaLaunchConfig_t *k, const void *f, void **args) {
  return launch_ex(RFN_cudaLaunchKernelExC_ptsz, 1, k, f, args);
}

STREAMED(cudaLaunchHostFunc, _ptsz, (cudaStream_t s, CUhostFn f, void *data), (s, f, data),
    D(pt)->cuLaunchHostFunc(s, f, data))
STREAMED(cudaStreamAddCallback, _ptsz, (cudaStream_t s, CUstreamCallback f, void *data, unsigned flags),
    (s, f, data, flags), D(pt)->cuStreamAddCallback(s, f, data, flags))

struct func_attributes { // the fields of cudaFuncAttributes that programs read
  size_t shared, constant, local;
  int max_threads, registers, ptx, binary;
};
RT(cudaFuncGetAttributes)(struct func_attributes *out, const void *f) {
  RENTER(cudaFuncGetAttributes);
  RCONTEXT();
  CUfunction k;
  int e = rt_kernel(f, &k);
  RNEED(!e, e);
  *out = (struct func_attributes){.ptx = 90, .binary = 90};
  e = D(0)->cuFuncGetAttribute(&out->max_threads, 0, k);
  RLEAVE(e ? e : D(0)->cuFuncGetAttribute(&out->registers, 4, k));
}
RT(cudaFuncSetAttribute)(const void *f, int attribute, int value) {
  RENTER(cudaFuncSetAttribute);
  RCONTEXT();
  CUfunction k;
  int e = rt_kernel(f, &k);
  RLEAVE(e ? e : D(0)->cuFuncSetAttribute(k, attribute, value));
}
static cudaError_t occupancy(uint32_t fn, int *blocks, const void *f, int threads, size_t shared, unsigned flags) {
  RENTER_ID(fn);
  RCONTEXT();
  CUfunction k;
  int e = rt_kernel(f, &k);
  RLEAVE(e ? e : D(0)->cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, k, threads, shared, flags));
}
RT(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, const void *f, int threads, size_t shared) {
  return occupancy(RFN_cudaOccupancyMaxActiveBlocksPerMultiprocessor, blocks, f, threads, shared, 0);
}
RT(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(
    int *blocks, const void *f, int threads, size_t shared, unsigned flags) {
  return occupancy(RFN_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, f, threads, shared, flags);
}
