// Records that are not about operations: devices, contexts, streams, and CUPTI's own overhead.
#include <unistd.h>
#include "cupti.h"

struct device_record { // CUpti_ActivityDevice5
  uint32_t kind, flags;
  uint64_t bytes_per_s, memory; // the first in kilobytes a second
  uint32_t constant, l2, warp, core_khz, memcpy_engines, multiprocessors, max_warp, max_block, max_shared,
      max_registers;
  uint32_t max_registers_block, max_shared_block, max_block_threads, max_block_dim[3], max_grid_dim[3], max_ipc, major,
      minor;
  uint32_t id, ecc;
  uint8_t uuid[16];
  const char *name;
};
_Static_assert(offsetof(struct device_record, multiprocessors) == 44 && offsetof(struct device_record, major) == 104 &&
        offsetof(struct device_record, id) == 112 && offsetof(struct device_record, uuid) == 120 &&
        offsetof(struct device_record, name) == 136,
    "device record layout");

struct context_record { // CUpti_ActivityContext
  uint32_t kind, context, device;
  uint16_t api, null_stream; // api 1: CUDA
};
_Static_assert(offsetof(struct context_record, null_stream) == 14, "context record layout");

struct stream_record { // CUpti_ActivityStream
  uint32_t kind, context, stream, priority, flag, correlation; // flag: 1 default, 2 non-blocking
};
_Static_assert(sizeof(struct stream_record) == 24, "stream record layout");

struct overhead_record { // CUpti_ActivityOverhead
  uint32_t kind, what, object, pid, tid, rest; // object 2: a thread
  uint64_t start, end;
};
_Static_assert(
    offsetof(struct overhead_record, start) == 24 && sizeof(struct overhead_record) == 40, "overhead record layout");

static void store(uint32_t kind, const void *from, uint32_t size) {
  struct record r = {.kind = kind, .size = size};
  memcpy(r.bytes, from, size);
  activity_record(&r);
}

static void devices(void) {
  struct sim_device_info d;
  for (uint32_t i = 0; cupti.hooks->device_info(i, &d); i++) {
    struct device_record r = {.kind = KIND_DEVICE,
        .bytes_per_s = d.bytes_per_s / 1000, .memory = d.memory, .warp = 32, .multiprocessors = d.multiprocessors,
        .major = d.major, .minor = d.minor, .id = d.index,
        .name = d.name};
    memcpy(r.uuid, d.uuid, sizeof r.uuid);
    store(KIND_DEVICE, &r, sizeof r);
  }
}

void info_all(uint32_t kind) {
  struct sim_context_info c;
  if (kind == KIND_DEVICE) devices();
  for (uint32_t i = 0; kind == KIND_CONTEXT && cupti.hooks->context_info(i, &c); i++) {
    struct context_record r = {KIND_CONTEXT, c.id, c.device, 1, 7};
    store(KIND_CONTEXT, &r, sizeof r);
  }
}

void info_stream(const struct sim_stream_info *s) {
  struct stream_record r = {KIND_STREAM, s->context_id, s->id, (uint32_t)s->priority, s->non_blocking ? 2 : 1, 0};
  if (cupti.kind[KIND_STREAM]) store(KIND_STREAM, &r, sizeof r);
}

void info_overhead(uint32_t what, uint64_t start, uint64_t end) {
  struct overhead_record r = {
      KIND_OVERHEAD, what, 2, (uint32_t)getpid(), (uint32_t)gettid(), 0, cupti_time(start), cupti_time(end)};
  if (cupti.kind[KIND_OVERHEAD]) store(KIND_OVERHEAD, &r, sizeof r);
}
