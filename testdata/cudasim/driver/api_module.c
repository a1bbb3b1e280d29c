// Modules, libraries, kernels and functions. A module's image is never read: any name asked of it exists, unless it
// begins with "missing", and says how long its kernel runs.
#include <ctype.h>
#include "sim.h"

// name_ns is the time in a kernel's name, such as gemm_us50 or k_ns800 or attn_ms2; def where it has none.
static uint64_t name_ns(const char *name, uint64_t def) {
  static const struct {
    const char *mark;
    uint64_t unit;
  } units[] = {{"_ns", 1}, {"_us", 1000}, {"_ms", 1000000}};
  for (size_t i = 0; i < 3; i++)
    for (const char *p = name; (p = strstr(p, units[i].mark)); p++)
      if (isdigit((unsigned char)p[3])) return strtoull(p + 3, NULL, 10) * units[i].unit;
  return def;
}

static struct sim_func *function(struct sim_module *m, const char *name) {
  struct sim_func *f = calloc(1, sizeof *f);
  if (!f) return NULL;
  *f = (struct sim_func){.magic = MAGIC_FUNC,
      .name = strdup(name),
      .module = m,
      .ns = name_ns(name, sim.cfg.kernel_ns),
      .name_id = truth_string(name)};
  return f;
}

static CUresult load(uint32_t fn, CUmodule *out, const void *image) {
  ENTER_ID(fn);
  NEED_CONTEXT(dev);
  NEED(out && image, E_INVALID_VALUE);
  *out = calloc(1, sizeof **out);
  NEED(*out, E_OUT_OF_MEMORY);
  (*out)->magic = MAGIC_MODULE;
  c.ptr = (uint64_t)*out;
  LEAVE(OK);
}
API(cuModuleLoad)(CUmodule *out, const char *file) { return load(FN_cuModuleLoad, out, file); }
API(cuModuleLoadData)(CUmodule *out, const void *image) { return load(FN_cuModuleLoadData, out, image); }
API(cuModuleLoadDataEx)(CUmodule *out, const void *image, unsigned n UNUSED, int *o UNUSED, void **v UNUSED) {
  return load(FN_cuModuleLoadDataEx, out, image);
}
API(cuModuleLoadFatBinary)(CUmodule *out, const void *image) { return load(FN_cuModuleLoadFatBinary, out, image); }
API(cuLibraryLoadData)(CUlibrary *out, const void *image, int *o UNUSED, void **v UNUSED, unsigned n UNUSED,
    int *lo UNUSED, void **lv UNUSED, unsigned ln UNUSED) {
  return load(FN_cuLibraryLoadData, out, image);
}
API(cuLibraryLoadFromFile)(CUlibrary *out, const char *file, int *o UNUSED, void **v UNUSED, unsigned n UNUSED,
    int *lo UNUSED, void **lv UNUSED, unsigned ln UNUSED) {
  return load(FN_cuLibraryLoadFromFile, out, file);
}

static CUresult unload(uint32_t fn, CUmodule m) {
  ENTER_ID(fn);
  c.ptr = (uint64_t)m;
  NEED(LIVE(m, MAGIC_MODULE), E_INVALID_HANDLE);
  m->magic = 0;
  LEAVE(OK);
}
API(cuModuleUnload)(CUmodule m) { return unload(FN_cuModuleUnload, m); }
API(cuLibraryUnload)(CUlibrary m) { return unload(FN_cuLibraryUnload, m); }

static CUresult get_function(uint32_t fn, CUfunction *out, CUmodule m, const char *name) {
  ENTER_ID(fn);
  NEED(out && name, E_INVALID_VALUE);
  NEED(LIVE(m, MAGIC_MODULE), E_INVALID_HANDLE);
  NEED(strncmp(name, "missing", 7) != 0, E_NOT_FOUND);
  *out = function(m, name);
  NEED(*out, E_OUT_OF_MEMORY);
  c.ptr = (uint64_t)*out;
  c.name = (*out)->name_id;
  LEAVE(OK);
}
API(cuModuleGetFunction)(CUfunction *out, CUmodule m, const char *name) {
  return get_function(FN_cuModuleGetFunction, out, m, name);
}
API(cuLibraryGetKernel)(CUkernel *out, CUlibrary m, const char *name) {
  return get_function(FN_cuLibraryGetKernel, out, m, name);
}

