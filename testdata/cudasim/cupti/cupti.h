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
enum { C_OK = 0, C_INVALID_PARAMETER = 1, C_MAX_LIMIT_REACHED = 12, C_NOT_INITIALIZED = 15, C_QUEUE_EMPTY = 18, C_INVALID_KIND = 21,
       C_NOT_SUPPORTED = 27, C_MULTIPLE_SUBSCRIBERS = 39 };
enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2, DOMAIN_LAST = 6 };
enum { KIND_MEMCPY = 1, KIND_MEMSET = 2, KIND_KERNEL = 3, KIND_DRIVER = 4, KIND_RUNTIME = 5, KIND_CONCURRENT_KERNEL = 10, KIND_SYNC = 38,
       KIND_GRAPH_TRACE = 51, KIND_COUNT = 64 };

typedef void (*callback_fn)(void *user, int domain, uint32_t cbid, const void *data);
typedef void (*request_fn)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*complete_fn)(CUcontext, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

struct cupti_state {
  struct sim_hooks *hooks;
  pthread_mutex_t lock;      // guards what is below, never held while user code runs
  int subscribed, busy, exit_bomb;
  callback_fn callback;
  void *user;
  volatile uint8_t kind[KIND_COUNT];
  int64_t execs_at_subscribe;
  uint64_t launches_at_disable;
  uint64_t (*timestamp)(void);
  int64_t clock_offset;      // added to CLOCK_MONOTONIC ns
  uint64_t enable_ns;
};
extern struct cupti_state cupti;
extern __thread int in_callback;

int cupti_ready(void);       // finds the driver; 0 or an error
int any_kind(void);          // is a kind that records device work on?
void activity_start(void);
void activity_stop(void);
void activity_op(const struct sim_op *);
void activity_sync(const struct sim_sync *);
uint64_t cupti_time(uint64_t monotonic_ns);
void cupti_read_clock(void);
size_t record_size(uint32_t kind);
size_t record_op(uint8_t *to, size_t room, const struct sim_op *, int finished);
size_t record_sync(uint8_t *to, size_t room, const struct sim_sync *);
#endif
