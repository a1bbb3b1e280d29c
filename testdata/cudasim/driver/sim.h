// Internals of the simulated driver, shared by its files.
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../include/cuda_types.h"
#include "../include/hooks.h"
#include "../include/truth_file.h"

#define X(since, name, cbid) FN_##name,
#define A(since, name, cbid, target)
enum sim_fn {
  FN_NONE,
#include "exports.h"
  FN_COUNT
};
#undef X
#undef A

#define API(name) CUresult impl_##name
#define UNUSED __attribute__((unused))
#define unlikely(x) __builtin_expect(!!(x), 0)
enum { MAX_DEVICES = 16, MAX_SLOTS = 128, MAX_QUEUE = 1024, ENGINES = 4 };

struct sim_config {
  uint32_t devices, slots, queue, fork_breaks, spin, call_fault, mig, lock;
  uint64_t kernel_ns, launch_latency_ns, copy_latency_ns, call_ns, alloc_ns, free_ns, graph_node_ns, hostfn_ns,
      enable_ns, memory;
  double pinned_gbps, pageable_gbps, d2d_gbps, memset_gbps;
  char device_name[128];
};

enum {
  MAGIC_STREAM = 0x53545231, MAGIC_EVENT = 0x45565431, MAGIC_FUNC = 0x46554e31, MAGIC_CTX = 0x43545831,
  MAGIC_MODULE = 0x4d4f4431, MAGIC_GRAPH = 0x47524631, MAGIC_NODE = 0x4e4f4431, MAGIC_EXEC = 0x45584531,
  MAGIC_POOL = 0x504f4c31
};

struct sim_context {
  uint32_t magic, id, flags, refs;
  struct sim_device *dev;
  int primary;
};

struct sim_func {
  uint32_t magic, name_id;
  uint64_t ns; // how long the kernel runs
  char *name;
  struct sim_module *module;
  int max_dynamic_shared;
};

struct sim_module {
  uint32_t magic;
};

struct capture { // a stream in capture: nodes join graph behind deps
  struct sim_graph *graph;
  struct sim_node **deps;
  size_t count, cap;
  uint64_t id;
  struct sim_stream *origin, *self;
  struct capture *sibling; // the next stream of the same capture
  int global;              // begun with the mode that forbids other threads what may be unsafe
  uint64_t epoch;          // of unsafe calls when it was begun
};

struct sim_stream {
  uint32_t magic, id, flags;
  int priority;
  struct sim_device *dev;
  struct sim_context *ctx;
  uint64_t tail;          // when everything queued so far is over, ns
  uint64_t hostfn_ticket; // last host function queued here
  uint32_t head;
  uint64_t ring[MAX_QUEUE]; // end times of the last operations: the launch queue
  struct capture *capture;
};

struct sim_event {
  uint32_t magic, flags, id;
  int recorded;
  uint64_t when;          // ns at which it completes
  uint64_t hostfn_ticket;
  struct capture *capture; // recorded in a capturing stream: its graph and nodes
};

struct sim_device {
  pthread_mutex_t lock;
  uint32_t index;
  uint64_t legacy_tail, blocking_tail, all_tail;
  uint64_t free_at[ENGINES][MAX_SLOTS];
  struct sim_stream *legacy;
  struct sim_context primary;
  uint64_t used, next_va;
  // A kernel that waits for other ranks; one at a time, and of one thread.
  struct {
    struct sim_meeting *with;
    struct sim_stream *stream;
    struct sim_op op;
    struct sim_call call;
    uint64_t duration;
  } meets;
};

struct sim_thread {
  uint32_t gen, tid, depth, shared_stripe;
  uint64_t outer_id;
  struct truth_stripe *stripe;
  struct truth_record *chunk;
  uint32_t chunk_left, in_hook;
  struct sim_context *ctx, *stack[16];
  uint32_t stack_len;
  struct sim_stream *per_thread[MAX_DEVICES];
  const void *params;  // of the call that is about to be entered
  uint32_t kernel_name; // likewise, of a launch: CUPTI names the kernel at the entry already
  int capture_mode;     // CUstreamCaptureMode of this thread
  struct sim_meeting *meeting; // of the next launch
  uint32_t captures;    // of mode CAPTURE_GLOBAL that it has begun and not ended
};

