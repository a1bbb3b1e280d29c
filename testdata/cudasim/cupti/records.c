// Activity records, in the prefix layout of CUPTI 13.0, and the clock they are in.
#include <time.h>
#include "cupti.h"
#include "../include/truth_file.h"

struct kernel_record { // CUpti_ActivityKernel10
  uint32_t kind;
  uint8_t cache, shared_config;
  uint16_t registers;
  uint32_t partitioned_request, partitioned;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total, correlation;
  int64_t grid_id;
  const char *name;
  void *reserved;
  uint64_t queued, submitted;
  uint8_t launch_type, shared_requested, carveout, shared_carveout;
  uint32_t shared_executed;
  uint64_t graph_node;
  uint32_t shmem_limit, graph;
  void *access_policy;
  uint8_t rest[48];
};
_Static_assert(offsetof(struct kernel_record, start) == 16 && offsetof(struct kernel_record, device) == 40 &&
                   offsetof(struct kernel_record, correlation) == 92 && offsetof(struct kernel_record, name) == 104 &&
                   offsetof(struct kernel_record, graph_node) == 144 && offsetof(struct kernel_record, graph) == 156 && sizeof(struct kernel_record) == 216,
               "kernel record layout");

struct memcpy_record { // CUpti_ActivityMemcpy6
  uint32_t kind;
  uint8_t copy_kind, src_kind, dst_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation, runtime_correlation, pad;
  void *reserved;
  uint64_t graph_node;
  uint32_t graph, channel, channel_type;
  uint8_t rest[12];
};
_Static_assert(offsetof(struct memcpy_record, start) == 16 && offsetof(struct memcpy_record, correlation) == 44 &&
                   offsetof(struct memcpy_record, graph_node) == 64 && sizeof(struct memcpy_record) == 96,
               "memcpy record layout");

struct memset_record { // CUpti_ActivityMemset4
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
  uint16_t flags, memory_kind;
  uint32_t pad;
  void *reserved;
  uint64_t graph_node;
  uint32_t graph, channel;
  uint64_t rest;
};
_Static_assert(offsetof(struct memset_record, correlation) == 44 && offsetof(struct memset_record, graph_node) == 64 && sizeof(struct memset_record) == 88,
               "memset record layout");

struct sync_record { // CUpti_ActivitySynchronization2
  uint32_t kind, type;
  uint64_t start, end;
  uint32_t correlation, context, stream, event;
  uint64_t event_sync_id;
  uint32_t result, pad;
};
_Static_assert(offsetof(struct sync_record, correlation) == 24 && sizeof(struct sync_record) == 56, "synchronization record layout");

static uint64_t realtime(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// cupti_read_clock finds how far the wanted clock is from the device's: 0 when it reads between two readings of that.
void cupti_read_clock(void) {
  uint64_t (*read)(void) = cupti.timestamp ? cupti.timestamp : realtime;
  uint64_t before = cupti.hooks->now(), t = read(), after = cupti.hooks->now();
  cupti.clock_offset = t >= before && t <= after ? 0 : (int64_t)(t - (before + after) / 2);
}

uint64_t cupti_time(uint64_t ns) { return ns + (uint64_t)cupti.clock_offset; }

size_t record_size(uint32_t kind) {
  switch (kind) {
  case KIND_KERNEL: case KIND_CONCURRENT_KERNEL: return sizeof(struct kernel_record);
  case KIND_MEMCPY: return sizeof(struct memcpy_record);
  case KIND_MEMSET: return sizeof(struct memset_record);
  case KIND_SYNC: return sizeof(struct sync_record);
  default: return 0;
  }
}

static void kernel_record(struct kernel_record *r, const struct sim_op *op, int finished) {
  r->kind = cupti.kind[KIND_CONCURRENT_KERNEL] ? KIND_CONCURRENT_KERNEL : KIND_KERNEL;
  r->registers = 32;
  r->start = cupti_time(op->start), r->end = finished ? cupti_time(op->end) : 0;
  r->device = op->device, r->context = op->context_id, r->stream = op->stream_id;
  memcpy(r->grid, op->grid, sizeof r->grid);
  memcpy(r->block, op->block, sizeof r->block);
  r->dynamic_shared = (int32_t)op->shared, r->correlation = (uint32_t)op->call_id, r->grid_id = (int64_t)op->call_id;
  r->name = op->name, r->graph_node = op->graph_node, r->graph = op->graph_id;
}

static void memcpy_record(struct memcpy_record *r, const struct sim_op *op, int finished) {
  r->kind = KIND_MEMCPY;
  r->copy_kind = op->copy_kind, r->src_kind = op->src_kind, r->dst_kind = op->dst_kind, r->flags = op->async;
  r->bytes = op->bytes, r->start = cupti_time(op->start), r->end = finished ? cupti_time(op->end) : 0;
  r->device = op->device, r->context = op->context_id, r->stream = op->stream_id, r->correlation = (uint32_t)op->call_id;
  r->graph_node = op->graph_node, r->graph = op->graph_id;
}

static void memset_record(struct memset_record *r, const struct sim_op *op, int finished) {
  r->kind = KIND_MEMSET;
  r->value = op->value, r->bytes = op->bytes, r->start = cupti_time(op->start), r->end = finished ? cupti_time(op->end) : 0;
  r->device = op->device, r->context = op->context_id, r->stream = op->stream_id, r->correlation = (uint32_t)op->call_id;
  r->flags = op->async, r->memory_kind = 3, r->graph_node = op->graph_node, r->graph = op->graph_id;
}

// record_op writes the record of an operation, and returns its size; 0 where the room does not suffice.
size_t record_op(uint8_t *to, size_t room, const struct sim_op *op, int finished) {
  size_t size = record_size(op->kind == OP_KERNEL ? KIND_KERNEL : op->kind == OP_COPY ? KIND_MEMCPY : KIND_MEMSET);
  if (room < size) return 0;
  memset(to, 0, size);
  if (op->kind == OP_KERNEL) kernel_record((void *)to, op, finished);
  else if (op->kind == OP_COPY) memcpy_record((void *)to, op, finished);
  else memset_record((void *)to, op, finished);
  return size;
}

size_t record_sync(uint8_t *to, size_t room, const struct sim_sync *s) {
  struct sync_record r = {.kind = KIND_SYNC, .type = s->type, .start = cupti_time(s->start), .end = cupti_time(s->end), .correlation = (uint32_t)s->call_id,
                          .context = s->context_id, .stream = s->stream_id, .event = s->event_id};
  if (room < sizeof r) return 0;
  memcpy(to, &r, sizeof r);
  return sizeof r;
}
