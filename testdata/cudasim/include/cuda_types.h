// Types and constants of the CUDA driver API that the simulator speaks: own declarations of a public binary interface.
#ifndef CUDASIM_CUDA_TYPES_H
#define CUDASIM_CUDA_TYPES_H
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct sim_context *CUcontext;
typedef struct sim_module *CUmodule, *CUlibrary;
typedef struct sim_func *CUfunction, *CUkernel;
typedef struct sim_stream *CUstream;
typedef struct sim_event *CUevent;
typedef struct sim_graph *CUgraph;
typedef struct sim_node *CUgraphNode;
typedef struct sim_exec *CUgraphExec;
typedef struct sim_pool *CUmemoryPool;
typedef void (*CUhostFn)(void *);
typedef void (*CUstreamCallback)(CUstream, CUresult, void *);

enum {
  OK = 0, E_INVALID_VALUE = 1, E_OUT_OF_MEMORY = 2, E_NOT_INITIALIZED = 3, E_NO_DEVICE = 100, E_INVALID_DEVICE = 101,
  E_INVALID_CONTEXT = 201, E_INVALID_HANDLE = 400, E_NOT_FOUND = 500, E_NOT_READY = 600, E_NOT_SUPPORTED = 801,
  E_STREAM_CAPTURE_UNSUPPORTED = 900, E_STREAM_CAPTURE_INVALIDATED = 901, E_ILLEGAL_STATE = 401, E_LAUNCH_FAILED = 719,
};

enum { MEM_HOST = 1, MEM_DEVICE = 2, MEM_ARRAY = 3, MEM_UNIFIED = 4 };             // CUmemorytype
enum { STREAM_NON_BLOCKING = 1 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1 };
enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 }; // CUstreamCaptureMode
enum { NODE_KERNEL = 0, NODE_MEMCPY = 1, NODE_MEMSET = 2, NODE_HOST = 3, NODE_GRAPH = 4, NODE_EMPTY = 5,
       NODE_WAIT_EVENT = 6, NODE_EVENT_RECORD = 7, NODE_MEM_ALLOC = 10, NODE_MEM_FREE = 11 };

typedef struct {
  unsigned int gridX, gridY, gridZ, blockX, blockY, blockZ, shared;
  CUstream stream;
  void *attrs;
  unsigned int num_attrs;
} CUlaunchConfig;
_Static_assert(offsetof(CUlaunchConfig, stream) == 32 && sizeof(CUlaunchConfig) == 56, "CUlaunchConfig ABI");

typedef struct {
  size_t src_x, src_y;
  int src_type;
  const void *src_host;
  CUdeviceptr src_device;
  void *src_array;
  size_t src_pitch, dst_x, dst_y;
  int dst_type;
  void *dst_host;
  CUdeviceptr dst_device;
  void *dst_array;
  size_t dst_pitch, width, height;
} CUDA_MEMCPY2D;
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D ABI");

typedef struct {
  size_t src_x, src_y, src_z, src_lod;
  int src_type;
  const void *src_host;
  CUdeviceptr src_device;
  void *src_array, *src_context;
  size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_lod;
  int dst_type;
  void *dst_host;
  CUdeviceptr dst_device;
  void *dst_array, *dst_context;
  size_t dst_pitch, dst_height, width, height, depth;
} CUDA_MEMCPY3D;
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D ABI");

typedef struct {
  CUfunction func;
  unsigned int gridX, gridY, gridZ, blockX, blockY, blockZ, shared;
  void **params, **extra;
  CUkernel kern; // version 2 of the struct only, like ctx
  CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == 72, "CUDA_KERNEL_NODE_PARAMS ABI");

typedef struct {
  CUdeviceptr dst;
  size_t pitch;
  unsigned int value, element_size;
  size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;
_Static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == 40, "CUDA_MEMSET_NODE_PARAMS ABI");

typedef struct {
  CUhostFn fn;
  void *data;
} CUDA_HOST_NODE_PARAMS;
#endif
