// Initialisation, devices and contexts.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "sim.h"

// The real cuInit loads the library that this variable names, and goes on where it cannot (how the real
// one takes that was not measured).
static void inject(void) {
  const char *path = getenv("CUDA_INJECTION64_PATH");
  void *library = path && *path ? dlopen(path, RTLD_NOW) : NULL;
  int (*start)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
  if (start) start();
}

API(cuInit)(unsigned int flags) {
  ENTER(cuInit);
  NEED(flags == 0, E_INVALID_VALUE);
  NEED(sim.cfg.devices > 0, E_NO_DEVICE);
  NEED(!sim.broken, E_NOT_INITIALIZED);
  int first = !sim.initialized;
  sim.initialized = 1;
  if (first) inject();
  LEAVE(OK);
}

API(cuDriverGetVersion)(int *version) {
  ENTER(cuDriverGetVersion);
  NEED(version, E_INVALID_VALUE);
  *version = SHAPE == 535 ? 12020 : 13000;
  LEAVE(OK);
}

#define NEED_INIT() NEED(sim.initialized && !sim.broken, E_NOT_INITIALIZED)
#define NEED_DEVICE(dev) NEED((dev) >= 0 && (uint32_t)(dev) < sim.cfg.devices, E_INVALID_DEVICE)

API(cuDeviceGetCount)(int *count) {
  ENTER(cuDeviceGetCount);
  NEED_INIT();
  *count = (int)sim.cfg.devices;
  LEAVE(OK);
}

API(cuDeviceGet)(CUdevice *dev, int ordinal) {
  ENTER(cuDeviceGet);
  NEED_INIT();
  NEED_DEVICE(ordinal);
  *dev = ordinal;
  LEAVE(OK);
}

API(cuDeviceGetName)(char *name, int len, CUdevice dev) {
  ENTER(cuDeviceGetName);
  NEED_INIT();
  NEED_DEVICE(dev);
  NEED(name && len > 0, E_INVALID_VALUE);
  snprintf(name, (size_t)len, "%s", sim.cfg.device_name);
  LEAVE(OK);
}

void device_uuid(uint32_t index, uint8_t *out) {
  memcpy(out, "cudasim-device-", 15);
  out[15] = (uint8_t)index;
}

static CUresult uuid(uint32_t fn, unsigned char *out, CUdevice dev, uint32_t part) {
  ENTER_ID(fn);
  NEED_INIT();
  NEED_DEVICE(dev);
  device_uuid((uint32_t)dev, out);
  out[15] |= (uint8_t)(part << 4);
  LEAVE(OK);
}
// The first version tells of the whole GPU, the second of the part that the process has.
API(cuDeviceGetUuid)(unsigned char *out, CUdevice dev) { return uuid(FN_cuDeviceGetUuid, out, dev, 0); }
API(cuDeviceGetUuid_v2)(unsigned char *out, CUdevice dev) { return uuid(FN_cuDeviceGetUuid_v2, out, dev, sim.cfg.mig); }

API(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice dev) {
  ENTER(cuDeviceTotalMem_v2);
  NEED_INIT();
  NEED_DEVICE(dev);
  *bytes = sim.cfg.memory;
  LEAVE(OK);
}

API(cuDeviceGetPCIBusId)(char *id, int len, CUdevice dev) {
  ENTER(cuDeviceGetPCIBusId);
  NEED_INIT();
  NEED_DEVICE(dev);
  snprintf(id, (size_t)len, "0000:%02x:00.0", dev + 1);
  LEAVE(OK);
}

API(cuDeviceComputeCapability)(int *major, int *minor, CUdevice dev) {
  ENTER(cuDeviceComputeCapability);
  NEED_INIT();
  NEED_DEVICE(dev);
  *major = 9, *minor = 0;
  LEAVE(OK);
}

static int attribute(int a) {
  switch (a) {
  case 1: return 1024;                        // threads per block
  case 2: case 3: return 1024;                // block x, y
  case 4: return 64;                          // block z
  case 5: return 2147483647;                  // grid x
  case 6: case 7: return 65535;               // grid y, z
  case 8: return 49152;                       // shared memory per block
  case 10: return 32;                         // warp
  case 13: return 1755000;                    // clock kHz
  case 16: return 132;                        // multiprocessors
  case 39: return 2048;                       // threads per multiprocessor
  // overlap, concurrent kernels, async engines, UVA, managed, pools
  case 15: case 31: case 40: case 41: case 83: case 115: return 1;
  case 75: return 9;                          // compute capability
  case 97: case 81: return 232448;            // shared memory opt-in, per multiprocessor
  default: return 0;
  }
}

