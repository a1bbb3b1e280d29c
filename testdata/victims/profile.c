// The victim as its own profiler: CUPTI calls one by one, each result printed, for tests of the simulated CUPTI and of
// programs that must get along with a profiler.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "victim.h"

static struct {
  int (*subscribe)(void **, void *, void *), (*unsubscribe)(void *), (*callback)(uint32_t, void *, int, uint32_t);
  int (*buffers)(void *, void *), (*clock)(uint64_t (*)(void)), (*enable)(uint32_t), (*disable)(uint32_t),
      (*flush)(uint32_t);
  int (*next)(uint8_t *, size_t, void **), (*dropped)(void *, uint32_t, size_t *), (*finalize)(void);
} cp;

static void *subscriber;
static int at_exit; // 1: disable, flush and finalize at the next callback exit; 2: finalize only
static uint64_t enters, exits, lost, records;
static FILE *dump;

static void load(void) {
  static const struct {
    const char *name;
    size_t at;
  } names[] = {
#define N(field, name) {name, offsetof(__typeof__(cp), field)}
      N(subscribe, "cuptiSubscribe"),
      N(unsubscribe, "cuptiUnsubscribe"),
      N(callback, "cuptiEnableCallback"),
      N(buffers, "cuptiActivityRegisterCallbacks"),
      N(clock, "cuptiActivityRegisterTimestampCallback"),
      N(enable, "cuptiActivityEnable"),
      N(disable, "cuptiActivityDisable"),
      N(flush, "cuptiActivityFlushAll"),
      N(next, "cuptiActivityGetNextRecord"),
      N(dropped, "cuptiActivityGetNumDroppedRecords"),
      N(finalize, "cuptiFinalize"),
  };
  if (cp.subscribe) return;
  const char *file = getenv("VICTIM_CUPTI");
  void *h = dlopen(file ? file : "libcupti.so.13", RTLD_NOW);
  if (!h) die("%s", dlerror());
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    *(void **)((char *)&cp + names[i].at) = dlsym(h, names[i].name);
}

static void request_too(uint8_t **buffer, size_t *size, size_t *max);
static void request(uint8_t **buffer, size_t *size, size_t *max) {
  *size = 64 << 10;
  *buffer = aligned_alloc(8, *size);
  *max = 0;
}

// request_too is another profiler's function, which does the same.
static void request_too(uint8_t **buffer, size_t *size, size_t *max) { request(buffer, size, max); }

static uint32_t u32(const uint8_t *r, size_t at) {
  uint32_t v;
  memcpy(&v, r + at, sizeof v);
  return v;
}

static unsigned long long u64(const uint8_t *r, size_t at) {
  uint64_t v;
  memcpy(&v, r + at, sizeof v);
  return v;
}

static void print_record(const uint8_t *r) {
  uint32_t kind = u32(r, 0);
  const char *name;
  memcpy(&name, r + 104, sizeof name);
  if (kind == 10 || kind == 3)
    fprintf(dump, "kernel %u %llu %llu %u %u %u %s %u %llu %u\n", u32(r, 92), u64(r, 16), u64(r, 24), u32(r, 48),
        u32(r, 52), u32(r, 64), name, u32(r, 156), u64(r, 144), u32(r, 44));
  else if (kind == 1)
    fprintf(dump, "memcpy %u %llu %llu %u %llu %u\n", u32(r, 44), u64(r, 16), u64(r, 24), u32(r, 40), u64(r, 8), r[4]);
  else if (kind == 2)
    fprintf(dump, "memset %u %llu %llu %u %llu\n", u32(r, 44), u64(r, 16), u64(r, 24), u32(r, 40), u64(r, 8));
  else if (kind == 38)
    fprintf(dump, "sync %u %llu %llu %u\n", u32(r, 24), u64(r, 8), u64(r, 16), u32(r, 4));
  else if (kind == 22)
    fprintf(dump, "peer %u %llu %llu %u %llu %u %u %u %u\n", u32(r, 60), u64(r, 16), u64(r, 24), u32(r, 40), u64(r, 8),
        u32(r, 44), u32(r, 48), u32(r, 52), u32(r, 56));
  else if (kind == 17)
    fprintf(dump, "overhead %u %llu %llu %u\n", u32(r, 4), u64(r, 24), u64(r, 32), u32(r, 16));
  else if (kind == 8)
    fprintf(dump, "device %u %u %u %u %llu\n", u32(r, 112), u32(r, 44), u32(r, 104), u32(r, 108), u64(r, 16));
  else if (kind == 9)
    fprintf(dump, "context %u %u\n", u32(r, 4), u32(r, 8));
  else if (kind == 37)
    fprintf(dump, "stream %u %u %u\n", u32(r, 8), u32(r, 4), u32(r, 16));
}

