// Internals of the simulated libcupti.
#ifndef CUDASIM_CUPTI_H
#define CUDASIM_CUPTI_H
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "../include/hooks.h"

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))
typedef int CUptiResult;
enum {
  C_OK = 0, C_INVALID_PARAMETER = 1, C_MAX_LIMIT_REACHED = 12, C_NOT_INITIALIZED = 15, C_QUEUE_EMPTY = 18,
  C_INVALID_KIND = 21, C_UNKNOWN = 999, C_NOT_SUPPORTED = 27, C_MULTIPLE_SUBSCRIBERS = 39
};
enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2, DOMAIN_LAST = 6 };
enum {
  KIND_MEMCPY = 1, KIND_MEMSET = 2, KIND_KERNEL = 3, KIND_DRIVER = 4, KIND_RUNTIME = 5, KIND_CONCURRENT_KERNEL = 10,
  KIND_SYNC = 38, KIND_GRAPH_TRACE = 51, KIND_COUNT = 64, KIND_DEVICE = 8, KIND_CONTEXT = 9, KIND_OVERHEAD = 17,
  KIND_MARKER = 12, KIND_MEMCPY2 = 22, KIND_STREAM = 37
};
enum { OVERHEAD_FLUSH = 1 << 16, OVERHEAD_RESOURCE = 3 << 16 };
enum { LAYOUTS = 4, RECORD_MAX = 256 }; // of CUPTI 11.8, 12.9, 13.0, 13.5; bytes of the longest record

typedef void (*callback_fn)(void *user, int domain, uint32_t cbid, const void *data);
typedef void (*request_fn)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*complete_fn)(CUcontext, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

struct cupti_state {
  struct sim_hooks *hooks;
  pthread_mutex_t lock;      // guards what is below, never held while user code runs
  int subscribed, busy, mute, exit_bomb;
  volatile uint8_t kind[KIND_COUNT];
  int64_t execs_at_subscribe;
  uint64_t subscription;     // number of the present or last one
  int layout;                // index into the layouts
  uint64_t finalize_ns, subscribe_ns;
  const char *subscribe_file; // while it is there, a subscription waits
  uint64_t stall_ns;         // for which a thread lies still after a callback in which its subscriber went
  uint64_t work_ns;          // for which a thread loses its CPU, now and then, in CUPTI's own work at a call
  uint64_t leak_bytes;       // that turning the first kind on takes for ever
  uint64_t (*timestamp)(void);
  int64_t clock_offset;      // added to CLOCK_MONOTONIC ns
  int64_t skew_ns;           // by how much the times of records are wrong
  uint64_t enable_ns;
  uint32_t fns;              // number of the first of its functions in the truth
};
extern struct cupti_state cupti;
extern __thread uint64_t callback_id; // which callback this thread is in; 0: none

struct record { // one that is written at once
  uint32_t kind, size; // bytes that are set
  uint64_t end;        // CLOCK_MONOTONIC ns from which on it may be delivered
  uint8_t bytes[RECORD_MAX];
};

int cupti_ready(void);       // finds the driver; 0 or an error
int any_kind(void);          // is a kind that records device work on?
void work_on(int on);        // while a kind is on calls do work of CUPTI's
void work_freed(void);       // what that work needs is freed
void work_gone(void);        // the same, and no more of it is done
void activity_worker(void);
void activity_start(void);
void activity_stop(void);
void activity_after_fork(void);
void activity_op(const struct sim_op *);
void activity_sync(const struct sim_sync *);
void activity_record(const struct record *);
void layout_choose(const char *version);
uint32_t layout_version(void);
void lethal_on(void);        // the first kind was enabled
void lethal_off(void);       // the last kind was disabled
int lethal_finalize(void);   // would finalizing now break the process?
void lethal_forget(void);    // it was finalized
void info_all(uint32_t kind); // records of what exists: devices, contexts
void info_stream(const struct sim_stream_info *);
void info_overhead(uint32_t what, uint64_t start, uint64_t end);
uint64_t cupti_time(uint64_t monotonic_ns);
void cupti_read_clock(void);
size_t record_size(uint32_t kind);
size_t record_plain(uint8_t *to, size_t room, const struct record *);
size_t record_op(uint8_t *to, size_t room, const struct sim_op *, int finished);
size_t record_sync(uint8_t *to, size_t room, const struct sim_sync *);
#endif
