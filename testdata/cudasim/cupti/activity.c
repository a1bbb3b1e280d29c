// Activity: device operations queue up as they are launched, and go, once they are over, into buffers that the client
// gives on demand and gets back when full or flushed. One worker thread, as the real library has.
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include "cupti.h"
#include "../include/truth_file.h"

struct item {
  union {
    struct sim_op op;
    struct sim_sync sync;
    struct record plain;
  };
  enum { ITEM_OP, ITEM_SYNC, ITEM_PLAIN } is;
  uint64_t end; // CLOCK_MONOTONIC ns
};

// Items, in memory of their own: the allocator's would stay in the arenas of the program's threads when all is over.
struct list {
  struct item *items;
  size_t count, cap;
};

static struct {
  pthread_mutex_t lock; // guards the queue
  struct list queue;
  pthread_mutex_t delivery; // one deliverer at a time; held while the client's functions run
  struct list done; // guarded by delivery
  request_fn request;
  complete_fn complete;
  uint8_t *buffer;
  size_t size, used;
  uint64_t seen, dropped, drop_every;
  uint64_t owner; // subscription under which the functions were registered
  volatile uint64_t period_ns;
  volatile uint32_t generation; // a worker of an older one ends
  int running;
} act = {.lock = PTHREAD_MUTEX_INITIALIZER, .delivery = PTHREAD_MUTEX_INITIALIZER};

int any_kind(void) {
  return cupti.kind[KIND_KERNEL] || cupti.kind[KIND_CONCURRENT_KERNEL] || cupti.kind[KIND_MEMCPY] ||
      cupti.kind[KIND_MEMSET] || cupti.kind[KIND_MEMCPY2];
}

// room makes room for n items; whether there is.
static int room(struct list *l, size_t n) {
  size_t cap = l->cap ? l->cap : 4096;
  while (cap < n) cap *= 2;
  if (cap == l->cap) return 1;
  void *m = l->items ? mremap(l->items, l->cap * sizeof *l->items, cap * sizeof *l->items, MREMAP_MAYMOVE)
                     : mmap(NULL, cap * sizeof *l->items, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) return 0;
  l->items = m;
  l->cap = cap;
  return 1;
}

static void give_back(struct list *l) {
  if (l->items) munmap(l->items, l->cap * sizeof *l->items);
  *l = (struct list){0};
}

static void push(const struct item *i) {
  pthread_mutex_lock(&act.lock);
  if (room(&act.queue, act.queue.count + 1)) act.queue.items[act.queue.count++] = *i;
  else act.dropped++;
  pthread_mutex_unlock(&act.lock);
}

static int wanted(const struct sim_op *op) {
  switch (op->kind) {
  case OP_KERNEL: return cupti.kind[KIND_KERNEL] || cupti.kind[KIND_CONCURRENT_KERNEL];
  case OP_COPY: return cupti.kind[op->copy_kind == COPY_PTOP ? KIND_MEMCPY2 : KIND_MEMCPY];
  case OP_MEMSET: return cupti.kind[KIND_MEMSET];
  default: return 0;
  }
}

void activity_op(const struct sim_op *op) {
  if (!wanted(op) || (op->graph_id && cupti.kind[KIND_GRAPH_TRACE])) return;
  struct item i = {.op = *op, .is = ITEM_OP, .end = op->end};
  push(&i);
}

void activity_sync(const struct sim_sync *s) {
  if (!cupti.kind[KIND_SYNC]) return;
  struct item i = {.sync = *s, .is = ITEM_SYNC, .end = s->end};
  push(&i);
}

void activity_record(const struct record *r) {
  struct item i = {.plain = *r, .is = ITEM_PLAIN, .end = r->end};
  push(&i);
}

static void hand_back(void) {
  if (!act.buffer) return;
  uint8_t *b = act.buffer;
  act.buffer = NULL;
  act.complete(NULL, 0, b, act.size, act.used);
}

static int have_buffer(void) {
  if (act.buffer) return 1;
  size_t max = 0;
  act.size = act.used = 0;
  act.request(&act.buffer, &act.size, &max);
  if (act.buffer && act.size >= 1024) return 1;
  act.buffer = NULL;
  return 0;
}

static size_t write_item(const struct item *i, int finished) {
  uint8_t *to = act.buffer + act.used;
  size_t room = act.size - act.used;
  if (i->is == ITEM_PLAIN) return record_plain(to, room, &i->plain);
  return i->is == ITEM_SYNC ? record_sync(to, room, &i->sync) : record_op(to, room, &i->op, finished);
}

static void store(const struct item *i, int finished) {
  if (act.drop_every && ++act.seen % act.drop_every == 0) {
    act.dropped++;
    return;
  }
  for (int tries = 0; tries < 2; tries++) {
    size_t n = have_buffer() ? write_item(i, finished) : 0;
    act.used += n;
    if (n) return;
    if (act.buffer) hand_back();
  }
  act.dropped++; // the client gave no buffer
}

