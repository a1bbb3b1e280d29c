// Allocates by calls of the CUDA driver (driver.c), and writes down what is true. It reads commands:
//   leak N      N blocks of 1 MiB that nothing frees
//   churn N     N blocks of 64 KiB that are freed at once, of two kinds of call
//   host N      N blocks each of pinned memory (1 MiB), registered memory (64 KiB) and managed memory (2 MiB); half are freed
//   map N       N pieces of 2 MiB of physical memory side by side, whose handles are released when they are mapped
//   unmap       takes them all away at once
//   handles N   N pieces of 2 MiB that are never mapped: half are released
//   hosted N    N pieces of 2 MiB of the host, of each kind of location; half are released
//   retain      one piece of 2 MiB that a second handle holds when the first is released
//   pitch N     N blocks of 100 rows of 1000 bytes, each row with its padding; half are freed
//   arrays N    N arrays of each kind; half are destroyed
//   import N    N pieces of 2 MiB of another process are mapped; half are unmapped again. One more is never mapped
//   external N  N pieces of 3 MiB of another API; half are freed
//   ipc N       N blocks of another process, each opened twice; half are closed twice, the others once
//   spread N    N blocks of 1 MiB by each way of choosing one of two GPUs, and prints what is live on each
//   retain_all  gets the contexts of both GPUs, as spread does at first
//   exec        begins this program anew in the same process
//   oom N       fails to allocate N bytes
//   loop N      N allocations and frees of 512 bytes; prints the ns that one pair took
//   truth       prints what is live: on the GPU, pinned, managed, in arrays and of others, and how many calls made and freed it
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemAllocAsync(uint64_t *, size_t, void *);
int cuMemAllocAsync_ptsz(uint64_t *, size_t, void *);
int cuMemAllocManaged(uint64_t *, size_t, unsigned);
int cuMemAllocPitch_v2(uint64_t *, size_t *, size_t, size_t, unsigned);
int cuMemHostAlloc(uint64_t *, size_t, unsigned);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemFree_v2(uint64_t);
int cuMemFreeAsync(uint64_t, void *);
int cuMemFreeHost(uint64_t);
int cuMemHostUnregister(uint64_t);
int cuMemCreate(uint64_t *, size_t, const void *, uint64_t);
int cuMemRetainAllocationHandle(uint64_t *, uint64_t);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t);
int cuMemUnmap(uint64_t, size_t);
int cuMemRelease(uint64_t);
int cuMemImportFromShareableHandle(uint64_t *, void *, int);
int cuArrayCreate_v2(uint64_t *, const void *);
int cuArray3DCreate_v2(uint64_t *, const void *);
int cuMipmappedArrayCreate(uint64_t *, const void *, unsigned);
int cuArrayDestroy(uint64_t);
int cuMipmappedArrayDestroy(uint64_t);
int cuImportExternalMemory(uint64_t *, const void *);
int cuDestroyExternalMemory(uint64_t);
struct ipc {
  uint64_t address, rest[7];
};
int cuIpcOpenMemHandle_v2(uint64_t *, struct ipc, unsigned);
int cuIpcCloseMemHandle(uint64_t);
int cuDevicePrimaryCtxRetain(uint64_t *, int);
int cuCtxCreate_v2(uint64_t *, unsigned, int);
int cuCtxDestroy_v2(uint64_t);
int cuCtxSetCurrent(uint64_t);
int cuCtxPushCurrent_v2(uint64_t);
int cuCtxPopCurrent_v2(uint64_t *);

// The beginning of CUmemAllocationProp.
struct prop {
  int type, handle_types, location, id;
};
static const struct prop on_gpu = {1, 0, 1, 0};

#define NOINLINE __attribute__((noinline))
#define MIB (1ull << 20)

static long long device, pinned, managed, arrays, shared, allocations, frees;
static const uint64_t reserved = 0x7d0000000000; // addresses of map
static int mapped;

static void took(long long *kind, long long bytes) { *kind += bytes; allocations++; }
static void gave(long long *kind, long long bytes) { *kind -= bytes; frees++; }

NOINLINE static void leak_session(void) {
  uint64_t p;
  if (!cuMemAlloc_v2(&p, MIB)) took(&device, MIB);
}

NOINLINE static void churn(int i) {
  uint64_t p;
  size_t pitch;
  if (i % 3 == 0) cuMemAllocAsync(&p, 64 << 10, NULL);
  else if (i % 3 == 1) cuMemAllocAsync_ptsz(&p, 64 << 10, NULL);
  else cuMemAllocPitch_v2(&p, &pitch, 1000, 64, 4);
  took(&device, 64 << 10);
  if (i % 2) cuMemFreeAsync(p, NULL);
  else cuMemFree_v2(p);
  gave(&device, 64 << 10);
}