struct sim_state {
  uint32_t gen;           // raised at fork: a thread with an older one starts afresh
  uint32_t level, initialized, broken;
  uint64_t next_id;
  uint32_t next_stream, next_event, next_ctx, made_count;
  struct sim_context *made[64]; // contexts that cuCtxCreate made, for CUPTI's list of them
  uint64_t pid;
  struct sim_config cfg;
  struct sim_device dev[MAX_DEVICES];
};

extern struct sim_state sim;
extern struct sim_hooks cudasim_hooks;
extern __thread struct sim_thread tls;
extern const char *const fn_names[FN_COUNT];
extern const uint32_t fn_cbids[FN_COUNT];

// Layouts of functionParams that several functions share.
struct stream_params { CUstream stream; };
struct handle_params { void *handle; };
struct pair_params { const void *first, *second; };
struct copy_params { uint64_t dst, src; size_t bytes; CUstream stream; };
struct fill_params { CUdeviceptr dst; uint32_t value; size_t count; CUstream stream; };

// sim.c
uint64_t now_ns(void);
void wait_until(uint64_t ns, int spin);
void spin_ns(uint64_t ns);
void thread_start(struct sim_thread *);
int call_enter_slow(struct sim_call *);
void call_exit_slow(struct sim_call *);
int need_context(struct sim_device **);
void device_uuid(uint32_t index, uint8_t *uuid);
const char *env_str(const char *name);
uint64_t env_u64(const char *name, uint64_t def);

// truth.c
void truth_open(void);
void truth_after_fork(void);
void truth_thread(struct sim_thread *);
void truth_call(const struct sim_call *, uint64_t exit_ns);
void truth_op(const struct sim_op *);
uint32_t truth_string(const char *);
const char *truth_string_of(uint32_t id);
uint32_t truth_register(const char *owner, const char *const *names, uint32_t count);

// lock.c
void lock_enter(void); // a call begins: waits while the lock is held
void lock_leave(void);
void lock_all(void);
void unlock_all(void);
void lock_after_fork(void);

// fault.c
void fault_load(void);
int fault_enter(struct sim_call *);

// device.c
void device_init(struct sim_device *, uint32_t index);
int resolve_stream(CUstream, int per_thread, struct sim_stream **);
struct sim_stream *stream_new(struct sim_device *, uint32_t flags, int priority);
void stream_put(struct sim_stream *s, struct sim_op *, uint64_t duration, struct sim_call *);
uint64_t stream_done(struct sim_stream *);
void stream_delay(struct sim_stream *, uint64_t until);
uint64_t device_done(struct sim_device *);
void op_place(struct sim_device *, struct sim_op *, uint64_t ready, uint64_t duration);
void op_publish(struct sim_op *, struct sim_call *);
void sync_to(uint64_t until, uint64_t ticket, struct sim_call *, uint32_t type, uint32_t stream_id, uint32_t event_id);

// hostfn.c
uint64_t hostfn_queue(void (*fn)(void *), void *data, uint64_t when);
void hostfn_wait(uint64_t ticket);
int hostfn_done(uint64_t ticket);
uint64_t hostfn_last(void);
void hostfn_after_fork(void);

// graph.c
void graph_after_fork(void);
uint64_t launches_of_others(void);
int capture_unsafe(void);

