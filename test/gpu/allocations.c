// SPDX-License-Identifier: Apache-2.0
// Whose are the blocks of malloc that a program holds? Preloaded (LD_PRELOAD), it counts live bytes and blocks by the
// library whose code called malloc, in a file that others map (ALLOCATIONS_FILE). Test support of memory_check.py, and
// of nothing else.
//
//   cc -O2 -shared -fPIC -o allocations.so allocations.c        glibc 2.35 or newer (_dl_find_object)
//
// Each block has 16 bytes before it: what glibc's malloc returned, its size, its owner. Blocks without them, which were
// there before, go to glibc as they are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { OWNERS = 256, NAME = 104 };
#define MAGIC 0xa110c8edu

struct owner { // 128 bytes, as memory_check.py reads them
  char name[NAME];
  _Atomic int64_t bytes, blocks, made;
};
struct header {
  uint32_t magic;
  uint16_t owner, back; // back: 16-byte steps from the block to what glibc returned
  uint64_t size;
};
_Static_assert(sizeof(struct owner) == 128 && sizeof(struct header) == 16, "layout");

static struct owner own[OWNERS], *owners = own;
static _Atomic(void *) keys[OWNERS];

// A child counts for itself, where nobody looks.
static void forked(void) { owners = own; }

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("ALLOCATIONS_FILE");
  // not the file of the program that started this one
  int fd = path ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
  if (fd < 0 || ftruncate(fd, sizeof own)) return;
  struct owner *to = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (to == MAP_FAILED) return;
  memcpy(to, own, sizeof own); // no other thread is there yet
  owners = to;
  pthread_atfork(NULL, NULL, forked);
}

static void name(struct owner *o, const char *path) {
  size_t n = strlen(path);
  if (!n) path = "the program", n = strlen(path);
  memcpy(o->name, n < NAME ? path : path + n - NAME + 1, n < NAME ? n : NAME - 1);
}

static uint16_t owner(void *caller) {
  struct dl_find_object found;
  void *map = (void *)1;
  const char *path = "unknown code";
  if (!_dl_find_object(caller, &found)) map = found.dlfo_link_map, path = found.dlfo_link_map->l_name;
  for (uint16_t i = 0; i < OWNERS - 1; i++) {
    void *key = atomic_load(&keys[i]);
    if (key == map) return i;
    if (!key && atomic_compare_exchange_strong(&keys[i], &key, map)) return name(&owners[i], path), i;
    if (key == map) return i;
  }
  return OWNERS - 1;
}

static void count(uint16_t owner, int64_t bytes, int blocks) {
  atomic_fetch_add(&owners[owner].bytes, bytes);
  atomic_fetch_add(&owners[owner].blocks, blocks);
  if (blocks > 0) atomic_fetch_add(&owners[owner].made, 1);
}

static void *block(size_t size, size_t align, void *caller) {
  size_t before = align > 16 ? align : 16;
  if (before > 16 * 65535u || size + before < size) return errno = ENOMEM, NULL;
  char *p = align > 16 ? __libc_memalign(align, size + before) : __libc_malloc(size + before);
  if (!p) return NULL;
  struct header *h = (struct header *)(p + before) - 1;
  *h = (struct header){MAGIC, owner(caller), (uint16_t)(before / 16), size};
  count(h->owner, (int64_t)size, 1);
  return p + before;
}

static struct header *of(void *p) {
  struct header *h = (struct header *)p - 1;
  return h->magic == MAGIC ? h : NULL;
}

#define CALLER __builtin_return_address(0)
void *malloc(size_t size) { return block(size, 0, CALLER); }

void free(void *p) {
  if (!p) return;
  struct header *h = of(p);
  if (!h) return __libc_free(p);
  count(h->owner, -(int64_t)h->size, -1);
  h->magic = 0;
  __libc_free((char *)p - 16 * (size_t)h->back);
}

void *calloc(size_t n, size_t size) {
  size_t all;
  if (__builtin_mul_overflow(n, size, &all)) return errno = ENOMEM, NULL;
  void *p = block(all, 0, CALLER);
  return p ? memset(p, 0, all) : NULL;
}

void *realloc(void *old, size_t size) {
  struct header *h = old ? of(old) : NULL;
  if (old && !size) return free(old), NULL;
  void *p = block(size, 0, CALLER);
  if (!p || !old) return p;
  size_t had = h ? h->size : size; // of one that was there before: nobody knows how long it is, and there is none such
  memcpy(p, old, had < size ? had : size);
  free(old);
  return p;
}

void *memalign(size_t align, size_t size) { return block(size, align, CALLER); }
void *aligned_alloc(size_t align, size_t size) { return block(size, align, CALLER); }
void *valloc(size_t size) { return block(size, (size_t)sysconf(_SC_PAGESIZE), CALLER); }

int posix_memalign(void **to, size_t align, size_t size) {
  if (align % sizeof(void *) || !align || align & (align - 1)) return EINVAL;
  void *p = block(size, align, CALLER);
  return p ? (*to = p, 0) : ENOMEM;
}

void *reallocarray(void *old, size_t n, size_t size) {
  size_t all;
  if (__builtin_mul_overflow(n, size, &all)) return errno = ENOMEM, NULL;
  return realloc(old, all);
}

size_t malloc_usable_size(void *p) { return p && of(p) ? of(p)->size : 0; }