// take moves the finished items, or all of them, out of the queue.
static void take(int all) {
  uint64_t now = cupti.hooks->now();
  struct list *q = &act.queue, *done = &act.done;
  pthread_mutex_lock(&act.lock);
  size_t kept = 0;
  done->count = 0;
  int can = room(done, q->count);
  for (size_t i = 0; can && i < q->count; i++) {
    if (all || q->items[i].end <= now) done->items[done->count++] = q->items[i];
    else q->items[kept++] = q->items[i];
  }
  if (can) q->count = kept;
  pthread_mutex_unlock(&act.lock);
}

static void deliver(int flush, int all) {
  pthread_mutex_lock(&act.delivery);
  if (act.request) {
    take(all);
    uint64_t now = cupti.hooks->now();
    for (size_t i = 0; i < act.done.count; i++) store(&act.done.items[i], act.done.items[i].end <= now);
    if (flush) hand_back();
  }
  pthread_mutex_unlock(&act.delivery);
}

static void *worker(void *generation) {
  uint32_t mine = (uint32_t)(uintptr_t)generation;
  uint64_t last = cupti.hooks->now();
  while (mine == act.generation) {
    struct timespec t = {0, 5000000};
    nanosleep(&t, NULL);
    if (mine != act.generation) break;
    uint64_t now = cupti.hooks->now();
    int flush = act.period_ns && now - last >= act.period_ns;
    if (flush) last = now;
    deliver(flush, 0);
  }
  return NULL;
}

// activity_worker begins the worker, if it is not there; the caller holds the lock.
void activity_worker(void) {
  pthread_t t;
  if (act.running) return;
  act.running = pthread_create(&t, NULL, worker, (void *)(uintptr_t)act.generation) == 0;
  if (act.running) pthread_detach(t);
}

void activity_start(void) {
  pthread_mutex_lock(&cupti.lock);
  activity_worker();
  const char *drop = getenv("CUDASIM_CUPTI_DROP_EVERY"), *cost = getenv("CUDASIM_CUPTI_OP_NS"),
             *skew = getenv("CUDASIM_CUPTI_SKEW_NS");
  cupti.skew_ns = skew ? strtoll(skew, NULL, 10) : 0;
  act.drop_every = drop ? strtoull(drop, NULL, 10) : 0;
  cupti.hooks->op_ns = cost ? (uint32_t)strtoul(cost, NULL, 10) : 0;
  __atomic_store_n(&cupti.hooks->on_op, activity_op, __ATOMIC_RELEASE);
  __atomic_store_n(&cupti.hooks->on_sync, activity_sync, __ATOMIC_RELEASE);
  __atomic_store_n(&cupti.hooks->on_stream, info_stream, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&cupti.lock);
}

static void unhook(void) {
  __atomic_store_n(&cupti.hooks->on_op, NULL, __ATOMIC_RELEASE);
  __atomic_store_n(&cupti.hooks->on_sync, NULL, __ATOMIC_RELEASE);
  __atomic_store_n(&cupti.hooks->on_stream, NULL, __ATOMIC_RELEASE);
  cupti.hooks->op_ns = 0;
}

// activity_stop leaves nothing: no worker, no hooks, no queue. What was not flushed is lost, as with the real one.
void activity_stop(void) {
  unhook();
  act.generation++;
  act.running = 0;
  pthread_mutex_lock(&act.lock);
  give_back(&act.queue);
  pthread_mutex_unlock(&act.lock);
  pthread_mutex_lock(&act.delivery);
  give_back(&act.done);
  act.request = NULL;
  act.complete = NULL;
  act.buffer = NULL;
  act.period_ns = 0;
  pthread_mutex_unlock(&act.delivery);
}

// activity_after_fork: the child has no worker, and perhaps somebody else's locks.
void activity_after_fork(void) {
  pthread_mutex_init(&act.lock, NULL);
  pthread_mutex_init(&act.delivery, NULL);
  act.generation++;
  act.running = 0;
  act.queue.count = 0;
  act.request = NULL;
  act.complete = NULL;
  act.buffer = NULL;
  act.period_ns = 0;
}

static void bomb(void) { raise(SIGSEGV); }

// Registering buffers while another profiler is subscribed is told to succeed, takes that profiler's buffers over, and
// kills the process at its exit: what was measured with the real library.
EXPORT CUptiResult cuptiActivityRegisterCallbacks(request_fn request, complete_fn complete) {
  int e = cupti_ready();
  if (e) return e;
  if (!request || !complete) return C_INVALID_PARAMETER;
  int theirs =
      cupti.busy || (cupti.subscribed && act.request && act.request != request && act.owner == cupti.subscription);
  if (theirs && !cupti.exit_bomb) cupti.exit_bomb = atexit(bomb) == 0;
  act.owner = cupti.subscription;
  act.request = request;
  act.complete = complete;
  return C_OK;
}

EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(uint64_t (*read)(void)) {
  int e = cupti_ready();
  if (e) return e;
  cupti.timestamp = read;
  cupti_read_clock();
  return C_OK;
}