static void complete(void *ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)ctx, (void)stream, (void)size;
  size_t d = 0;
  for (void *r = NULL; cp.next(buffer, valid, &r) == 0; records++) print_record(r);
  cp.dropped(NULL, 0, &d);
  lost += d;
  free(buffer);
}

// last is what the newest entry callback brought.
static struct {
  char function[64], symbol[64];
  uint64_t words[8];
  uint32_t correlation;
} last;

struct callback_data { // CUpti_CallbackData
  int site;
  const char *function;
  const void *params;
  void *result;
  const char *symbol;
  void *context;
  uint32_t context_uid;
  uint64_t *correlation_data;
  uint32_t correlation_id;
};

static void remember(const struct callback_data *d) {
  size_t words = strstr(d->function, "LaunchKernel") || strstr(d->function, "Cooperative") ? 8
      : strstr(d->function, "Async")                                                       ? 4
                                                                                           : 1;
  snprintf(last.function, sizeof last.function, "%s", d->function);
  snprintf(last.symbol, sizeof last.symbol, "%s", d->symbol ? d->symbol : "-");
  memset(last.words, 0, sizeof last.words);
  if (strstr(d->function, "LaunchKernelEx") || strstr(d->function, "GraphLaunch")) words = 2;
  if (d->params) memcpy(last.words, d->params, words * 8);
  last.correlation = d->correlation_id;
}

static void show_last(void) {
  printf("cupti last %s %s %u", last.function, last.symbol, last.correlation);
  for (int i = 0; i < 8; i++) printf(" %llx", (unsigned long long)last.words[i]);
  puts("");
}

static void finish(void) {
  static const uint32_t kinds[] = {10, 1, 2, 38, 22, 17};
  for (int i = 0; at_exit == 1 && i < 6; i++) cp.disable(kinds[i]);
  if (at_exit == 1) cp.flush(1);
  at_exit = 0;
  cp.unsubscribe(subscriber);
  printf("cupti finalize-at-exit %d\n", cp.finalize());
}

static void on_api(void *user, int domain, uint32_t id, const void *data) {
  (void)user, (void)domain, (void)id;
  if (*(const int *)data == 0) {
    enters++;
    remember(data);
    return;
  }
  exits++;
  if (at_exit) finish();
}

static void show(void) {
  fflush(dump);
  printf("cupti records=%llu lost=%llu enters=%llu exits=%llu\n", (unsigned long long)records, (unsigned long long)lost,
      (unsigned long long)enters, (unsigned long long)exits);
}

static int run(const char *what, const char *argument) {
  uint32_t n = argument ? (uint32_t)strtoul(argument, NULL, 10) : 0;
  if (!strcmp(what, "subscribe")) return cp.subscribe(&subscriber, (void *)on_api, NULL);
  if (!strcmp(what, "unsubscribe")) return cp.unsubscribe(subscriber);
  if (!strcmp(what, "buffers")) return cp.buffers((void *)request, (void *)complete);
  if (!strcmp(what, "take-over")) return cp.buffers((void *)request_too, (void *)complete);
  if (!strcmp(what, "clock")) return cp.clock(now_ns);
  if (!strcmp(what, "enable")) return cp.enable(n);
  if (!strcmp(what, "disable")) return cp.disable(n);
  if (!strcmp(what, "callback")) return cp.callback(1, subscriber, 1, n);
  if (!strcmp(what, "flush")) return cp.flush(0);
  if (!strcmp(what, "finalize")) return cp.finalize();
  if (!strcmp(what, "finalize-at-exit")) return at_exit = argument && !strcmp(argument, "bare") ? 2 : 1, 0;
  die("cupti %s is unknown", what);
}

void profile_command(const char *what, const char *argument) {
  if (!what) die("cupti wants to know what to do");
  load();
  if (!dump) dump = getenv("VICTIM_RECORDS") ? fopen(getenv("VICTIM_RECORDS"), "w") : fopen("/dev/null", "w");
  if (!dump) die("cannot open the file of VICTIM_RECORDS");
  if (!strcmp(what, "dump")) show();
  else if (!strcmp(what, "last")) show_last();
  else if (!strcmp(what, "map")) puts("cupti map 0"); // it is mapped, and not used
  else printf("cupti %s %d\n", what, run(what, argument));
}
