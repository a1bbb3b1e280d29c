// The functions of libcuda.so.1 that allocate and free, without a GPU: addresses and handles that nothing lies at.
#include <stddef.h>
#include <stdint.h>

static uint64_t next_address = 0x7e0000000000, next_handle = 0x1000;

static int give(uint64_t *out, size_t bytes) {
  if (bytes >> 40) return 2; // CUDA_ERROR_OUT_OF_MEMORY
  *out = next_address;
  next_address += (bytes + 511) & ~511ull;
  return 0;
}

int cuMemAlloc_v2(uint64_t *p, size_t n) { return give(p, n); }
int cuMemAllocAsync(uint64_t *p, size_t n, void *stream) { return stream ? 1 : give(p, n); }
int cuMemAllocAsync_ptsz(uint64_t *p, size_t n, void *stream) { return stream ? 1 : give(p, n); }
int cuMemAllocManaged(uint64_t *p, size_t n, unsigned flags) { return flags ? give(p, n) : 1; }
int cuMemHostAlloc(uint64_t *p, size_t n, unsigned flags) { return flags ? 1 : give(p, n); }
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { return p && n && !flags ? 0 : 1; }
int cuMemAllocPitch_v2(uint64_t *p, size_t *pitch, size_t w, size_t h, unsigned size) {
  *pitch = (w + 511) & ~511ull;
  return size ? give(p, *pitch * h) : 1;
}
int cuMemFree_v2(uint64_t p) { return p ? 0 : 1; }
int cuMemFreeAsync(uint64_t p, void *stream) { return p && !stream ? 0 : 1; }
int cuMemFreeHost(uint64_t p) { return p ? 0 : 1; }
int cuMemHostUnregister(uint64_t p) { return p ? 0 : 1; }

int cuMemCreate(uint64_t *handle, size_t n, const void *prop, uint64_t flags) {
  if (!prop || flags || n >> 40) return n >> 40 ? 2 : 1;
  *handle = next_handle++;
  return 0;
}
int cuMemRetainAllocationHandle(uint64_t *handle, uint64_t p) {
  *handle = next_handle - 1; // the last one that was made
  return p ? 0 : 1;
}
int cuMemMap(uint64_t p, size_t n, size_t offset, uint64_t handle, uint64_t flags) {
  return p && n && !offset && handle && !flags ? 0 : 1;
}
int cuMemUnmap(uint64_t p, size_t n) { return p && n ? 0 : 1; }
int cuMemImportFromShareableHandle(uint64_t *handle, void *file, int type) {
  *handle = next_handle++;
  return file && type == 1 ? 0 : 1;
}
int cuMemRelease(uint64_t handle) { return handle ? 0 : 1; }

// Arrays and external memory are objects of the process, whose handles may be like those of physical memory.
static int make(uint64_t *out, const void *description) {
  static uint64_t next_object = 0x1000;
  *out = next_object++;
  return description ? 0 : 1;
}
int cuArrayCreate_v2(uint64_t *array, const void *description) { return make(array, description); }
int cuArray3DCreate_v2(uint64_t *array, const void *description) { return make(array, description); }
int cuMipmappedArrayCreate(uint64_t *array, const void *description, unsigned levels) {
  return levels ? make(array, description) : 1;
}
int cuArrayDestroy(uint64_t array) { return array ? 0 : 1; }
int cuMipmappedArrayDestroy(uint64_t array) { return array ? 0 : 1; }
int cuImportExternalMemory(uint64_t *memory, const void *description) { return make(memory, description); }
int cuDestroyExternalMemory(uint64_t memory) { return memory ? 0 : 1; }

struct ipc {
  uint64_t address, rest[7];
};
int cuIpcOpenMemHandle_v2(uint64_t *p, struct ipc handle, unsigned flags) {
  *p = handle.address; // the same each time that it is opened
  return flags == 1 ? 0 : 1;
}
int cuIpcCloseMemHandle(uint64_t p) { return p ? 0 : 1; }

// Contexts of two GPUs. Each thread has a stack of two.
static _Thread_local uint64_t current, below;
int cuDevicePrimaryCtxRetain(uint64_t *context, int gpu) {
  *context = 0x5000 + gpu * 0x10;
  return gpu < 2 ? 0 : 101;
}
int cuCtxCreate_v2(uint64_t *context, unsigned flags, int gpu) {
  static uint64_t next_context = 0x6000;
  *context = next_context++;
  below = current;
  current = *context;
  return flags || gpu > 1;
}
int cuCtxDestroy_v2(uint64_t context) {
  if (context == current) current = below;
  return 0;
}
int cuCtxSetCurrent(uint64_t context) {
  current = context;
  return 0;
}
int cuCtxPushCurrent_v2(uint64_t context) {
  below = current;
  current = context;
  return 0;
}
int cuCtxPopCurrent_v2(uint64_t *context) {
  *context = current;
  current = below;
  return 0;
}