static CUresult global(uint32_t fn, CUdeviceptr *ptr, size_t *bytes, CUmodule m) {
  ENTER_ID(fn);
  NEED_CONTEXT(dev);
  NEED(LIVE(m, MAGIC_MODULE), E_INVALID_HANDLE);
  uint64_t p;
  int e = device_alloc(dev, 4096, &p);
  NEED(!e, e);
  if (ptr) *ptr = p;
  if (bytes) *bytes = 4096;
  c.ptr = p;
  LEAVE(OK);
}
API(cuModuleGetGlobal_v2)(CUdeviceptr *ptr, size_t *bytes, CUmodule m, const char *name UNUSED) {
  return global(FN_cuModuleGetGlobal_v2, ptr, bytes, m);
}
API(cuLibraryGetGlobal)(CUdeviceptr *ptr, size_t *bytes, CUlibrary m, const char *name UNUSED) {
  return global(FN_cuLibraryGetGlobal, ptr, bytes, m);
}

API(cuModuleGetLoadingMode)(int *mode) {
  ENTER(cuModuleGetLoadingMode);
  *mode = 2; // lazy
  LEAVE(OK);
}

API(cuLibraryGetModule)(CUmodule *out, CUlibrary lib) {
  ENTER(cuLibraryGetModule);
  NEED(LIVE(lib, MAGIC_MODULE), E_INVALID_HANDLE);
  *out = lib;
  LEAVE(OK);
}

API(cuKernelGetFunction)(CUfunction *out, CUkernel k) {
  ENTER(cuKernelGetFunction);
  c.ptr = (uint64_t)k;
  NEED(LIVE(k, MAGIC_FUNC), E_INVALID_HANDLE);
  *out = k;
  LEAVE(OK);
}

API(cuKernelGetLibrary)(CUlibrary *out, CUkernel k) {
  ENTER(cuKernelGetLibrary);
  NEED(LIVE(k, MAGIC_FUNC), E_INVALID_HANDLE);
  *out = k->module;
  LEAVE(OK);
}

static CUresult get_name(uint32_t fn, const char **name, CUfunction f) {
  ENTER_ID(fn);
  NEED(LIVE(f, MAGIC_FUNC) && name, E_INVALID_HANDLE);
  *name = f->name;
  LEAVE(OK);
}
API(cuFuncGetName)(const char **name, CUfunction f) { return get_name(FN_cuFuncGetName, name, f); }
API(cuKernelGetName)(const char **name, CUkernel f) { return get_name(FN_cuKernelGetName, name, f); }

API(cuFuncGetModule)(CUmodule *out, CUfunction f) {
  ENTER(cuFuncGetModule);
  NEED(LIVE(f, MAGIC_FUNC), E_INVALID_HANDLE);
  *out = f->module;
  LEAVE(OK);
}

static CUresult get_attribute(uint32_t fn, int *out, int attribute, CUfunction f) {
  ENTER_ID(fn);
  NEED(LIVE(f, MAGIC_FUNC) && out, E_INVALID_HANDLE);
  // max threads, registers
  *out = attribute == 0 ? 1024 : attribute == 4 ? 32 : attribute == 8 ? f->max_dynamic_shared : 0;
  LEAVE(OK);
}
API(cuFuncGetAttribute)(int *out, int a, CUfunction f) { return get_attribute(FN_cuFuncGetAttribute, out, a, f); }
API(cuKernelGetAttribute)(int *out, int a, CUkernel f, CUdevice d UNUSED) {
  return get_attribute(FN_cuKernelGetAttribute, out, a, f);
}

static CUresult set_attribute(uint32_t fn, CUfunction f, int attribute, int value) {
  ENTER_ID(fn);
  NEED(LIVE(f, MAGIC_FUNC), E_INVALID_HANDLE);
  if (attribute == 8) f->max_dynamic_shared = value;
  LEAVE(OK);
}
API(cuFuncSetAttribute)(CUfunction f, int a, int v) { return set_attribute(FN_cuFuncSetAttribute, f, a, v); }
API(cuKernelSetAttribute)(int a, int v, CUkernel f, CUdevice d UNUSED) {
  return set_attribute(FN_cuKernelSetAttribute, f, a, v);
}
API(cuFuncSetCacheConfig)(CUfunction f, int v UNUSED) { return set_attribute(FN_cuFuncSetCacheConfig, f, 0, 0); }

static CUresult occupancy(uint32_t fn, int *blocks, int threads) {
  ENTER_ID(fn);
  NEED(blocks && threads > 0 && threads <= 1024, E_INVALID_VALUE);
  *blocks = 2048 / threads;
  LEAVE(OK);
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, CUfunction f UNUSED, int threads, size_t shared UNUSED) {
  return occupancy(FN_cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, threads);
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(
    int *blocks, CUfunction f UNUSED, int threads, size_t shared UNUSED, unsigned flags UNUSED) {
  return occupancy(FN_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, threads);
}