// memory.c
// CUPTI memory kinds
enum { RANGE_NONE = 0, RANGE_PAGEABLE = 1, RANGE_PINNED = 2, RANGE_DEVICE = 3, RANGE_MANAGED = 5 };
struct range {
  uint64_t start, size;
  uint8_t kind, registered, mapped;
  uint32_t device;
};
int device_alloc(struct sim_device *, size_t bytes, uint64_t *ptr);
int host_alloc(size_t bytes, uint8_t kind, uint32_t device, void **ptr);
int range_add(uint64_t start, uint64_t size, uint8_t kind, uint32_t device, int registered);
int range_find(uint64_t addr, struct range *out);
int range_remove(uint64_t start, struct range *out);
uint8_t memory_kind(uint64_t addr);
void memory_after_fork(void);

// copy.c
struct copy {
  uint64_t dst, src, bytes;
  uint8_t kind, src_kind, dst_kind, async; // kind 0: find out from the addresses
  uint32_t peer[4];                        // as in struct sim_op
};
int copy_run(struct copy *, CUstream, int per_thread, struct sim_call *);
uint64_t copy_ns(const struct copy *);
void copy_resolve(struct copy *);
void copy_from_3d(const CUDA_MEMCPY3D *, struct copy *);
void copy_op(const struct copy *, struct sim_op *);

// api_launch.c
void launch_op(struct sim_op *, const struct sim_func *, const uint32_t *grid, const uint32_t *block, uint32_t shared);

// graph.c
int capture_add(struct sim_stream *, const struct sim_op *, uint64_t duration, CUhostFn fn, void *data);
int capture_event_record(struct sim_stream *, struct sim_event *);
int capture_event_wait(struct sim_stream *, struct sim_event *);


static inline void bump(struct sim_thread *t, uint64_t *counter, uint64_t n) {
  if (unlikely(t->shared_stripe)) __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
  else *counter += n;
}

// call_enter notes the start of a call; nonzero is an injected error to return at once.
static inline int call_enter(struct sim_call *c, uint32_t fn) {
  struct sim_thread *t = &tls;
  memset(c, 0, sizeof *c);
  if (unlikely(t->gen != sim.gen)) thread_start(t);
  c->fn = fn;
  c->params = t->params;
  t->params = NULL;
  c->depth = t->depth++;
  c->id = __atomic_add_fetch(&sim.next_id, 1, __ATOMIC_RELAXED);
  if (c->depth == 0) t->outer_id = c->id;
  c->parent = t->outer_id;
  if (t->stripe) {
    bump(t, &t->stripe->calls[fn], 1);
    if (c->depth == 0) bump(t, &t->stripe->outer[fn], 1);
  }
  if (sim.level == LEVEL_CALLS) c->enter = now_ns();
  if (unlikely(cudasim_hooks.active)) return call_enter_slow(c);
  return 0;
}

// call_exit notes the end of a call and returns its result.
static inline int call_exit(struct sim_call *c, int result) {
  struct sim_thread *t = &tls;
  c->result = result;
  if (unlikely(cudasim_hooks.active)) call_exit_slow(c);
  if (t->stripe && unlikely(result != OK && result != E_NOT_READY)) bump(t, &t->stripe->failed[c->fn], 1);
  if (sim.level == LEVEL_CALLS) truth_call(c, now_ns());
  t->depth--;
  return result;
}

// PARAMS says what CUPTI shows as functionParams: the parameters in order, in the layout that generated_cuda_meta.h
// declares.
#define PARAMS(T, ...) struct T params_ = {__VA_ARGS__}; tls.params = &params_

#define ENTER_ID(id)                 \
  struct sim_call c;                 \
  int fault = call_enter(&c, (id));  \
  if (fault) return call_exit(&c, fault)
#define ENTER(name) ENTER_ID(FN_##name)
#define LEAVE(result) return call_exit(&c, (result))
#define NEED(cond, error) do { if (!(cond)) return call_exit(&c, (error)); } while (0)
#define NEED_CONTEXT(dev) struct sim_device *dev; do { int e_ = need_context(&dev); if (e_) return call_exit(&c, e_); } while (0)
#define LIVE(handle, kind) ((handle) && ((uintptr_t)(handle) & 7) == 0 && (handle)->magic == (kind))
#endif
