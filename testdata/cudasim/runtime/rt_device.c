// Devices, errors, streams and events.
#include <stdio.h>
#include "rt.h"

static int with_init(void) { return D(0)->cuInit(0); }

RT(cudaGetDeviceCount)(int *n) {
  RENTER(cudaGetDeviceCount);
  int e = with_init();
  RLEAVE(e ? e : D(0)->cuDeviceGetCount(n));
}
RT(cudaGetDevice)(int *dev) {
  RENTER(cudaGetDevice);
  *dev = rt_device();
  RLEAVE(0);
}
RT(cudaSetDevice)(int dev) {
  RENTER(cudaSetDevice);
  RLEAVE(rt_set_device(dev));
}
RT(cudaInitDevice)(int dev, unsigned flags UNUSED, unsigned f2 UNUSED) {
  RENTER(cudaInitDevice);
  RLEAVE(rt_set_device(dev));
}
SIMPLE(cudaDeviceSynchronize, (void), D(0)->cuCtxSynchronize(NULL))
SIMPLE(cudaDeviceReset, (void), D(0)->cuDevicePrimaryCtxReset(rt_device()))
RT(cudaSetDeviceFlags)(unsigned flags) {
  RENTER(cudaSetDeviceFlags);
  int e = with_init();
  RLEAVE(e ? e : D(0)->cuDevicePrimaryCtxSetFlags(rt_device(), flags));
}
RT(cudaDeviceGetAttribute)(int *v, int a, int dev) {
  RENTER(cudaDeviceGetAttribute);
  int e = with_init();
  RLEAVE(e ? e : D(0)->cuDeviceGetAttribute(v, a, dev));
}
SIMPLE(cudaDeviceCanAccessPeer, (int *can, int a, int b), D(0)->cuDeviceCanAccessPeer(can, a, b))
SIMPLE(cudaDeviceEnablePeerAccess, (int dev UNUSED, unsigned flags), D(0)->cuCtxEnablePeerAccess(NULL, flags))
SIMPLE(cudaDeviceGetStreamPriorityRange, (int *a, int *b), D(0)->cuCtxGetStreamPriorityRange(a, b))
SIMPLE(cudaDeviceGetPCIBusId, (char *id, int n, int dev), D(0)->cuDeviceGetPCIBusId(id, n, dev))

struct device_prop { // the head of cudaDeviceProp of CUDA 12 and 13; the rest of the caller's struct is left alone
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t total, shared;
  int registers, warp;
  size_t pitch;
  int max_threads, max_block[3], max_grid[3];
};
RT(cudaGetDeviceProperties)(struct device_prop *p, int dev) {
  RENTER(cudaGetDeviceProperties);
  int e = with_init();
  if (!e) e = D(0)->cuDeviceGetName(p->name, sizeof p->name, dev);
  if (!e) e = D(0)->cuDeviceGetUuid(p->uuid, dev);
  if (!e) e = D(0)->cuDeviceTotalMem(&p->total, dev);
  RNEED(!e, e);
  p->shared = 49152, p->registers = 65536, p->warp = 32, p->max_threads = 1024;
  RLEAVE(0);
}

RT(cudaDriverGetVersion)(int *v) {
  RENTER(cudaDriverGetVersion);
  RLEAVE(D(0)->cuDriverGetVersion(v));
}
RT(cudaRuntimeGetVersion)(int *v) {
  RENTER(cudaRuntimeGetVersion);
  *v = 13000;
  RLEAVE(0);
}
RT(cudaGetLastError)(void) {
  RENTER(cudaGetLastError);
  cudaError_t e = rt_last(1);
  rt_leave(&c, 0);
  return e;
}
RT(cudaPeekAtLastError)(void) {
  RENTER(cudaPeekAtLastError);
  cudaError_t e = rt_last(0);
  rt_leave(&c, 0);
  return e;
}

static const char *describe(int code, int text) {
  const char *s = NULL;
  if (rt_hooks) text ? D(0)->cuGetErrorString(code, &s) : D(0)->cuGetErrorName(code, &s);
  return s ? s : "unrecognized error code";
}
const char *rt_cudaGetErrorName(int code);
const char *rt_cudaGetErrorName(int code) {
  struct sim_call c;
  if (rt_enter(&c, RFN_cudaGetErrorName) < 0) return "cudaErrorInsufficientDriver";
  const char *s = describe(code, 0);
  rt_leave(&c, 0);
  return s;
}
const char *rt_cudaGetErrorString(int code);
const char *rt_cudaGetErrorString(int code) {
  struct sim_call c;
  if (rt_enter(&c, RFN_cudaGetErrorString) < 0) return "CUDA driver version is insufficient for CUDA runtime version";
  const char *s = describe(code, 1);
  rt_leave(&c, 0);
  return s;
}