static void leak(void) {
  void *m = cupti.leak_bytes ? mmap(NULL, cupti.leak_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                             : MAP_FAILED;
  if (m != MAP_FAILED) memset(m, 1, cupti.leak_bytes);
}

static void first_enable(void) {
  leak();
  uint64_t start = cupti.hooks->now();
  if (cupti.enable_ns) cupti.hooks->wait_until(start + cupti.enable_ns, 0);
  cupti_read_clock();
  lethal_on();
  info_overhead(OVERHEAD_RESOURCE, start, cupti.hooks->now());
}

EXPORT CUptiResult cuptiActivityEnable(uint32_t kind) {
  int e = cupti_ready();
  if (e) return e;
  if (!kind || kind >= KIND_COUNT) return C_INVALID_KIND;
  if (cupti.hooks->capture_unsafe()) return C_UNKNOWN;
  // graphs older than the attach
  if (kind == KIND_GRAPH_TRACE && cupti.hooks->graph_execs > 0 && cupti.execs_at_subscribe > 0) raise(SIGSEGV);
  int first = !any_kind();
  cupti.kind[kind] = 1;
  if (first && any_kind()) first_enable();
  work_on(any_kind());
  info_all(kind);
  activity_start();
  return C_OK;
}

EXPORT CUptiResult cuptiActivityDisable(uint32_t kind) {
  int e = cupti_ready();
  if (e) return e;
  if (!kind || kind >= KIND_COUNT) return C_INVALID_KIND;
  int was = any_kind();
  cupti.kind[kind] = 0;
  if (was && !any_kind()) lethal_off();
  work_on(any_kind());
  if (!any_kind() && !cupti.kind[KIND_SYNC]) unhook();
  return C_OK;
}

EXPORT CUptiResult cuptiActivityEnableContext(CUcontext ctx UNUSED, uint32_t kind) { return cuptiActivityEnable(kind); }
EXPORT CUptiResult cuptiActivityDisableContext(CUcontext ctx UNUSED, uint32_t kind) {
  return cuptiActivityDisable(kind);
}

// cuptiActivityFlushAll hands back the buffer with all finished records; with flag 1 also the unfinished, whose end is
// 0.
EXPORT CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  int e = cupti_ready();
  if (e) return e;
  uint64_t start = cupti.hooks->now();
  deliver(1, (flag & 1) != 0);
  work_freed();
  info_overhead(OVERHEAD_FLUSH, start, cupti.hooks->now());
  return C_OK;
}
EXPORT CUptiResult cuptiActivityFlush(CUcontext ctx UNUSED, uint32_t stream UNUSED, uint32_t flag) {
  return cuptiActivityFlushAll(flag);
}

EXPORT CUptiResult cuptiActivityFlushPeriod(uint32_t ms) {
  act.period_ns = ms * 1000000ull;
  return C_OK;
}

EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record) {
  if (!buffer || !record) return C_INVALID_PARAMETER;
  uint8_t *next = buffer;
  if (*record) {
    size_t size = record_size(*(uint32_t *)*record);
    if (!size) return C_INVALID_KIND;
    next = (uint8_t *)*record + size;
  }
  if (next >= buffer + valid) return C_MAX_LIMIT_REACHED;
  *record = next;
  return C_OK;
}

EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext ctx UNUSED, uint32_t stream UNUSED, size_t *dropped) {
  if (!dropped) return C_INVALID_PARAMETER;
  *dropped = __atomic_exchange_n(&act.dropped, 0, __ATOMIC_RELAXED);
  return C_OK;
}

#ifndef CUPTI_OLD
EXPORT CUptiResult cuptiActivityGetStructSize(uint32_t kind, uint32_t version, size_t *size) {
  if (!size || cupti_ready()) return C_INVALID_PARAMETER;
  if (layout_version() < 130000 || (version && version < 130000)) return C_NOT_SUPPORTED;
  *size = record_size(kind);
  return *size ? C_OK : C_INVALID_KIND;
}
#endif

EXPORT CUptiResult cuptiGetTimestamp(uint64_t *ns) {
  int e = cupti_ready();
  if (e) return e;
  if (!cupti.clock_offset && !cupti.timestamp) cupti_read_clock();
  *ns = cupti_time(cupti.hooks->now());
  return C_OK;
}

// Settings that change nothing of what is simulated.
EXPORT CUptiResult cuptiActivitySetAttribute(int attribute UNUSED, size_t *size UNUSED, void *value UNUSED) {
  return C_OK;
}
EXPORT CUptiResult cuptiActivityEnableLatencyTimestamps(uint8_t on UNUSED) { return C_OK; }
EXPORT CUptiResult cuptiActivityEnableLaunchAttributes(uint8_t on UNUSED) { return C_OK; }
EXPORT CUptiResult cuptiActivityEnableHWTrace(uint8_t on UNUSED) { return C_NOT_SUPPORTED; }
