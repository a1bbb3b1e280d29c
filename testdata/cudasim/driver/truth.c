// The truth file: counters and records of everything that happened, written through a shared mapping.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include "sim.h"

static const uint64_t file_span = 16ull << 30, grow_step = 4u << 20; // bytes: mapped at most, added at a time
static const uint64_t chunk_bytes = TRUTH_CHUNK * sizeof(struct truth_record);

static struct {
  struct truth_header *head;
  char *names, *strings;
  int fd;
  uint64_t size, stripes_used;
  pthread_mutex_t lock;
} truth = {.fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t page_up(uint64_t n) { return (n + 4095) & ~4095ull; }

static void refuse(const char *path, const char *what) {
  fprintf(stderr, "cudasim: truth file %s: %s: %s\n", path, what, strerror(errno));
  _exit(2); // a test without its truth must not go on
}

// create_file makes PREFIX.PID, or PREFIX.PID.N where an earlier image of this process (exec) or another copy of this
// library in it has that name already.
static int create_file(const char *prefix, char *path, size_t room) {
  for (int n = 0; n < 100; n++) {
    if (n) snprintf(path, room, "%s.%d.%d", prefix, (int)getpid(), n);
    else snprintf(path, room, "%s.%d", prefix, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

static void lay_out(struct truth_header *h) {
  h->names_off = 4096;
  h->strings_off = page_up(h->names_off + TRUTH_NAMES * TRUTH_NAME_LEN);
  h->stripes_off = page_up(h->strings_off + TRUTH_STRINGS * TRUTH_STRING_LEN);
  h->stripe_size = page_up(sizeof(struct truth_stripe));
  h->records_off = h->stripes_off + h->stripe_size * TRUTH_STRIPES;
}

static uint32_t wanted_level(void) {
  const char *v = env_str("CUDASIM_TRUTH_LEVEL");
  if (!env_str("CUDASIM_TRUTH")) return LEVEL_OFF;
  if (!v || !strcmp(v, "calls")) return LEVEL_CALLS;
  if (!strcmp(v, "counts")) return LEVEL_COUNTS;
  if (!strcmp(v, "off")) return LEVEL_OFF;
  fprintf(stderr, "cudasim: CUDASIM_TRUTH_LEVEL=%s is none of calls, counts, off\n", v);
  _exit(2);
}

void truth_open(void) {
  sim.level = wanted_level();
  if (sim.level == LEVEL_OFF) return;
  char path[4096];
  struct truth_header h = {
      .version = TRUTH_VERSION, .pid = (uint32_t)getpid(), .start_ns = now_ns(), .level = sim.level, .shape = SHAPE};
  lay_out(&h);
  truth.fd = create_file(env_str("CUDASIM_TRUTH"), path, sizeof path);
  if (truth.fd < 0) refuse(path, "create");
  truth.size = h.records_off;
  if (ftruncate(truth.fd, (off_t)truth.size)) refuse(path, "grow");
  void *m = mmap(NULL, file_span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, truth.fd, 0);
  if (m == MAP_FAILED) refuse(path, "map");
  madvise(m, file_span, MADV_DONTFORK);
  truth.head = m;
  truth.names = (char *)m + h.names_off;
  truth.strings = (char *)m + h.strings_off;
  *truth.head = h;
  truth.head->string_count = 1;
  truth_register("libcuda", fn_names, FN_COUNT);
  memcpy(truth.head->magic, TRUTH_MAGIC, 8); // last: a reader that sees it sees a whole header
}

// remembered keeps what was registered, for the file of a forked child.
static struct {
  const char *owner;
  const char *const *names;
  uint32_t count, base;
} remembered[8];
static uint32_t remembered_count, next_name;

static void write_names(uint32_t base, const char *const *names, uint32_t count) {
  if (!truth.head) return;
  for (uint32_t i = 0; i < count; i++)
    snprintf(truth.names + (size_t)(base + i) * TRUTH_NAME_LEN, TRUTH_NAME_LEN, "%s", names[i]);
  truth.head->name_count = base + count;
}

uint32_t truth_register(const char *owner, const char *const *names, uint32_t count) {
  pthread_mutex_lock(&truth.lock);
  uint32_t base = 0, i;
  for (i = 0; i < remembered_count && strcmp(remembered[i].owner, owner); i++) {}
  if (i < remembered_count) base = remembered[i].base;
  else if (i < 8 && next_name + count <= TRUTH_NAMES) {
    base = next_name;
    next_name += count;
    remembered[remembered_count].owner = owner;
    remembered[remembered_count].names = names;
    remembered[remembered_count].count = count;
    remembered[remembered_count++].base = base;
  }
  write_names(base, names, count);
  if (truth.head) truth.head->name_count = next_name;
  pthread_mutex_unlock(&truth.lock);
  return base;
}

// strings_kept are the kernel names in the order of their ids; they outlive the file of one process.
static char *strings_kept[TRUTH_STRINGS];
static uint32_t strings_count = 1;

static void write_string(uint32_t id) {
  if (!truth.head) return;
  snprintf(truth.strings + (size_t)id * TRUTH_STRING_LEN, TRUTH_STRING_LEN, "%s", strings_kept[id]);
  truth.head->string_count = strings_count;
}

uint32_t truth_string(const char *s) {
  pthread_mutex_lock(&truth.lock);
  uint32_t id = 1;
  while (id < strings_count && strcmp(strings_kept[id], s)) id++;
  if (id == strings_count && id < TRUTH_STRINGS) {
    strings_kept[id] = strdup(s);
    strings_count++;
    write_string(id);
  }
  pthread_mutex_unlock(&truth.lock);
  return id < TRUTH_STRINGS ? id : 0;
}

const char *truth_string_of(uint32_t id) { return id && id < strings_count ? strings_kept[id] : NULL; }

void truth_after_fork(void) {
  pthread_mutex_init(&truth.lock, NULL);
  if (truth.fd >= 0) close(truth.fd); // the mapping itself stayed with the parent
  truth.fd = -1;
  truth.head = NULL;
  truth.stripes_used = 0;
  truth_open();
  for (uint32_t i = 0; i < remembered_count; i++)
    write_names(remembered[i].base, remembered[i].names, remembered[i].count);
  for (uint32_t i = 1; i < strings_count; i++) write_string(i);
}

void truth_thread(struct sim_thread *t) {
  t->stripe = NULL;
  t->chunk = NULL;
  t->chunk_left = 0;
  if (!truth.head) return;
  uint64_t n = __atomic_fetch_add(&truth.stripes_used, 1, __ATOMIC_RELAXED);
  t->shared_stripe = n >= TRUTH_STRIPES - 1;
  if (t->shared_stripe) n = TRUTH_STRIPES - 1;
  t->stripe = (void *)((char *)truth.head + truth.head->stripes_off + n * truth.head->stripe_size);
}

// next_chunk gives the thread room for more records, growing the file; 0 when there is none left.
static int next_chunk(struct sim_thread *t) {
  uint64_t n = __atomic_fetch_add(&truth.head->chunks, 1, __ATOMIC_RELAXED);
  uint64_t from = truth.head->records_off + n * chunk_bytes, to = from + chunk_bytes;
  int ok = to <= file_span;
  if (ok && to > __atomic_load_n(&truth.size, __ATOMIC_ACQUIRE)) {
    pthread_mutex_lock(&truth.lock);
    if (to > truth.size) {
      uint64_t size = (to + grow_step) / grow_step * grow_step;
      if (size > file_span) size = file_span;
      ok = ftruncate(truth.fd, (off_t)size) == 0;
      if (ok) __atomic_store_n(&truth.size, size, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&truth.lock);
  }
  if (!ok) return 0;
  t->chunk = (void *)((char *)truth.head + from);
  t->chunk_left = TRUTH_CHUNK;
  return 1;
}

static struct truth_record *next_record(struct sim_thread *t) {
  if (!truth.head) return NULL;
  if (!t->chunk_left && !next_chunk(t)) {
    __atomic_fetch_add(&truth.head->dropped, 1, __ATOMIC_RELAXED);
    return NULL;
  }
  t->chunk_left--;
  return t->chunk++;
}

void truth_call(const struct sim_call *c, uint64_t exit_ns) {
  struct sim_thread *t = &tls;
  struct truth_record *r = next_record(t);
  if (!r) return;
  r->fn = c->fn, r->tid = t->tid, r->depth = c->depth;
  r->t0 = c->enter, r->t1 = exit_ns, r->id = c->id, r->parent = c->parent;
  r->stream = c->stream, r->aux = c->stream_id, r->bytes = c->bytes, r->ptr = c->ptr, r->ptr2 = c->ptr2;
  memcpy(r->grid, c->grid, sizeof r->grid);
  memcpy(r->block, c->block, sizeof r->block);
  r->shared = c->shared, r->result = c->result, r->kind = c->kind, r->name = c->name;
  __atomic_store_n(&r->type, REC_CALL, __ATOMIC_RELEASE);
}

static void op_record(const struct sim_op *op, struct sim_thread *t) {
  struct truth_record *r = next_record(t);
  if (!r) return;
  r->fn = op->kind, r->tid = t->tid, r->depth = op->engine;
  r->t0 = op->start, r->t1 = op->end, r->id = op->call_id, r->parent = op->parent;
  r->stream = op->stream_id, r->aux = op->submit, r->bytes = op->bytes, r->ptr = op->dst, r->ptr2 = op->src;
  memcpy(r->grid, op->grid, sizeof r->grid);
  memcpy(r->block, op->block, sizeof r->block);
  r->shared = op->shared, r->kind = op->copy_kind, r->name = op->name_id, r->result = (int32_t)op->device;
  __atomic_store_n(&r->type, REC_OP, __ATOMIC_RELEASE);
}

void truth_op(const struct sim_op *op) {
  struct sim_thread *t = &tls;
  if (!t->stripe) return;
  bump(t, &t->stripe->ops[op->kind][0], 1);
  bump(t, &t->stripe->ops[op->kind][1], op->end - op->start);
  if (op->kind == OP_COPY) {
    bump(t, &t->stripe->copies[op->copy_kind][0], 1);
    bump(t, &t->stripe->copies[op->copy_kind][1], op->bytes);
  }
  if (sim.level == LEVEL_CALLS) op_record(op, t);
}
