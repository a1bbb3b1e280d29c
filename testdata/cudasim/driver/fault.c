// Faults on request: CUDASIM_FAIL and CUDASIM_SLOW, both lists of NAME:NTH:VALUE separated by commas.
#include <stdio.h>
#include <unistd.h>
#include "sim.h"

enum { MAX_FAULTS = 32 };

static struct fault {
  uint32_t fn;
  uint64_t nth, value, seen; // nth 0: every call
  int slow;
} faults[MAX_FAULTS];
static int fault_count;

static uint32_t fn_by_name(const char *name, size_t len) {
  for (uint32_t i = 1; i < FN_COUNT; i++)
    if (strlen(fn_names[i]) == len && !memcmp(fn_names[i], name, len)) return i;
  return 0;
}

static void bad(const char *var, const char *item) {
  fprintf(stderr, "cudasim: %s: \"%s\" is not NAME:NTH:VALUE with a driver function's name and NTH a number or *\n",
      var, item);
  _exit(2);
}

static void parse_one(const char *var, char *item, int slow) {
  char *colon = strchr(item, ':'), *end;
  if (!colon || fault_count == MAX_FAULTS) bad(var, item);
  struct fault f = {.fn = fn_by_name(item, (size_t)(colon - item)), .slow = slow};
  if (colon[1] == '*') end = colon + 2;
  else f.nth = strtoull(colon + 1, &end, 10);
  if (!f.fn || *end != ':') bad(var, item);
  f.value = strtoull(end + 1, &end, 10);
  if (*end) bad(var, item);
  faults[fault_count++] = f;
}

static void parse(const char *var, int slow) {
  const char *v = env_str(var);
  if (!v) return;
  char *copy = strdup(v), *save = NULL;
  for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) parse_one(var, item, slow);
  free(copy);
}

void fault_load(void) {
  parse("CUDASIM_FAIL", 0);
  parse("CUDASIM_SLOW", 1);
  sim.cfg.call_fault = fault_count > 0;
}

int fault_enter(struct sim_call *c) {
  int result = 0;
  for (int i = 0; i < fault_count; i++) {
    struct fault *f = &faults[i];
    if (f->fn != c->fn) continue;
    uint64_t n = __atomic_add_fetch(&f->seen, 1, __ATOMIC_RELAXED);
    if (f->nth && n != f->nth) continue;
    if (f->slow) spin_ns(f->value);
    else result = (int)f->value;
  }
  return result;
}
