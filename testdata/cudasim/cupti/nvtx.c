// NVTX: the library that NVTX_INJECTION64_PATH names is given pointers to the program's NVTX functions, and puts its
// own there. Ranges and marks become marker records while that kind is on, as with the real library. Names and numbers
// are those of NVTX 3 (nvtxTypes.h, nvToolsExt.h); domains, registered strings and wide characters are left alone.
#include <unistd.h>
#include "cupti.h"

enum { TABLE_CALLBACKS = 1, MODULE_CORE = 1 };
enum { MARK_EX = 1, MARK_A = 2, START_EX = 4, START_A = 5, RANGE_END = 7, PUSH_EX = 8, PUSH_A = 9, POP = 11 };
enum {
  FLAG_INSTANT = 1, FLAG_START = 2, FLAG_END = 4, OBJECT_THREAD = 2, MESSAGE_ASCII = 1, DEEPEST = 256, NAMES = 1024
};

typedef void (*function)(void);
struct callbacks { // NvtxExportTableCallbacks
  size_t size;
  int (*functions)(int module, function ***table, unsigned *count);
};

struct attributes { // nvtxEventAttributes_t
  uint16_t version, size;
  uint32_t category, color_type, color, payload_type, reserved;
  uint64_t payload;
  uint32_t message_type;
  const char *message;
};
_Static_assert(
    offsetof(struct attributes, message_type) == 32 && offsetof(struct attributes, message) == 40, "event attributes");

struct marker_record { // CUpti_ActivityMarker2
  uint32_t kind, flags;
  uint64_t time;
  uint32_t id, object, pid, tid, rest, pad;
  const char *name, *domain;
};
_Static_assert(offsetof(struct marker_record, pid) == 24 && offsetof(struct marker_record, name) == 40 &&
        sizeof(struct marker_record) == 56,
    "marker record layout");

static uint32_t last_id;
static __thread uint32_t open_ids[DEEPEST];
static __thread int depth;

// keep returns a copy of a name that stays for ever: a record has a pointer only.
static const char *keep(const char *name) {
  static const char *names[NAMES];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  int i = 0;
  pthread_mutex_lock(&lock);
  while (i < NAMES && names[i] && strcmp(names[i], name)) i++;
  if (i < NAMES && !names[i]) names[i] = strdup(name);
  const char *kept = i < NAMES ? names[i] : "too many names";
  pthread_mutex_unlock(&lock);
  return kept;
}

static void marker(uint32_t flags, uint32_t id, const char *name) {
  if (!cupti.kind[KIND_MARKER]) return;
  struct marker_record m = {.kind = KIND_MARKER,
      .flags = flags, .time = cupti_time(cupti.hooks->now()), .id = id, .object = OBJECT_THREAD,
      .pid = (uint32_t)getpid(), .tid = (uint32_t)gettid(),
      .name = name ? keep(name) : NULL};
  struct record r = {.kind = KIND_MARKER, .size = sizeof m};
  memcpy(r.bytes, &m, sizeof m);
  activity_record(&r);
}

static uint32_t next_id(void) { return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED); }
static const char *text(const struct attributes *a) {
  return a && a->message_type == MESSAGE_ASCII && a->message ? a->message : "";
}

static void mark_a(const char *name) { marker(FLAG_INSTANT, next_id(), name); }
static void mark_ex(const struct attributes *a) { mark_a(text(a)); }

static int push_a(const char *name) {
  uint32_t id = next_id();
  if (depth < DEEPEST) open_ids[depth] = id;
  marker(FLAG_START, id, name);
  return depth++;
}
static int push_ex(const struct attributes *a) { return push_a(text(a)); }

static int pop(void) {
  if (!depth) return -2;
  if (--depth < DEEPEST) marker(FLAG_END, open_ids[depth], NULL);
  return depth;
}

static uint64_t start_a(const char *name) {
  uint32_t id = next_id();
  marker(FLAG_START, id, name);
  return id;
}
static uint64_t start_ex(const struct attributes *a) { return start_a(text(a)); }
static void range_end(uint64_t id) { marker(FLAG_END, (uint32_t)id, NULL); }

// InitializeInjectionNvtx2 is what NVTX calls at the program's first NVTX call; 1 is success.
EXPORT int InitializeInjectionNvtx2(const void *(*table)(uint32_t)) {
  static const struct {
    unsigned id;
    function f;
  } mine[] = {{MARK_EX, (function)mark_ex}, {MARK_A, (function)mark_a}, {START_EX, (function)start_ex},
      {START_A, (function)start_a}, {RANGE_END, (function)range_end}, {PUSH_EX, (function)push_ex},
      {PUSH_A, (function)push_a}, {POP, (function)pop}};
  const struct callbacks *c = table ? table(TABLE_CALLBACKS) : NULL;
  function **theirs = NULL;
  unsigned count = 0;
  if (!c || c->size < sizeof *c || !c->functions(MODULE_CORE, &theirs, &count)) return 0;
  for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
    if (mine[i].id < count && theirs[mine[i].id]) *theirs[mine[i].id] = mine[i].f;
  return 1;
}
