// Names of errors, and entry points by name.
#include <stdio.h>
#include "sim.h"

extern void *const sim_exports[FN_COUNT - 1]; // by function id minus one; thunks.S

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {E_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {E_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {E_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {E_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {E_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {E_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {E_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {E_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {E_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {E_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {E_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {E_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing"},
    {E_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "operation failed due to a previous error during capture"},
};

static CUresult describe(uint32_t fn, int code, const char **out, int text) {
  ENTER_ID(fn);
  *out = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) *out = text ? errors[i].text : errors[i].name;
  LEAVE(*out ? OK : E_INVALID_VALUE);
}
API(cuGetErrorName)(int code, const char **out) { return describe(FN_cuGetErrorName, code, out, 0); }
API(cuGetErrorString)(int code, const char **out) { return describe(FN_cuGetErrorString, code, out, 1); }

static void *exported(const char *base, const char *version, const char *suffix) {
  char name[128];
  snprintf(name, sizeof name, "%s%s%s", base, version, suffix);
  for (uint32_t i = 1; i < FN_COUNT; i++)
    if (!strcmp(fn_names[i], name)) return sim_exports[i - 1];
  return NULL;
}

// lookup finds the newest version of a name, and of that the per-thread default stream variant where it is asked for
// and exists: what the real drivers answer a caller of their own version.
static void *lookup(const char *symbol, int per_thread) {
  static const char *const versions[] = {"_v4", "_v3", "_v2", ""};
  static const char *const suffixes[] = {"_ptsz", "_ptds", ""};
  if (!strcmp(symbol, "cuGraphInstantiate")) symbol = "cuGraphInstantiateWithFlags"; // what CUDA 12 headers mean by it
  for (size_t v = 0; v < 4; v++)
    for (size_t s = per_thread ? 0 : 2; s < 3; s++) {
      void *p = exported(symbol, versions[v], suffixes[s]);
      if (p) return p;
    }
  return NULL;
}

static CUresult get_proc(uint32_t fn, const char *symbol, void **out, uint64_t flags, int *status) {
  ENTER_ID(fn);
  NEED(symbol && out, E_INVALID_VALUE);
  *out = lookup(symbol, (flags & 2) != 0);
  if (status) *status = *out ? 0 : 1;
  c.ptr = (uint64_t)*out;
  LEAVE(*out ? OK : E_NOT_FOUND);
}
API(cuGetProcAddress)(const char *symbol, void **out, int version UNUSED, uint64_t flags) {
  return get_proc(FN_cuGetProcAddress, symbol, out, flags, NULL);
}
API(cuGetProcAddress_v2)(const char *symbol, void **out, int version UNUSED, uint64_t flags, int *status) {
  return get_proc(FN_cuGetProcAddress_v2, symbol, out, flags, status);
}

API(cuProfilerStart)(void) {
  ENTER(cuProfilerStart);
  LEAVE(OK);
}

API(cuProfilerStop)(void) {
  ENTER(cuProfilerStop);
  LEAVE(OK);
}

API(cuThreadExchangeStreamCaptureMode)(int *mode) {
  ENTER(cuThreadExchangeStreamCaptureMode);
  int before = tls.capture_mode;
  tls.capture_mode = *mode;
  *mode = before;
  LEAVE(OK);
}

API(cuGetExportTable)(const void **table, const void *id UNUSED) {
  ENTER(cuGetExportTable);
  *table = NULL;
  LEAVE(E_NOT_FOUND); // the private tables are no part of what is simulated
}
