// Internals of the simulated runtime library. It reaches the driver only through exported driver functions, so a
// runtime call contains driver calls, as the real one's do.
#ifndef CUDASIM_RT_H
#define CUDASIM_RT_H
#include <stdlib.h>
#include <string.h>
#include "../include/hooks.h"

typedef int cudaError_t;
typedef struct { unsigned x, y, z; } dim3;
typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;

#define X(name) RFN_##name,
enum rt_fn {
  RFN_NONE,
#include "exports.h"
  RFN_COUNT
};
#undef X

// The driver functions that the runtime calls: name, parameters.
#define RT_DRIVER(F) \
  F(cuInit, (unsigned)) F(cuDriverGetVersion, (int *)) F(cuDeviceGetCount, (int *)) \
  F(cuDeviceGetAttribute, (int *, int, int)) F(cuDeviceGetName, (char *, int, int)) \
  F(cuDeviceTotalMem, (size_t *, int)) F(cuDeviceGetUuid, (void *, int)) F(cuDeviceGetPCIBusId, (char *, int, int)) \
  F(cuDeviceCanAccessPeer, (int *, int, int)) F(cuDevicePrimaryCtxRetain, (CUcontext *, int)) \
  F(cuDevicePrimaryCtxReset, (int)) F(cuDevicePrimaryCtxSetFlags, (int, unsigned)) F(cuCtxGetCurrent, (CUcontext *)) \
  F(cuCtxSetCurrent, (CUcontext)) F(cuCtxGetDevice, (int *)) F(cuCtxSynchronize, (CUcontext)) \
  F(cuCtxEnablePeerAccess, (CUcontext, unsigned)) F(cuCtxGetStreamPriorityRange, (int *, int *)) \
  F(cuMemAlloc, (CUdeviceptr *, size_t)) F(cuMemAllocPitch, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
  F(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned)) F(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) \
  F(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) F(cuMemFree, (CUdeviceptr)) \
  F(cuMemFreeAsync, (CUdeviceptr, CUstream)) F(cuMemHostAlloc, (void **, size_t, unsigned)) F(cuMemFreeHost, (void *)) \
  F(cuMemHostRegister, (void *, size_t, unsigned)) F(cuMemHostUnregister, (void *)) \
  F(cuMemHostGetDevicePointer, (CUdeviceptr *, void *, unsigned)) F(cuMemGetInfo, (size_t *, size_t *)) \
  F(cuPointerGetAttribute, (void *, int, CUdeviceptr)) F(cuDeviceGetDefaultMemPool, (CUmemoryPool *, int)) \
  F(cuMemPoolCreate, (CUmemoryPool *, const void *)) F(cuMemPoolDestroy, (CUmemoryPool)) \
  F(cuMemPoolSetAttribute, (CUmemoryPool, int, void *)) F(cuMemPoolGetAttribute, (CUmemoryPool, int, void *)) \
  F(cuMemPoolTrimTo, (CUmemoryPool, size_t)) F(cuMemcpyHtoD, (CUdeviceptr, const void *, size_t)) \
  F(cuMemcpyDtoH, (void *, CUdeviceptr, size_t)) F(cuMemcpyDtoD, (CUdeviceptr, CUdeviceptr, size_t)) \
  F(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t)) F(cuMemcpyHtoDAsync, (CUdeviceptr, const void *, size_t, CUstream)) \
  F(cuMemcpyDtoHAsync, (void *, CUdeviceptr, size_t, CUstream)) \
  F(cuMemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  F(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
  F(cuMemcpyPeer, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)) \
  F(cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
  F(cuMemcpy2DUnaligned, (const CUDA_MEMCPY2D *)) F(cuMemcpy2DAsync, (const CUDA_MEMCPY2D *, CUstream)) \
  F(cuMemcpy3D, (const CUDA_MEMCPY3D *)) F(cuMemcpy3DAsync, (const CUDA_MEMCPY3D *, CUstream)) \
  F(cuMemsetD8, (CUdeviceptr, unsigned char, size_t)) \
  F(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
  F(cuMemsetD2D8, (CUdeviceptr, size_t, unsigned char, size_t, size_t)) \
  F(cuMemsetD2D8Async, (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream)) \
  F(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
  F(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **)) \
  F(cuLaunchCooperativeKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **)) \
  F(cuLaunchHostFunc, (CUstream, CUhostFn, void *)) \
  F(cuStreamAddCallback, (CUstream, CUstreamCallback, void *, unsigned)) F(cuStreamCreate, (CUstream *, unsigned)) \
  F(cuStreamCreateWithPriority, (CUstream *, unsigned, int)) F(cuStreamDestroy, (CUstream)) \
  F(cuStreamQuery, (CUstream)) F(cuStreamSynchronize, (CUstream)) F(cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
  F(cuStreamGetFlags, (CUstream, unsigned *)) F(cuStreamGetPriority, (CUstream, int *)) \
  F(cuStreamGetId, (CUstream, unsigned long long *)) F(cuStreamBeginCapture, (CUstream, int)) \
  F(cuStreamEndCapture, (CUstream, CUgraph *)) F(cuStreamIsCapturing, (CUstream, int *)) \
  F(cuEventCreate, (CUevent *, unsigned)) F(cuEventDestroy, (CUevent)) F(cuEventRecord, (CUevent, CUstream)) \
  F(cuEventRecordWithFlags, (CUevent, CUstream, unsigned)) F(cuEventQuery, (CUevent)) F(cuEventSynchronize, (CUevent)) \
  F(cuEventElapsedTime, (float *, CUevent, CUevent)) \
  F(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned)) \
  F(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *)) \
  F(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *)) F(cuLibraryUnload, (CUlibrary)) \
  F(cuKernelGetFunction, (CUfunction *, CUkernel)) F(cuFuncGetAttribute, (int *, int, CUfunction)) \
  F(cuFuncSetAttribute, (CUfunction, int, int)) \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *, CUfunction, int, size_t, unsigned)) \
  F(cuGraphCreate, (CUgraph *, unsigned)) F(cuGraphClone, (CUgraph *, CUgraph)) F(cuGraphDestroy, (CUgraph)) \
  F(cuGraphAddKernelNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *)) \
  F(cuGraphAddMemcpyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMCPY3D *, CUcontext)) \
  F(cuGraphAddMemsetNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext)) \
  F(cuGraphAddHostNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *)) \
  F(cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t)) \
  F(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *)) \
  F(cuGraphInstantiate, (CUgraphExec *, CUgraph, unsigned long long)) \
  F(cuGraphInstantiateWithParams, (CUgraphExec *, CUgraph, void *)) \
  F(cuGraphExecUpdate, (CUgraphExec, CUgraph, void *)) F(cuGraphExecDestroy, (CUgraphExec)) \
  F(cuGraphLaunch, (CUgraphExec, CUstream)) F(cuGraphUpload, (CUgraphExec, CUstream)) \
  F(cuGraphExecKernelNodeSetParams, (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *)) \
  F(cuGetErrorName, (int, const char **)) F(cuGetErrorString, (int, const char **)) F(cuProfilerStart, (void)) \
  F(cuProfilerStop, (void))