static cudaError_t entry_point(
    uint32_t fn, const char *name, void **out, unsigned long long flags, int *status, int pt) {
  RENTER_ID(fn);
  *out = rt_proc(name, pt ? 2 : flags);
  if (status) *status = *out ? 0 : 1;
  RLEAVE(*out ? 0 : 500);
}
RT(cudaGetDriverEntryPoint)(const char *n, void **out, unsigned long long f, int *st) {
  return entry_point(RFN_cudaGetDriverEntryPoint, n, out, f, st, 0);
}
RT(cudaGetDriverEntryPoint_ptsz)(const char *n, void **out, unsigned long long f, int *st) {
  return entry_point(RFN_cudaGetDriverEntryPoint_ptsz, n, out, f, st, 1);
}
RT(cudaGetDriverEntryPointByVersion)(const char *n, void **out, unsigned v UNUSED, unsigned long long f, int *st) {
  return entry_point(RFN_cudaGetDriverEntryPointByVersion, n, out, f, st, 0);
}
RT(cudaProfilerStart)(void) {
  RENTER(cudaProfilerStart);
  RLEAVE(D(0)->cuProfilerStart());
}
RT(cudaProfilerStop)(void) {
  RENTER(cudaProfilerStop);
  RLEAVE(D(0)->cuProfilerStop());
}

SIMPLE(cudaStreamCreate, (cudaStream_t *out), D(0)->cuStreamCreate(out, 0))
SIMPLE(cudaStreamCreateWithFlags, (cudaStream_t *out, unsigned flags), D(0)->cuStreamCreate(out, flags))
SIMPLE(cudaStreamCreateWithPriority, (cudaStream_t * out, unsigned flags, int priority),
    D(0)->cuStreamCreateWithPriority(out, flags, priority))
SIMPLE(cudaStreamDestroy, (cudaStream_t s), (c.stream = (uint64_t)s, D(0)->cuStreamDestroy(s)))
#define ON(s) c.stream = (uint64_t)(s)
STREAMED(cudaStreamSynchronize, _ptsz, (cudaStream_t s), (s), (ON(s), D(pt)->cuStreamSynchronize(s)))
STREAMED(cudaStreamQuery, _ptsz, (cudaStream_t s), (s), (ON(s), D(pt)->cuStreamQuery(s)))
STREAMED(cudaStreamWaitEvent, _ptsz, (cudaStream_t s, cudaEvent_t e, unsigned flags), (s, e, flags),
    (ON(s), c.ptr = (uint64_t)e, D(pt)->cuStreamWaitEvent(s, e, flags)))
STREAMED(cudaStreamGetFlags, _ptsz, (cudaStream_t s, unsigned *out), (s, out), (ON(s), D(pt)->cuStreamGetFlags(s, out)))
STREAMED(
    cudaStreamGetPriority, _ptsz, (cudaStream_t s, int *out), (s, out), (ON(s), D(pt)->cuStreamGetPriority(s, out)))
STREAMED(
    cudaStreamGetId, _ptsz, (cudaStream_t s, unsigned long long *out), (s, out), (ON(s), D(pt)->cuStreamGetId(s, out)))
STREAMED(
    cudaStreamBeginCapture, _ptsz, (cudaStream_t s, int mode), (s, mode), (ON(s), D(pt)->cuStreamBeginCapture(s, mode)))
STREAMED(
    cudaStreamEndCapture, _ptsz, (cudaStream_t s, CUgraph *out), (s, out), (ON(s), D(pt)->cuStreamEndCapture(s, out)))
STREAMED(
    cudaStreamIsCapturing, _ptsz, (cudaStream_t s, int *out), (s, out), (ON(s), D(pt)->cuStreamIsCapturing(s, out)))

SIMPLE(cudaEventCreate, (cudaEvent_t *out), D(0)->cuEventCreate(out, 0))
SIMPLE(cudaEventCreateWithFlags, (cudaEvent_t *out, unsigned flags), D(0)->cuEventCreate(out, flags))
SIMPLE(cudaEventDestroy, (cudaEvent_t e), (c.ptr = (uint64_t)e, D(0)->cuEventDestroy(e)))
SIMPLE(cudaEventQuery, (cudaEvent_t e), (c.ptr = (uint64_t)e, D(0)->cuEventQuery(e)))
SIMPLE(cudaEventSynchronize, (cudaEvent_t e), (c.ptr = (uint64_t)e, D(0)->cuEventSynchronize(e)))
SIMPLE(cudaEventElapsedTime, (float *ms, cudaEvent_t a, cudaEvent_t b), D(0)->cuEventElapsedTime(ms, a, b))
STREAMED(cudaEventRecord, _ptsz, (cudaEvent_t e, cudaStream_t s), (e, s),
    (ON(s), c.ptr = (uint64_t)e, D(pt)->cuEventRecord(e, s)))
STREAMED(cudaEventRecordWithFlags, _ptsz, (cudaEvent_t e, cudaStream_t s, unsigned flags), (e, s, flags),
    (ON(s), c.ptr = (uint64_t)e, D(pt)->cuEventRecordWithFlags(e, s, flags)))
