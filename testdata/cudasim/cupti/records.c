// Activity records of operations, and the clock they are in. Releases only ever added to the end of a record, so one
// struct serves all: a record is as long as the chosen release's, and holds as much of the struct as fits.
#include <stdio.h>
#include <time.h>
#include <unistd.h>
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
        offsetof(struct kernel_record, graph_node) == 144 && offsetof(struct kernel_record, graph) == 156 &&
        sizeof(struct kernel_record) == 216,
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

struct peer_record { // CUpti_ActivityMemcpyPtoP4
  uint32_t kind;
  uint8_t copy_kind, src_kind, dst_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, src_device, src_context, dst_device, dst_context, correlation;
  void *reserved;
  uint64_t graph_node;
  uint32_t graph, channel, channel_type, pad;
};
_Static_assert(offsetof(struct peer_record, correlation) == 60 && offsetof(struct peer_record, graph) == 80 &&
        sizeof(struct peer_record) == 96,
    "peer copy record layout");

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
_Static_assert(offsetof(struct memset_record, correlation) == 44 && offsetof(struct memset_record, graph_node) == 64 &&
        sizeof(struct memset_record) == 88,
    "memset record layout");

struct sync_record { // CUpti_ActivitySynchronization2
  uint32_t kind, type;
  uint64_t start, end;
  uint32_t correlation, context, stream, event;
  uint64_t event_sync_id;
  uint32_t result, pad;
};
_Static_assert(offsetof(struct sync_record, correlation) == 24 && sizeof(struct sync_record) == 56,
    "synchronization record layout");

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

uint64_t cupti_time(uint64_t ns) { return ns + (uint64_t)(cupti.clock_offset + cupti.skew_ns); }

static const struct layout {
  const char *name;
  uint32_t version; // as cuptiGetVersion gives it
  uint16_t kernel, copy, peer, set, sync, overhead, device, context, stream; // bytes
} layouts[LAYOUTS] = {
    {"11.8", 18, 200, 88, 96, 88, 40, 40, 176, 16, 24},
    {"12.9", 28, 208, 96, 96, 88, 56, 56, 184, 32, 24},
    {"13.0", 130001, 216, 96, 96, 88, 56, 56, 184, 32, 24},
    {"13.5", 130500, 248, 112, 96, 104, 56, 56, 192, 40, 24},
};

// layout_choose takes a release by name; null is the library's own, 13.0 of libcupti.so.13. Another name ends the
// program, as other malformed knobs do.
void layout_choose(const char *version) {
#ifdef CUPTI_OLD
  if (!version || !*version) version = CUPTI_OLD;
#endif
  cupti.layout = 2;
  for (int i = 0; version && *version; i++) {
    if (i == LAYOUTS) {
      fprintf(stderr, "cudasim: CUDASIM_CUPTI_VERSION=%s is none of 11.8, 12.9, 13.0, 13.5\n", version);
      _exit(2);
    }
    cupti.layout = i;
    if (!strcmp(version, layouts[i].name)) return;
  }
}

uint32_t layout_version(void) { return layouts[cupti.layout].version; }

size_t record_size(uint32_t kind) {
  const struct layout *l = &layouts[cupti.layout];
  switch (kind) {
  case KIND_KERNEL: case KIND_CONCURRENT_KERNEL: return l->kernel;
  case KIND_MEMCPY: return l->copy;
  case KIND_MEMCPY2: return l->peer;
  case KIND_MEMSET: return l->set;
  case KIND_SYNC: return l->sync;
  case KIND_OVERHEAD: return l->overhead;
  case KIND_DEVICE: return l->device;
  case KIND_CONTEXT: return l->context;
  case KIND_STREAM: return l->stream;
  case KIND_MARKER: return 56; // of all of them
  default: return 0;
  }
}

// write_as puts as much of a record as the release knows into the buffer, and returns its size; 0 where the room does
// not suffice.
static size_t write_as(uint8_t *to, size_t room, uint32_t kind, const void *from, size_t known) {
  size_t size = record_size(kind);
  if (!size || room < size) return 0;
  memset(to, 0, size);
  memcpy(to, from, known < size ? known : size);
  return size;
}

size_t record_plain(uint8_t *to, size_t room, const struct record *r) {
  return write_as(to, room, r->kind, r->bytes, r->size);
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
  r->device = op->device, r->context = op->context_id, r->stream = op->stream_id,
  r->correlation = (uint32_t)op->call_id;
  r->graph_node = op->graph_node, r->graph = op->graph_id;
}

static void memset_record(struct memset_record *r, const struct sim_op *op, int finished) {
  r->kind = KIND_MEMSET;
  r->value = op->value, r->bytes = op->bytes, r->start = cupti_time(op->start),
  r->end = finished ? cupti_time(op->end) : 0;
  r->device = op->device, r->context = op->context_id, r->stream = op->stream_id,
  r->correlation = (uint32_t)op->call_id;
  r->flags = op->async, r->memory_kind = 3, r->graph_node = op->graph_node, r->graph = op->graph_id;
}

static void peer_record(struct peer_record *r, const struct sim_op *op, int finished) {
  r->kind = KIND_MEMCPY2;
  r->copy_kind = op->copy_kind, r->src_kind = op->src_kind, r->dst_kind = op->dst_kind, r->flags = op->async;
  r->bytes = op->bytes, r->start = cupti_time(op->start), r->end = finished ? cupti_time(op->end) : 0;
  r->device = op->device, r->context = op->context_id, r->stream = op->stream_id,
  r->correlation = (uint32_t)op->call_id;
  r->src_device = op->peer[0], r->src_context = op->peer[1], r->dst_device = op->peer[2], r->dst_context = op->peer[3];
  r->graph_node = op->graph_node, r->graph = op->graph_id;
}

// record_op writes the record of an operation, and returns its size; 0 where the room does not suffice.
size_t record_op(uint8_t *to, size_t room, const struct sim_op *op, int finished) {
  union {
    struct kernel_record kernel;
    struct memcpy_record copy;
    struct peer_record peer;
    struct memset_record set;
  } r;
  memset(&r, 0, sizeof r);
  if (op->kind == OP_KERNEL) kernel_record(&r.kernel, op, finished);
  else if (op->kind == OP_COPY && op->copy_kind == COPY_PTOP) peer_record(&r.peer, op, finished);
  else if (op->kind == OP_COPY) memcpy_record(&r.copy, op, finished);
  else memset_record(&r.set, op, finished);
  return write_as(to, room, r.kernel.kind, &r, sizeof r);
}

size_t record_sync(uint8_t *to, size_t room, const struct sim_sync *s) {
  const uint32_t none = 0xffffffff; // CUPTI_SYNCHRONIZATION_INVALID_VALUE
  struct sync_record r = {.kind = KIND_SYNC,
      .type = s->type, .start = cupti_time(s->start), .end = cupti_time(s->end), .correlation = (uint32_t)s->call_id,
      .context = s->context_id,
      .stream = s->type == 2 || s->type == 3 ? s->stream_id : none,
      .event = s->type <= 2 ? s->event_id : none};
  return write_as(to, room, KIND_SYNC, &r, sizeof r);
}