struct driver {
#define F(name, params) CUresult(*name) params;
  RT_DRIVER(F)
#undef F
};

extern struct driver rt_driver[2]; // [1]: the per-thread default stream variants
extern struct sim_hooks *rt_hooks;
#define D(pt) (&rt_driver[pt])

int rt_enter(struct sim_call *, uint32_t fn);
cudaError_t rt_leave(struct sim_call *, int result);
int rt_context(void);            // makes the thread's device current; 0 or an error
int rt_set_device(int dev);
int rt_device(void);
int rt_kernel(const void *host, CUfunction *out);
int rt_symbol(const void *host, CUdeviceptr *ptr, size_t *size);
void *rt_proc(const char *name, unsigned long long flags);
cudaError_t rt_last(int clear);

#define RT(name) cudaError_t rt_##name
#define UNUSED __attribute__((unused))
#define RENTER_ID(id) struct sim_call c; { int f_ = rt_enter(&c, (id)); if (f_) return f_ < 0 ? -f_ : rt_leave(&c, f_); }
#define RENTER(name) RENTER_ID(RFN_##name)
#define RLEAVE(r) return rt_leave(&c, (r))
#define RNEED(cond, e) do { if (!(cond)) return rt_leave(&c, (e)); } while (0)
#define RCONTEXT() do { int e_ = rt_context(); if (e_) return rt_leave(&c, e_); } while (0)
// SIMPLE is an entry point that needs a context and is one driver call.
#define SIMPLE(name, params, call) RT(name) params { RENTER(name); RCONTEXT(); RLEAVE(call); }
// STREAMED is the same with its per-thread default stream variant; the call may use pt.
#define STREAMED(name, suffix, params, args, call)                              \
  static cudaError_t do_##name(uint32_t fn, int pt UNUSED, STRIP params) { RENTER_ID(fn); RCONTEXT(); RLEAVE(call); } \
  RT(name) params { return do_##name(RFN_##name, 0, STRIP args); }              \
  RT(name##suffix) params { return do_##name(RFN_##name##suffix, 1, STRIP args); }
#define STRIP(...) __VA_ARGS__
#endif