NOINLINE static void staging(int i) {
  uint64_t p, q;
  static char pages[64][64 << 10];
  cuMemHostAlloc(&p, MIB, 0);
  took(&pinned, MIB);
  cuMemHostRegister_v2(pages[i % 64], 64 << 10, 0);
  took(&pinned, 64 << 10);
  cuMemAllocManaged(&q, 2 * MIB, 1);
  took(&managed, 2 * MIB);
  if (i % 2) return;
  cuMemFreeHost(p);
  gave(&pinned, MIB);
  cuMemHostUnregister((uint64_t)pages[i % 64]);
  gave(&pinned, 64 << 10);
  cuMemFree_v2(q);
  gave(&managed, 2 * MIB);
}

NOINLINE static void grow_pool(void) {
  uint64_t h;
  cuMemCreate(&h, 2 * MIB, &on_gpu, 0);
  took(&device, 2 * MIB);
  cuMemMap(reserved + 2 * MIB * mapped++, 2 * MIB, 0, h, 0);
  cuMemRelease(h);
}

static void unmap(void) {
  cuMemUnmap(reserved, 2 * MIB * mapped);
  for (; mapped; mapped--) gave(&device, 2 * MIB);
}

static void handles(int i) {
  uint64_t h;
  cuMemCreate(&h, 2 * MIB, &on_gpu, 0);
  took(&device, 2 * MIB);
  if (i % 2) return;
  cuMemRelease(h);
  gave(&device, 2 * MIB);
}

static void hosted(int i) {
  struct prop where = {1, 0, 2 + i % 3, 0}; // HOST, HOST_NUMA, HOST_NUMA_CURRENT
  uint64_t h;
  cuMemCreate(&h, 2 * MIB, &where, 0);
  took(&pinned, 2 * MIB);
  if (i % 2) return;
  cuMemRelease(h);
  gave(&pinned, 2 * MIB);
}

static void retain(void) {
  uint64_t h, same;
  cuMemCreate(&h, 2 * MIB, &on_gpu, 0);
  took(&device, 2 * MIB);
  cuMemRetainAllocationHandle(&same, 1);
  cuMemRelease(h);
}

NOINLINE static void pitched(int i) {
  uint64_t p;
  size_t pitch;
  cuMemAllocPitch_v2(&p, &pitch, 1000, 100, 4);
  took(&device, pitch * 100);
  if (i % 2) return;
  cuMemFree_v2(p);
  gave(&device, pitch * 100);
}

// CUDA_ARRAY3D_DESCRIPTOR; that of two dimensions lacks the depth.
struct flat {
  size_t width, height;
  unsigned format, channels;
};
struct solid {
  size_t width, height, depth;
  unsigned format, channels, flags;
};

NOINLINE static void texture(int i, const void *description, int kind, long long bytes) {
  uint64_t a;
  if (kind == 0) cuArrayCreate_v2(&a, description);
  if (kind == 1) cuArray3DCreate_v2(&a, description);
  if (kind == 2) cuMipmappedArrayCreate(&a, description, 3);
  if (!bytes) return;
  took(&arrays, bytes);
  if (i % 2) return;
  if (kind == 2) cuMipmappedArrayDestroy(a);
  else cuArrayDestroy(a);
  gave(&arrays, bytes);
}

static void textures(int i) {
  enum { U8 = 1, F16 = 0x10, F32 = 0x20, BC1 = 0x91, BC7 = 0x9d, UNORM16X4 = 0xc5, LAYERED = 1, SPARSE = 0x40 };
  texture(i, &(struct flat){1000, 0, F32, 2}, 0, 1000 * 4 * 2);
  texture(i, &(struct flat){640, 480, U8, 4}, 0, 640 * 480 * 4);
  texture(i, &(struct flat){64, 64, BC1, 4}, 0, 64 * 64 / 2);
  texture(i, &(struct solid){64, 64, 0, BC7, 4, 0}, 1, 64 * 64);
  texture(i, &(struct solid){32, 32, 32, F16, 1, 0}, 1, 32 * 32 * 32 * 2);
  texture(i, &(struct solid){32, 32, 6, UNORM16X4, 4, LAYERED}, 1, 32 * 32 * 6 * 8);
  texture(i, &(struct solid){4096, 4096, 0, U8, 1, SPARSE}, 1, 0);
  texture(i, &(struct solid){64, 64, 0, U8, 4, 0}, 2, (64 * 64 + 32 * 32 + 16 * 16) * 4);
  texture(i, &(struct solid){64, 64, 6, U8, 1, LAYERED}, 2, (64 * 64 + 32 * 32 + 16 * 16) * 6);
}

