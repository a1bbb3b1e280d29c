// Address ranges: device memory that exists as addresses only, pinned host memory, managed memory.
#include <sys/mman.h>
#include "sim.h"

static const uint64_t device_span = 256ull << 30; // bytes of address space of one device

static struct {
  pthread_mutex_t lock;
  struct range *list; // sorted by start
  size_t count, cap;
  uint64_t base; // of device 0's span
} mem = {.lock = PTHREAD_MUTEX_INITIALIZER};

void memory_after_fork(void) { pthread_mutex_init(&mem.lock, NULL); }

static int reserve(void) {
  if (mem.base) return OK;
  size_t bytes = device_span * sim.cfg.devices;
  void *m = mmap(NULL, bytes + (2u << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) return E_OUT_OF_MEMORY;
  mem.base = ((uint64_t)m + (2u << 20) - 1) & ~((2ull << 20) - 1);
  return OK;
}

// slot is the index of the last range starting at or before addr, plus one.
static size_t slot(uint64_t addr) {
  size_t lo = 0, hi = mem.count;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (mem.list[mid].start <= addr) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

static int insert(struct range r) {
  if (mem.count == mem.cap) {
    size_t cap = mem.cap ? mem.cap * 2 : 256;
    struct range *l = realloc(mem.list, cap * sizeof *l);
    if (!l) return E_OUT_OF_MEMORY;
    mem.list = l;
    mem.cap = cap;
  }
  size_t at = slot(r.start);
  memmove(&mem.list[at + 1], &mem.list[at], (mem.count - at) * sizeof r);
  mem.list[at] = r;
  mem.count++;
  return OK;
}

int range_add(uint64_t start, uint64_t size, uint8_t kind, uint32_t device, int registered) {
  pthread_mutex_lock(&mem.lock);
  int e = insert((struct range){start, size, kind, (uint8_t)registered, 0, device});
  pthread_mutex_unlock(&mem.lock);
  return e;
}

static struct range *containing(uint64_t addr) {
  size_t at = slot(addr);
  if (!at) return NULL;
  struct range *r = &mem.list[at - 1];
  return addr - r->start < r->size || addr == r->start ? r : NULL;
}

int range_find(uint64_t addr, struct range *out) {
  pthread_mutex_lock(&mem.lock);
  struct range *r = containing(addr);
  if (r) *out = *r;
  pthread_mutex_unlock(&mem.lock);
  return r != NULL;
}

// range_remove forgets the range that starts exactly at start, and gives its memory back.
int range_remove(uint64_t start, struct range *out) {
  pthread_mutex_lock(&mem.lock);
  struct range *r = containing(start);
  int found = r && r->start == start;
  if (found) {
    *out = *r;
    size_t at = (size_t)(r - mem.list);
    memmove(r, r + 1, (mem.count - at - 1) * sizeof *r);
    mem.count--;
  }
  pthread_mutex_unlock(&mem.lock);
  if (found && out->mapped) munmap((void *)(uintptr_t)out->start, out->size);
  if (found && out->kind == RANGE_DEVICE) __atomic_fetch_sub(&sim.dev[out->device].used, out->size, __ATOMIC_RELAXED);
  return found;
}

// device_alloc hands out addresses of the device's span and never the same twice, until the span is used up.
int device_alloc(struct sim_device *d, size_t bytes, uint64_t *ptr) {
  uint64_t size = (bytes + 511) & ~511ull;
  if (!bytes) return E_INVALID_VALUE;
  pthread_mutex_lock(&mem.lock);
  int e = reserve();
  if (!e && (size > sim.cfg.memory || d->used + size > sim.cfg.memory)) e = E_OUT_OF_MEMORY;
  if (!e) {
    if (d->next_va + size > device_span) d->next_va = 0;
    *ptr = mem.base + d->index * device_span + d->next_va;
    d->next_va += size;
    e = insert((struct range){*ptr, size, RANGE_DEVICE, 0, 0, d->index});
  }
  if (!e) __atomic_fetch_add(&d->used, size, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&mem.lock);
  return e;
}

// host_alloc maps real memory: pinned or managed. Pages cost nothing until the program touches them.
int host_alloc(size_t bytes, uint8_t kind, uint32_t device, void **ptr) {
  if (!bytes) return E_INVALID_VALUE;
  uint64_t size = (bytes + 4095) & ~4095ull;
  void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) return E_OUT_OF_MEMORY;
  pthread_mutex_lock(&mem.lock);
  int e = insert((struct range){(uint64_t)m, size, kind, 0, 1, device});
  pthread_mutex_unlock(&mem.lock);
  *ptr = m;
  return e;
}

uint8_t memory_kind(uint64_t addr) {
  if (mem.base && addr - mem.base < device_span * sim.cfg.devices) return RANGE_DEVICE;
  struct range r;
  return range_find(addr, &r) ? r.kind : RANGE_PAGEABLE;
}
