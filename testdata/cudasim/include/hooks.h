// What libcuda of the simulator gives the simulated libcudart and libcupti: one table, exported as cudasim_hooks.
#ifndef CUDASIM_HOOKS_H
#define CUDASIM_HOOKS_H
#include "cuda_types.h"

// sim_call is one call of an exported function, while it runs. All times are CLOCK_MONOTONIC ns.
struct sim_call {
  uint32_t fn, depth;
  uint64_t enter, id, parent;
  uint64_t stream, stream_id, bytes, ptr, ptr2;
  uint32_t grid[3], block[3], shared, kind, name, counted;
  int32_t result;
  uint64_t user;      // CUPTI's correlationData of this call
  const void *params; // the call's parameters as CUPTI's functionParams gives them; null where nobody reads them
};

// sim_op is one operation of a virtual device, complete with its times when it is queued.
struct sim_op {
  uint8_t kind, copy_kind, engine, src_kind, dst_kind, async; // src_kind, dst_kind: CUPTI memory kinds
  uint32_t device, context_id, stream_id, name_id, value;
  uint64_t submit, start, end, bytes, call_id, parent, dst, src, graph_node;
  uint32_t grid[3], block[3], shared, graph_id;
  const char *name;
  uint32_t peer[4]; // between devices: source device and context id, destination device and context id
};

// A kernel that ends when the ranks of a collective have all come, as the hook meet says of the next launch of a
// thread. What asks for its device's time next waits for that, also where CUDA would not.
struct sim_meeting {
  void (*come)(struct sim_meeting *, uint64_t start);
  uint64_t (*last)(struct sim_meeting *); // waits for the last rank and returns when it came, ns
};

struct sim_device_info {
  uint32_t index, multiprocessors, major, minor;
  uint64_t memory, bytes_per_s; // bytes; bytes a second
  const char *name;
  uint8_t uuid[16];
};

struct sim_context_info { uint32_t id, device; };
struct sim_stream_info { uint32_t id, context_id, non_blocking; int32_t priority; };

struct sim_sync { // one synchronizing call, for CUPTI's synchronization records
  uint32_t type, context_id, stream_id, event_id; // type: 1 event, 2 stream wait event, 3 stream, 4 context
  uint64_t start, end, call_id;
};

// Bits of active: injected faults and call costs, callbacks wanted, and a device lost to a mishandled profiler, after
// which every call returns 719.
enum { ACTIVE_CONFIG = 1, ACTIVE_CALLBACKS = 2, ACTIVE_POISONED = 4, ACTIVE_WORK = 8 };
enum { HOOKS_VERSION = 5, SITE_ENTER = 0, SITE_EXIT = 1, HOOK_FNS = 1024 };

struct sim_hooks {
  uint32_t version, size;
  int (*enter)(struct sim_call *, uint32_t fn);        // 0, or the error an injected fault wants returned
  int (*leave)(struct sim_call *, int result);         // returns result
  uint32_t (*register_names)(const char *owner, const char *const *names, uint32_t count); // first id of the table
  uint64_t (*now)(void);
  void (*wait_until)(uint64_t ns, int spin);
  uint32_t driver_fns;                                 // number of driver function ids
  const char *const *driver_names;
  const uint32_t *driver_cbids;
  uint32_t (*current_context)(void **handle);          // id and handle of the calling thread's context
  int (*device_count)(void);
  // Filled by libcupti while it is subscribed; null otherwise. Read with acquire, written with release.
  void (*on_api)(int site, struct sim_call *, const char *name);
  void (*on_op)(const struct sim_op *);
  // CUPTI's own work at the end of a call, of which no callback tells
  void (*on_work)(void);
  void (*on_sync)(const struct sim_sync *);
  const char *(*string)(uint32_t id);                  // kernel name by id
  volatile uint8_t want[HOOK_FNS];                     // function ids that want on_api
  volatile uint32_t active;                            // nonzero: calls take the slow path through the hooks
  uint32_t api_ns, op_ns;                              // what CUPTI costs the caller, ns per call and per op
  volatile uint64_t graph_launches;                    // so far
  // up to the last one by a thread other than the caller that lives
  uint64_t (*graph_launches_of_others)(void);
  volatile int64_t graph_execs;                        // executable graphs that exist
  int (*device_info)(uint32_t index, struct sim_device_info *);  // 0 beyond the last device
  int (*context_info)(uint32_t n, struct sim_context_info *);    // the n-th context that lives; 0 beyond the last
  void (*on_stream)(const struct sim_stream_info *);   // a stream was made; as the other hooks above
  // What per-node records do to graphs: a graph that ran while they were on is slower until it is made anew or the
  // epoch changes.
  volatile uint32_t graph_kinds_on, graph_epoch;
  uint64_t graph_on_ns, graph_off_ns;                  // ns a node: while on, and after
  // waits until no other thread is inside a call, and keeps all out; nothing without CUDASIM_CUPTI_LOCK
  void (*lock)(void);
  void (*unlock)(void);
  // 0, or what a call returns that may be unsafe beside another thread's capture
  int (*capture_unsafe)(void);
  void (*meet)(struct sim_meeting *);                  // for NCCL
};
#endif