NOINLINE static void import(int i, int map) {
  static const uint64_t at = 0x7c0000000000;
  static int imported;
  uint64_t h, p = at + 2 * MIB * imported++;
  cuMemImportFromShareableHandle(&h, "file", 1);
  if (map) {
    cuMemMap(p, 2 * MIB, 0, h, 0);
    took(&shared, 2 * MIB);
  }
  cuMemRelease(h);
  if (!map || i % 2) return;
  cuMemUnmap(p, 2 * MIB);
  gave(&shared, 2 * MIB);
}

NOINLINE static void external(int i) {
  struct { int type; void *handle[2]; unsigned long long size; unsigned flags; } description = {1, {0}, 3 * MIB, 0};
  uint64_t m;
  cuImportExternalMemory(&m, &description);
  took(&shared, 3 * MIB);
  if (i % 2) return;
  cuDestroyExternalMemory(m);
  gave(&shared, 3 * MIB);
}

NOINLINE static void ipc(int i) {
  static uint64_t next = 0x7b0000000000;
  struct ipc handle = {next += MIB, {0}};
  uint64_t p;
  cuIpcOpenMemHandle_v2(&p, handle, 1);
  took(&shared, 0);
  cuIpcOpenMemHandle_v2(&p, handle, 1);
  cuIpcCloseMemHandle(p);
  if (i % 2) return;
  cuIpcCloseMemHandle(p);
  gave(&shared, 0);
}

static uint64_t primary[2];

static void retain_all(void) {
  for (int gpu = 0; gpu < 2 && !primary[gpu]; gpu++) cuDevicePrimaryCtxRetain(&primary[gpu], gpu);
}

static void spread(int n) {
  static long long gpus[2];
  uint64_t context, h;
  retain_all();
  for (int i = 0; i < n; i++) {
    struct prop on_second = {1, 0, 1, 1};
    cuCtxSetCurrent(primary[0]);
    leak_session();
    cuCtxSetCurrent(primary[1]);
    leak_session();
    cuCtxPushCurrent_v2(primary[0]);
    leak_session();
    cuCtxPopCurrent_v2(&context);
    leak_session();
    cuCtxCreate_v2(&context, 0, 0);
    leak_session();
    cuCtxDestroy_v2(context);
    leak_session();
    cuCtxCreate_v2(&context, 0, 0);
    cuCtxSetCurrent(primary[1]);
    cuCtxDestroy_v2(context); // which is not current
    leak_session();
    cuMemCreate(&h, 2 * MIB, &on_second, 0); // wherever the thread is
    took(&device, 2 * MIB);
    gpus[0] += 3 * MIB;
    gpus[1] += 6 * MIB;
  }
  printf("[%lld,%lld]\n", gpus[0], gpus[1]);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static void loop(int n) {
  double begin = now();
  for (int i = 0; i < n; i++) {
    uint64_t p;
    cuMemAlloc_v2(&p, 512);
    cuMemFree_v2(p);
  }
  printf("%.1f\n", (now() - begin) / n);
}

int main(void) {
  char line[64], command[32];
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("ready");
  while (fgets(line, sizeof line, stdin)) {
    long long n = 0;
    if (sscanf(line, "%31s %lld", command, &n) < 1) continue;
    if (!strcmp(command, "truth")) {
      printf("{\"device\":%lld,\"pinned\":%lld,\"managed\":%lld,\"arrays\":%lld,\"shared\":%lld,\"allocations\":%lld,"
             "\"frees\":%lld}\n", device, pinned, managed, arrays, shared, allocations, frees);
      continue;
    }
    if (!strcmp(command, "loop")) {
      loop((int)n);
      continue;
    }
    if (!strcmp(command, "spread")) {
      spread((int)n);
      continue;
    }
    if (!strcmp(command, "retain_all")) retain_all();
    if (!strcmp(command, "exec")) execl("/proc/self/exe", "drivervictim", NULL);
    if (!strcmp(command, "unmap")) unmap();
    if (!strcmp(command, "import")) import(0, 0);
    if (!strcmp(command, "retain")) retain();
    if (!strcmp(command, "oom")) {
      uint64_t p;
      cuMemAlloc_v2(&p, (size_t)n);
    }
    for (int i = 0; i < n && strcmp(command, "oom"); i++) {
      if (!strcmp(command, "leak")) leak_session();
      if (!strcmp(command, "churn")) churn(i);
      if (!strcmp(command, "host")) staging(i);
      if (!strcmp(command, "map")) grow_pool();
      if (!strcmp(command, "handles")) handles(i);
      if (!strcmp(command, "hosted")) hosted(i);
      if (!strcmp(command, "pitch")) pitched(i);
      if (!strcmp(command, "arrays")) textures(i);
      if (!strcmp(command, "import")) import(i, 1);
      if (!strcmp(command, "external")) external(i);
      if (!strcmp(command, "ipc")) ipc(i);
    }
    puts("ok");
  }
}