API(cuDeviceGetAttribute)(int *value, int attrib, CUdevice dev) {
  ENTER(cuDeviceGetAttribute);
  NEED_INIT();
  NEED_DEVICE(dev);
  *value = attrib == 33 ? dev + 1 : attribute(attrib);
  LEAVE(OK);
}

API(cuDeviceCanAccessPeer)(int *can, CUdevice a, CUdevice b) {
  ENTER(cuDeviceCanAccessPeer);
  NEED_INIT();
  *can = a != b;
  LEAVE(OK);
}

API(cuCtxEnablePeerAccess)(CUcontext peer UNUSED, unsigned flags UNUSED) {
  ENTER(cuCtxEnablePeerAccess);
  LEAVE(OK);
}

API(cuDevicePrimaryCtxRetain)(CUcontext *ctx, CUdevice dev) {
  ENTER(cuDevicePrimaryCtxRetain);
  NEED_INIT();
  NEED_DEVICE(dev);
  struct sim_context *p = &sim.dev[dev].primary;
  __atomic_fetch_add(&p->refs, 1, __ATOMIC_RELAXED);
  *ctx = p;
  c.ptr = (uint64_t)p;
  LEAVE(OK);
}

static CUresult primary_release(uint32_t fn, CUdevice dev) {
  ENTER_ID(fn);
  NEED_INIT();
  NEED_DEVICE(dev);
  struct sim_context *p = &sim.dev[dev].primary;
  NEED(p->refs > 0, E_INVALID_CONTEXT);
  __atomic_fetch_sub(&p->refs, 1, __ATOMIC_RELAXED);
  LEAVE(OK);
}
API(cuDevicePrimaryCtxRelease)(CUdevice dev) { return primary_release(FN_cuDevicePrimaryCtxRelease, dev); }
API(cuDevicePrimaryCtxRelease_v2)(CUdevice dev) { return primary_release(FN_cuDevicePrimaryCtxRelease_v2, dev); }

static CUresult primary_flags(uint32_t fn, CUdevice dev, unsigned flags) {
  ENTER_ID(fn);
  NEED_INIT();
  NEED_DEVICE(dev);
  sim.dev[dev].primary.flags = flags;
  LEAVE(OK);
}
API(cuDevicePrimaryCtxSetFlags)(CUdevice dev, unsigned flags) {
  return primary_flags(FN_cuDevicePrimaryCtxSetFlags, dev, flags);
}
API(cuDevicePrimaryCtxSetFlags_v2)(CUdevice dev, unsigned flags) {
  return primary_flags(FN_cuDevicePrimaryCtxSetFlags_v2, dev, flags);
}

static CUresult primary_reset(uint32_t fn, CUdevice dev) {
  ENTER_ID(fn);
  NEED_INIT();
  NEED_DEVICE(dev);
  sync_to(device_done(&sim.dev[dev]), 0, &c, 0, 0, 0);
  sim.dev[dev].primary.refs = 0;
  sim.dev[dev].primary.id = __atomic_fetch_add(&sim.next_ctx, 1, __ATOMIC_RELAXED); // the next one is another context
  LEAVE(OK);
}
API(cuDevicePrimaryCtxReset)(CUdevice dev) { return primary_reset(FN_cuDevicePrimaryCtxReset, dev); }
API(cuDevicePrimaryCtxReset_v2)(CUdevice dev) { return primary_reset(FN_cuDevicePrimaryCtxReset_v2, dev); }

API(cuDevicePrimaryCtxGetState)(CUdevice dev, unsigned *flags, int *active) {
  ENTER(cuDevicePrimaryCtxGetState);
  NEED_INIT();
  NEED_DEVICE(dev);
  *flags = sim.dev[dev].primary.flags;
  *active = sim.dev[dev].primary.refs > 0;
  LEAVE(OK);
}

static CUresult create(uint32_t fn, CUcontext *out, unsigned flags, CUdevice dev) {
  ENTER_ID(fn);
  NEED_INIT();
  NEED_DEVICE(dev);
  struct sim_context *ctx = calloc(1, sizeof *ctx);
  NEED(ctx, E_OUT_OF_MEMORY);
  *ctx = (struct sim_context){.magic = MAGIC_CTX,
      .id = __atomic_fetch_add(&sim.next_ctx, 1, __ATOMIC_RELAXED),
      .flags = flags,
      .dev = &sim.dev[dev]};
  uint32_t n = __atomic_fetch_add(&sim.made_count, 1, __ATOMIC_RELAXED);
  if (n < 64) sim.made[n] = ctx;
  if (tls.ctx && tls.stack_len < 16) tls.stack[tls.stack_len++] = tls.ctx;
  tls.ctx = *out = ctx;
  c.ptr = (uint64_t)ctx;
  LEAVE(OK);
}
API(cuCtxCreate_v2)(CUcontext *out, unsigned flags, CUdevice dev) { return create(FN_cuCtxCreate_v2, out, flags, dev); }
API(cuCtxCreate_v3)(CUcontext *out, void *affinity UNUSED, int n UNUSED, unsigned flags, CUdevice dev) {
  return create(FN_cuCtxCreate_v3, out, flags, dev);
}
API(cuCtxCreate_v4)(CUcontext *out, void *params UNUSED, unsigned flags, CUdevice dev) {
  return create(FN_cuCtxCreate_v4, out, flags, dev);
}

