// Finding the driver, entering and leaving a call, and the thread's device.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include "rt.h"

enum { NO_DRIVER = 35 }; // cudaErrorInsufficientDriver

extern const char *const rt_names[RFN_COUNT];
struct driver rt_driver[2];
struct sim_hooks *rt_hooks;
static uint32_t first_id;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUresult (*get_proc)(const char *, void **, int, uint64_t, int *);

static __thread struct {
  cudaError_t last;
  int device; // chosen device plus one; 0: none chosen yet
  int ready;  // device plus one whose context this thread made current
} mine;

void *rt_proc(const char *name, unsigned long long flags) {
  void *p = NULL;
  int status;
  if (get_proc(name, &p, 13000, flags, &status)) return NULL;
  return p;
}

static void fill(struct driver *d, unsigned long long flags) {
#define F(name, params) d->name = (CUresult(*) params)rt_proc(#name, flags);
  RT_DRIVER(F)
#undef F
}

static void find_driver(void) {
  void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!h) return;
  *(void **)&get_proc = dlsym(h, "cuGetProcAddress_v2");
  struct sim_hooks *hooks = dlsym(h, "cudasim_hooks");
  if (!get_proc || !hooks || hooks->version != HOOKS_VERSION) {
    fprintf(stderr, "cudasim: the libcuda.so.1 found is not the simulator's: set LD_LIBRARY_PATH\n");
    return;
  }
  fill(&rt_driver[0], 0);
  fill(&rt_driver[1], 2);
  first_id = hooks->register_names("libcudart", rt_names, RFN_COUNT);
  rt_hooks = hooks;
}

// rt_enter notes the start of a call. Negative: an error before there is a driver that could note it.
int rt_enter(struct sim_call *c, uint32_t fn) {
  pthread_once(&once, find_driver);
  if (!rt_hooks) return -NO_DRIVER;
  return rt_hooks->enter(c, first_id + fn);
}

cudaError_t rt_leave(struct sim_call *c, int result) {
  if (result && result != 600) mine.last = result;
  return rt_hooks->leave(c, result);
}

cudaError_t rt_last(int clear) {
  cudaError_t e = mine.last;
  if (clear) mine.last = 0;
  return e;
}

static int adopt(int dev) {
  CUcontext ctx = NULL;
  int e = D(0)->cuDevicePrimaryCtxRetain(&ctx, dev);
  if (!e) e = D(0)->cuCtxSetCurrent(ctx);
  if (!e) mine.ready = dev + 1;
  return e;
}

// rt_context makes a context current as the real runtime does: the one the program made current itself, or else the
// primary context of the chosen device, with cuInit before it the first time in the process.
int rt_context(void) {
  static int initialized;
  if (mine.ready) return 0;
  if (!initialized) {
    int e = D(0)->cuInit(0);
    if (e) return e;
    initialized = 1;
  }
  CUcontext ctx = NULL;
  int dev;
  if (!mine.device && !D(0)->cuCtxGetCurrent(&ctx) && ctx && !D(0)->cuCtxGetDevice(&dev)) {
    mine.ready = dev + 1;
    return 0;
  }
  return adopt(mine.device ? mine.device - 1 : 0);
}

int rt_set_device(int dev) {
  int count = 0, e = rt_context();
  if (!e) e = D(0)->cuDeviceGetCount(&count);
  if (e) return e;
  if (dev < 0 || dev >= count) return 101;
  mine.device = dev + 1;
  return mine.ready == dev + 1 ? 0 : adopt(dev);
}

int rt_device(void) { return mine.ready ? mine.ready - 1 : mine.device ? mine.device - 1 : 0; }