API(cuCtxDestroy_v2)(CUcontext ctx) {
  ENTER(cuCtxDestroy_v2);
  NEED(LIVE(ctx, MAGIC_CTX) && !ctx->primary, E_INVALID_CONTEXT);
  c.ptr = (uint64_t)ctx;
  sync_to(device_done(ctx->dev), 0, &c, 0, 0, 0);
  if (tls.ctx == ctx) tls.ctx = tls.stack_len ? tls.stack[--tls.stack_len] : NULL;
  ctx->magic = 0; // kept: another thread may still hold the handle
  LEAVE(OK);
}

API(cuCtxSetCurrent)(CUcontext ctx) {
  ENTER(cuCtxSetCurrent);
  NEED_INIT();
  NEED(!ctx || LIVE(ctx, MAGIC_CTX), E_INVALID_CONTEXT);
  tls.ctx = ctx;
  c.ptr = (uint64_t)ctx;
  LEAVE(OK);
}

API(cuCtxGetCurrent)(CUcontext *ctx) {
  ENTER(cuCtxGetCurrent);
  NEED_INIT();
  *ctx = tls.ctx;
  LEAVE(OK);
}

API(cuCtxPushCurrent_v2)(CUcontext ctx) {
  ENTER(cuCtxPushCurrent_v2);
  NEED(LIVE(ctx, MAGIC_CTX), E_INVALID_CONTEXT);
  NEED(tls.stack_len < 16, E_OUT_OF_MEMORY);
  tls.stack[tls.stack_len++] = tls.ctx;
  tls.ctx = ctx;
  LEAVE(OK);
}

API(cuCtxPopCurrent_v2)(CUcontext *ctx) {
  ENTER(cuCtxPopCurrent_v2);
  NEED(tls.ctx, E_INVALID_CONTEXT);
  if (ctx) *ctx = tls.ctx;
  tls.ctx = tls.stack_len ? tls.stack[--tls.stack_len] : NULL;
  LEAVE(OK);
}

API(cuCtxGetDevice)(CUdevice *out) {
  ENTER(cuCtxGetDevice);
  NEED_CONTEXT(dev);
  *out = (CUdevice)dev->index;
  LEAVE(OK);
}

API(cuCtxGetFlags)(unsigned *flags) {
  ENTER(cuCtxGetFlags);
  NEED_CONTEXT(dev);
  *flags = tls.ctx->flags;
  LEAVE(OK);
}

API(cuCtxGetId)(CUcontext ctx, unsigned long long *id) {
  ENTER(cuCtxGetId);
  *id = ctx ? ctx->id : tls.ctx ? tls.ctx->id : 0;
  LEAVE(OK);
}

API(cuCtxGetApiVersion)(CUcontext ctx UNUSED, unsigned *version) {
  ENTER(cuCtxGetApiVersion);
  *version = 3020;
  LEAVE(OK);
}

API(cuCtxGetLimit)(size_t *value, int limit UNUSED) {
  ENTER(cuCtxGetLimit);
  *value = 8u << 20;
  LEAVE(OK);
}

API(cuCtxSetLimit)(int limit UNUSED, size_t value UNUSED) {
  ENTER(cuCtxSetLimit);
  LEAVE(OK);
}

API(cuCtxGetStreamPriorityRange)(int *least, int *greatest) {
  ENTER(cuCtxGetStreamPriorityRange);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  LEAVE(OK);
}

static CUresult context_sync(uint32_t fn, CUcontext ctx) {
  PARAMS(handle_params, ctx);
  ENTER_ID(fn);
  if (!ctx && !tls.ctx) NEED(!capture_unsafe(), E_STREAM_CAPTURE_UNSUPPORTED);
  NEED_CONTEXT(dev);
  if (ctx) {
    NEED(LIVE(ctx, MAGIC_CTX), E_INVALID_CONTEXT);
    dev = ctx->dev;
  }
  c.ptr = (uint64_t)ctx;
  sync_to(device_done(dev), hostfn_last(), &c, 4, 0, 0);
  LEAVE(OK);
}
API(cuCtxSynchronize)(void) { return context_sync(FN_cuCtxSynchronize, NULL); }
API(cuCtxSynchronize_v2)(CUcontext ctx) { return context_sync(FN_cuCtxSynchronize_v2, ctx); }
